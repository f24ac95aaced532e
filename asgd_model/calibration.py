"""What a platform's communication costs, from measurements with one worker only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq, nnls

from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, CommunicationCost, Profile
from asgd_model.simulator import simulate

LEAST_THROTTLED_RATE = 0.1
"""Smallest result of `throttled_rate`."""

LARGE_GRADIENT = 0.05
"""Part of a step's bytes that a gradient has for `throttled_rate` to look at when it is sent."""


def link_goodput(profile: Profile) -> float:
    """Payload rate that tensors reach on an otherwise idle link.

    All parameters of a step are requested at once, so that nothing but the link holds the
    downloads of a job back whose transfers are large.

    Parameters
    ----------
    profile : Profile
        Of a job that is bound by the network.

    Returns
    -------
    float
        bit/s: bytes of the downloads over the time from the first request to the last arrival,
        mean over steps.

    Raises
    ------
    InputError
        If the profile has no downloads.
    """
    downloads = profile.resources == DOWNLINK
    if not downloads.any():
        raise InputError(profile.source, "no downloads", "transfers to the worker", "ops.resource")
    time = profile.end[:, downloads].max(axis=1) - profile.start[:, downloads].min(axis=1)
    return float(8.0 * profile.bytes_moved(DOWNLINK) / time.mean())


def communication_cost(profiles: Sequence[Profile], server_cpu: ArrayLike) -> CommunicationCost:
    """CPU time that moving a byte, and a tensor, costs a server.

    A server's CPU time per step is that of its operations and, for what it sends and receives,
    a cost per byte and a cost per tensor: non-negative least squares over the jobs. Jobs with
    few large and with many small tensors tell the two apart; sending and receiving are not
    told apart.

    Parameters
    ----------
    profiles : sequence of Profile
        Jobs on the same platform with one worker and one server.
    server_cpu : array_like, shape (profiles,)
        Measured CPU time of the server per step in seconds of one core.

    Returns
    -------
    CommunicationCost
        The mean of sending and receiving.

    Raises
    ------
    InputError
        If there are fewer jobs than costs, lengths differ, or a time is negative or not finite.
    """
    measured = np.asarray(server_cpu, dtype=np.float64)
    if len(profiles) < 2 or measured.shape != (len(profiles),):
        expected = "two profiles or more and one CPU time for each"
        found = f"{len(profiles)} profiles, {measured.size} times"
        raise InputError("communication_cost", found, expected)
    if not (np.isfinite(measured) & (measured >= 0.0)).all():
        expected = "finite seconds, 0 or more"
        raise InputError("communication_cost", measured.tolist(), expected, "server_cpu")
    moved = [[p.bytes_moved(DOWNLINK) + p.bytes_moved(UPLINK), _tensors(p)] for p in profiles]
    left = measured - [p.mean_work(SERVER) for p in profiles]
    # Columns of like size, for the sake of the numbers.
    scale = np.max(moved, axis=0)
    cost, _ = nnls(np.array(moved) / scale, left)
    per_byte, per_tensor = cost / scale
    return CommunicationCost(per_byte=float(per_byte), per_tensor=float(per_tensor))


WINDOWS = tuple(2**exponent for exponent in range(20, 29))
"""Windows that `fit_stream_window` tries: 1 MiB to 256 MiB."""


def fit_stream_window(profile: Profile, link_rate: float) -> int | None:
    """Find the window that explains when a worker's gradients arrived.

    A stream sends as much as its flow-control window allows and then lets the next one pass;
    gRPC lets the window grow with the bandwidth-delay product that it estimates. Each gradient's
    recorded start tells when it was ready to be sent; serving them in turn, a window at a time,
    predicts when each one arrives.

    Parameters
    ----------
    profile : Profile
        Of a job with one worker.
    link_rate : float
        Payload rate of the worker's link in bit/s.

    Returns
    -------
    int or None
        Bytes: the one of `WINDOWS` with the least mean absolute error over gradients and
        steps; None if no tensor is larger than the smallest of them, so that none is ever cut,
        or if sending each whole explains the arrivals at least as well.
    """
    uploads = np.flatnonzero(profile.resources == UPLINK)
    if len(uploads) == 0 or profile.sizes[uploads].max() <= WINDOWS[0]:
        return None
    sizes = profile.sizes[uploads].astype(np.float64)
    best, window = np.inf, None
    for candidate in (None, *WINDOWS):
        errors = [
            np.abs(_arrivals(start, sizes, candidate or np.inf, link_rate / 8.0) - end).mean()
            for start, end in zip(profile.start[:, uploads], profile.end[:, uploads], strict=True)
        ]
        if np.mean(errors) < best:
            best, window = float(np.mean(errors)), candidate
    return window


