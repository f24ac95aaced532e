"""Exact MVA and convolution against LINE's exact MVA, an independent implementation."""

from __future__ import annotations

import numpy as np
import pytest
from line_solver import (
    ClosedClass,
    Delay,
    Exp,
    Network,
    Queue,
    SchedStrategy,
    SolverMVA,
)
from line_solver.api.pfqn import pfqn_bs, pfqn_linearizer, pfqn_mvald

from asgd_model.queueing import (
    ClosedNetwork,
    bard_schweitzer,
    delay,
    exact_convolution,
    exact_mva,
    fcfs,
    linearizer,
    load_dependent,
    multi_server,
    ps,
)

TWO = {"fast": 5, "slow": 3}
NETWORKS = {
    "ps and delay": ClosedNetwork([ps("uplink", 0.04), delay("worker", 0.5)], population=20),
    "fcfs, ps and delay": ClosedNetwork(
        [fcfs("disk", 0.1), ps("uplink", 0.07), ps("downlink", 0.02), delay("worker", 0.5)],
        population=50,
    ),
    "queues only": ClosedNetwork([ps("a", 0.3), ps("b", 0.3), fcfs("c", 0.2)], population=12),
    "servers": ClosedNetwork(
        [multi_server("cpu", 0.3, servers=4), ps("uplink", 0.06), delay("worker", 1.0)],
        population=25,
    ),
    "load-dependent": ClosedNetwork(
        [load_dependent("link", 0.1, rates=[1, 1.7, 2.2, 1.9, 1.5]), ps("cpu", 0.04)],
        population=15,
    ),
    "classes": ClosedNetwork(
        [
            ps("uplink", {"fast": 0.04, "slow": 0.08}),
            ps("cpu", {"fast": 0.02, "slow": 0.01}),
            fcfs("disk", 0.03),
            delay("worker", {"fast": 0.5, "slow": 1.2}),
        ],
        population=TWO,
    ),
    "classes at servers": ClosedNetwork(
        [
            ps("uplink", {"fast": 0.04, "slow": 0.08}),
            multi_server("cpu", {"fast": 0.3, "slow": 0.2}, servers=2),
            multi_server("gpu", {"fast": 0.4, "slow": 0.5}, servers=3),
            delay("worker", {"fast": 0.5, "slow": 1.2}),
        ],
        population=TWO,
    ),
    "three classes": ClosedNetwork(
        [
            ps("uplink", {"a": 0.4, "b": 0.8, "c": 0.1}),
            ps("cpu", {"a": 0.2, "b": 0.1, "c": 0.9}),
            delay("worker", {"a": 0.5, "b": 1.2, "c": 3.0}),
        ],
        population={"a": 4, "b": 6, "c": 3},
    ),
}
ALL_KINDS = ClosedNetwork(
    [
        ps("uplink", {"fast": 0.04, "slow": 0.08}),
        fcfs("disk", 0.03),
        multi_server("cpu", {"fast": 0.25, "slow": 0.3}, servers=2),
        load_dependent("link", {"fast": 0.1, "slow": 0.2}, rates=[1, 1.5, 1.5, 1.2, 1]),
        delay("worker", {"fast": 0.5, "slow": 1.2}),
    ],
    population=TWO,
)


def solved_by_line(network: ClosedNetwork):
    """LINE's table of the same stations, visited one after the other, by exact MVA."""
    model = Network("test")
    stations = []
    for station in network.stations:
        if station.kind == "delay":
            stations.append(Delay(model, station.name))
            continue
        discipline = SchedStrategy.FCFS if station.kind == "fcfs" else SchedStrategy.PS
        stations.append(Queue(model, station.name, discipline))
        if station.rates == tuple(range(1, len(station.rates) + 1)):
            stations[-1].setNumberOfServers(len(station.rates))
        else:
            stations[-1].setLoadDependence(station.rates_up_to(network.population.sum()))
    for r, name in enumerate(network.classes):
        customers = ClosedClass(model, name, int(network.population[r]), stations[-1])
        for k, station in enumerate(stations):
            station.setService(customers, Exp(1 / network.demands[k, r]))
    model.link(Network.serial_routing(stations))
    return SolverMVA(model, method="exact", verbose=False).avg_table()


