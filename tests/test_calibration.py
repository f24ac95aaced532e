"""What was planted in a job of one worker is found again: costs, window, overhead, link rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model.calibration import (
    MOST_TRACING_OVERHEAD,
    WINDOWS,
    communication_cost,
    fit_stream_window,
    link_goodput,
    share_spread,
    throttled_rate,
    tracing_overhead,
)
from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.profile import DOWNLINK, UPLINK, Profile
from asgd_model.simulator import simulate, synthetic_profile

from .jobs import MB, RATE, job


def with_overhead(profile: Profile, overhead: float) -> Profile:
    calibration = profile.metadata.calibration.model_copy(update={"tracing_overhead": overhead})
    known = profile.metadata.model_copy(update={"calibration": calibration})
    return replace(profile, metadata=known)


def one_worker_step(profile: Profile) -> float:
    """Mean simulated step time of one worker in seconds."""
    result = simulate(profile, Cluster.like(profile), steps=10 * profile.steps, warm_up=1)
    return float(result.step_times.mean())


# --- link -----------------------------------------------------------------------------------


def test_link_goodput(small: Profile) -> None:
    """4 MB from the first request at 0 s to the last arrival at 4 s; mean of the steps' times."""
    assert link_goodput(small) == pytest.approx(8e6)
    end = small.end.copy()
    end[1] += 2.0
    assert link_goodput(replace(small, end=end)) == pytest.approx(8 * 4e6 / 5)


def test_link_goodput_needs_downloads(small: Profile) -> None:
    """The error names the profile's file and the column."""
    resources = np.where(small.resources == DOWNLINK, UPLINK, small.resources).astype(np.int8)
    with pytest.raises(InputError) as caught:
        link_goodput(replace(small, resources=resources, source="a.json"))
    expected = "transfers to the worker"
    assert str(caught.value) == f"a.json: ops.resource: found no downloads; expected {expected}"


# --- CPU ------------------------------------------------------------------------------------


@given(
    per_byte=st.floats(0, 1e-7),
    per_tensor=st.floats(0, 1e-2),
    jobs=st.lists(
        st.lists(st.integers(1, 100 * MB), min_size=1, max_size=5), min_size=2, max_size=4
    ).filter(lambda jobs: max(map(np.mean, jobs)) > 2 * min(map(np.mean, jobs))),
)
@settings(deadline=None)
def test_planted_costs_are_recovered(
    per_byte: float, per_tensor: float, jobs: list[list[int]]
) -> None:
    """The server's own work is told from what it pays for bytes and for tensors."""
    profiles = [job(sizes, update=0.1 * index) for index, sizes in enumerate(jobs)]
    cpu = [
        2 * (per_byte * sum(sizes) + per_tensor * len(sizes)) + 0.1 * index
        for index, sizes in enumerate(jobs)
    ]
    cost = communication_cost(profiles, cpu)
    assert cost.per_byte * MB == pytest.approx(per_byte * MB, rel=1e-6, abs=1e-9)
    assert cost.per_tensor == pytest.approx(per_tensor, rel=1e-6, abs=1e-9)


def test_costs_are_not_negative() -> None:
    """A server that measured less than its own work paid nothing for communication."""
    profiles = [job([MB], update=1.0), job([MB] * 5, update=1.0)]
    cost = communication_cost(profiles, [0.9, 0.8])
    assert (cost.per_byte, cost.per_tensor) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("count", "cpu", "found"),
    [
        (1, [1.0], "1 profiles, 1 times"),
        (2, [1.0], "2 profiles, 1 times"),
        (2, [[1.0, 2.0]], "2 profiles, 2 times"),
        (0, [], "0 profiles, 0 times"),
    ],
)
def test_two_costs_need_two_jobs(count: int, cpu: Any, found: str) -> None:
    """One job cannot tell bytes from tensors."""
    with pytest.raises(InputError) as caught:
        communication_cost([job([MB])] * count, cpu)
    expected = "two profiles or more and one CPU time for each"
    assert str(caught.value) == f"communication_cost: found {found}; expected {expected}"


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf")])
def test_impossible_cpu_times(wrong: float) -> None:
    """A measurement that is none is named."""
    with pytest.raises(InputError) as caught:
        communication_cost([job([MB]), job([MB, MB])], [0.5, wrong])
    assert str(caught.value) == (
        f"communication_cost: server_cpu: found [0.5, {wrong}]; expected finite seconds, 0 or more"
    )


# --- window ---------------------------------------------------------------------------------


def uploads_with(window: int | None, sizes: Sequence[int]) -> Profile:
    """A job whose gradients' arrivals are those of a simulated step with this window."""
    profile = job(sizes, computation=0.1)
    cluster = Cluster.like(profile, stream_order="fifo", stream_window=window)
    result = simulate(profile, cluster, steps=2, warm_up=1, record=[(0, 0), (0, 1)])
    begin = result.start[0, :2, None]
    return replace(profile, start=result.op_start - begin, end=result.op_end - begin)


@pytest.mark.parametrize("window", [WINDOWS[0], WINDOWS[2], WINDOWS[4]])
def test_planted_window_is_recovered(window: int) -> None:
    """Large gradients that take turns on the link arrive when that window says."""
    profile = uploads_with(window, [60 * MB, 45 * MB, 3 * MB, 50 * MB])
    assert fit_stream_window(profile, RATE) == window


