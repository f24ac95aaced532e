"""Detected warm-up, batch means, and simulation until the throughput is known well enough."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from asgd_model.errors import InputError, PrecisionWarning
from asgd_model.profile import Profile
from asgd_model.simulator import replicate, simulate, simulate_to_precision
from asgd_model.simulator.replications import predict, relative_half_width
from asgd_model.simulator.steady_state import (
    batch_means,
    longest_warm_up,
    steady_state,
    warm_up_length,
)

from .jobs import Job, chain, cluster, node


def computation(*work: float) -> Profile:
    """Steps that only compute, each time for one of these seconds of a core."""
    job = Job()
    job.compute(work)
    return job.profile()


# --- warm-up --------------------------------------------------------------------------------


@settings(deadline=None)
@given(arrays(np.float64, st.integers(5, 80), elements=st.floats(0, 10, width=16)))
def test_rule_by_definition(observations: np.ndarray):
    """What is left out has the smallest standard error of all up to half, computed one by one."""
    means = [observations[i : i + 5].mean() for i in range(0, len(observations) - 4, 5)]
    error = [np.var(means[d:]) / (len(means) - d) for d in range(len(means) // 2 + 1)]
    chosen = warm_up_length(observations)
    assert chosen % 5 == 0
    assert error[chosen // 5] == pytest.approx(min(error), rel=1e-6, abs=1e-9)


def test_transient_is_left_out():
    """All of a transient on top of a constant, up to the next whole batch of 5."""
    for length in (10, 12, 31):
        observations = np.full(200, 3.0)
        observations[:length] += np.linspace(5.0, 0.1, length)
        assert warm_up_length(observations) == -(-length // 5) * 5


def test_nothing_is_left_out_of_a_constant():
    """Steps may repeat each other exactly, but for rounding."""
    assert warm_up_length(np.diff(0.1 * np.arange(1000))) == 0


def test_little_is_left_out_of_noise():
    """Without a transient less than a fifth is lost in nine of ten series."""
    rng = np.random.default_rng(3)
    lost = [warm_up_length(rng.exponential(size=1000)) for _ in range(200)]
    assert np.quantile(lost, 0.9) < 200


def test_a_trend_is_not_steady():
    """As much as possible is left out: a sign that the series is too short."""
    assert warm_up_length(np.arange(100.0)) == longest_warm_up(100) == 50
    assert longest_warm_up(17) == 5
    assert warm_up_length(np.arange(4.0)) == longest_warm_up(4) == 0


# --- interval -------------------------------------------------------------------------------


def test_batch_means_by_hand():
    """Two batches of means 2 and 4: Student's t with one degree of freedom."""
    mean, margin = batch_means(np.array([9.0, 1.0, 3.0, 4.0, 4.0]), batches=2)
    assert mean == 3.0
    assert margin == pytest.approx(12.7062 * np.sqrt(2.0) / np.sqrt(2.0), rel=1e-5)


def test_batches_hold_whole_rounds():
    """Observations that repeat in rounds of 3 have no variance over batches of such rounds."""
    observations = np.tile([0.0, 0.0, 6.0], 50)[1:]
    mean, margin = batch_means(observations, batches=20, multiple=3)
    assert (mean, margin) == (2.0, 0.0)
    assert batch_means(observations, batches=20)[1] > 0.0


@pytest.mark.parametrize(
    ("count", "batches", "multiple"),
    [(19, 20, 1), (0, 2, 1), (100, 1, 1), (100, 0, 1), (59, 20, 3)],
)
def test_too_few_observations(count: int, batches: int, multiple: int):
    """Less than one round per batch, or less than two batches, say nothing of the variance."""
    with pytest.raises(InputError, match=f"batch_means: observations: found {count} for {batches}"):
        batch_means(np.ones(count), batches, multiple)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_interval_covers_the_mean(correlation: float):
    """In 95 % of long series, also if neighbours are correlated.

    With 400 series four standard errors are 4.4 %; the remaining correlation between batches of
    200 costs up to 2 %.
    """
    rng = np.random.default_rng(5)
    series, length = 400, 4000
    noise = rng.normal(size=(length, series))
    values = np.empty_like(noise)
    values[0] = noise[0] / np.sqrt(1 - correlation**2)
    for index in range(1, length):
        values[index] = correlation * values[index - 1] + noise[index]
    intervals = [batch_means(one) for one in values.T]
    covered = np.mean([abs(mean) <= margin for mean, margin in intervals])
    assert covered == pytest.approx(0.95, abs=0.064)


# --- one run --------------------------------------------------------------------------------


def test_steps_that_end_in_groups():
    """Four workers end a step together every two seconds: 2 steps/s, exactly."""
    state = steady_state(np.repeat(2.0 * np.arange(1, 101), 4), workers=4)
    assert state == pytest.approx((2.0, 2.0, 2.0, 2.0))
    assert state.relative_half_width == 0.0


def test_late_workers_are_a_warm_up():
    """Workers that begin after 100 s double the throughput: what was before does not count."""
    starts = [0.0, 100.5]
    result = simulate(computation(1.0), cluster(2), steps=600, starts=starts)
    state = result.steady_state()
    assert 100.0 <= state.begin <= 106.0
    assert state[1:] == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize("workers", [1, 3])
def test_run_interval_covers_the_throughput(workers: int):
    """Renewals of 1 s or 3 s: half a step per second and worker, in 95 % of runs.

    With 200 runs four standard errors are 6.2 %.
    """
    profile, where = computation(1.0, 3.0), cluster(workers)
    runs = (simulate(profile, where, steps=400, seed=seed) for seed in range(200))
    states = [run.steady_state() for run in runs]
    covered = np.mean([state.low <= 0.5 * workers <= state.high for state in states])
    assert covered == pytest.approx(0.95, abs=0.062)


