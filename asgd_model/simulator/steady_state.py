"""The steady state of one long run: where it begins, and how well its throughput is known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asgd_model.errors import InputError

CONFIDENCE = 0.95
"""Of all intervals for a mean."""

_ROUNDING = 1e-9
"""Relative difference that is put down to rounding: steps may repeat each other exactly."""


class SteadyState(NamedTuple):
    """Throughput of a run after its warm-up; NaN throughout if the run was too short to tell.

    Attributes
    ----------
    begin : float
        Seconds; what came before is the detected warm-up.
    steps_per_s, low, high : float
        Mean throughput and its 95 % interval in steps/s.
    """

    begin: float
    steps_per_s: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        """Half of the interval's width over the mean."""
        return 0.5 * (self.high - self.low) / self.steps_per_s


def steady_state(ends: NDArray[np.float64], workers: int, batches: int = 20) -> SteadyState:
    """Find the steady state of a run and its throughput, from the times at which steps ended.

    The observations are the times between one end of a step and the next, of any workers. Workers
    that keep step end their steps in groups, one after the other in each round: a batch is a
    number of whole rounds.

    Parameters
    ----------
    ends : ndarray of float64, shape (steps,)
        Seconds at which the steps of all workers ended, ascending, while all were at work.
    workers : int
        Number of workers.
    batches : int
        Number of batches, at least 2.
    """
    between = np.diff(ends)
    skipped = warm_up_length(between)
    if skipped == longest_warm_up(len(between)) or len(between) - skipped < batches * workers:
        return SteadyState(np.nan, np.nan, np.nan, np.nan)
    mean, margin = batch_means(between[skipped:], batches, multiple=workers)
    high = 1.0 / (mean - margin) if margin < mean else np.inf
    return SteadyState(float(ends[skipped]), 1.0 / mean, 1.0 / (mean + margin), high)


def warm_up_length(observations: NDArray[np.float64], batch: int = 5) -> int:
    """How many of the first observations to leave out, by the rule MSER-5.

    Of all numbers of left out observations, up to half of them, the one for which the mean of the
    others has the smallest standard error (White, An effective truncation heuristic for bias
    reduction in simulation output, Simulation 69, 1997), in terms of means of 5 observations
    (White, Cobb and Spratt, A comparison of five steady-state truncation heuristics, WSC 2000).

    Parameters
    ----------
    observations : ndarray of float64, shape (observations,)
        In the order of time.
    batch : int
        Observations that are averaged before the rule is applied.

    Returns
    -------
    int
        A multiple of `batch`. If it is `longest_warm_up`, there are too few observations to say
        that they have become steady.
    """
    count = len(observations) // batch
    if count == 0:
        return 0
    means = observations[: count * batch].reshape(count, batch).mean(axis=1)
    # From the typical value, so that sums over a constant tail are exactly zero.
    typical = np.median(means)
    deviation = means - typical
    deviation[np.abs(deviation) <= _ROUNDING * abs(typical)] = 0.0
    left = np.arange(count, 0, -1)
    total = np.cumsum(deviation[::-1])[::-1]
    squares = np.cumsum(deviation[::-1] ** 2)[::-1]
    error = (squares - total**2 / left) / left**2
    return batch * int(np.argmin(error[: count // 2 + 1]))


def longest_warm_up(observations: int, batch: int = 5) -> int:
    """The most that `warm_up_length` leaves out of so many observations."""
    return observations // batch // 2 * batch


def batch_means(
    observations: NDArray[np.float64], batches: int = 20, multiple: int = 1
) -> tuple[float, float]:
    """Mean of correlated observations and the half-width of its 95 % interval.

    Means of long batches of observations that follow each other are nearly independent and
    normal: Student's t over the batches (Law, Simulation Modeling and Analysis, chapter 9).

    Parameters
    ----------
    observations : ndarray of float64, shape (observations,)
        In the order of time, steady.
    batches : int
        Number of batches, at least 2.
    multiple : int
        A batch has a multiple of so many observations; what is left over at the beginning does
        not count.

    Returns
    -------
    mean, margin : float

    Raises
    ------
    InputError
        If there are fewer than 2 batches, or not `multiple` observations for each.
    """
    from scipy.stats import t

    length = len(observations) // (max(batches, 1) * multiple) * multiple
    if batches < 2 or length == 0:
        found = f"{len(observations)} for {batches} batches"
        expected = f"at least {multiple} for each of at least 2 batches"
        raise InputError("batch_means", found, expected, field="observations")
    means = observations[-batches * length :].reshape(batches, length).mean(axis=1)
    quantile = t.ppf(0.5 + 0.5 * CONFIDENCE, batches - 1)
    return float(means.mean()), float(quantile * means.std(ddof=1) / np.sqrt(batches))
