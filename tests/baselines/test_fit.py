"""Fits of few measured sizes, their uncertainty, and the two baselines that use them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from asgd_model import Cluster, InputError
from asgd_model.baselines import ernest, optimus
from asgd_model.baselines.fit import NonNegativeFit, training_rows

coefficients = st.floats(0.01, 10)


@given(planted=st.tuples(coefficients, coefficients, coefficients, coefficients))
def test_optimus_recovers_planted_coefficients(planted) -> None:
    """Noise-free times over a grid of workers and servers give back a, b, c and d."""
    workers, servers = (grid.ravel() for grid in np.meshgrid([1, 2, 4, 8], [1, 2, 4]))
    terms = optimus.asynchronous_terms(workers, servers)
    fit = NonNegativeFit.of(terms, terms @ planted)
    np.testing.assert_allclose(fit.coefficients, planted, rtol=1e-6)


@given(planted=st.tuples(*[coefficients] * 5))
def test_synchronous_optimus_recovers_planted_coefficients(planted) -> None:
    """The same for a fixed total batch, where all five terms differ."""
    workers, servers = (grid.ravel() for grid in np.meshgrid([1, 2, 4, 8], [1, 2, 4]))
    terms = optimus.synchronous_terms(workers, servers, total_batch=16)
    fit = NonNegativeFit.of(terms, terms @ planted)
    np.testing.assert_allclose(fit.coefficients, planted, rtol=1e-4)


@given(planted=st.tuples(coefficients, coefficients, coefficients, coefficients))
def test_ernest_recovers_planted_coefficients(planted) -> None:
    """Noise-free times of more sizes than coefficients give back t0 to t3."""
    terms = ernest.terms([1, 2, 4, 8, 16, 32])
    fit = NonNegativeFit.of(terms, terms @ planted)
    np.testing.assert_allclose(fit.coefficients, planted, rtol=1e-5)


@given(st.lists(st.floats(0.1, 10), min_size=9, max_size=9))
def test_predictions_match_nnls(chain, steps_per_s) -> None:
    """Both methods predict what scipy's solution of their equations says."""
    workers = np.repeat([1, 2, 4], 3)
    runs = pd.DataFrame({"workers": workers, "parameter_servers": 1, "steps_per_s": steps_per_s})
    profile = chain([1], [1.0], [1.0])
    clusters = [Cluster.like(profile, 6)]
    terms = np.column_stack([np.ones(9), workers, workers, np.ones(9)])
    solution, _ = nnls(terms, workers / np.array(steps_per_s))
    found = optimus.predict(profile, clusters, runs)["steps_per_s"]
    assert found[0] == pytest.approx(6 / (np.array([1, 6, 6, 1]) @ solution))
    terms = np.column_stack([np.ones(9), 1 / workers, workers, np.log(workers)])
    solution, _ = nnls(terms, 1 / np.array(steps_per_s))
    found = ernest.predict(profile, clusters, runs)["steps_per_s"]
    assert found[0] == pytest.approx(1 / (np.array([1, 1 / 6, 6, np.log(6)]) @ solution))


def test_synchronous_optimus(chain) -> None:
    """A step of all workers together that takes 0.2 + 0.1 W seconds is predicted as such."""
    workers = np.array([1, 2, 4])
    runs = pd.DataFrame(
        {"workers": workers, "parameter_servers": 1, "steps_per_s": 1 / (0.2 + 0.1 * workers)}
    )
    profile = chain([1], [1.0], [1.0])
    found = optimus.predict(profile, [Cluster.like(profile, 8)], runs, synchronous=True)
    assert found["steps_per_s"][0] == pytest.approx(1 / (0.2 + 0.1 * 8))
    # With 8 examples in all, a worker's share shrinks: 0.4 x 8 / W + 0.1 W.
    runs["steps_per_s"] = 1 / (0.4 * 8 / workers + 0.1 * workers)
    found = optimus.predict(
        profile, [Cluster.like(profile, 8)], runs, synchronous=True, total_batch=8
    )
    assert found["steps_per_s"][0] == pytest.approx(1 / (0.4 + 0.8))


def test_interval_covers_the_truth() -> None:
    """95 % intervals of repeated noisy measurements contain the true time about as often."""
    rng = np.random.default_rng(1)
    workers = np.repeat([1, 2, 4], 4)
    terms = optimus.asynchronous_terms(workers, 1)
    wanted = optimus.asynchronous_terms([8], 1)
    truth = 0.5 + 0.1 * 8
    covered = 0
    for _ in range(400):
        times = 0.5 + 0.1 * workers + 0.02 * rng.standard_normal(len(workers))
        low, high = NonNegativeFit.of(terms, times).interval(wanted)
        covered += bool(low[0] <= truth <= high[0])
    assert 0.92 <= covered / 400 <= 0.98


def test_interval_of_what_the_measurements_do_not_determine() -> None:
    """Measured with one server, the time with two is anything that the split of terms allows."""
    workers = np.array([1, 2, 4])
    times = 0.6 + 0.2 * workers  # a + d = 0.6, b + c = 0.2
    fit = NonNegativeFit.of(optimus.asynchronous_terms(workers, 1), times)
    low, high = fit.interval(optimus.asynchronous_terms([8, 8], [1, 2]))
    np.testing.assert_allclose([low[0], high[0]], 0.6 + 0.2 * 8, rtol=1e-6)
    assert low[1] == pytest.approx(0.6 + 0.2 * 8 / 2)  # all of it in a and b
    assert high[1] == pytest.approx(2 * 0.6 + 0.2 * 8)  # all of it in c and d


