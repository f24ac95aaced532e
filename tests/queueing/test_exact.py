"""Exact MVA and convolution: invariants on random networks and values in closed form."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, logsumexp

from asgd_model import InputError
from asgd_model.queueing import (
    ClosedNetwork,
    asymptotic_bounds,
    balanced_job_bounds,
    delay,
    exact_convolution,
    exact_mva,
    fcfs,
    load_dependent,
    multi_server,
    ps,
    throughput_curve,
)

EXACT = pytest.mark.parametrize("solve", [exact_mva, exact_convolution])
demand_values = st.one_of(st.just(0.0), st.floats(1e-3, 10.0))
KINDS = ["ps", "fcfs", "delay", "multi-server", "load-dependent"]


@st.composite
def networks(draw, max_classes=3, max_population=5, kinds=KINDS) -> ClosedNetwork:
    """Up to five stations of any kind; the first one makes sure that every class has a demand."""
    classes = ["a", "b", "c"][: draw(st.integers(1, max_classes))]
    population = {name: draw(st.integers(0, max_population)) for name in classes}
    population["a"] += 1
    stations = []
    for i, kind in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5))):
        values = st.floats(1e-3, 10.0) if i == 0 else demand_values
        demands = {name: draw(values) for name in classes}
        name = f"{kind} {i}"
        if kind == "ps":
            stations.append(ps(name, demands))
        elif kind == "fcfs":
            stations.append(fcfs(name, draw(values)))
        elif kind == "delay":
            stations.append(delay(name, demands))
        elif kind == "multi-server":
            stations.append(multi_server(name, demands, draw(st.integers(2, 6))))
        else:
            rates = draw(st.lists(st.floats(0.2, 3.0), min_size=2, max_size=6))
            stations.append(load_dependent(name, demands, rates))
    return ClosedNetwork(stations, population)


def enumerated(network: ClosedNetwork):
    """Queue lengths and mean rates of service from the product form of all states."""
    parts = [
        [split for split in itertools.product(range(n + 1), repeat=len(network.stations))
         if sum(split) == n]
        for n in network.population
    ]  # fmt: skip
    weights, queues, works = [], [], []
    for state in itertools.product(*parts):
        counts = np.array(state).T  # stations x classes
        weight, work = 1.0, []
        for station, demands, present in zip(
            network.stations, network.demands, counts, strict=True
        ):
            total = int(present.sum())
            rates = (
                np.arange(1, total + 1)
                if station.kind == "delay"
                else station.rates_up_to(total)
                if total
                else []
            )
            weight *= np.prod(demands**present / [math.factorial(n) for n in present])
            weight *= math.factorial(total) / np.prod(rates)
            work.append(rates[-1] if total else 0.0)
        weights.append(weight)
        queues.append(counts)
        works.append(work)
    shares = np.array(weights) / sum(weights)
    return np.tensordot(shares, queues, axes=1), shares @ np.array(works)


@EXACT
@settings(max_examples=40, deadline=None)
@given(network=networks(max_classes=2, max_population=2))
def test_equals_the_product_form_of_all_states(solve, network):
    """Queue lengths from first principles, and the utilisation law: U = mean rate / peak."""
    queue, work = enumerated(network)
    solution = solve(network)
    np.testing.assert_allclose(solution.queue_length, queue, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        solution.utilisation.sum(axis=1), work / network.peak_rates, rtol=1e-9, atol=1e-12
    )


@EXACT
@settings(max_examples=100, deadline=None)
@given(network=networks())
def test_little_and_conservation(solve, network):
    """Little's law at every station, and every customer is somewhere."""
    solution = solve(network)
    np.testing.assert_allclose(
        solution.queue_length, solution.throughput * solution.residence_time, rtol=1e-9
    )
    np.testing.assert_allclose(
        solution.queue_length.sum(axis=0), network.population, rtol=1e-9, atol=1e-12
    )


@settings(max_examples=100, deadline=None)
@given(network=networks())
def test_convolution_equals_mva(network):
    """Two methods that share no step agree on everything."""
    one, other = exact_mva(network), exact_convolution(network)
    np.testing.assert_allclose(one.throughput, other.throughput, rtol=1e-9)
    np.testing.assert_allclose(one.residence_time, other.residence_time, rtol=1e-9)


