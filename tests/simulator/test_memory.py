"""Simulations that do not fit into memory are refused before they start."""

from __future__ import annotations

import pytest

from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.profile import Profile
from asgd_model.simulator import replicate, simulate
from asgd_model.simulator.engine import _new_state, lay_out
from asgd_model.simulator.memory import MEMORY_LIMIT, required_memory
from asgd_model.simulator.step_graph import compile_step_graph


@pytest.mark.parametrize(
    ("workers", "servers", "steps"), [(1_000_000, 64, 1), (10_000, 1_000_000, 1), (8, 1, 10**9)]
)
def test_what_does_not_fit_is_refused(
    small: Profile, workers: int, servers: int, steps: int
) -> None:
    """Before it takes any memory, and by name."""
    cluster = Cluster.like(small, workers, servers)
    for run in (simulate, replicate):
        with pytest.raises(InputError, match="GB; expected at most 8 GB of memory"):
            run(small, cluster, steps=steps, warm_up=0)


@pytest.mark.parametrize(("workers", "servers"), [(512, 1), (64, 16)])
def test_memory_is_as_estimated(alexnet: Profile, workers: int, servers: int) -> None:
    """The estimate is not less than the engine's arrays, nor more than three times that."""
    cluster = Cluster.like(alexnet, workers, servers)
    layout = lay_out([cluster])
    state = _new_state(layout, compile_step_graph(alexnet, cluster))
    arrays = [array for array in (*layout, *state) if hasattr(array, "nbytes")]
    taken = sum(array.nbytes for array in arrays)
    assert taken <= required_memory(cluster, alexnet.ops) <= 3 * taken
    assert required_memory(cluster, alexnet.ops) < MEMORY_LIMIT