@pytest.mark.parametrize("solve", [exact_mva, exact_convolution])
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_every_table_entry_equals_line(network, solve):
    """All measures of all classes at all stations, to 1e-8."""
    expected = solved_by_line(network)
    found = solve(network).per_station()
    columns = {
        "QLen": "queue_length",
        "Util": "utilisation",
        "RespT": "response_time",
        "ResidT": "residence_time",
    }
    for theirs, ours in columns.items():
        np.testing.assert_allclose(found[ours], expected[theirs], rtol=1e-8)
    throughput = np.tile(solve(network).throughput, len(network.stations))
    np.testing.assert_allclose(throughput, expected["Tput"], rtol=1e-8)


@pytest.mark.parametrize("solve", [exact_mva, exact_convolution])
def test_all_kinds_of_station_in_one_network_equal_line(solve):
    """As rates in LINE's function: its solver drops the servers beside load-dependent stations."""
    total = int(ALL_KINDS.population.sum())
    *queues, worker = ALL_KINDS.stations
    rates = np.array([station.rates_up_to(total) for station in queues])
    throughput, queue, *_ = pfqn_mvald(
        ALL_KINDS.demands[:-1], ALL_KINDS.population, ALL_KINDS.demands[-1], rates
    )
    found = solve(ALL_KINDS)
    assert worker.kind == "delay"
    np.testing.assert_allclose(found.throughput, throughput[0], rtol=1e-8)
    np.testing.assert_allclose(found.queue_length[:-1], queue, rtol=1e-8)


@pytest.mark.parametrize("solve", [exact_mva, exact_convolution])
def test_visits_give_response_times_per_visit(solve):
    """A station that is visited twice per cycle on average: response time is half of residence."""
    model = Network("test")
    worker, disk = Delay(model, "worker"), Queue(model, "disk", SchedStrategy.FCFS)
    customers = ClosedClass(model, "customer", 6, worker)
    worker.setService(customers, Exp(1 / 0.5))
    disk.setService(customers, Exp(1 / 0.1))
    routing = model.initRoutingMatrix()
    routing.set(customers, customers, worker, disk, 1.0)
    routing.set(customers, customers, disk, disk, 0.5)
    routing.set(customers, customers, disk, worker, 0.5)
    model.link(routing)
    expected = SolverMVA(model, method="exact", verbose=False).avg_table()
    network = ClosedNetwork([delay("worker", 0.5), fcfs("disk", 0.2, visits=2)], population=6)
    found = solve(network).per_station()
    np.testing.assert_allclose(found["response_time"], expected["RespT"], rtol=1e-8)
    np.testing.assert_allclose(found["residence_time"], expected["ResidT"], rtol=1e-8)


@pytest.mark.parametrize("name", ["fcfs, ps and delay", "classes", "three classes"])
def test_approximations_equal_line(name):
    """The same fixed point of Bard-Schweitzer; LINE's Linearizer goes round once more."""
    network = NETWORKS[name]
    arguments = network.demands[:-1], network.population, network.demands[-1]
    expected = np.ravel(pfqn_bs(*arguments, tol=1e-12, maxiter=100_000)[0])
    np.testing.assert_allclose(bard_schweitzer(network).throughput, expected, rtol=1e-7)
    kinds = [SchedStrategy.PS] * (len(network.stations) - 1)
    expected = np.ravel(pfqn_linearizer(*arguments, kinds, tol=1e-10)[5])
    np.testing.assert_allclose(linearizer(network).throughput, expected, rtol=2e-3)