def _arrivals(
    ready: NDArray[np.float64], sizes: NDArray[np.float64], window: float, rate: float
) -> NDArray[np.float64]:
    """Times at which streams end that take turns of a window each on one link, in seconds."""
    order = np.argsort(ready, kind="stable").tolist()
    arrival = np.zeros(len(ready))
    left = sizes.copy()
    waiting: deque[int] = deque()
    now = 0.0
    while order or waiting:
        if not waiting:
            now = max(now, ready[order[0]])
        while order and ready[order[0]] <= now:
            waiting.append(order.pop(0))
        stream = waiting.popleft()
        turn = min(left[stream], window)
        now += turn / rate
        left[stream] -= turn
        arrival[stream] = now
        if left[stream] > 0.0:
            # Streams that became ready meanwhile go first.
            while order and ready[order[0]] <= now:
                waiting.append(order.pop(0))
            waiting.append(stream)
    return arrival


MOST_TRACING_OVERHEAD = 1.0
LEAST_TRACING_OVERHEAD = -0.5
"""Largest and smallest overhead that `tracing_overhead` finds."""


def tracing_overhead(profile: Profile, untraced_step_times: ArrayLike) -> float:
    """By how much tracing lengthened the computations of a profile.

    It is what brings the simulation of one worker to the step time of one untraced worker;
    transfers take as long with tracing as without. Below 0, untraced steps take longer than what
    was recorded explains: between operations, the framework works too, and no record shows it.

    Parameters
    ----------
    profile : Profile
        The traced steps.
    untraced_step_times : array_like
        Seconds of steps of the same job with one worker, not traced.

    Returns
    -------
    float
        Time of a recorded computation over that of an untraced one, minus 1.

    Raises
    ------
    InputError
        If there are no untraced steps, a time is not finite or not above 0, or untraced steps
        take less or more time than `MOST_TRACING_OVERHEAD` or `LEAST_TRACING_OVERHEAD` explain.
    """
    times = _checked_step_times("tracing_overhead", untraced_step_times)
    excess = _excess_step_time(profile, times.mean(), "tracing_overhead")
    for limit, sign, amount in (
        (MOST_TRACING_OVERHEAD, 1.0, "less"),
        (LEAST_TRACING_OVERHEAD, -1.0, "more"),
    ):
        if sign * excess(limit) > 0.0:
            expected = f"step times that its transfers and {amount} computation explain"
            raise InputError("tracing_overhead", times.mean(), expected, "untraced_step_times")
    return float(brentq(excess, LEAST_TRACING_OVERHEAD, MOST_TRACING_OVERHEAD, xtol=1e-6))


def throttled_rate(profile: Profile) -> float:
    """Part of its link's rate that a worker reaches while its computation uses its CPU up.

    A CPU quota stops a node's communication together with its computation. How much of its
    gradients a worker sent while it still computed is what remains when the rest, sent at the
    link's full rate from the end of the computation to the end of the step, is taken off.

    Parameters
    ----------
    profile : Profile
        Of a job that is bound by the network, with the link's rate in its metadata.

    Returns
    -------
    float
        Mean over the steps, at least `LEAST_THROTTLED_RATE` and at most 1.

    Raises
    ------
    InputError
        If no large gradient is sent while the worker computes, or computation goes on until the
        step ends, in any step.
    """
    uplink = profile.resources == UPLINK
    total = int(profile.sizes[uplink].sum())
    large = uplink & (profile.sizes >= LARGE_GRADIENT * total)
    if total == 0 or not large.any():
        raise InputError("throttled_rate", "no gradients", "a profile with large gradients")
    rate = profile.metadata.link_rate / 8.0
    begin = profile.start[:, large].min(axis=1)
    computed = profile.end[:, profile.resources == WORKER].max(axis=1)
    end = profile.end[:, uplink].max(axis=1)
    if not ((begin < computed) & (computed < end)).all():
        expected = "large gradients sent while the worker computes and after it"
        raise InputError("throttled_rate", profile.source, expected)
    sent_meanwhile = total - rate * (end - computed)
    part = float((sent_meanwhile / (computed - begin)).mean() / rate)
    return min(max(part, LEAST_THROTTLED_RATE), 1.0)