def test_whole_tensors_need_no_window() -> None:
    """None if tensors left whole, one after the other; also if none is large enough to be cut."""
    assert fit_stream_window(uploads_with(None, [60 * MB, 45 * MB, 3 * MB]), RATE) is None
    small = [WINDOWS[0] - 200, WINDOWS[0] // 2]
    assert fit_stream_window(uploads_with(WINDOWS[0], small), RATE) is None


def test_window_by_hand() -> None:
    """2 and 3 windows of 1 MiB that are ready together, in turn: the end after 3 and 5 turns."""
    size = WINDOWS[0]
    profile = job([3 * size, 2 * size])
    turn = 8.0 * size / RATE
    start, end = profile.start.copy(), profile.end.copy()
    uploads = profile.resources == UPLINK
    start[:, uploads] = 0.0
    end[:, uploads] = [5 * turn, 4 * turn]
    assert fit_stream_window(replace(profile, start=start, end=end), RATE) == size
    end[:, uploads] = [3 * turn, 5 * turn]
    assert fit_stream_window(replace(profile, start=start, end=end), RATE) is None


def test_no_uploads_no_window(small: Profile) -> None:
    """A job that sends nothing tells nothing about windows."""
    resources = np.where(small.resources == UPLINK, DOWNLINK, small.resources).astype(np.int8)
    assert fit_stream_window(replace(small, resources=resources), RATE) is None


# --- tracing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "computation"), [([1000], 2.0), ([MB, 2 * MB], 2.0), ([4 * MB], 0.5)]
)
@pytest.mark.parametrize("overhead", [-0.1, 0.0, 0.04, 0.5])
def test_overhead_is_recovered(sizes: list[int], computation: float, overhead: float) -> None:
    """Whatever part of a step is transfers: those take as long with tracing as without."""
    traced = job(sizes, computation=computation * (1.0 + overhead))
    untraced = one_worker_step(job(sizes, computation=computation))
    assert tracing_overhead(traced, [untraced] * 3) == pytest.approx(overhead, abs=1e-5)


def test_corrected_simulation_has_the_untraced_step_time(alexnet: Profile) -> None:
    """Real steps, transfers and computations at the same time."""
    traced = with_overhead(alexnet, 0.0)
    untraced = 0.99 * one_worker_step(traced) * np.array([0.9, 1.0, 1.1])
    found = tracing_overhead(traced, untraced)
    assert found > 0.01
    corrected = one_worker_step(with_overhead(traced, found))
    assert corrected == pytest.approx(untraced.mean(), rel=1e-4)


@pytest.mark.parametrize("times", [[], [1.0, 0.0], [-1.0], [float("nan")], [float("inf")]])
def test_impossible_step_times(times: list[float]) -> None:
    """The error shows the times."""
    with pytest.raises(InputError) as caught:
        tracing_overhead(job([MB]), times)
    where = "tracing_overhead: untraced_step_times"
    assert str(caught.value) == f"{where}: found {times}; expected finite step times above 0 s"


def test_steps_too_short_for_any_overhead() -> None:
    """2 s of transfers do not fit into a step of 1 s."""
    with pytest.raises(InputError, match=r"untraced_step_times: found 1\.0; expected step times"):
        tracing_overhead(job([MB], computation=0.1 * MOST_TRACING_OVERHEAD), [1.0])


def test_steps_too_long_for_any_overhead() -> None:
    """Unrecorded work may lengthen computations, but not tenfold: something else is wrong."""
    with pytest.raises(InputError, match=r"untraced_step_times: found 100\.0; expected .* more"):
        tracing_overhead(job([MB]), [100.0])


# --- throttling -----------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.3, 0.55, 1.0])
def test_throttled_rate_is_recovered(rate: float) -> None:
    """From a simulated trace of a worker whose quota slows its uploads down by so much."""
    known = job([8 * MB, MB // 100], computation=2.0).recalibrated(throttled_rate=rate)
    cluster = Cluster.like(known, worker_cores=0.5)
    result = simulate(known, cluster, steps=3, warm_up=1, record=[(0, 1), (0, 2)])
    assert throttled_rate(synthetic_profile(known, result)) == pytest.approx(rate, abs=0.01)


def test_throttling_is_not_seen_without_overlap() -> None:
    """A single gradient that is sent after all computation tells nothing."""
    with pytest.raises(InputError, match=r"throttled_rate: found .* while the worker computes"):
        throttled_rate(job([MB]))


# --- shares ---------------------------------------------------------------------------------


def test_share_spread() -> None:
    """Sample standard deviation of the logarithm, in any unit."""
    assert share_spread([5.0, 5.0, 5.0]) == 0.0
    assert share_spread([1.0, np.e]) == pytest.approx(1 / np.sqrt(2))
    assert share_spread([30.0, 40.0, 50.0]) == pytest.approx(share_spread([3.0, 4.0, 5.0]))


@pytest.mark.parametrize("rates", [[], [1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("inf")]])
def test_impossible_shares(rates: list[float]) -> None:
    """A spread needs two flows that got something."""
    with pytest.raises(InputError) as caught:
        share_spread(rates)
    expected = "finite rates above 0 of two flows or more"
    assert str(caught.value) == f"share_spread: throughputs: found {rates}; expected {expected}"
