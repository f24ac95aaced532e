"""Exact methods visit every population vector: refuse what does not fit before it starts."""

from __future__ import annotations

import math

from asgd_model.errors import InputError
from asgd_model.queueing.network import ClosedNetwork

MEMORY_LIMIT = 2e9
"""Bytes that an exact method may take unless told otherwise."""


def population_vectors(network: ClosedNetwork) -> int:
    """Number of vectors from nobody to the full population: the product of the N_r + 1."""
    return math.prod(int(count) + 1 for count in network.population)


def require_memory(method: str, network: ClosedNetwork, numbers: int, limit: float) -> None:
    """Raise InputError if so many float64 numbers take more bytes than the limit."""
    needed = 8 * numbers
    states = population_vectors(network)
    if needed > limit:
        raise InputError(
            method,
            f"{states:,} population vectors, which take {needed / 1e9:,.3g} GB",
            f"at most {limit / 1e9:,.3g} GB; use linearizer or bard_schweitzer, whose memory does "
            "not grow with the population, or raise memory_limit",
        )
