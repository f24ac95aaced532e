"""Exact MVA against LINE's on the same networks, in one run, with the ratio of the two.

Numba compiles outside the timed part (it caches on disk); `test_compile_time` reports how long.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from line_solver import ClosedClass, Delay, Exp, Network, Queue, SchedStrategy, SolverMVA
from line_solver.api.pfqn import pfqn_mva, pfqn_mvald

from asgd_model.queueing import ClosedNetwork, delay, exact_mva, multi_server, ps

ONE_CLASS = ClosedNetwork(
    [ps("downlink", 0.04), ps("uplink", 0.04), ps("server CPU", 0.01), delay("worker", 0.5)],
    population=10_000,
)
THREE_CLASSES = ClosedNetwork(
    [
        ps("downlink", {"a": 0.04, "b": 0.02, "c": 0.04}),
        ps("uplink", {"a": 0.04, "b": 0.02, "c": 0.04}),
        delay("worker", {"a": 0.5, "b": 1.0, "c": 2.0}),
    ],
    population={"a": 20, "b": 20, "c": 20},
)
SERVERS = ClosedNetwork(
    [ps("downlink", 0.04), multi_server("server CPU", 0.1, servers=4), delay("worker", 2.0)],
    population=200,
)
SERVERS_10000 = SERVERS.with_population(10_000)


def line_function(network: ClosedNetwork):
    """LINE's bare recursion on arrays (its fastest way); the delay is the last station."""
    return pfqn_mva(network.demands[:-1], network.population, network.demands[-1])[0].ravel()


def line_load_dependent(network: ClosedNetwork):
    """LINE's bare load-dependent recursion on arrays."""
    rates = [s.rates_up_to(network.population.sum()) for s in network.stations[:-1]]
    return pfqn_mvald(
        network.demands[:-1], network.population, network.demands[-1], np.array(rates)
    )[0].ravel()


def line_model(network: ClosedNetwork):
    """LINE's own way: a model and its solver, from one class of customers at ps stations."""
    model = Network("benchmark")
    worker = Delay(model, "worker")
    stations = [worker]
    stations += [Queue(model, s.name, SchedStrategy.PS) for s in network.stations[:-1]]
    customers = ClosedClass(model, "customer", int(network.population[0]), worker)
    for station, demand in zip(stations, np.roll(network.demands[:, 0], 1), strict=True):
        station.setService(customers, Exp(1 / demand))
    model.link(Network.serial_routing(stations))
    table = SolverMVA(model, method="exact", verbose=False).avg_table()
    return np.array([table["Tput"].iloc[0]])


def ours(network: ClosedNetwork):
    return exact_mva(network).throughput


CASES = {
    "10,000 customers": (ONE_CLASS, line_function),
    "10,000 customers, model and solver": (ONE_CLASS, line_model),
    "3 classes of 20": (THREE_CLASSES, line_function),
    "4 servers, 200 customers": (SERVERS, line_load_dependent),
}


@pytest.mark.parametrize("case", CASES)
def test_faster_than_line(benchmark, case, capsys):
    """The same result, the best of five runs of each in turns, and the ratio of the two."""
    network, theirs = CASES[case]
    np.testing.assert_allclose(ours(network), theirs(network), rtol=1e-8)
    best = {ours: np.inf, theirs: np.inf}

    def both():
        for solve in best:
            start = time.perf_counter()
            solve(network)
            best[solve] = min(best[solve], time.perf_counter() - start)

    benchmark.pedantic(both, rounds=5)
    ratio = best[theirs] / best[ours]
    benchmark.extra_info["ratio"] = ratio
    with capsys.disabled():
        print(
            f"\n{case}: ours {best[ours] * 1e3:.2f} ms, LINE {best[theirs] * 1e3:.1f} ms, "
            f"ratio {ratio:.0f}"
        )
    assert ratio > 1


def test_time_with_servers(benchmark):
    """10,000 customers at a multi-server station, which LINE's recursion has no memory for."""
    exact_mva(SERVERS_10000)
    solution = benchmark(exact_mva, SERVERS_10000)
    assert solution.total_throughput == pytest.approx(25.0, rel=1e-6)


def test_compile_time(benchmark, tmp_path, capsys):
    """First and second call in a new process without and with Numba's cache on disk."""
    code = (
        "import time; from asgd_model.queueing import *\n"
        "network = ClosedNetwork([ps('a', 1.0), multi_server('b', 1.0, servers=2)], 10)\n"
        "start = time.perf_counter(); exact_mva(network); print(time.perf_counter() - start)"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def first_call() -> float:
        output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
        return float(output)

    times = [first_call(), benchmark.pedantic(first_call)]
    with capsys.disabled():
        print(f"\nfirst call: {times[0]:.1f} s with compilation, {times[1]:.1f} s from the cache")
    assert times[1] < times[0]