def test_interval_without_bound() -> None:
    """A term that no measurement contains makes the time unbounded from above only."""
    fit = NonNegativeFit.of([[1.0, 0.0], [1.0, 0.0]], [0.9, 1.1])
    low, high = fit.interval([[1.0, 2.0]])
    assert 0 < low[0] < 1
    assert high[0] == np.inf


def test_interval_needs_more_measurements_than_coefficients() -> None:
    """An exact fit says nothing about scatter: no interval instead of one of no width."""
    fit = NonNegativeFit.of([[1.0, 1.0], [1.0, 2.0]], [1.0, 1.5])
    assert np.isnan(fit.interval([[1.0, 4.0]])).all()


def test_more_servers_measured(chain) -> None:
    """Ernest is fitted anew for each number of servers; Optimus sees them together."""
    profile = chain([1], [1.0], [1.0])
    workers, servers = (grid.ravel() for grid in np.meshgrid([1, 2, 4], [1, 2]))
    times = 0.1 + 0.3 * workers / servers
    runs = pd.DataFrame(
        {"workers": workers, "parameter_servers": servers, "steps_per_s": workers / times}
    )
    clusters = [Cluster.like(profile, 4, servers=count) for count in (1, 2)]
    for method in (ernest, optimus):
        found = method.predict(profile, clusters, runs)["steps_per_s"]
        np.testing.assert_allclose(found, [4 / 1.3, 4 / 0.7], rtol=0.02)


@pytest.mark.parametrize("method", [optimus, ernest])
def test_missing_measurements(chain, method) -> None:
    """The error names the method and what is missing."""
    profile = chain([1], [1.0], [1.0])
    clusters = [Cluster.like(profile, 8)]
    runs = pd.DataFrame({"workers": [1, 2], "parameter_servers": 1, "steps_per_s": 1.0})
    name = method.__name__.rpartition(".")[2]
    with pytest.raises(InputError, match=rf"{name}.*no measurements; expected.*1, 2, 4"):
        method.predict(profile, clusters)
    with pytest.raises(InputError, match=rf"{name}.*no run of 4 workers"):
        method.predict(profile, clusters, runs)
    with pytest.raises(InputError, match="the column steps_per_s"):
        method.predict(profile, clusters, runs.drop(columns="steps_per_s"))


def test_missing_servers(chain) -> None:
    """Ernest has no term for servers and needs runs with as many."""
    profile = chain([1], [1.0], [1.0])
    runs = pd.DataFrame({"workers": [1, 2, 4], "parameter_servers": 1, "steps_per_s": 1.0})
    with pytest.raises(InputError, match=r"no run of 1, 2, 4 workers.*2 parameter servers"):
        ernest.predict(profile, [Cluster.like(profile, 2, servers=2)], runs)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, "fast"])
def test_bad_measurements(value) -> None:
    """A throughput that is not a positive number is refused, not fitted."""
    runs = pd.DataFrame(
        {"workers": [1, 2, 4], "parameter_servers": 1, "steps_per_s": [1.0, value, 2.0]}
    )
    with pytest.raises(InputError, match=f"steps_per_s {value}; expected a positive number"):
        training_rows(runs, (1, 2, 4), "optimus")


@given(
    sizes=st.lists(st.integers(1, 64), min_size=5, max_size=15, unique=True),
    criterion=st.sampled_from(["A", "D"]),
    fraction=st.floats(0.1, 0.9),
)
@settings(max_examples=40, deadline=None)
def test_design_is_optimal(sizes, criterion, fraction) -> None:
    """The weights satisfy the conditions of the convex problem's optimum.

    Where a weight is between its bounds, the gain per cost equals the price of the budget.
    """
    budget = fraction * sum(sizes)
    design = ernest.experiment_design(sizes, budget, criterion=criterion)
    weight = design["weight"].to_numpy()
    assert ((weight >= 0) & (weight <= 1 + 1e-9)).all()
    assert weight @ sizes == pytest.approx(budget, rel=1e-4)
    terms = ernest.terms(sizes)
    terms /= terms.mean(axis=0)
    inverse = np.linalg.inv(terms.T @ (terms * weight[:, None]))
    gain = ((terms @ inverse) * (terms @ inverse if criterion == "A" else terms)).sum(axis=1)
    gain /= np.array(sizes)
    inside = (weight > 0.02) & (weight < 0.98)
    price = gain[inside].mean() if inside.any() else np.median(gain)
    slack = 0.05 * price
    assert (np.abs(gain[inside] - price) <= slack).all()
    if inside.any():
        assert (gain[weight <= 0] <= price + slack).all()
        assert (gain[weight >= 1 - 1e-9] >= price - slack).all()


@pytest.mark.parametrize(
    ("sizes", "budget", "criterion", "message"),
    [
        ([1, 2, 4], 5, "A", "3 sizes"),
        ([1, 2, 4, 0], 5, "A", "at least 1"),
        ([1, 2, 4, 8], 0, "A", "above 0"),
        ([1, 2, 4, 8], float("nan"), "A", "above 0"),
        ([1, 2, 4, 8], 5, "E", "one of A, D"),
    ],
)
def test_bad_design(sizes, budget, criterion, message) -> None:
    """What cannot be designed is refused."""
    with pytest.raises(InputError, match=message):
        ernest.experiment_design(sizes, budget, criterion=criterion)