@settings(max_examples=100, deadline=None)
@given(network=networks())
def test_asymptotic_bounds_hold(network):
    """Throughput of every class lies between the bounds, up to rounding."""
    bounds, throughput = asymptotic_bounds(network), exact_mva(network).throughput
    assert (bounds["lower"] <= throughput * (1 + 1e-9)).all()
    assert (throughput <= bounds["upper"] * (1 + 1e-9)).all()


@settings(max_examples=100, deadline=None)
@given(network=networks(max_classes=1, max_population=30, kinds=["ps", "fcfs", "delay"]))
def test_balanced_job_bounds_hold_and_are_tighter(network):
    """Throughput lies between them, and they lie between the asymptotic ones."""
    inner, outer = balanced_job_bounds(network).iloc[0], asymptotic_bounds(network).iloc[0]
    throughput = exact_mva(network).total_throughput
    slack = 1 + 1e-9
    assert outer.lower <= inner.lower * slack
    assert inner.lower <= throughput * slack
    assert throughput <= inner.upper * slack
    assert inner.upper <= outer.upper * slack


@settings(max_examples=40, deadline=None)
@given(network=networks(max_classes=1, max_population=40, kinds=KINDS[:-1]))
def test_throughput_grows_with_the_population(network):
    """It never falls when no station's rate falls with its load."""
    curve = throughput_curve(network)["customer" if "customer" in network.classes else "a"]
    assert (np.diff(curve) >= -1e-12 * curve.iloc[1:]).all()


@settings(max_examples=40, deadline=None)
@given(network=networks(max_classes=2, max_population=3))
def test_curve_holds_the_solution_of_every_population(network):
    """One sweep gives what a solution of each smaller network would."""
    for vector, found in throughput_curve(network).iterrows():
        counts = vector if isinstance(vector, tuple) else (vector,)
        smaller = network.with_population(dict(zip(network.classes, counts, strict=True)))
        np.testing.assert_allclose(found, exact_convolution(smaller).throughput, rtol=1e-9)


LARGE = 10_000


@EXACT
def test_balanced_network_of_ten_thousand_customers(solve):
    """K equal queues: X = N / ((N + K - 1) D), the same number of customers everywhere."""
    network = ClosedNetwork([ps(f"queue {k}", 0.02) for k in range(5)], population=LARGE)
    solution = solve(network)
    assert solution.total_throughput == pytest.approx(LARGE / ((LARGE + 4) * 0.02), rel=1e-10)
    np.testing.assert_allclose(solution.queue_length, LARGE / 5, rtol=1e-9)


def repairmen(log_rates, think: float, customers: int) -> tuple[float, float]:
    """Throughput and queue of one station and a delay, by the balance of a birth-death process."""
    n = np.arange(customers + 1)
    log_p = -gammaln(customers - n + 1) + (customers - n) * np.log(think)
    log_p -= np.append(0.0, np.cumsum(log_rates))
    p = np.exp(log_p - logsumexp(log_p))
    return float(p[1:] @ np.exp(log_rates)), float(p @ n)


@EXACT
@pytest.mark.parametrize(
    ("servers", "demand", "think"),
    [(64, 0.5, 100.0), (64, 0.5, 10.0), (64, 0.64, 100.0), (2000, 1.0, 3.0)],
    ids=["idle", "saturated", "critical", "idle states of probability exp(-2000)"],
)
def test_servers_for_ten_thousand_customers(solve, servers, demand, think):
    """Where the classical recursion turns negative: load-dependent and far beyond saturation."""
    network = ClosedNetwork(
        [multi_server("cpu", demand, servers), delay("worker", think)], population=LARGE
    )
    rates = network.stations[0].rates_up_to(LARGE) / demand
    throughput, queue = repairmen(np.log(rates), think, LARGE)
    solution = solve(network)
    assert solution.total_throughput == pytest.approx(throughput, rel=1e-9)
    assert solution.queue_length[0, 0] == pytest.approx(queue, rel=1e-7)


@EXACT
def test_rates_that_fall_with_the_load(solve):
    """A thrashing station, whose peak is in the middle: no rate is the limit of the others."""
    customers = 1000
    rates = [min(n, 50) * (1 - 0.8 * n / customers) for n in range(1, customers + 1)]
    network = ClosedNetwork(
        [load_dependent("cpu", 1.0, rates), delay("worker", 20.0)], population=customers
    )
    throughput, queue = repairmen(np.log(rates), 20.0, customers)
    solution = solve(network)
    assert solution.total_throughput == pytest.approx(throughput, rel=1e-9)
    assert solution.queue_length[0, 0] == pytest.approx(queue, rel=1e-8)


