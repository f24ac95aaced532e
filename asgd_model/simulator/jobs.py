"""Several training jobs at the same time, on hosts that they share.

Jobs meet where their clusters name the same hosts (`asgd_model.cluster.Node`): their nodes share
the cores and the links of those. TensorLights (Huang, Chen and Ng, Green, yellow, yield: end-host
traffic scheduling for distributed deep learning with TensorLights, IPDPSW 2019) gives the jobs
strict priorities on the links over which hosts send, so that one job's transfers are done early
instead of all jobs' late: each job has a priority of its own, either for good or in rotation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asgd_model.cluster import Cluster, check_hosts
from asgd_model.errors import InputError
from asgd_model.profile import Profile
from asgd_model.simulator.engine import (
    FIFO,
    GIVEN,
    JOB_OPTIONS,
    RANDOM,
    SHARED,
    Layout,
    Options,
    Outcome,
    lay_out,
    run,
)
from asgd_model.simulator.memory import require_memory
from asgd_model.simulator.results import SimulationResult
from asgd_model.simulator.step_graph import StepGraph, compile_step_graph, join

PRIORITIES = ("none", "one", "rr")
"""How jobs share a link over which a host sends: evenly between connections; by strict priority,
the first job highest; or by strict priority in rotation (TensorLights' TLs-One and TLs-RR)."""

MAX_PRIORITIES = 32
"""Most jobs with priorities: the weight of the lowest one must be a number above 0."""

_ORDERS: dict[object, int] = {"fifo": FIFO, "random": RANDOM, "shared": SHARED}


@dataclass(frozen=True, eq=False)
class Job:
    """A training job among several.

    Attributes
    ----------
    profile : Profile
        The job on one worker.
    cluster : Cluster
        Its nodes, with the hosts that they are on (`Cluster.on_hosts`).
    steps : int
        Steps that each worker executes.
    starts : array_like, shape (workers,), optional
        Seconds at which the workers begin their first step; by default as for `simulate`.
    record : sequence of (worker, step)
        Steps whose operations' times are kept in the result.
    """

    profile: Profile
    cluster: Cluster
    steps: int = 20
    starts: ArrayLike | None = None
    record: Sequence[tuple[int, int]] = ()


def simulate_jobs(
    jobs: Mapping[str, Job],
    *,
    priorities: str = "none",
    rotation: float = 20.0,
    warm_up: int = 2,
    stop_at_first: bool = False,
    bins: ArrayLike = (),
    seed: int | np.random.SeedSequence = 0,
) -> dict[str, SimulationResult]:
    """Simulate jobs that run at the same time.

    Parameters
    ----------
    jobs : mapping of str to Job
        Each with its name. With priorities, the first one has the highest.
    priorities : str
        One of `PRIORITIES`. They hold on the links over which hosts send, workers' and servers',
        and between jobs: transfers of the same job share evenly what the job gets, in queues of
        their own, whatever the calibration says of unequal shares. CPUs know no priorities.
    rotation : float
        Seconds after which, with "rr", the job of the highest priority gets the lowest and all
        others move up.
    warm_up : int
        A job's throughput and utilisation count from when each of its workers has ended this many
        steps; utilisation is that of the hosts, by all jobs.
    stop_at_first : bool
        End with the first worker of any job that has ended all its steps; otherwise with the
        last, and jobs that have ended leave the hosts to the others.
    bins : array_like, shape (edges,), optional
        As for `simulate`.
    seed : int or SeedSequence
        Same seed, same result.

    Returns
    -------
    dict of str to SimulationResult
        The result of each job; all times count from the same beginning. `events` are those of
        the whole run.

    Raises
    ------
    InputError
        If there are no jobs, nodes of the same host differ in its cores or links, or the
        arguments do not fit together.
    """
    if not jobs:
        raise InputError("simulate_jobs", "none", "at least one job", field="jobs")
    if priorities not in PRIORITIES:
        expected = f"one of {', '.join(PRIORITIES)}"
        raise InputError("simulate_jobs", priorities, expected, field="priorities")
    if priorities != "none" and len(jobs) > MAX_PRIORITIES:
        expected = f"at most {MAX_PRIORITIES} jobs with priorities"
        raise InputError("simulate_jobs", len(jobs), expected, field="jobs")
    if not 0.0 < rotation < np.inf:
        expected = "a finite number above 0"
        raise InputError("simulate_jobs", rotation, expected, field="rotation")
    all_jobs = list(jobs.values())
    check_hosts(node for job in all_jobs for node in {*job.cluster.workers, *job.cluster.servers})
    results = run_jobs(
        lay_out([job.cluster for job in all_jobs]),
        join([compile_step_graph(job.profile, job.cluster) for job in all_jobs]),
        all_jobs,
        prioritized=priorities != "none",
        rotation=rotation if priorities == "rr" else np.inf,
        warm_up=warm_up,
        stop_at_first=stop_at_first,
        bins=bins,
        seed=seed,
    )
    return dict(zip(jobs, results, strict=True))


def run_jobs(
    layout: Layout,
    graph: StepGraph,
    jobs: Sequence[Job],
    *,
    prioritized: bool = False,
    rotation: float = np.inf,
    warm_up: int,
    stop_at_first: bool,
    bins: ArrayLike = (),
    seed: int | np.random.SeedSequence,
) -> list[SimulationResult]:
    """Run jobs that are laid out for the engine; see `simulate_jobs`."""
    for job in jobs:
        _check_steps(job, warm_up)
        require_memory(job.cluster, len(graph.resources), int(job.steps))
    shape = (layout.workers, max(int(job.steps) for job in jobs))
    rng = np.random.default_rng(seed)
    draws, rows = (np.full(shape, -1, dtype=np.int64) for _ in range(2))
    slowdowns = np.ones(shape)
    starts = np.empty(layout.workers)
    recorded = 0
    for index, job in enumerate(jobs):
        own = slice(*layout.worker_offsets[index : index + 2])
        workers = len(job.cluster.workers)
        drawn = rng.integers(job.profile.steps, size=(workers, job.steps))
        draws[own, : job.steps] = drawn + graph.step_offsets[index]
        offsets = rng.uniform(0.0, float(job.profile.step_times.mean()), size=workers)
        starts[own] = offsets if job.starts is None else _checked_starts(job.starts, workers)
        for worker, node in enumerate(job.cluster.workers, start=own.start):
            slowdowns[worker, : job.steps] = node.slowdown.draw(int(job.steps), rng)
        for worker, step in job.record:
            rows[own.start + worker, step] = recorded
            recorded += 1
    calibrations = [job.cluster.calibration for job in jobs]
    options = Options(
        jobs=np.array([_options(job, prioritized) for job in jobs], dtype=JOB_OPTIONS),
        warm_up=int(warm_up),
        stop_at_first=stop_at_first,
        prioritized=prioritized,
        rotation=rotation,
        throttles=any(c.newcomer_share < 1.0 or c.throttled_rate < 1.0 for c in calibrations),
    )
    edges = _checked_bins(bins)
    outcome = run(layout, graph, starts, draws, slowdowns, options, rows, edges, rng)
    return [
        _result(layout, graph, outcome, draws, rows, edges, job, index, int(warm_up))
        for index, job in enumerate(jobs)
    ]


def _options(job: Job, prioritized: bool) -> tuple[float, ...]:
    """The job's row of `JOB_OPTIONS`; where there are priorities, a job's connections are equal."""
    cluster = job.cluster
    window, barrier, costs = cluster.stream_window, cluster.synchronous, cluster.calibration
    return (
        job.steps,
        _ORDERS.get(cluster.stream_order, GIVEN),
        np.inf if window is None else float(window),
        0 if barrier is None else len(cluster.workers) - barrier.backups,
        barrier is not None and barrier.late == "abandon",
        1.0 if prioritized else costs.newcomer_share,
        0.0 if prioritized else costs.share_spread,
        costs.throttled_rate,
    )


def _result(
    layout: Layout,
    graph: StepGraph,
    outcome: Outcome,
    draws: NDArray[np.int64],
    rows: NDArray[np.int64],
    bins: NDArray[np.float64],
    job: Job,
    index: int,
    warm_up: int,
) -> SimulationResult:
    """What a run found of one job."""
    steps = int(job.steps)
    own = slice(*layout.worker_offsets[index : index + 2])
    ops = slice(*graph.op_offsets[index : index + 2])
    server = layout.first_server[own.start]
    nodes = [*range(own.start, own.stop), *range(server, server + len(job.cluster.servers))]
    hosts = layout.host[nodes]
    capacity = layout.capacity.reshape(-1, 3)
    in_window = np.diff(outcome.used_by_window[index], axis=0)
    kept = np.array([rows[own.start + worker, step] for worker, step in job.record], dtype=np.intp)
    start, end = outcome.start[own, :steps], outcome.end[own, :steps]
    dropped = outcome.dropped[own, :steps]
    updates = None
    if job.cluster.synchronous is not None:
        updates = np.zeros(outcome.updates[index])
        update = outcome.update[own, :steps]
        counts = ~np.isnan(end) & ~dropped & (update < len(updates))
        np.maximum.at(updates, update[counts], end[counts])
    return SimulationResult(
        batch_size=job.profile.metadata.batch_size,
        start=start,
        end=end,
        dropped=dropped,
        updates=updates,
        warm_up=warm_up,
        capacity=capacity[hosts],
        used=outcome.used.reshape(-1, 3)[hosts],
        used_in_window=in_window.reshape(-1, 3)[hosts],
        bins=bins,
        used_by_bin=outcome.used_by_bin.reshape(-1, *capacity.shape)[:, hosts],
        num_workers=len(job.cluster.workers),
        events=outcome.events,
        drawn=draws[own, :steps] - graph.step_offsets[index],
        placement=graph.servers[ops].astype(np.int32),
        recorded=tuple((int(worker), int(step)) for worker, step in job.record),
        op_start=outcome.op_start[kept, ops],
        op_end=outcome.op_end[kept, ops],
    )


def _check_steps(job: Job, warm_up: int) -> None:
    steps, workers = job.steps, len(job.cluster.workers)
    if not (isinstance(steps, int | np.integer) and steps >= 1):
        raise InputError("simulate", steps, "an integer of at least 1", field="steps")
    if not (isinstance(warm_up, int | np.integer) and 0 <= warm_up < steps):
        raise InputError("simulate", warm_up, f"0 to {steps - 1}", field="warm_up")
    for worker, step in job.record:
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
