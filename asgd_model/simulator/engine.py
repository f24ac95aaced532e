"""The event engine: workers execute their step graphs on shared links and CPUs.

Everything that takes time is an activity in a *slot*: a connection has one slot per direction
(it sends one stream at a time, or all as one), a node one per thread, a worker one timer. Slots
that run have a rate, hence a finish time, and stand in the event list, a binary heap. An event
ends what its slot did, which may release operations, which start in free slots; then rates are
brought up to date where a slot changed.

Rates are max-min fair. An activity runs at one rate and uses each of its resources in proportion
to it: a transfer of x bytes/s takes x bytes/s of two links and a number of cores at both ends. A
resource that is short divides its capacity evenly among the activities that it holds back; the
others are held back elsewhere and take less (Bertsekas and Gallager, Data Networks, section
6.5.2; with unequal use per resource, the bottleneck fairness of SimGrid's fluid models). The
*level* of a resource is what each activity gets that it holds back; infinite if it holds back none.

All compiled code is in this one module: Numba's cache looks for changes in one file only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from asgd_model.cluster import Cluster, Node
from asgd_model.compilation import compiled
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, Calibration
from asgd_model.simulator.step_graph import StepGraph

CPU, SEND, RECEIVE = range(3)
"""Resources of a node."""

GIVEN, FIFO, RANDOM, SHARED = range(4)
"""Order of the streams in a connection: by the graph's priority, as they became ready, random;
or all at once."""


SETTLED = 1e-9
"""Relative change of a level below which it is not passed on."""

ROUNDING = 1e-12
"""Relative excess over a capacity that is put down to rounding."""


LEAST_WEIGHT = 1e-3
"""Weight below which further connections that join a busy link do not get less."""


LOWER_PRIORITY = 1e-9
"""Weight of a job's connections over those of the next higher priority: next to nothing."""

LOOPBACK_RATE = 5e9
"""Bytes/s of a connection within a host, which crosses no link: the order of a copy in memory."""


class Layout(NamedTuple):
    """The slots and resources of the clusters of one or several jobs.

    The nodes are the workers of all jobs, then the servers of all jobs. A host has the resources
    ``3 * host + (CPU, SEND, RECEIVE)``. The slots are the connections (of each worker first those
    down from each server of its job, direction 0, then those up), then the threads of the nodes,
    then a timer per worker and one for the rotation of priorities.
    """

    workers: int
    slots: int
    worker_offsets: NDArray[np.int64]  # (jobs + 1,): workers of each job
    job: NDArray[np.int64]  # (workers,)
    servers: NDArray[np.int64]  # (workers,): number of servers of the worker's job
    first_server: NDArray[np.int64]  # (workers,): node of the first of them
    first_connection: NDArray[np.int64]  # (workers,): slot
    connection_worker: NDArray[np.int64]  # (connections,)
    direction: NDArray[np.int64]  # (connections,)
    host: NDArray[np.int64]  # (nodes,)
    has_worker: NDArray[np.bool_]  # (hosts,)
    thread_offsets: NDArray[np.int64]  # (nodes + 1,): slots of the threads of each node
    timer: int  # slot of the first worker's timer
    capacity: NDArray[np.float64]  # (resources,): cores or bytes/s
    slot_resources: NDArray[np.int64]  # (slots, 4), -1 where unused
    limit: NDArray[np.float64]  # (slots,): highest rate
    member_offsets: NDArray[np.int64]  # (resources + 1,): room for the slots of each resource
    byte_cost: NDArray[np.float64]  # (connections, 2): of sender, receiver, core seconds/byte
    tensor_cost: NDArray[np.float64]  # (connections, 2): core seconds per tensor


class Outcome(NamedTuple):
    """What a run leaves behind; see `run`."""

    completed: NDArray[np.int64]  # (workers,): steps ended
    start: NDArray[np.float64]  # (workers, steps): seconds
    end: NDArray[np.float64]  # (workers, steps): seconds
    update: NDArray[np.int64]  # (workers, steps): the job's update that each step is for
    dropped: NDArray[np.bool_]  # (workers, steps): whether it came too late for it
    updates: NDArray[np.int64]  # (jobs,): synchronous updates made
    used: NDArray[np.float64]  # (resources,): core seconds or bytes in the whole run
    used_by_window: NDArray[np.float64]  # (jobs, 2, resources): when a job's window opens, closes
    used_by_bin: NDArray[np.float64]  # (edges of bins, resources); NaN where not reached
    events: int
    op_start: NDArray[np.float64]  # (recorded steps, ops): seconds; of a transfer, when ready
    op_end: NDArray[np.float64]


