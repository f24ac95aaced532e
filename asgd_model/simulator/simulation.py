"""One simulated run of a training job on a cluster."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asgd_model.cluster import Cluster
from asgd_model.errors import InputError, PrecisionWarning
from asgd_model.profile import Profile
from asgd_model.simulator.engine import FIFO, GIVEN, RANDOM, Options, lay_out, run
from asgd_model.simulator.memory import require_memory
from asgd_model.simulator.results import SimulationResult
from asgd_model.simulator.step_graph import compile_step_graph

_ORDERS: dict[object, int] = {"fifo": FIFO, "random": RANDOM}


def simulate(
    profile: Profile,
    cluster: Cluster,
    *,
    steps: int = 20,
    warm_up: int = 2,
    starts: ArrayLike | None = None,
    record: Sequence[tuple[int, int]] = (),
    stop_at_first: bool = True,
    bins: ArrayLike = (),
    seed: int | np.random.SeedSequence = 0,
) -> SimulationResult:
    """Simulate asynchronous SGD on a cluster.

    Each step of each worker repeats a profiled step drawn at random.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    cluster : Cluster
        Where it runs.
    steps : int
        Steps that each worker executes.
    warm_up : int
        Throughput and utilisation count from when every worker has ended this many steps.
    starts : array_like, shape (workers,), optional
        Seconds at which the workers begin their first step. By default each begins at random,
        evenly spread over the mean length of a profiled step: nearly constant phases keep the
        offsets that they start with for long.
    record : sequence of (worker, step)
        Steps whose operations' times are kept in the result.
    stop_at_first : bool
        End with the first worker that has ended all its steps, as a measured run's window
        does; otherwise with the last.
    bins : array_like, shape (edges,), optional
        Seconds, ascending, between which `SimulationResult.utilisation_over_time` tells the
        utilisation.
    seed : int or SeedSequence
        Same seed, same result.

    Raises
    ------
    InputError
        If the arguments do not fit together.
    """
    return Simulation(profile, cluster).run(
        steps=steps,
        warm_up=warm_up,
        starts=starts,
        record=record,
        stop_at_first=stop_at_first,
        bins=bins,
        seed=seed,
    )


def simulate_to_precision(
    profile: Profile,
    cluster: Cluster,
    precision: float = 0.01,
    *,
    steps: int = 100,
    most_steps: int = 100_000,
    starts: ArrayLike | None = None,
    seed: int = 0,
) -> SimulationResult:
    """Simulate one run that is long enough to know its throughput as well as asked for.

    The run is simulated again, twice as long each time, until `SimulationResult.steady_state`
    has an interval that is narrow enough. The interval is about this one run: where workers keep
    step, other starts may give another throughput for any length (`replicate`). As with every
    rule that stops at the first narrow interval, it contains the true mean somewhat less often
    than in 95 % of cases.

    Parameters
    ----------
    profile, cluster, starts, seed
        As for `simulate`.
    precision : float
        Highest half-width of the 95 % interval of the steady throughput, relative to the mean.
    steps : int
        Steps per worker of the first run.
    most_steps : int
        Steps per worker of the longest; if that one is not enough, it is returned with a warning.

    Returns
    -------
    SimulationResult
        Of the last run.

    Warns
    -----
    PrecisionWarning
        If the longest run did not reach the precision.

    Raises
    ------
    InputError
        As `simulate`, and if `precision` is not between 0 and 1 or `most_steps` below `steps`.
    """
    check_precision("simulate_to_precision", precision)
    if most_steps < steps:
        where = "simulate_to_precision"
        raise InputError(where, most_steps, f"at least {steps} steps", field="most_steps")
    simulation = Simulation(profile, cluster)
    while True:
        result = simulation.run(steps=steps, starts=starts, seed=seed)
        reached = result.steady_state().relative_half_width
        if reached <= precision:
            return result
        if steps >= most_steps:
            spent = f"{steps} steps of each of {len(cluster.workers)} workers"
            warnings.warn(PrecisionWarning(reached, precision, spent), stacklevel=2)
            return result
        steps = min(2 * steps, most_steps)


def check_precision(where: str, precision: float) -> None:
    """Raise `InputError` unless a relative half-width is between 0 and 1."""
    if not 0.0 < precision < 1.0:
        raise InputError(where, precision, "a number between 0 and 1", field="precision")


class Simulation:
    """A job on a cluster, laid out for the engine, to be run any number of times.

    Parameters
    ----------
    profile, cluster
        As for `simulate`.

    Raises
    ------
    InputError
        If the variables cannot be placed on the cluster's servers, or a step takes more memory
        than `asgd_model.simulator.memory.MEMORY_LIMIT`.
    """

    def __init__(self, profile: Profile, cluster: Cluster) -> None:
        require_memory(cluster, profile.ops)
        self._profile = profile
        self._cluster = cluster
        self._layout = lay_out(cluster)
        self._graph = compile_step_graph(profile, cluster)

    def run(
        self,
        *,
        steps: int = 20,
        warm_up: int = 2,
        starts: ArrayLike | None = None,
        record: Sequence[tuple[int, int]] = (),
        stop_at_first: bool = True,
        bins: ArrayLike = (),
        seed: int | np.random.SeedSequence = 0,
    ) -> SimulationResult:
        """Simulate one run; see `simulate`."""
        profile, cluster, layout = self._profile, self._cluster, self._layout
        workers = len(cluster.workers)
        _check_steps(steps, warm_up, record, workers)
        require_memory(cluster, profile.ops, steps)
        rows = np.full((workers, steps), -1, dtype=np.int64)
        for row, place in enumerate(record):
            rows[place] = row
        rng = np.random.default_rng(seed)
        draws = rng.integers(profile.steps, size=(workers, steps))
        offsets = rng.uniform(0.0, float(profile.step_times.mean()), size=workers)
        window = cluster.stream_window
        edges = _checked_bins(bins)
        outcome = run(
            layout,
            self._graph,
            offsets if starts is None else _checked_starts(starts, workers),
            draws,
            Options(
                order=_ORDERS.get(cluster.stream_order, GIVEN),
                window=np.inf if window is None else float(window),
                warm_up=int(warm_up),
                stop_at_first=stop_at_first,
                newcomer_share=cluster.calibration.newcomer_share,
                share_spread=cluster.calibration.share_spread,
                throttled_rate=cluster.calibration.throttled_rate,
            ),
            rows,
            edges,
            rng,
        )
        capacity = layout.capacity.reshape(-1, 3)
        return SimulationResult(
            batch_size=profile.metadata.batch_size,
            start=outcome.start,
            end=outcome.end,
            warm_up=int(warm_up),
            capacity=capacity,
            used=outcome.used.reshape(capacity.shape),
            used_in_window=np.diff(outcome.used_by_window, axis=0).reshape(capacity.shape),
            bins=edges,
            used_by_bin=outcome.used_by_bin.reshape(-1, *capacity.shape),
            num_workers=workers,
            events=outcome.events,
            drawn=draws,
            placement=self._graph.servers.astype(np.int32),
            recorded=tuple((int(worker), int(step)) for worker, step in record),
            op_start=outcome.op_start,
            op_end=outcome.op_end,
        )


def _check_steps(steps: int, warm_up: int, record: Sequence[tuple[int, int]], workers: int) -> None:
    if not (isinstance(steps, int | np.integer) and steps >= 1):
        raise InputError("simulate", steps, "an integer of at least 1", field="steps")
    if not (isinstance(warm_up, int | np.integer) and 0 <= warm_up < steps):
        raise InputError("simulate", warm_up, f"0 to {steps - 1}", field="warm_up")
    for worker, step in record:
        if not (0 <= worker < workers and 0 <= step < steps):
            expected = f"worker below {workers} and step below {steps}"
            raise InputError("simulate", (worker, step), expected, field="record")


def _checked_starts(starts: ArrayLike, workers: int) -> NDArray[np.float64]:
    times = np.asarray(starts, dtype=np.float64)
    if times.shape != (workers,) or not np.isfinite(times).all() or (times < 0).any():
        expected = f"{workers} finite times of at least 0 s"
        raise InputError("simulate", times.tolist(), expected, field="starts")
    return times


def _checked_bins(bins: ArrayLike) -> NDArray[np.float64]:
    edges = np.asarray(bins, dtype=np.float64)
    rising = edges.ndim == 1 and (edges[:1] >= 0).all() and (np.diff(edges) > 0).all()
    if not (rising and np.isfinite(edges).all()):
        expected = "finite times of at least 0 s, each after the one before"
        raise InputError("simulate", edges.tolist(), expected, field="bins")
    return edges