def fit_to_untraced(
    profiles: Mapping[str, Profile], untraced: Mapping[str, ArrayLike], network_bound: str
) -> dict[str, Profile]:
    """Profiles of the jobs of one platform, calibrated to the speed of one untraced worker.

    The platform's `throttled_rate` comes from the trace of the job that is bound by the network,
    then each job's `tracing_overhead` from its own untraced steps.

    Parameters
    ----------
    profiles : mapping of str to Profile
        Of several jobs on the same platform, by name.
    untraced : mapping of str to array_like
        Seconds of steps of each job with one worker, not traced.
    network_bound : str
        Name of the job that is bound by the network.

    Raises
    ------
    InputError
        As `throttled_rate` and `tracing_overhead`.
    """
    rate = round(throttled_rate(profiles[network_bound]), 3)
    calibrated = {}
    for name, profile in profiles.items():
        throttled = profile.recalibrated(throttled_rate=rate)
        overhead = round(tracing_overhead(throttled, untraced[name]), 4)
        calibrated[name] = throttled.recalibrated(tracing_overhead=overhead)
    return calibrated


def newcomer_share(offset: ArrayLike, duration: ArrayLike, alone: float) -> float:
    """Share of a bulk flow that joins another one, over that of the other.

    The flow that was first sends alone for the offset and with the other one for the rest.

    Parameters
    ----------
    offset : array_like
        Seconds by which the second flow started later, in each of several trials.
    duration : array_like
        Seconds that the first flow took, in the same trials.
    alone : float
        Seconds that it takes without the other.

    Returns
    -------
    float
        Mean over the trials, at most 1.

    Raises
    ------
    InputError
        If there are no trials or in one of them the flows did not meet.
    """
    later = np.asarray(offset, dtype=np.float64)
    took = np.asarray(duration, dtype=np.float64)
    if later.size == 0 or not ((later >= 0.0) & (later < alone) & (took > alone)).all():
        expected = f"offsets below and durations above {alone} s"
        raise InputError("newcomer_share", [later.tolist(), took.tolist()], expected)
    first = (alone - later) / (took - later)
    return float(min(((1.0 - first) / first).mean(), 1.0))


def share_spread(throughputs: ArrayLike) -> float:
    """Spread of the shares that equal flows get of one link.

    Parameters
    ----------
    throughputs : array_like, shape (flows,)
        What each of several simultaneous bulk flows reached, in any unit.

    Returns
    -------
    float
        Standard deviation of the logarithm.

    Raises
    ------
    InputError
        If there are fewer than two flows, or one got nothing or no finite rate.
    """
    rates = np.asarray(throughputs, dtype=np.float64)
    if rates.size < 2 or not (np.isfinite(rates) & (rates > 0.0)).all():
        expected = "finite rates above 0 of two flows or more"
        raise InputError("share_spread", rates.tolist(), expected, "throughputs")
    return float(np.log(rates).std(ddof=1))


def _checked_step_times(where: str, step_times: ArrayLike) -> NDArray[np.float64]:
    times = np.asarray(step_times, dtype=np.float64)
    if times.size == 0 or not (np.isfinite(times) & (times > 0.0)).all():
        expected = "finite step times above 0 s"
        raise InputError(where, times.tolist(), expected, "untraced_step_times")
    return times


def _excess_step_time(profile: Profile, step_time: float, field: str) -> Callable[[float], float]:
    """Simulated less measured step time of one worker, by the value of a calibration field."""
    cluster = Cluster.like(profile)

    def excess(value: float) -> float:
        calibration = cluster.calibration.model_copy(update={field: value})
        corrected = replace(cluster, calibration=calibration)
        # The steps drawn are the same for every value.
        simulated = simulate(profile, corrected, steps=10 * profile.steps, warm_up=1)
        return float(simulated.step_times.mean() - step_time)

    return excess


def _tensors(profile: Profile) -> int:
    return int(np.isin(profile.resources, (DOWNLINK, UPLINK)).sum())