def test_all_kinds_for_ten_thousand_customers():
    """Both methods agree, without overflow or NaN, in a network with its two bottlenecks level."""
    network = ClosedNetwork(
        [
            ps("downlink", 0.04),
            fcfs("uplink", 0.039),
            multi_server("server CPU", 0.15, servers=4),
            multi_server("gpu", 0.3, servers=8),
            delay("worker", 60.0),
        ],
        population=LARGE,
    )
    one, other = exact_mva(network), exact_convolution(network)
    assert one.total_throughput == pytest.approx(25.0, rel=1e-9)
    np.testing.assert_allclose(one.throughput, other.throughput, rtol=1e-10)
    np.testing.assert_allclose(one.queue_length, other.queue_length, rtol=1e-9)


def test_large_populations_of_two_classes():
    """A lattice of 211,001 vectors, where normalising constants span thousands of decades."""
    network = ClosedNetwork(
        [
            ps("uplink", {"fast": 0.04, "slow": 0.01}),
            multi_server("cpu", {"fast": 0.05, "slow": 0.1}, servers=4),
            delay("worker", {"fast": 5.0, "slow": 20.0}),
        ],
        population={"fast": 700, "slow": 300},
    )
    one, other = exact_mva(network), exact_convolution(network)
    np.testing.assert_allclose(one.throughput, other.throughput, rtol=1e-9)
    np.testing.assert_allclose(one.queue_length.sum(axis=0), [700, 300], rtol=1e-9)


@pytest.mark.parametrize("solve", [exact_mva, exact_convolution, throughput_curve])
def test_what_does_not_fit_is_refused_before_it_starts(solve):
    """The error says how much memory it would take and what to use instead."""
    names = "abcdefghij"
    network = ClosedNetwork(
        [ps("uplink", 0.1), multi_server("cpu", 0.2, servers=2)], dict.fromkeys(names, 19)
    )
    with pytest.raises(InputError, match=r"10,240,000,000,000 population vectors.* GB.*linearizer"):
        solve(network)


def test_memory_limit_can_be_raised_and_lowered():
    """The same network is refused or solved by the limit alone; no load dependence, less memory."""
    population = {"a": 100, "b": 10}
    servers = ClosedNetwork([multi_server("cpu", 0.2, servers=2)], population)
    queue = ClosedNetwork([ps("cpu", 0.2)], population)
    with pytest.raises(InputError, match="1,111 population vectors"):
        exact_mva(servers, memory_limit=8_000)
    assert exact_mva(servers).total_throughput == pytest.approx(10.0, rel=0.01)
    assert exact_mva(queue, memory_limit=8_000).total_throughput == pytest.approx(5.0)


def test_memory_is_not_underestimated():
    """What convolution really takes, measured, would have been refused with a lower limit."""
    stations = [multi_server(f"cpu {k}", 0.2, servers=3) for k in range(3)]
    network = ClosedNetwork([ps("uplink", 0.1), *stations], {"a": 300, "b": 200})
    tracemalloc.start()
    exact_convolution(network)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    with pytest.raises(InputError, match="60,501 population vectors"):
        exact_convolution(network, memory_limit=0.95 * peak)


@EXACT
def test_fcfs_with_different_service_times_is_refused(solve):
    """It has no product form, so an exact method would be wrong in silence."""
    stations = [fcfs("disk", {"a": 0.1, "b": 0.2}), delay("worker", 1.0)]
    with pytest.raises(InputError, match=r"0\.1, 0\.2 s at the FCFS station 'disk'"):
        solve(ClosedNetwork(stations, {"a": 1, "b": 1}))


@EXACT
def test_fcfs_with_different_visits_is_product_form(solve):
    """Demands may differ if the time per visit is the same."""
    stations = [fcfs("disk", {"a": 0.1, "b": 0.2}, visits={"a": 1, "b": 2}), delay("worker", 1.0)]
    solution = solve(ClosedNetwork(stations, {"a": 3, "b": 3}))
    np.testing.assert_allclose(solution.queue_length.sum(axis=0), 3)
