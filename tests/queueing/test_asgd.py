"""The network of a training job has the demands that its profile says, and no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model.cluster import Cluster
from asgd_model.profile import SERVER, WORKER, Calibration, Profile
from asgd_model.queueing import ClosedNetwork, exact_mva
from asgd_model.queueing.asgd import network, predict


def demands(model: ClosedNetwork) -> dict[str, float | dict[str, float]]:
    """Demand of each station by name; by class if there are several."""
    return {station.name: station.demand for station in model.stations}


def only(model: ClosedNetwork) -> dict[str, float]:
    """Demand of each station by name in a network of one class."""
    return {name: demand["worker"] for name, demand in demands(model).items()}  # type: ignore[index]


def calibrated(profile: Profile, **values: object) -> Profile:
    known = profile.metadata.calibration.model_copy(update=values)
    return replace(profile, metadata=profile.metadata.model_copy(update={"calibration": known}))


def test_demands_by_hand(small: Profile) -> None:
    """4 MB each way at 1 MB/s; work of 2.5 and 3 s, 0.2 and 0.24 s; CPU for bytes and tensors."""
    found = only(network(small, Cluster.like(small, 3)))
    assert found == pytest.approx(
        {
            "server 0 send": 4.0,
            "server 0 receive": 4.0,
            "server 0 CPU": 0.22 + (3e-8 * 4e6 + 2 * 0.003) + (4e-8 * 4e6 + 2 * 0.004),
            "worker": 2.75 + (1e-8 * 4e6 + 2 * 0.001) + (2e-8 * 4e6 + 2 * 0.002),
        }
    )
    kinds = [station.kind for station in network(small, Cluster.like(small)).stations]
    assert kinds == ["ps", "ps", "ps", "delay"]


def test_demands_follow_the_cluster(small: Profile) -> None:
    """Faster links and slower CPUs act on what they carry."""
    plain = only(network(small, Cluster.like(small)))
    changed = Cluster.like(small, bandwidth=16e6, worker_cores=0.25, server_cores=0.5)
    found = only(network(small, changed))
    assert found["server 0 send"] == pytest.approx(plain["server 0 send"] / 2)
    assert found["server 0 receive"] == pytest.approx(plain["server 0 receive"] / 2)
    assert found["worker"] == pytest.approx(plain["worker"] * 4)
    assert found["server 0 CPU"] == pytest.approx(plain["server 0 CPU"] * 2)


def test_cores_beyond_the_threads_are_idle(small: Profile) -> None:
    """A node computes as many operations at a time as it has threads."""
    plain = only(network(small, Cluster.like(small)))
    assert only(network(small, Cluster.like(small, worker_cores=8, server_cores=8))) == plain


def test_tracing_overhead_is_taken_off_the_work(small: Profile) -> None:
    """Only computations were slowed by tracing: neither links nor the cost of communication."""
    plain = only(network(small, Cluster.like(small)))
    traced = calibrated(small, tracing_overhead=0.1)
    found = only(network(traced, Cluster.like(traced)))
    assert found["worker"] == pytest.approx(plain["worker"] - 2.75 + 2.5)
    assert found["server 0 CPU"] == pytest.approx(plain["server 0 CPU"] - 0.22 + 0.2)
    assert found["server 0 send"] == plain["server 0 send"]


def test_demands_of_two_servers(small: Profile) -> None:
    """The variable of 1 MB is on the first, that of 3 MB on the second; each has its stations."""
    one = only(network(small, Cluster.like(small)))
    two = only(network(small, Cluster.like(small, 1, 2)))
    assert two["server 0 send"] == pytest.approx(1.0)
    assert two["server 1 receive"] == pytest.approx(3.0)
    assert two["server 0 CPU"] == pytest.approx(0.11 + 7e-8 * 1e6 + 0.007)
    assert two["server 1 CPU"] == pytest.approx(0.11 + 7e-8 * 3e6 + 0.007)
    assert two["worker"] == pytest.approx(one["worker"])


def test_one_class_per_kind_of_worker(small: Profile) -> None:
    """Equal workers share a class, wherever they stand; a transfer is as fast as its slower end."""
    cluster = Cluster.like(small, 3)
    fast = cluster.workers[0]
    slow = replace(fast, cores=0.5, uplink=2e6)
    mixed = replace(cluster, workers=(fast, slow, fast))
    model = network(small, mixed)
    assert dict(zip(model.classes, model.population.tolist(), strict=True)) == {
        "worker type 0": 2,
        "worker type 1": 1,
    }
    plain = only(network(small, cluster))
    found = demands(model)
    assert found["server 0 send"] == {"worker type 0": 4.0, "worker type 1": 4.0}
    assert found["server 0 receive"] == {"worker type 0": 4.0, "worker type 1": 16.0}
    assert found["worker"] == pytest.approx(
        {"worker type 0": plain["worker"], "worker type 1": 2 * plain["worker"]}
    )
    equal = network(small, cluster)
    assert equal.population.tolist() == [3]


@pytest.fixture(scope="module")
def balanced(small: Profile) -> Profile:
    """Links and server CPU need 4 s each, the worker nothing; communication is free."""
    work = np.zeros_like(small.work)
    work[:, small.resources == SERVER] = 1.0
    assert (work[:, small.resources == WORKER] == 0).all()
    return calibrated(replace(small, work=work), **{name: value for name, value in Calibration()})


@given(workers=st.integers(1, 500))
@settings(max_examples=30, deadline=None)
def test_balanced_network(balanced: Profile, workers: int) -> None:
    """Three equal stations and no delay: N / ((N + 2) D) (Lazowska et al. 1984, section 5.4)."""
    cluster = Cluster.like(balanced, workers)
    assert only(network(balanced, cluster))["server 0 CPU"] == pytest.approx(4.0)
    (found,) = predict(balanced, [cluster])["steps_per_s"]
    assert found == pytest.approx(workers / ((workers + 2) * 4.0))


def test_predict(small: Profile) -> None:
    """A row per cluster in the order given, between its bounds, without a look at measurements."""
    sizes = [1, 16, 2]
    clusters = [Cluster.like(small, size) for size in sizes]
    table = predict(small, clusters)
    assert table["workers"].tolist() == sizes
    assert table["steps_per_s"].tolist() == pytest.approx(
        [exact_mva(network(small, cluster)).total_throughput for cluster in clusters]
    )
    tolerance = 1 + 1e-9
    assert (table["bound_low"] <= table["steps_per_s"] * tolerance).all()
    assert (table["steps_per_s"] <= table["bound_high"] * tolerance).all()
    assert table["steps_per_s"][0] == pytest.approx(1 / (8.0 + 0.514 + 2.876))
    assert table["bound_high"][1] == pytest.approx(1 / 4.0)
    assert table[["steps_per_s_low", "steps_per_s_high"]].isna().all(axis=None)
    assert set(table["sees"]) == {"profile of one worker"}
    runs = pd.DataFrame({"workers": [1], "parameter_servers": [1], "steps_per_s": [9.0]})
    pd.testing.assert_frame_equal(predict(small, clusters, runs), table)


def test_predict_nothing(small: Profile) -> None:
    """No clusters, no rows, the same columns."""
    empty = predict(small, [])
    assert len(empty) == 0
    assert list(empty) == list(predict(small, [Cluster.like(small)]))


def test_slower_worker_lowers_the_throughput(small: Profile) -> None:
    """A network of two classes has less throughput than one of its faster class alone."""
    equal = Cluster.like(small, 4)
    node = equal.workers[0]
    mixed = replace(equal, workers=(*equal.workers[:3], replace(node, cores=0.1)))
    fast, slow = predict(small, [equal, mixed])["steps_per_s"]
    assert slow < fast
