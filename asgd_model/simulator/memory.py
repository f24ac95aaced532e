"""A simulation that does not fit into memory is refused before it starts."""

from __future__ import annotations

from asgd_model.cluster import Cluster
from asgd_model.errors import InputError

MEMORY_LIMIT = 8e9
"""Bytes that a simulation may take, or several that run at the same time."""

_PER_SLOT = 560
_PER_OPERATION = 40
_PER_STEP = 40
"""Bytes of the engine's arrays for each slot (a connection in one direction, a thread, a
worker's timer), for each operation of each worker, and for each step of each worker."""


def required_memory(cluster: Cluster, ops: int, steps: int = 1) -> int:
    """Bytes that a simulation takes, about.

    Parameters
    ----------
    cluster : Cluster
        Where the job runs.
    ops : int
        Operations of a step.
    steps : int
        Steps of each worker.
    """
    workers, servers = len(cluster.workers), len(cluster.servers)
    threads = sum(node.threads for node in (*cluster.workers, *cluster.servers))
    slots = 2 * workers * servers + threads + workers
    return _PER_SLOT * slots + workers * (_PER_OPERATION * ops + _PER_STEP * steps)


def require_memory(cluster: Cluster, ops: int, steps: int = 1) -> None:
    """Raise InputError if a simulation takes more bytes than `MEMORY_LIMIT`."""
    needed = required_memory(cluster, ops, steps)
    if needed > MEMORY_LIMIT:
        workers, servers = len(cluster.workers), len(cluster.servers)
        found = f"{steps} steps of {workers} workers and {servers} servers, {needed / 1e9:.3g} GB"
        raise InputError("simulate", found, f"at most {MEMORY_LIMIT / 1e9:.3g} GB of memory")
