"""The overlap-aware model: MVA where nothing overlaps, the step graph where something does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asgd_model.cluster import Cluster
from asgd_model.profile import Calibration, Profile
from asgd_model.queueing import bard_schweitzer
from asgd_model.queueing.asgd import network
from asgd_model.queueing.overlap import predict, solve_with_overlap
from asgd_model.simulator import simulate


@pytest.fixture(scope="module")
def chain(small: Profile) -> Profile:
    """The small job with its operations one after the other and no cost of communication."""
    metadata = small.metadata.model_copy(update={"calibration": Calibration()})
    before = tuple(np.arange(max(op - 1, 0), op, dtype=np.int32) for op in range(len(small.names)))
    work = np.broadcast_to(small.work.mean(axis=0), small.work.shape)
    return replace(small, dependencies=before, work=work, metadata=metadata)


@pytest.mark.parametrize("workers", [1, 2, 5, 40])
def test_without_overlap_it_is_approximate_mva(chain: Profile, workers: int) -> None:
    """A step whose parts follow each other has the throughput of Bard and Schweitzer."""
    cluster = Cluster.like(chain, workers)
    expected = bard_schweitzer(network(chain, cluster)).total_throughput
    assert solve_with_overlap(chain, cluster).total_throughput == pytest.approx(expected, rel=1e-3)


def test_two_kinds_of_worker_without_overlap(chain: Profile) -> None:
    """Classes wait for each other as in approximate MVA of two classes."""
    equal = Cluster.like(chain, 4)
    slow = replace(equal.workers[0], cores=0.3)
    mixed = replace(equal, workers=(*equal.workers[:3], slow))
    solution = solve_with_overlap(chain, mixed)
    expected = bard_schweitzer(network(chain, mixed))
    throughput = solution.network.population / solution.step_time
    assert throughput == pytest.approx(expected.throughput, rel=1e-3)


def test_one_worker_takes_its_simulated_step(small: Profile) -> None:
    """Nobody is in the way of a single worker."""
    cluster = Cluster.like(small)
    (found,) = predict(small, [cluster])["steps_per_s"]
    alone = simulate(small, cluster, steps=2 * small.steps + 1, warm_up=1).step_times.mean()
    assert 1.0 / found == pytest.approx(alone, rel=1e-6)


def test_overlap_makes_it_faster(small: Profile, chain: Profile) -> None:
    """The same demands bring more steps if some of them are met at the same time."""
    small = replace(small, work=chain.work, metadata=chain.metadata)
    for workers in (1, 2, 3):
        overlapped, serial = (
            solve_with_overlap(job, Cluster.like(job, workers)).total_throughput
            for job in (small, chain)
        )
        assert overlapped > 1.01 * serial


@pytest.mark.parametrize("servers", [1, 2])
def test_between_its_bounds(small: Profile, servers: int) -> None:
    """More workers bring more, up to what the busiest station can do."""
    table = predict(small, [Cluster.like(small, n, servers) for n in (1, 2, 4, 16, 256)])
    throughput = table["steps_per_s"].to_numpy()
    assert (table["bound_low"] <= throughput * (1 + 1e-3)).all()
    assert (throughput <= table["bound_high"] * (1 + 1e-3)).all()
    assert (np.diff(throughput) > 0).all()
    assert throughput[-1] == pytest.approx(table["bound_high"].iloc[-1], rel=0.02)


def test_littles_law_and_utilisation(small: Profile) -> None:
    """The table of stations agrees with the throughput: Q = X R, U = X D below 1."""
    solution = solve_with_overlap(small, Cluster.like(small, 6))
    stations = solution.per_station()
    rate = solution.total_throughput
    assert stations["queue_length"].to_numpy() == pytest.approx(rate * stations["residence_time"])
    assert stations["utilisation"].to_numpy() == pytest.approx(rate * stations["demand"])
    assert (stations["utilisation"] < 1.0).all()
    others = stations["queue_length"] * 5 / 6
    assert stations["slowdown"].to_numpy() == pytest.approx(1.0 + others, rel=1e-3)


def test_nothing_to_predict(small: Profile) -> None:
    """No clusters, no rows, the same columns."""
    empty = predict(small, [])
    assert len(empty) == 0
    assert list(empty) == list(predict(small, [Cluster.like(small)]))
