"""How many updates of others a gradient misses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model.cluster import Cluster
from asgd_model.profile import Profile
from asgd_model.simulator import replicate, simulate, staleness_distribution

from .jobs import MB, Job, chain, cluster, node


def computation() -> Profile:
    """A step that only computes, for 1 s of a core."""
    job = Job()
    job.compute(1.0)
    return job.profile()


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_lockstep(workers: int):
    """Workers that start and end together miss one update of each other per step."""
    together = np.zeros(workers)
    result = simulate(computation(), cluster(workers), starts=together, stop_at_first=False)
    assert set(result.staleness()) == {workers - 1}


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_round_robin(workers: int):
    """Evenly spaced workers end once each between any worker's start and end."""
    result = simulate(computation(), cluster(workers), starts=np.arange(workers) / workers)
    assert set(result.staleness()) == {workers - 1}


def test_a_slow_worker():
    """While one worker computes for 4 s, the other ends four steps; that one misses 0 or 1.

    The fast one ends a step at each full second, the slow one at 4.5 s, 8.5 s to 40.5 s: it
    misses four updates, and each of its own is missed by one of the fast one's steps. The window
    from 4.5 s to 41 s has 9 ends of slow steps and 37 of fast ones, 10 of which hold a slow end.
    """
    workers = [node(), node(cores=0.25)]
    result = simulate(computation(), cluster(workers), steps=41, warm_up=1, starts=[0.0, 0.5])
    assert np.bincount(result.staleness()).tolist() == [27, 10, 0, 0, 9]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(0.3, 1.0), min_size=1, max_size=5),
    st.integers(0, 2),
    st.integers(0, 2**32 - 1),
)
def test_by_definition(cores: list[float], warm_up: int, seed: int):
    """The count agrees with one by one comparison of steps."""
    where = cluster([node(cores=number) for number in cores])
    result = simulate(chain(MB, 1.0, MB), where, steps=8, warm_up=warm_up, seed=seed)
    first, last = result.window
    frame = result.to_frame()
    expected = [
        int(
            (
                (frame["worker"] != step.worker)
                & (frame["end"] > step.start)
                & (frame["end"] <= step.end)
            ).sum()
        )
        for step in frame.itertuples()
        if first < step.end <= last
    ]
    assert result.staleness().tolist() == expected


def test_mean_is_that_of_equal_workers(alexnet: Profile):
    """In the long run each of W equal workers misses W - 1 updates per step, whatever the phases.

    Each update is missed by one gradient of every other worker; what the window cuts off at
    both ends is at most W - 1 per worker.
    """
    result = simulate(alexnet, Cluster.like(alexnet, 4), steps=200)
    missed = result.staleness()
    assert missed.mean() == pytest.approx(3.0, abs=4 * 3 / len(missed) + 1e-9)
    assert missed.std() > 0


def test_distribution():
    """Fractions of the steps in all windows together, apart for each number of workers."""
    profile = computation()
    results = [run for count in (1, 3) for run in replicate(profile, cluster(count), 3)]
    table = staleness_distribution(results)
    assert table["workers"].tolist() == [1, 3, 3, 3]
    assert table["staleness"].tolist() == [0, 0, 1, 2]
    assert table["fraction"].tolist() == [1.0, 0.0, 0.0, 1.0]
