"""Bard-Schweitzer and Linearizer: exact limits, known errors, and what bounds refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model import InputError
from asgd_model.queueing import (
    ClosedNetwork,
    balanced_job_bounds,
    bard_schweitzer,
    delay,
    exact_mva,
    fcfs,
    linearizer,
    load_dependent,
    multi_server,
    ps,
)

BOTH = pytest.mark.parametrize("solve", [bard_schweitzer, linearizer])


def random_network(seed: int, servers: bool) -> ClosedNetwork:
    """One to three classes of 1 to 11 customers, one to four queues and a delay."""
    rng = np.random.default_rng(seed)
    population = {name: int(rng.integers(1, 12)) for name in "abc"[: rng.integers(1, 4)]}

    def demands(scale):
        return {name: float(scale * rng.exponential()) for name in population}

    stations = [ps(f"queue {k}", demands(1)) for k in range(rng.integers(1, 5))]
    stations.append(delay("worker", demands(rng.choice([0.1, 1, 10]))))
    if servers:
        stations.append(multi_server("cpu", demands(3), servers=int(rng.integers(2, 6))))
    return ClosedNetwork(stations, population)


@pytest.mark.parametrize(
    ("solve", "servers", "typical", "mostly"),
    [
        (bard_schweitzer, False, 0.04, 0.10),
        (linearizer, False, 0.003, 0.01),
        (bard_schweitzer, True, 0.04, 0.10),
        (linearizer, True, 0.006, 0.025),
    ],
)
def test_errors_against_exact_mva(solve, servers, typical, mostly):
    """Mean and 95th percentile of the largest relative error of a class's throughput."""
    errors = []
    for seed in range(60):
        network = random_network(seed, servers)
        exact = exact_mva(network).throughput
        errors.append(np.abs(solve(network).throughput / exact - 1).max())
    assert np.mean(errors) < typical
    assert np.quantile(errors, 0.95) < mostly


@BOTH
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), servers=st.booleans())
def test_every_customer_is_somewhere(solve, seed, servers):
    """The fixed point keeps the population."""
    network = random_network(seed, servers)
    total = solve(network).queue_length.sum(axis=0)
    np.testing.assert_allclose(total, network.population, rtol=1e-7)


@BOTH
def test_one_customer_waits_for_nobody(solve):
    """Exact for a single customer, whatever the station."""
    network = ClosedNetwork(
        [
            ps("uplink", 0.1),
            fcfs("disk", 0.2),
            multi_server("cpu", 0.3, servers=4),
            load_dependent("link", 0.2, rates=[0.5, 2]),
            delay("worker", 1.0),
        ],
        population=1,
    )
    assert solve(network).total_throughput == pytest.approx(1 / 2.0, rel=1e-9)


@BOTH
def test_servers_for_everyone_are_a_delay(solve):
    """As many servers as customers: the approximation of load dependence is exact."""
    network = ClosedNetwork([multi_server("cpu", 0.3, servers=6), delay("worker", 0.7)], 6)
    assert solve(network).total_throughput == pytest.approx(6.0, rel=1e-8)


@BOTH
def test_ten_thousand_customers_saturate_the_bottleneck(solve):
    """The asymptote 4 / 0.16 s, in time and without overflow."""
    network = ClosedNetwork(
        [ps("uplink", 0.039), multi_server("cpu", 0.16, servers=4), delay("worker", 60.0)], 10_000
    )
    assert solve(network).total_throughput == pytest.approx(25.0, rel=1e-4)


@BOTH
def test_fcfs_classes_wait_for_the_work_ahead(solve):
    """One customer of each class, no other station: short jobs wait long, and long ones shortly.

    An arrival finds the other one at the only station, so R = own service + the other's.
    """
    network = ClosedNetwork([fcfs("disk", {"short": 0.1, "long": 0.9})], {"short": 1, "long": 1})
    np.testing.assert_allclose(solve(network).residence_time, [[1.0, 1.0]], rtol=1e-8)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (ClosedNetwork([ps("a", 1.0)], {"x": 1, "y": 1}), "found 2 classes; expected one"),
        (ClosedNetwork([multi_server("a", 1.0, servers=2)], 3), "found a load-dependent station"),
    ],
)
def test_balanced_job_bounds_name_what_they_cannot_do(network, message):
    """They are derived for one class and constant rates; the error says what to use instead."""
    with pytest.raises(InputError, match=message + ".*asymptotic_bounds"):
        balanced_job_bounds(network)


def test_balanced_job_bounds_are_exact_for_balanced_networks():
    """Without delays and with equal demands both are N / ((N + K - 1) D)."""
    network = ClosedNetwork([ps(f"queue {k}", 0.1) for k in range(4)], population=9)
    exact = exact_mva(network).total_throughput
    np.testing.assert_allclose(balanced_job_bounds(network), exact, rtol=1e-12)