def lay_out(clusters: Sequence[Cluster]) -> Layout:
    """Number the slots and resources of the clusters of one or several jobs."""
    workers = np.array([len(cluster.workers) for cluster in clusters])
    servers = np.array([len(cluster.servers) for cluster in clusters])
    nodes = [worker for cluster in clusters for worker in cluster.workers]
    nodes += [server for cluster in clusters for server in cluster.servers]
    host, capacity = _hosts(nodes)
    threads = np.array([node.threads for node in nodes])

    job = np.repeat(np.arange(len(clusters)), workers)
    per_worker = servers[job]
    first_server = len(job) + (np.cumsum(servers) - servers)[job]
    connection_worker = np.repeat(np.arange(len(job)), 2 * per_worker)
    connections = len(connection_worker)
    first_connection = np.cumsum(2 * per_worker) - 2 * per_worker
    place = np.arange(connections) - first_connection[connection_worker]
    direction, number = np.divmod(place, per_worker[connection_worker])
    server = first_server[connection_worker] + number
    down = direction == 0
    sender = host[np.where(down, server, connection_worker)]
    receiver = host[np.where(down, connection_worker, server)]

    costs = np.array([_communication_costs(cluster.calibration) for cluster in clusters])
    by_connection = costs[job[connection_worker], direction]
    byte_cost, tensor_cost = np.moveaxis(by_connection, -1, 0).copy()

    thread_offsets = (connections + np.concatenate([[0], np.cumsum(threads)])).astype(np.int64)
    timer = int(thread_offsets[-1])
    slots = timer + len(job) + 1
    resources = np.full((slots, 4), -1, dtype=np.int64)
    limit = np.full(slots, np.inf)
    resources[:connections] = np.stack(
        [3 * sender + SEND, 3 * receiver + RECEIVE, 3 * sender + CPU, 3 * receiver + CPU], axis=1
    )
    resources[connections:timer, 0] = 3 * np.repeat(host, threads) + CPU
    limit[connections:] = 1.0
    free = (byte_cost == 0.0) & (tensor_cost == 0.0)
    # All workers' connections would be looked at for nothing.
    resources[:connections][down & free[:, 0], 2] = -1
    resources[:connections][~down & free[:, 1], 3] = -1
    local = np.flatnonzero(sender == receiver)
    # Both ends use the same CPU, which must not take them for two.
    resources[local, :2] = -1
    resources[local, 2] = 3 * sender[local] + CPU
    resources[local, 3] = -1
    limit[local] = LOOPBACK_RATE
    for cost in (byte_cost, tensor_cost):
        cost[local, 0] += cost[local, 1]
        cost[local, 1] = 0.0
    counts = np.bincount(resources[resources >= 0], minlength=len(capacity))
    has_worker = np.zeros(len(capacity) // 3, dtype=np.bool_)
    has_worker[host[: len(job)]] = True
    return Layout(
        workers=len(job),
        slots=slots,
        worker_offsets=np.concatenate([[0], np.cumsum(workers)]).astype(np.int64),
        job=job,
        servers=per_worker,
        first_server=first_server,
        first_connection=first_connection,
        connection_worker=connection_worker,
        direction=direction,
        host=host,
        has_worker=has_worker,
        thread_offsets=thread_offsets,
        timer=timer,
        capacity=capacity,
        slot_resources=resources,
        limit=limit,
        member_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        byte_cost=byte_cost,
        tensor_cost=tensor_cost,
    )


def _communication_costs(calibration: Calibration) -> list[list[list[float]]]:
    """Core seconds per byte and per tensor, by direction and end (sender, receiver)."""
    ways = (
        (calibration.server_send, calibration.worker_receive),
        (calibration.worker_send, calibration.server_receive),
    )
    return [[[end.per_byte, end.per_tensor] for end in ends] for ends in ways]


def _hosts(nodes: Sequence[Node]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Number the hosts, in the order of their first nodes.

    Returns
    -------
    host : ndarray of int64, shape (nodes,)
        The host of each node.
    capacity : ndarray of float64, shape (3 * hosts,)
        Cores and bytes/s that each host sends and receives.
    """
    numbers: dict[str | int, int] = {}
    host = np.empty(len(nodes), dtype=np.int64)
    capacity: list[float] = []
    for index, node in enumerate(nodes):
        name = index if node.host is None else node.host
        if name not in numbers:
            numbers[name] = len(numbers)
            capacity += [node.cores, node.uplink / 8, node.downlink / 8]
        host[index] = numbers[name]
    return host, np.array(capacity)


_SLOT = np.dtype(
    [
        ("active", np.bool_),
        ("worker", np.int64),  # whose operation runs in the slot
        ("op", np.int64),
        ("place", np.int64),  # in the event list, -1 if not there
        ("rate", np.float64),
        ("left", np.float64),  # work left at `since`
        ("since", np.float64),
        ("finish", np.float64),
    ]
)
_RESOURCE = np.dtype(
    [
        ("capacity", np.float64),
        ("level", np.float64),  # what each activity gets that the resource holds back
        ("load", np.float64),  # what its users take at their present rates
        ("used", np.float64),
        ("users", np.int64),  # slots that are active on it
        ("short", np.bool_),  # whether it held somebody back
        ("queued", np.bool_),  # for its level to be looked at
        ("changed", np.bool_),
    ]
)
_QUEUE = np.dtype(
    [("first", np.int64), ("length", np.int64), ("head", np.int64), ("count", np.int64)]
)
_SHARE = np.dtype(
    [
        ("served", np.float64),  # bytes that each stream would have had since the first one came
        ("inverse_sizes", np.float64),  # sum over the streams
        ("joined", np.bool_),  # whether another one has just come
    ]
)
_STREAM = np.dtype([("key", np.float64), ("sequence", np.int64), ("op", np.int64)])
_COMPUTATION = np.dtype([("worker", np.int64), ("op", np.int64)])
_WORKER = np.dtype(
    [
        ("left", np.int64),  # operations of the step that have not ended
        ("row", np.int64),  # profiled step that is repeated
        ("kept", np.int64),  # where the operations' times are kept, -1 if they are not
        ("slowdown", np.float64),  # of this step's computations
        ("update", np.int64),  # the job's update that this step is for
        ("waits", np.bool_),  # for the others to end theirs
    ]
)
_JOB = np.dtype(
    [
        ("weight", np.float64),  # of its connections on the sender's link
        ("updates", np.int64),  # made so far
        ("gradients", np.int64),  # there for the next update
        ("busy", np.int64),  # workers that neither wait nor have ended all steps
        ("warming", np.int64),  # workers that are not in the window yet
        ("closed", np.bool_),  # whether the window is over
    ]
)
_COUNTS = np.dtype(
    [
        ("events", np.int64),  # slots in the event list
        ("pending", np.int64),  # resources queued
        ("changed", np.int64),  # resources whose level has changed
        ("touched", np.int64),  # slots whose rate must be set
        ("released", np.int64),  # operations about to start
        ("vacant", np.int64),  # slot whose activity has just ended, or -1
        ("sequence", np.int64),  # streams queued so far
        ("running", np.int64),  # workers with steps to do
        ("stop", np.float64),  # seconds after which nothing happens any more
    ]
)


class _State(NamedTuple):
    """Everything that changes during a run."""

    slots: NDArray[np.void]  # (slots,)
    limit: NDArray[np.float64]  # (slots,): highest rate
    usage: NDArray[np.float64]  # (slots, 4): use of each resource per unit of rate
    weight: NDArray[np.float64]  # (slots, 4): share of a short resource relative to the others'
    event_list: NDArray[np.int64]  # binary heap of slots by finish time
    resources: NDArray[np.void]  # (resources,)
    members: NDArray[np.int64]  # active slots by resource, the first `users` of its room
    member_columns: NDArray[np.int64]  # column of the resource among those of the slot
    member_place: NDArray[np.int64]  # (slots, 4): where the slot stands in `members`
    pending: NDArray[np.int64]  # ring buffer of resources
    changed: NDArray[np.int64]
    touched: NDArray[np.int64]
    demand: NDArray[np.float64]  # scratch space, one value per slot
    waiting: NDArray[np.int64]  # (workers, ops): dependencies that have not ended
    stream_left: NDArray[np.float64]  # (workers, ops): bytes not yet given a turn
    connections: NDArray[np.void]  # (connections,): where each one's streams are
    streams: NDArray[np.void]  # binary heaps of streams that wait for a turn, or share
    shares: NDArray[np.void]  # (connections,): what their streams share
    nodes: NDArray[np.void]  # (nodes,): where each one's computations are
    computations: NDArray[np.void]  # ring buffers of computations that wait for a thread
    released: NDArray[np.int64]
    workers: NDArray[np.void]  # (workers,)
    jobs: NDArray[np.void]  # (jobs,)
    counts: NDArray[np.void]  # (1,)


def _new_state(layout: Layout, graph: StepGraph) -> _State:
    ops, slots, jobs = len(graph.resources), layout.slots, len(layout.worker_offsets) - 1
    streams, computations, updates = zip(
        *(_most_queued(layout, graph, job) for job in range(jobs)), strict=True
    )
    connections = _queues(np.concatenate(streams))
    nodes = _queues(np.concatenate([*computations, *updates]))
    state = _State(
        slots=np.zeros(slots, dtype=_SLOT),
        limit=layout.limit.copy(),
        usage=np.zeros((slots, 4)),
        weight=np.ones((slots, 4)),
        event_list=np.zeros(slots, dtype=np.int64),
        resources=np.zeros(len(layout.capacity), dtype=_RESOURCE),
        members=np.zeros(layout.member_offsets[-1], dtype=np.int64),
        member_columns=np.zeros(layout.member_offsets[-1], dtype=np.int64),
        member_place=np.zeros((slots, 4), dtype=np.int64),
        pending=np.zeros(len(layout.capacity), dtype=np.int64),
        changed=np.zeros(len(layout.capacity), dtype=np.int64),
        touched=np.zeros(2 * slots + 2, dtype=np.int64),
        demand=np.zeros(slots),
        waiting=np.zeros((layout.workers, ops), dtype=np.int64),
        stream_left=np.zeros((layout.workers, ops)),
        connections=connections,
        streams=np.zeros(connections["length"].sum(), dtype=_STREAM),
        shares=np.zeros(len(connections), dtype=_SHARE),
        nodes=nodes,
        computations=np.zeros(nodes["length"].sum(), dtype=_COMPUTATION),
        released=np.zeros(ops, dtype=np.int64),
        workers=np.zeros(layout.workers, dtype=_WORKER),
        jobs=np.zeros(jobs, dtype=_JOB),
        counts=np.zeros(1, dtype=_COUNTS),
    )
    state.slots["place"] = -1
    state.resources["capacity"] = layout.capacity
    state.resources["level"] = np.inf
    state.jobs["weight"] = 1.0
    state.jobs["busy"] = state.jobs["warming"] = np.diff(layout.worker_offsets)
    return state


def _most_queued(layout: Layout, graph: StepGraph, job: int) -> tuple[NDArray[np.int64], ...]:
    """Most that can wait at a job's connections, workers and servers at the same time."""
    first_worker, end = layout.worker_offsets[job : job + 2]
    own = slice(*graph.op_offsets[job : job + 2])
    down, up, updates = (
        np.bincount(
            graph.servers[own][graph.resources[own] == kind],
            minlength=layout.servers[first_worker],
        )
        for kind in (DOWNLINK, UPLINK, SERVER)
    )
    workers = int(end - first_worker)
    computations = np.count_nonzero(graph.resources[own] == WORKER)
    return (
        np.tile(np.concatenate([down, up]), workers),
        np.full(workers, computations, dtype=np.int64),
        workers * updates,
    )


def _queues(lengths: NDArray[np.int64]) -> NDArray[np.void]:
    """Lay queues of the given lengths out one after the other."""
    queues = np.zeros(len(lengths), dtype=_QUEUE)
    queues["length"] = lengths
    queues["first"] = np.cumsum(lengths) - lengths
    return queues


JOB_OPTIONS = np.dtype(
    [
        ("steps", np.int64),  # of each worker
        ("order", np.int64),  # `GIVEN`, `FIFO`, `RANDOM` or `SHARED`
        ("window", np.float64),  # bytes that a stream sends in one turn; infinite for all of them
        ("gradients", np.int64),  # that make a synchronous update; 0 if workers do not wait
        ("abandons", np.bool_),  # whether a worker that is late drops its step
        ("newcomer_share", np.float64),  # these three: see `asgd_model.profile.Calibration`
        ("share_spread", np.float64),
        ("throttled_rate", np.float64),
    ]
)
"""How a job proceeds."""


class Options(NamedTuple):
    """How a run proceeds.

    Attributes
    ----------
    jobs : ndarray of JOB_OPTIONS, shape (jobs,)
        What is said for each job.
    warm_up : int
        The window opens when every worker has ended this many steps, or begun the first if 0;
        it closes with the first worker that has ended all its steps.
    stop_at_first : bool
        End when the first window closes, after all that happens at that time; else with the last
        worker.
    prioritized : bool
        Whether the first job goes before the second on every sender's link, and so on.
    rotation : float
        Seconds after which the first in this order becomes the last; infinite for never.
    throttles : bool
        Whether a short CPU of its worker matters to any job's connections.
    """

    jobs: NDArray[np.void]
    warm_up: int
    stop_at_first: bool
    prioritized: bool
    rotation: float
    throttles: bool


def run(
    layout: Layout,
    graph: StepGraph,
    starts: NDArray[np.float64],
    draws: NDArray[np.int64],
    slowdowns: NDArray[np.float64],
    options: Options,
    record: NDArray[np.int64],
    bins: NDArray[np.float64],
    rng: np.random.Generator,
) -> Outcome:
    """Simulate until the workers have ended their steps.

    Parameters
    ----------
    starts : ndarray of float64, shape (workers,)
        Seconds at which each worker begins its first step.
    draws : ndarray of int64, shape (workers, steps)
        The profiled step that each step of each worker repeats; as many as the job with the most
        steps has.
    slowdowns : ndarray of float64, shape (workers, steps)
        Factor of the work of each step's computations on the worker.
    record : ndarray of int64, shape (workers, steps)
        Row of `Outcome.op_start` in which to keep the times of a step's operations, or -1.
    bins : ndarray of float64, shape (edges of bins,)
        Seconds, ascending, at which to note what each resource has been used for.
    rng : Generator
        For random stream orders.

    Raises
    ------
    RuntimeError
        If rates do not settle or a step cannot end; both would be defects of the engine.
    """
    state = _new_state(layout, graph)
    rows = int(record.max(initial=-1)) + 1
    outcome = Outcome(
        completed=np.zeros(layout.workers, dtype=np.int64),
        start=np.full(draws.shape, np.nan),
        end=np.full(draws.shape, np.nan),
        update=np.zeros(draws.shape, dtype=np.int64),
        dropped=np.zeros(draws.shape, dtype=np.bool_),
        updates=np.zeros(len(state.jobs), dtype=np.int64),
        used=state.resources["used"],
        used_by_window=np.full((len(state.jobs), 2, len(layout.capacity)), np.nan),
        used_by_bin=np.full((len(bins), len(layout.capacity)), np.nan),
        events=0,
        op_start=np.full((rows, len(graph.resources)), np.nan),
        op_end=np.full((rows, len(graph.resources)), np.nan),
    )
    status, now, count = _run(
        layout, graph, state, starts, draws, slowdowns, options, record, bins, rng, outcome
    )
    if status != _DONE:
        reason = "rates did not settle" if status == _UNSETTLED else "nothing left to happen"
        raise RuntimeError(f"the simulation stopped at {now} s: {reason}")
    outcome.updates[:] = state.jobs["updates"]
    return outcome._replace(events=count)


_inner = njit(  # type: ignore[call-overload]
    error_model="numpy",
    forceinline=True,
    no_cpython_wrapper=True,
    no_cfunc_wrapper=True,
    _nrt=False,
)
"""Compiles what only compiled code calls; it is cached as a part of its caller. The engine makes
no arrays, so it needs no reference counts (`_nrt`): counting takes most of the time otherwise."""

_DONE, _UNSETTLED, _STUCK = range(3)


@compiled(nogil=True, error_model="numpy", _nrt=False)
def _run(layout, graph, state, starts, draws, slowdowns, options, record, bins, rng, outcome):
    counts = state.counts[0]
    counts.running = layout.workers
    counts.stop = np.inf
    now = 0.0
    count = edge = 0
    for worker in range(layout.workers):
        _set_timer(layout, state, worker, starts[worker])
    if options.prioritized:
        _rotate(layout, state, options, now)
    rotations = counts.events - layout.workers
    while counts.running > 0:
        if counts.events == rotations:
            return _STUCK, now, count
        slot = state.event_list[0]
        if state.slots[slot].finish > counts.stop:
            break
        now = state.slots[slot].finish
        while edge < len(bins) and bins[edge] <= now:
            _note_use(layout, state, bins[edge], outcome.used_by_bin[edge])
            edge += 1
        count += 1
        if slot == layout.slots - 1:
            _rotate(layout, state, options, now)
        else:
            worker = state.slots[slot].worker
            step = outcome.completed[worker]
            row = record[worker, step]
            state.slots[slot].active = False
            counts.vacant = slot
            if slot < layout.timer:
                _end_turn(layout, graph, state, slot, now, options, rng, row, outcome)
            elif state.workers[worker].left == 0:
                outcome.start[worker, step] = now
                state.workers[worker].kept = row
                state.workers[worker].slowdown = slowdowns[worker, step]
                if step == options.warm_up == 0:
                    _end_warm_up(layout, state, layout.job[worker], now, outcome)
                _begin_step(layout, graph, state, worker, draws[worker, step], now)
                outcome.update[worker, step] = state.workers[worker].update
            else:
                _request(layout, graph, state, worker)
            _start_released(layout, graph, state, worker, now, options, rng, row, outcome)
            _leave_vacant(layout, state, now)
            if state.workers[worker].left == 0 and not state.slots[layout.timer + worker].active:
                _end_step(layout, state, worker, now, options, outcome)
                _go_on(layout, graph, state, worker, now, options, outcome)
        if not _update_rates(layout, state, now, options, rng):
            return _UNSETTLED, now, count
    _account_all(layout, state, now)
    return _DONE, now, count


# --- steps and operations -------------------------------------------------------------------


@_inner
def _set_timer(layout, state, worker, time):
    slot = layout.timer + worker
    state.slots[slot].active = True
    state.slots[slot].worker = worker
    state.slots[slot].finish = time
    _schedule(state, slot)


@_inner
def _begin_step(layout, graph, state, worker, row, now):
    """Release what depends on nothing; parameters are requested a little later."""
    job = layout.job[worker]
    first, last = graph.op_offsets[job], graph.op_offsets[job + 1]
    state.workers[worker].row = row
    state.workers[worker].update = state.jobs[job].updates
    state.workers[worker].left = last - first
    for op in range(first, last):
        state.waiting[worker, op] = graph.waiting[op]
        if graph.waiting[op] == 0:
            _release(state, op)
    if graph.request_delay[row] > 0.0:
        _set_timer(layout, state, worker, now + graph.request_delay[row])
    else:
        _request(layout, graph, state, worker)


@_inner
def _end_step(layout, state, worker, now, options, outcome):
    """Book that a step of a worker has ended."""
    step = outcome.completed[worker]
    job = layout.job[worker]
    outcome.end[worker, step] = now
    outcome.dropped[worker, step] = _is_late(layout, state, worker)
    outcome.completed[worker] += 1
    if step + 1 == options.warm_up and options.jobs[job].gradients == 0:
        _end_warm_up(layout, state, job, now, outcome)
    elif step + 1 == options.warm_up:
        state.jobs[job].warming -= 1
    if step + 1 == options.jobs[job].steps:
        state.counts[0].running -= 1
        if options.jobs[job].gradients == 0:
            _close_window(layout, state, job, now, options, outcome)


@_inner
def _end_warm_up(layout, state, job, now, outcome):
    """Open a job's window when the last of its workers has done the steps before it."""
    state.jobs[job].warming -= 1
    if state.jobs[job].warming == 0:
        _note_use(layout, state, now, outcome.used_by_window[job, 0])


@_inner
def _close_window(layout, state, job, now, options, outcome):
    """Close a job's window, which may end the run, with the first worker that has ended all."""
    if not state.jobs[job].closed:
        state.jobs[job].closed = True
        _note_use(layout, state, now, outcome.used_by_window[job, 1])
        if options.stop_at_first:
            state.counts[0].stop = now


@_inner
def _go_on(layout, graph, state, worker, now, options, outcome):
    """Begin the next step of a worker, or of all workers if they waited for this one."""
    job = state.jobs[layout.job[worker]]
    how = options.jobs[layout.job[worker]]
    has_more = outcome.completed[worker] < how.steps
    if how.gradients > 0 and not _is_late(layout, state, worker):
        state.workers[worker].waits = True
        job.gradients += 1
        job.busy -= 1
    elif has_more:
        _set_timer(layout, state, worker, now)
    else:
        job.busy -= 1
    # At the end of a run there may be too few workers left for a full update.
    if job.gradients > 0 and (job.gradients == how.gradients or job.busy == 0):
        _update_parameters(layout, graph, state, layout.job[worker], now, options, outcome)


@_inner
def _is_late(layout, state, worker):
    """Whether the update that a worker's step is for has been made without it."""
    return state.workers[worker].update < state.jobs[layout.job[worker]].updates


@_inner
def _update_parameters(layout, graph, state, job, now, options, outcome):
    """Make a synchronous update and let the workers begin their next steps."""
    status = state.jobs[job]
    how = options.jobs[job]
    status.updates += 1
    status.gradients = 0
    opened = not np.isnan(outcome.used_by_window[job, 0, 0])
    if opened:
        _note_use(layout, state, now, outcome.used_by_window[job, 1])
    elif status.warming == 0:
        _note_use(layout, state, now, outcome.used_by_window[job, 0])
    for worker in range(layout.worker_offsets[job], layout.worker_offsets[job + 1]):
        waited = state.workers[worker].waits
        state.workers[worker].waits = False
        abandons = not waited and how.abandons and state.workers[worker].left > 0
        if abandons:
            _abandon_step(layout, graph, state, worker, now, outcome)
            _end_step(layout, state, worker, now, options, outcome)
        has_more = outcome.completed[worker] < how.steps
        if waited and has_more:
            status.busy += 1
        elif abandons and not has_more:
            status.busy -= 1
        if (waited or abandons) and has_more:
            _set_timer(layout, state, worker, now)
        elif not has_more and options.stop_at_first:
            state.counts[0].stop = now


@_inner
def _abandon_step(layout, graph, state, worker, now, outcome):
    """Drop all that a worker's step does and waits for."""
    state.workers[worker].left = 0
    state.slots[layout.timer + worker].active = False
    _unschedule(state, layout.timer + worker)
    servers = layout.servers[worker]
    first = layout.first_connection[worker]
    for connection in range(first, first + 2 * servers):
        _stop(layout, state, connection, now)
        state.connections[connection].count = 0
        state.shares[connection].served = 0.0
        state.shares[connection].inverse_sizes = 0.0
    state.nodes[worker].count = 0
    for slot in range(layout.thread_offsets[worker], layout.thread_offsets[worker + 1]):
        _stop(layout, state, slot, now)
    for node in range(layout.first_server[worker], layout.first_server[worker] + servers):
        _drop_computations(state, node, worker)
        for slot in range(layout.thread_offsets[node], layout.thread_offsets[node + 1]):
            if state.slots[slot].worker == worker and state.slots[slot].active:
                _stop(layout, state, slot, now)
                _use_free_thread(layout, graph, state, node, now, outcome)


@_inner
def _drop_computations(state, node, worker):
    """Take those of a worker out of the computations that wait for a thread of a node."""
    queue = state.nodes[node]
    kept = 0
    for index in range(queue.count):
        place = queue.first + (queue.head + index) % queue.length
        if state.computations[place].worker != worker:
            target = queue.first + (queue.head + kept) % queue.length
            state.computations[target].worker = state.computations[place].worker
            state.computations[target].op = state.computations[place].op
            kept += 1
    queue.count = kept


@_inner
def _request(layout, graph, state, worker):
    """Ask the servers for the parameters: each download has waited for this too."""
    job = layout.job[worker]
    for index in range(graph.download_offsets[job], graph.download_offsets[job + 1]):
        op = graph.downloads[index]
        state.waiting[worker, op] -= 1
        if state.waiting[worker, op] == 0:
            _release(state, op)


@_inner
def _release(state, op):
    state.released[state.counts[0].released] = op
    state.counts[0].released += 1


@_inner
def _complete(graph, state, worker, op, now, row, outcome):
    """End an operation and release those that waited for nothing else."""
    state.workers[worker].left -= 1
    if row >= 0:
        outcome.op_end[row, op] = now
    for index in range(graph.successor_offsets[op], graph.successor_offsets[op + 1]):
        successor = graph.successors[index]
        state.waiting[worker, successor] -= 1
        if state.waiting[worker, successor] == 0:
            _release(state, successor)


@_inner
def _start_released(layout, graph, state, worker, now, options, rng, row, outcome):
    """Queue all released operations, then start those that can run; no work ends at once.

    A stream gets its turn only when all that are ready at the same time are queued.
    """
    next_released = 0
    while next_released < state.counts[0].released:
        op = state.released[next_released]
        next_released += 1
        if row >= 0:
            outcome.op_start[row, op] = now
        work = graph.work[state.workers[worker].row, op]
        if work <= 0.0 or (graph.updates[op] and _is_late(layout, state, worker)):
            _complete(graph, state, worker, op, now, row, outcome)
        elif graph.resources[op] in (DOWNLINK, UPLINK):
            state.stream_left[worker, op] = work
            connection = _connection(layout, graph, worker, op)
            _queue_stream(layout, graph, state, connection, worker, op, now, options, rng)
        else:
            _queue_computation(state, _node(layout, graph, worker, op), worker, op)
    _take_over(layout, graph, state, now, options, rng, outcome)
    for index in range(next_released):
        op = state.released[index]
        if graph.resources[op] in (DOWNLINK, UPLINK):
            slot = _connection(layout, graph, worker, op)
            waits = state.connections[slot].count > 0 and not state.slots[slot].active
            if waits or state.shares[slot].joined:
                _next_stream(layout, graph, state, slot, now, options, rng)
        else:
            node = _node(layout, graph, worker, op)
            _use_free_thread(layout, graph, state, node, now, outcome)
    state.counts[0].released = 0


@_inner
def _connection(layout, graph, worker, op):
    """The slot in which a transfer runs."""
    direction = 0 if graph.resources[op] == DOWNLINK else 1
    first = layout.first_connection[worker] + direction * layout.servers[worker]
    return first + graph.servers[op]


@_inner
def _node(layout, graph, worker, op):
    """The node on which a computation runs."""
    if graph.resources[op] == WORKER:
        return worker
    return layout.first_server[worker] + graph.servers[op]


@_inner
def _end_turn(layout, graph, state, slot, now, options, rng, row, outcome):
    """End what a slot did; a stream that has more to send queues again."""
    worker, op = state.slots[slot].worker, state.slots[slot].op
    _account(layout, state, slot, now)
    if slot < layout.thread_offsets[0] and state.stream_left[worker, op] > 0.0:
        _queue_stream(layout, graph, state, slot, worker, op, now, options, rng)
    else:
        if slot < layout.thread_offsets[0] and options.jobs[layout.job[worker]].order == SHARED:
            _leave_shared(graph, state, slot, worker)
        _complete(graph, state, worker, op, now, row, outcome)


@_inner
def _take_over(layout, graph, state, now, options, rng, outcome):
    """Give the slot just left to what waits for it."""
    slot = state.counts[0].vacant
    if slot < layout.thread_offsets[0]:
        if state.connections[slot].count > 0:
            _next_stream(layout, graph, state, slot, now, options, rng)
    elif slot < layout.timer:
        node = _node(layout, graph, state.slots[slot].worker, state.slots[slot].op)
        if state.nodes[node].count > 0:
            _next_computation(layout, graph, state, node, slot, now, outcome)


# --- computations ---------------------------------------------------------------------------


@_inner
def _queue_computation(state, node, worker, op):
    queue = state.nodes[node]
    place = queue.first + (queue.head + queue.count) % queue.length
    state.computations[place].worker = worker
    state.computations[place].op = op
    queue.count += 1


@_inner
def _use_free_thread(layout, graph, state, node, now, outcome):
    """Start the next computation of a node if one waits and a thread is free."""
    if state.nodes[node].count == 0:
        return
    for slot in range(layout.thread_offsets[node], layout.thread_offsets[node + 1]):
        if not state.slots[slot].active:
            _next_computation(layout, graph, state, node, slot, now, outcome)
            return


@_inner
def _next_computation(layout, graph, state, node, slot, now, outcome):
    """Give a free thread the computation that has been ready for longest."""
    queue = state.nodes[node]
    next_up = state.computations[queue.first + queue.head]
    worker, op = next_up.worker, next_up.op
    queue.head = (queue.head + 1) % queue.length
    queue.count -= 1
    work = graph.work[state.workers[worker].row, op]
    if node < layout.workers:
        work *= state.workers[worker].slowdown
    state.usage[slot, 0] = 1.0
    if state.workers[worker].kept >= 0:
        outcome.op_start[state.workers[worker].kept, op] = now
    _activate(layout, state, slot, worker, op, work, now)


# --- streams --------------------------------------------------------------------------------


@_inner
def _queue_stream(layout, graph, state, connection, worker, op, now, options, rng):
    """Add a stream to those of its connection that wait for a turn (a binary heap), or share.

    Streams that share all have been served as much since they came: the next to end is the one
    with the least sum of its size and of what had been served before.
    """
    order = options.jobs[layout.job[worker]].order
    if order == RANDOM:
        key = rng.random()
    elif order == GIVEN:
        key = graph.priority[state.workers[worker].row, op]
    elif order == SHARED:
        size = state.stream_left[worker, op]
        state.stream_left[worker, op] = 0.0
        if state.slots[connection].active and not state.shares[connection].joined:
            _account(layout, state, connection, now)
            streams = state.connections[connection]
            nearest = state.streams[streams.first].key
            left = state.slots[connection].left
            state.shares[connection].served = nearest - left / streams.count
        state.shares[connection].joined = True
        state.shares[connection].inverse_sizes += 1.0 / size
        key = state.shares[connection].served + size
    else:
        key = 0.0
    sequence = state.counts[0].sequence
    state.counts[0].sequence += 1
    first = state.connections[connection].first
    place = state.connections[connection].count
    state.connections[connection].count += 1
    while place > 0:
        parent = (place - 1) >> 1
        if not _precedes(key, sequence, state.streams[first + parent]):
            break
        _put_stream(state, first + place, state.streams[first + parent])
        place = parent
    state.streams[first + place].key = key
    state.streams[first + place].sequence = sequence
    state.streams[first + place].op = op


@_inner
def _pop_stream(state, connection):
    """Take the stream whose turn is next from those that wait."""
    first = state.connections[connection].first
    op = state.streams[first].op
    state.connections[connection].count -= 1
    count = state.connections[connection].count
    last = state.streams[first + count]
    key, sequence, last_op = last.key, last.sequence, last.op
    place = 0
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count:
            right = state.streams[first + child + 1]
            if _precedes(right.key, right.sequence, state.streams[first + child]):
                child += 1
        if _precedes(key, sequence, state.streams[first + child]):
            break
        _put_stream(state, first + place, state.streams[first + child])
        place = child
    state.streams[first + place].key = key
    state.streams[first + place].sequence = sequence
    state.streams[first + place].op = last_op
    return op


@_inner
def _precedes(key, sequence, stream):
    return key < stream.key or (key == stream.key and sequence < stream.sequence)


@_inner
def _put_stream(state, place, stream):
    state.streams[place].key = stream.key
    state.streams[place].sequence = stream.sequence
    state.streams[place].op = stream.op


@_inner
def _next_stream(layout, graph, state, connection, now, options, rng):
    """Let the next stream of a connection send what the window allows, or all that share.

    The cost per tensor is spread over the bytes of the stream's first turn, or over all of them
    if streams share.
    """
    worker = layout.connection_worker[connection]
    how = options.jobs[layout.job[worker]]
    if how.order == SHARED:
        streams = state.connections[connection]
        share = state.shares[connection]
        share.joined = False
        nearest = state.streams[streams.first]
        op = nearest.op
        turn = max(nearest.key - share.served, 0.0) * streams.count
        tensors_per_byte = share.inverse_sizes / streams.count
    else:
        op = _pop_stream(state, connection)
        left = state.stream_left[worker, op]
        turn = min(left, how.window)
        first = left == graph.work[state.workers[worker].row, op]
        tensors_per_byte = 1.0 / turn if first else 0.0
        state.stream_left[worker, op] = left - turn
    takes_over = connection == state.counts[0].vacant
    goes_on = state.slots[connection].active  # with one more stream that shares
    state.usage[connection, 0] = 1.0
    state.usage[connection, 1] = 1.0
    for end in range(2):
        use = layout.byte_cost[connection, end]
        use += layout.tensor_cost[connection, end] * tensors_per_byte
        if takes_over or goes_on:
            _change_use(layout, state, connection, 2 + end, use)
        state.usage[connection, 2 + end] = use
    if goes_on:
        state.slots[connection].op = op
        state.slots[connection].left = turn
        _keep_rate(state, connection, now)
        return
    if not takes_over:
        _draw_weight(layout, state, connection, options, rng)
        _limit_connection(layout, state, connection, options)
    _activate(layout, state, connection, worker, op, turn, now)


@_inner
def _leave_shared(graph, state, connection, worker):
    """Take the stream that has ended from those that share a connection."""
    share = state.shares[connection]
    streams = state.connections[connection]
    share.served = state.streams[streams.first].key
    op = _pop_stream(state, connection)
    share.inverse_sizes -= 1.0 / graph.work[state.workers[worker].row, op]
    if streams.count == 0:
        share.served = 0.0
        share.inverse_sizes = 0.0


@_inner
def _draw_weight(layout, state, connection, options, rng):
    """Weigh a connection that starts to send against those that share its server's link.

    Shares scatter, and on a server's sending link, where connections queue within the sender,
    those that were there first keep more than an even share. The weight holds on both links, as
    max-min fairness needs it to; only the priority of the job is the sender's alone.
    """
    job = layout.job[layout.connection_worker[connection]]
    how = options.jobs[job]
    if how.newcomer_share == 1.0 and how.share_spread == 0.0:
        return
    weight = 1.0
    link = layout.slot_resources[connection, 0]
    if layout.direction[connection] == 0 and how.newcomer_share < 1.0 and link >= 0:
        best = 0.0
        first = layout.member_offsets[link]
        for slot in state.members[first : first + state.resources[link].users]:
            if slot != connection:
                best = max(best, state.weight[slot, 1])
        if best > 0.0:
            weight = how.newcomer_share * best
    # On a link that is never idle, weights would otherwise sink without end.
    weight = max(weight, LEAST_WEIGHT) * np.exp(how.share_spread * rng.normal(0.0, 1.0))
    state.weight[connection, 0] = weight * state.jobs[job].weight
    state.weight[connection, 1] = weight


@_inner
def _rotate(layout, state, options, now):
    """Give each job its priority on the senders' links, from now until the next rotation."""
    jobs = len(state.jobs)
    turns = int(np.rint(now / options.rotation)) if now > 0.0 else 0
    for job in range(jobs):
        state.jobs[job].weight = LOWER_PRIORITY ** ((job - turns) % jobs)
    for connection in range(layout.thread_offsets[0]):
        job = layout.job[layout.connection_worker[connection]]
        state.weight[connection, 0] = state.weight[connection, 1] * state.jobs[job].weight
        if state.slots[connection].active:
            for resource in layout.slot_resources[connection]:
                _queue_resource(state, resource)
            _touch(state, connection)
    if options.rotation < np.inf:
        timer = layout.slots - 1
        state.slots[timer].finish = (turns + 1) * options.rotation
        _schedule(state, timer)


@_inner
def _throttle(layout, state, options, rng):
    """Let connections feel that the CPU of their worker has become short, or is no longer.

    A worker whose computation uses its CPU up reads and writes in what time is left: it reaches
    a part of its link's rate only, and leaves its place in the server's queue to the others.
    """
    for position in range(state.counts[0].changed):
        resource = state.changed[position]
        if resource % 3 != CPU or not layout.has_worker[resource // 3]:
            continue
        users = state.resources[resource]
        short = users.level < np.inf
        if short == users.short:
            continue
        users.short = short
        first = layout.member_offsets[resource]
        for slot in state.members[first : first + users.users]:
            if slot < layout.thread_offsets[0] and _cpu(layout, slot) == resource:
                _limit_connection(layout, state, slot, options)
                if short:
                    _draw_weight(layout, state, slot, options, rng)
                for used in layout.slot_resources[slot]:
                    _queue_resource(state, used)
                _touch(state, slot)


@_inner
def _limit_connection(layout, state, connection, options):
    """Limit a connection to a part of its worker's link while the worker's CPU is short."""
    link = layout.slot_resources[connection, 1 - layout.direction[connection]]
    state.limit[connection] = layout.limit[connection]
    if link >= 0 and state.resources[_cpu(layout, connection)].short:
        rate = options.jobs[layout.job[layout.connection_worker[connection]]].throttled_rate
        state.limit[connection] = rate * layout.capacity[link]


@_inner
def _cpu(layout, connection):
    """The CPU of a connection's worker."""
    return 3 * layout.host[layout.connection_worker[connection]] + CPU


# --- activities -----------------------------------------------------------------------------


@_inner
def _activate(layout, state, slot, worker, op, work, now):
    """Start an activity; one that takes over in its slot keeps the rate."""
    activity = state.slots[slot]
    activity.active = True
    activity.worker = worker
    activity.op = op
    activity.left = work
    activity.since = now
    if slot == state.counts[0].vacant:
        _keep_rate(state, slot, now)
    else:
        activity.rate = 0.0
        _join(layout, state, slot)
        _touch(state, slot)


@_inner
def _keep_rate(state, slot, now):
    """Time the end of what a slot does at the rate that it had before, if it has one yet."""
    activity = state.slots[slot]
    if activity.rate > 0.0:
        activity.finish = now + activity.left / activity.rate
        _schedule(state, slot)


@_inner
def _change_use(layout, state, slot, column, use):
    """Book that an activity will use more or less of a resource at the same rate.

    As long as a resource is not short, before and after, nobody's rate depends on it.
    """
    resource = layout.slot_resources[slot, column]
    if resource < 0:
        return
    users = state.resources[resource]
    users.load += (use - state.usage[slot, column]) * state.slots[slot].rate
    if use != state.usage[slot, column] and (
        users.level < np.inf or users.load > users.capacity * (1.0 + ROUNDING)
    ):
        # What it may do elsewhere changes too.
        for other in layout.slot_resources[slot]:
            _queue_resource(state, other)
        _touch(state, slot)


@_inner
def _leave_vacant(layout, state, now):
    """Let a slot go that found nothing new to do."""
    slot = state.counts[0].vacant
    state.counts[0].vacant = -1
    if not state.slots[slot].active:
        _leave(layout, state, slot)


@_inner
def _stop(layout, state, slot, now):
    """End what a slot does before it is done."""
    if state.slots[slot].active:
        _account(layout, state, slot, now)
        state.slots[slot].active = False
        _leave(layout, state, slot)


@_inner
def _leave(layout, state, slot):
    """Take a slot off the event list and off its resources."""
    _unschedule(state, slot)
    if slot >= layout.timer:
        return
    for column in range(4):
        resource = layout.slot_resources[slot, column]
        if resource < 0:
            continue
        users = state.resources[resource]
        users.load -= state.usage[slot, column] * state.slots[slot].rate
        users.users -= 1
        place, last = state.member_place[slot, column], layout.member_offsets[resource]
        last += users.users
        moved, moved_column = state.members[last], state.member_columns[last]
        state.members[place] = moved
        state.member_columns[place] = moved_column
        state.member_place[moved, moved_column] = place
        if users.level < np.inf:
            _queue_resource(state, resource)


@_inner
def _join(layout, state, slot):
    """Put a slot that becomes active among the users of its resources."""
    for column in range(4):
        resource = layout.slot_resources[slot, column]
        if resource >= 0:
            place = layout.member_offsets[resource] + state.resources[resource].users
            state.members[place] = slot
            state.member_columns[place] = column
            state.member_place[slot, column] = place
            state.resources[resource].users += 1
            _queue_resource(state, resource)


@_inner
def _account(layout, state, slot, now):
    """Book what a slot has done since its rate was set."""
    activity = state.slots[slot]
    done = activity.rate * (now - activity.since)
    activity.left = max(activity.left - done, 0.0)
    activity.since = now
    for column in range(4):
        resource = layout.slot_resources[slot, column]
        if resource >= 0:
            state.resources[resource].used += state.usage[slot, column] * done


@_inner
def _note_use(layout, state, now, used):
    """Write into `used` what each resource has been used for by now."""
    for resource in range(len(used)):
        used[resource] = state.resources[resource].used
    for slot in range(layout.timer):
        activity = state.slots[slot]
        if activity.active:
            for column in range(4):
                resource = layout.slot_resources[slot, column]
                if resource >= 0:
                    done = activity.rate * (now - activity.since)
                    used[resource] += state.usage[slot, column] * done


@_inner
def _account_all(layout, state, now):
    for slot in range(layout.timer):
        if state.slots[slot].active:
            _account(layout, state, slot, now)


# --- sharing --------------------------------------------------------------------------------


@_inner
def _update_rates(layout, state, now, options, rng):
    """Share resources anew where slots changed; return whether the levels settled."""
    counts = state.counts[0]
    if counts.pending > 0:
        if not _settle(layout, state):
            return False
        if options.throttles:
            _throttle(layout, state, options, rng)
            if not _settle(layout, state):
                return False
        for position in range(counts.changed):
            resource = state.changed[position]
            state.resources[resource].changed = False
            first = layout.member_offsets[resource]
            for index in range(first, first + state.resources[resource].users):
                _set_rate(layout, state, state.members[index], now)
        counts.changed = 0
    for index in range(counts.touched):
        _set_rate(layout, state, state.touched[index], now)
    counts.touched = 0
    return True


@_inner
def _touch(state, slot):
    """Have the rate of a slot looked at."""
    state.touched[state.counts[0].touched] = slot
    state.counts[0].touched += 1


@_inner
def _queue_resource(state, resource):
    """Have the level of a resource looked at."""
    if resource >= 0 and not state.resources[resource].queued:
        state.resources[resource].queued = True
        state.pending[state.counts[0].pending] = resource
        state.counts[0].pending += 1


@_inner
def _settle(layout, state):
    """Bring all levels to the fair allocation; return False if they do not settle.

    A level is computed anew where a slot changed, and again where it depends on another that
    has changed, until none does: each resource then either is not short or gives its capacity
    away, evenly among those that it holds back, which is the max-min fair allocation. Where a
    link and a CPU hold back the same connections, of unequal weights, this takes many rounds and
    may even go in circles, unless it makes half of each change.
    """
    length = len(state.pending)
    patience = 10_000 * length
    waiting = state.counts[0].pending
    head, tail = 0, waiting % length
    state.counts[0].pending = 0
    for attempt in range(2 * patience):
        if waiting == 0:
            return True
        resource = state.pending[head]
        head = (head + 1) % length
        waiting -= 1
        users = state.resources[resource]
        users.queued = False
        old, new = users.level, _fair_level(layout, state, resource)
        if attempt > patience and max(old, new) < np.inf:
            new = 0.5 * (old + new)
        if new == old or abs(new - old) <= SETTLED * min(new, old):
            continue
        users.level = new
        if not users.changed:
            users.changed = True
            state.changed[state.counts[0].changed] = resource
            state.counts[0].changed += 1
        first = layout.member_offsets[resource]
        for index in range(first, first + users.users):
            slot, column = state.members[index], state.member_columns[index]
            use = state.usage[slot, column]
            if use <= 0.0:
                continue
            lower = min(old, new) * state.weight[slot, column] / use
            for other_column in range(4):
                other = layout.slot_resources[slot, other_column]
                if other < 0 or other == resource or state.resources[other].queued:
                    continue
                if _depends(state, other, slot, other_column, lower, new < old):
                    state.pending[tail] = other
                    tail = (tail + 1) % length
                    state.resources[other].queued = True
                    waiting += 1
    return False


@_inner
def _depends(state, resource, slot, column, lower, falling):
    """Whether a resource's level may change with what another one allows a slot.

    Not if it holds the slot back to less, before and after, than the `lower` of both rates, and
    not if it was not short and the slot will take no more.
    """
    use = state.usage[slot, column]
    if use <= 0.0:
        return False
    level = state.resources[resource].level
    if level == np.inf:
        return not falling
    return level * state.weight[slot, column] / use > lower


@_inner
def _fair_level(layout, state, resource):
    """Level of one resource, given those of all others (water-filling)."""
    first = layout.member_offsets[resource]
    users = state.resources[resource].users
    capacity = state.resources[resource].capacity
    total = weights = 0.0
    for index in range(users):
        slot, column = state.members[first + index], state.member_columns[first + index]
        use = state.usage[slot, column]
        state.demand[index] = -1.0
        if use > 0.0:
            state.demand[index] = use * _allowed_rate(layout, state, slot, resource)
            total += state.demand[index]
            weights += state.weight[slot, column]
    if total <= capacity * (1.0 + ROUNDING):
        return np.inf
    # Those that are held back elsewhere to less than their share leave the rest to the others.
    level = capacity / weights
    while True:
        left, hungry = capacity, 0.0
        for index in range(users):
            demand = state.demand[index]
            if demand >= 0.0:
                place = first + index
                weight = state.weight[state.members[place], state.member_columns[place]]
                if demand < level * weight:
                    left -= demand
                else:
                    hungry += weight
        if hungry == 0.0 or left / hungry <= level * (1.0 + ROUNDING):
            return level
        level = left / hungry


@_inner
def _allowed_rate(layout, state, slot, without):
    """Rate at which a slot may run if the resource `without` does not hold it back."""
    rate = state.limit[slot]
    for column in range(4):
        resource = layout.slot_resources[slot, column]
        if resource >= 0 and resource != without and state.usage[slot, column] > 0.0:
            level = state.resources[resource].level * state.weight[slot, column]
            rate = min(rate, level / state.usage[slot, column])
    return rate


@_inner
def _set_rate(layout, state, slot, now):
    rate = _allowed_rate(layout, state, slot, -1)
    gain = rate - state.slots[slot].rate
    if gain == 0.0:
        return
    _account(layout, state, slot, now)
    for column in range(4):
        resource = layout.slot_resources[slot, column]
        if resource >= 0:
            state.resources[resource].load += gain * state.usage[slot, column]
    state.slots[slot].rate = rate
    state.slots[slot].finish = now + state.slots[slot].left / rate
    _schedule(state, slot)


# --- event list -----------------------------------------------------------------------------


@_inner
def _schedule(state, slot):
    """Insert a slot into the event list, or move it after its finish time has changed."""
    place = state.slots[slot].place
    if place < 0:
        place = state.counts[0].events
        state.counts[0].events += 1
    place = _towards_root(state, slot, place)
    _towards_leaves(state, slot, place)


@_inner
def _unschedule(state, slot):
    place = state.slots[slot].place
    if place < 0:
        return
    state.slots[slot].place = -1
    state.counts[0].events -= 1
    last = state.event_list[state.counts[0].events]
    if last != slot:
        place = _towards_root(state, last, place)
        _towards_leaves(state, last, place)


@_inner
def _earlier(state, first, second):
    # Equal times go by slot, so that the order of events does not depend on history.
    time, other = state.slots[first].finish, state.slots[second].finish
    return time < other or (time == other and first < second)


@_inner
def _towards_root(state, slot, place):
    while place > 0:
        parent = state.event_list[(place - 1) >> 1]
        if not _earlier(state, slot, parent):
            break
        state.event_list[place] = parent
        state.slots[parent].place = place
        place = (place - 1) >> 1
    state.event_list[place] = slot
    state.slots[slot].place = place
    return place


@_inner
def _towards_leaves(state, slot, place):
    count = state.counts[0].events
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count and _earlier(
            state, state.event_list[child + 1], state.event_list[child]
        ):
            child += 1
        if not _earlier(state, state.event_list[child], slot):
            break
        state.event_list[place] = state.event_list[child]
        state.slots[state.event_list[place]].place = place
        place = child
    state.event_list[place] = slot
    state.slots[slot].place = place