def test_what_follows_the_window_does_not_count():
    """Workers that go on when the first is done are fewer: their steps are not part of it."""
    nodes = cluster([node(), node(cores=0.5)])
    runs = [
        simulate(computation(1.0), nodes, steps=400, starts=[0, 0], stop_at_first=stop)
        for stop in (True, False)
    ]
    assert runs[0].steady_state() == runs[1].steady_state()
    assert runs[0].steady_state().steps_per_s == pytest.approx(1.5, rel=0.01)


def test_a_run_too_short_to_tell():
    """Neither an interval nor a throughput, rather than a wrong one."""
    state = simulate(computation(1.0, 3.0), cluster(2), steps=15).steady_state()
    assert np.isnan(state).all()
    assert np.isnan(state.relative_half_width)


# --- until it is known well enough -------------------------------------------------------------


def test_run_length():
    """The run is doubled until its interval is narrow enough; the same each time."""
    profile, where = computation(1.0, 3.0), cluster(2)
    result = simulate_to_precision(profile, where, 0.02, steps=50, seed=1)
    steps = result.end.shape[1]
    assert steps in 50 * 2 ** np.arange(1, 12)
    assert result.steady_state().relative_half_width <= 0.02
    assert result.steady_state().steps_per_s == pytest.approx(1.0, rel=0.04)
    shorter = simulate(profile, where, steps=steps // 2, seed=1).steady_state()
    assert not shorter.relative_half_width <= 0.02
    again = simulate_to_precision(profile, where, 0.02, steps=50, seed=1)
    np.testing.assert_array_equal(again.end, result.end)


def test_longest_run():
    """Where a run is not allowed to get long enough, a warning says what was reached."""
    message = (
        r"throughput known to .* %, 0\.1 % was asked for, after 300 steps of each of 2 workers"
    )
    with pytest.warns(PrecisionWarning, match=message) as caught:
        result = simulate_to_precision(
            computation(1.0, 3.0), cluster(2), 0.001, steps=100, most_steps=300
        )
    assert result.end.shape == (2, 300)
    assert caught[0].message.reached == result.steady_state().relative_half_width
    with pytest.warns(PrecisionWarning, match="throughput unknown, 1 % was asked for, after 5"):
        simulate_to_precision(computation(1.0, 3.0), cluster(2), steps=5, most_steps=5)


def test_replications():
    """More runs until the mean is known; they begin with those that a number of runs would be."""
    profile, where = computation(1.0, 3.0), cluster(2)
    few = replicate(profile, where, 5)
    assert relative_half_width(few) > 0.02
    runs = replicate(profile, where, 5, precision=0.02)
    assert relative_half_width(runs) <= 0.02
    same = replicate(profile, where, len(runs))
    assert [run.steps_per_s for run in runs] == [run.steps_per_s for run in same]
    mean = np.mean([run.steps_per_s for run in runs])
    assert mean == pytest.approx(1.0, rel=0.04)


def test_half_width_by_hand():
    """Student's t over the runs' throughputs."""
    runs = replicate(computation(1.0, 3.0), cluster(2), 3)
    rates = [run.steps_per_s for run in runs]
    expected = 4.302653 * np.std(rates, ddof=1) / np.sqrt(3) / np.mean(rates)
    assert relative_half_width(runs) == pytest.approx(expected)


def test_no_more_replications_than_needed():
    """Runs that do not differ are enough at once."""
    assert len(replicate(computation(1.0), cluster(), 2, precision=1e-6)) == 2


def test_most_replications():
    """A warning says what so many runs reached."""
    message = r"throughput known to .* %, 0\.01 % was asked for, after 7 replications of 2 workers"
    with pytest.warns(PrecisionWarning, match=message):
        runs = replicate(computation(1.0, 3.0), cluster(2), 3, precision=1e-4, most_replications=7)
    assert len(runs) == 7


def test_prediction_says_what_was_reached():
    """How many runs each cluster took, and how well its mean is known."""
    profile, clusters = chain(1000, [1.0, 3.0], 1000), [cluster(1), cluster(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = predict(profile, clusters, replications=5, precision=0.03)
    assert (table["precision"] <= 0.03).all()
    assert table["replications"].between(6, 1000).all()
    assert "precision" not in predict(profile, clusters, replications=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": 0.0}, "replicate: precision: found 0.0; expected a number between 0 and 1"),
        ({"precision": 1.0}, "replicate: precision: found 1.0; expected a number between 0 and 1"),
        ({"precision": np.nan}, "replicate: precision: found nan; expected a number between"),
        ({"precision": 0.1, "replications": 1}, "replicate: replications: found 1; expected an"),
        ({"precision": 0.1, "most_replications": 9}, "replicate: most_replications: found 9; exp"),
    ],
)
def test_bad_arguments(arguments: dict[str, float], message: str):
    """Arguments that make no sense are refused by name."""
    with pytest.raises(InputError, match=message):
        replicate(computation(1.0), cluster(), **{"replications": 10, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": -0.1}, "simulate_to_precision: precision: found -0.1; expected a number"),
        ({"most_steps": 99}, "simulate_to_precision: most_steps: found 99; expected at least 100"),
        ({"steps": 0}, "simulate: steps: found 0"),
    ],
)
def test_bad_run_lengths(arguments: dict[str, float], message: str):
    """So are those of a single run."""
    with pytest.raises(InputError, match=message):
        simulate_to_precision(computation(1.0), cluster(), **arguments)
