"""Agreement with exact MVA where the step graph is a chain.

With processor sharing everywhere, product form holds for any distribution of the work; random
computations keep the workers' phases apart.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from scipy import stats

from asgd_model.cluster import Cluster
from asgd_model.profile import SERVER, WORKER
from asgd_model.queueing import (
    ClosedNetwork,
    Station,
    delay,
    exact_mva,
    load_dependent,
    multi_server,
    ps,
)
from asgd_model.simulator import simulate

from .jobs import MB, chain, cluster, node

_rng = np.random.default_rng(1)
PROFILE = chain(
    download=MB,
    work=_rng.exponential(0.8, 1000),
    upload=3 * MB // 5,
    update=_rng.exponential(0.3, 1000),
)
COMPUTATION, UPDATE = PROFILE.mean_work(WORKER), PROFILE.mean_work(SERVER)
REPLICATIONS = 16

stations = {
    "downlink": ps("downlink", 1.0),
    "worker": delay("worker", COMPUTATION),
    "uplink": ps("uplink", 0.6),
    "server CPU": ps("server CPU", UPDATE),
}


def network(population: int | Mapping[str, int], **changed: Station) -> ClosedNetwork:
    return ClosedNetwork({**stations, **changed}.values(), population)


def throughput(cluster: Cluster, steps: int = 600) -> np.ndarray:
    """Steps/s of each worker in each replication, shape (replications, workers)."""
    rows = []
    for seed in range(REPLICATIONS):
        result = simulate(PROFILE, cluster, steps=steps, warm_up=20, seed=seed)
        first, last = result.window
        rows.append(((result.end > first) & (result.end <= last)).sum(axis=1) / (last - first))
    return np.array(rows)


def assert_agreement(replications: np.ndarray, expected: float) -> None:
    """The 99.9 % interval contains the expected value and is narrower than 2 % on both sides."""
    half = stats.t.ppf(0.9995, REPLICATIONS - 1) * stats.sem(replications)
    assert half < 0.02 * expected
    assert replications.mean() == pytest.approx(expected, abs=half)


@pytest.mark.parametrize("workers", [1, 2, 4, 16])
def test_equal_workers(workers):
    """Links and the server's CPU are processor-sharing stations, workers a delay."""
    found = throughput(cluster(workers, [node(threads=workers)])).sum(axis=1)
    assert_agreement(found, exact_mva(network(workers)).total_throughput)


def test_server_with_two_cores():
    """A CPU of two cores, one per operation at most, is a load-dependent station."""
    fast = {"down": 20 * MB, "threads": 8}
    stations = {
        "downlink": ps("downlink", 0.05),
        "uplink": ps("uplink", 0.03),
        "server CPU": multi_server("server CPU", UPDATE, servers=2),
    }
    found = throughput(cluster([node(**fast)] * 8, [node(cores=2.0, **fast)])).sum(axis=1)
    assert_agreement(found, exact_mva(network(8, **stations)).total_throughput)


def test_slow_links_of_the_workers():
    """A worker's link that carries half of the server's limits one worker, not two."""
    halves = {
        name: load_dependent(name, stations[name].demand, rates=[0.5, 1.0])
        for name in ("downlink", "uplink")
    }
    found = throughput(cluster([node(down=MB / 2)] * 4, [node(threads=8)])).sum(axis=1)
    assert_agreement(found, exact_mva(network(4, **halves)).total_throughput)


def test_two_types_of_workers():
    """Workers with slower CPUs are a class of their own."""
    slow = delay("worker", {"fast": COMPUTATION, "slow": 4 * COMPUTATION})
    solution = exact_mva(network({"fast": 2, "slow": 3}, worker=slow))
    workers = [node()] * 2 + [node(cores=0.25)] * 3
    found = throughput(cluster(workers, [node(threads=8)]), steps=1000)
    assert_agreement(found[:, :2].sum(axis=1), solution.throughput[0])
    assert_agreement(found[:, 2:].sum(axis=1), solution.throughput[1])
