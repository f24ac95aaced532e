"""One simulated run of a training job on a cluster."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from asgd_model.cluster import Cluster
from asgd_model.errors import InputError, PrecisionWarning
from asgd_model.profile import Profile
from asgd_model.simulator.engine import lay_out
from asgd_model.simulator.jobs import Job, run_jobs
from asgd_model.simulator.memory import require_memory
from asgd_model.simulator.results import SimulationResult
from asgd_model.simulator.step_graph import compile_step_graph


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
    """Simulate a training job on a cluster.

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
        does (if synchronous, with the update that its last step is for); otherwise with the last.
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
        self._layout = lay_out([cluster])
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
        (result,) = run_jobs(
            self._layout,
            self._graph,
            [Job(self._profile, self._cluster, steps, starts, record)],
            warm_up=warm_up,
            stop_at_first=stop_at_first,
            bins=bins,
            seed=seed,
        )
        return result
