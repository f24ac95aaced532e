"""The event engine: workers execute their step graphs on shared links and CPUs.

Everything that takes time is an activity in a *slot*: a connection has one slot per direction
(it sends one stream at a time), a node one per thread, a worker one timer. Slots that run have a
rate, hence a finish time, and stand in the event list, a binary heap. An event ends what its slot
did, which may release operations, which start in free slots; then rates are brought up to date
where a slot changed.

Rates are max-min fair. An activity runs at one rate and uses each of its resources in proportion
to it: a transfer of x bytes/s takes x bytes/s of two links and a number of cores at both ends. A
resource that is short divides its capacity evenly among the activities that it holds back; the
others are held back elsewhere and take less (Bertsekas and Gallager, Data Networks, section
6.5.2; with unequal use per resource, the bottleneck fairness of SimGrid's fluid models). The
*level* of a resource is what each activity gets that it holds back; infinite if it holds back none.

All compiled code is in this one module: Numba's cache looks for changes in one file only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from asgd_model.cluster import Cluster
from asgd_model.compilation import compiled
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER
from asgd_model.simulator.step_graph import StepGraph

CPU, SEND, RECEIVE = range(3)
"""Resources of a node."""

GIVEN, FIFO, RANDOM = range(3)
"""Order of the streams in a connection: by the graph's priority, as they became ready, random."""


SETTLED = 1e-9
"""Relative change of a level below which it is not passed on."""

ROUNDING = 1e-12
"""Relative excess over a capacity that is put down to rounding."""


LEAST_WEIGHT = 1e-3
"""Weight below which further connections that join a busy link do not get less."""


class Layout(NamedTuple):
    """The slots and resources of a cluster.

    A node has the resources ``3 * node + (CPU, SEND, RECEIVE)``; workers come first, then
    servers. The slots are the connections (``worker * 2 * servers + direction * servers +
    server``; direction 0 is down), then the threads of the nodes, then one timer per worker.
    """

    workers: int
    servers: int
    slots: int
    thread_offsets: NDArray[np.int64]  # (nodes + 1,): slots of the threads of each node
    timer: int  # slot of the first worker's timer
    capacity: NDArray[np.float64]  # (resources,): cores or bytes/s
    slot_resources: NDArray[np.int64]  # (slots, 4), -1 where unused
    limit: NDArray[np.float64]  # (slots,): highest rate
    member_offsets: NDArray[np.int64]  # (resources + 1,): room for the slots of each resource
    byte_cost: NDArray[np.float64]  # (2, 2): direction x (sender, receiver), core seconds/byte
    tensor_cost: NDArray[np.float64]  # (2, 2): core seconds per tensor


class Outcome(NamedTuple):
    """What a run leaves behind; see `run`."""

    completed: NDArray[np.int64]  # (workers,): steps ended
    start: NDArray[np.float64]  # (workers, steps): seconds
    end: NDArray[np.float64]  # (workers, steps): seconds
    used: NDArray[np.float64]  # (resources,): core seconds or bytes in the whole run
    used_by_window: NDArray[np.float64]  # (2, resources): when it opens and closes; NaN if never
    used_by_bin: NDArray[np.float64]  # (edges of bins, resources); NaN where not reached
    events: int
    op_start: NDArray[np.float64]  # (recorded steps, ops): seconds; of a transfer, when ready
    op_end: NDArray[np.float64]


def lay_out(cluster: Cluster) -> Layout:
    """Number the slots and resources of a cluster."""
    workers, servers = len(cluster.workers), len(cluster.servers)
    nodes = [*cluster.workers, *cluster.servers]
    threads = np.array([node.threads for node in nodes])
    connections = 2 * workers * servers
    thread_offsets = (connections + np.concatenate([[0], np.cumsum(threads)])).astype(np.int64)
    timer = int(thread_offsets[-1])
    slots = timer + workers
    resources = np.full((slots, 4), -1, dtype=np.int64)
    limit = np.full(slots, np.inf)
    worker, direction, server = (
        index.ravel() for index in np.indices((workers, 2, servers), dtype=np.int64)
    )
    sender = np.where(direction == 0, workers + server, worker)
    receiver = np.where(direction == 0, worker, workers + server)
    resources[:connections] = np.stack(
        [3 * sender + SEND, 3 * receiver + RECEIVE, 3 * sender + CPU, 3 * receiver + CPU], axis=1
    )
    resources[connections:timer, 0] = 3 * np.repeat(np.arange(len(nodes)), threads) + CPU
    limit[connections:] = 1.0
    costs = cluster.calibration
    for way, column, cost in ((0, 2, costs.server_send), (1, 3, costs.server_receive)):
        if cost.per_byte == cost.per_tensor == 0.0:
            # All workers' connections would be looked at for nothing.
            resources[:connections][direction == way, column] = -1
    capacity = np.array([[n.cores, n.uplink / 8, n.downlink / 8] for n in nodes]).ravel()
    counts = np.bincount(resources[resources >= 0], minlength=len(capacity))
    ends = [
        [costs.server_send, costs.worker_receive],
        [costs.worker_send, costs.server_receive],
    ]
    return Layout(
        workers=workers,
        servers=servers,
        slots=slots,
        thread_offsets=thread_offsets,
        timer=timer,
        capacity=capacity,
        slot_resources=resources,
        limit=limit,
        member_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        byte_cost=np.array([[cost.per_byte for cost in row] for row in ends]),
        tensor_cost=np.array([[cost.per_tensor for cost in row] for row in ends]),
    )


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
_STREAM = np.dtype([("key", np.float64), ("sequence", np.int64), ("op", np.int64)])
_COMPUTATION = np.dtype([("worker", np.int64), ("op", np.int64)])
_WORKER = np.dtype(
    [
        ("left", np.int64),  # operations of the step that have not ended
        ("row", np.int64),  # profiled step that is repeated
        ("kept", np.int64),  # where the operations' times are kept, -1 if they are not
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
    streams: NDArray[np.void]  # binary heaps of streams that wait for a turn
    nodes: NDArray[np.void]  # (nodes,): where each one's computations are
    computations: NDArray[np.void]  # ring buffers of computations that wait for a thread
    released: NDArray[np.int64]
    workers: NDArray[np.void]  # (workers,)
    counts: NDArray[np.void]  # (1,)


def _new_state(layout: Layout, graph: StepGraph) -> _State:
    ops, slots = len(graph.resources), layout.slots
    streams = np.zeros((layout.workers, 2, layout.servers), dtype=np.int64)
    computations = np.zeros(layout.workers + layout.servers, dtype=np.int64)
    computations[: layout.workers] = np.count_nonzero(graph.resources == WORKER)
    for server in range(layout.servers):
        here = graph.servers == server
        for direction, kind in enumerate((DOWNLINK, UPLINK)):
            streams[:, direction, server] = np.count_nonzero((graph.resources == kind) & here)
        updates = np.count_nonzero((graph.resources == SERVER) & here)
        computations[layout.workers + server] = updates * layout.workers
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
        connections=_queues(streams.ravel()),
        streams=np.zeros(streams.sum(), dtype=_STREAM),
        nodes=_queues(computations),
        computations=np.zeros(computations.sum(), dtype=_COMPUTATION),
        released=np.zeros(ops, dtype=np.int64),
        workers=np.zeros(layout.workers, dtype=_WORKER),
        counts=np.zeros(1, dtype=_COUNTS),
    )
    state.slots["place"] = -1
    state.resources["capacity"] = layout.capacity
    state.resources["level"] = np.inf
    return state


def _queues(lengths: NDArray[np.int64]) -> NDArray[np.void]:
    """Lay queues of the given lengths out one after the other."""
    queues = np.zeros(len(lengths), dtype=_QUEUE)
    queues["length"] = lengths
    queues["first"] = np.cumsum(lengths) - lengths
    return queues


class Options(NamedTuple):
    """How a run proceeds.

    Attributes
    ----------
    order : int
        `GIVEN`, `FIFO` or `RANDOM`.
    window : float
        Bytes that a stream sends in one turn; infinite for all of them.
    warm_up : int
        The window opens when every worker has ended this many steps, or begun the first if 0;
        it closes with the first worker that has ended all its steps.
    stop_at_first : bool
        End when the window closes, after all that happens at that time; else with the last worker.
    newcomer_share, share_spread, throttled_rate : float
        See `asgd_model.profile.Calibration`.
    """

    order: int
    window: float
    warm_up: int
    stop_at_first: bool
    newcomer_share: float
    share_spread: float
    throttled_rate: float


def run(
    layout: Layout,
    graph: StepGraph,
    starts: NDArray[np.float64],
    draws: NDArray[np.int64],
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
        The profiled step that each step of each worker repeats.
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
        used=state.resources["used"],
        used_by_window=np.full((2, len(layout.capacity)), np.nan),
        used_by_bin=np.full((len(bins), len(layout.capacity)), np.nan),
        events=0,
        op_start=np.full((rows, len(graph.resources)), np.nan),
        op_end=np.full((rows, len(graph.resources)), np.nan),
    )
    status, now, count = _run(
        layout, graph, state, starts, draws, options, record, bins, rng, outcome
    )
    if status != _DONE:
        reason = "rates did not settle" if status == _UNSETTLED else "nothing left to happen"
        raise RuntimeError(f"the simulation stopped at {now} s: {reason}")
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
def _run(layout, graph, state, starts, draws, options, record, bins, rng, outcome):
    completed, steps = outcome.completed, draws.shape[1]
    now, stop = 0.0, np.inf
    count = edge = 0
    warming = running = layout.workers
    for worker in range(layout.workers):
        _set_timer(layout, state, worker, starts[worker])
    while running > 0:
        if state.counts[0].events == 0:
            return _STUCK, now, count
        slot = state.event_list[0]
        if state.slots[slot].finish > stop:
            break
        now = state.slots[slot].finish
        while edge < len(bins) and bins[edge] <= now:
            _note_use(layout, state, bins[edge], outcome.used_by_bin[edge])
            edge += 1
        count += 1
        worker = state.slots[slot].worker
        row = record[worker, completed[worker]]
        state.slots[slot].active = False
        state.counts[0].vacant = slot
        if slot >= layout.timer:
            if state.workers[worker].left == 0:
                outcome.start[worker, completed[worker]] = now
                if completed[worker] == options.warm_up == 0:
                    warming -= 1
                    if warming == 0:
                        _note_use(layout, state, now, outcome.used_by_window[0])
                state.workers[worker].kept = row
                _begin_step(layout, graph, state, worker, draws[worker, completed[worker]], now)
            else:
                _request(graph, state, worker)
        else:
            _end_turn(layout, graph, state, slot, now, options, rng, row, outcome)
        _start_released(layout, graph, state, worker, now, options, rng, row, outcome)
        _leave_vacant(layout, state, now)
        if state.workers[worker].left == 0 and not state.slots[layout.timer + worker].active:
            outcome.end[worker, completed[worker]] = now
            completed[worker] += 1
            if completed[worker] == options.warm_up:
                warming -= 1
                if warming == 0:
                    _note_use(layout, state, now, outcome.used_by_window[0])
            if completed[worker] < steps:
                _set_timer(layout, state, worker, now)
            else:
                if running == layout.workers:
                    _note_use(layout, state, now, outcome.used_by_window[1])
                    if options.stop_at_first:
                        stop = now
                running -= 1
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
    state.workers[worker].row = row
    state.workers[worker].left = len(graph.resources)
    for op in range(len(graph.resources)):
        state.waiting[worker, op] = graph.waiting[op]
        if graph.waiting[op] == 0:
            _release(state, op)
    if graph.request_delay[row] > 0.0:
        _set_timer(layout, state, worker, now + graph.request_delay[row])
    else:
        _request(graph, state, worker)


@_inner
def _request(graph, state, worker):
    """Ask the servers for the parameters: each download has waited for this too."""
    for op in graph.downloads:
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
        if work <= 0.0:
            _complete(graph, state, worker, op, now, row, outcome)
        elif graph.resources[op] in (DOWNLINK, UPLINK):
            state.stream_left[worker, op] = work
            connection = _connection(layout, graph, worker, op)
            _queue_stream(graph, state, connection, worker, op, options, rng)
        else:
            _queue_computation(state, _node(layout, graph, worker, op), worker, op)
    _take_over(layout, graph, state, now, options, rng, outcome)
    for index in range(next_released):
        op = state.released[index]
        if graph.resources[op] in (DOWNLINK, UPLINK):
            slot = _connection(layout, graph, worker, op)
            if state.connections[slot].count > 0 and not state.slots[slot].active:
                _next_stream(layout, graph, state, slot, now, options, rng)
        else:
            node = _node(layout, graph, worker, op)
            _use_free_thread(layout, graph, state, node, now, outcome)
    state.counts[0].released = 0


@_inner
def _connection(layout, graph, worker, op):
    """The slot in which a transfer runs."""
    direction = 0 if graph.resources[op] == DOWNLINK else 1
    return (2 * worker + direction) * layout.servers + graph.servers[op]


@_inner
def _node(layout, graph, worker, op):
    """The node on which a computation runs."""
    return worker if graph.resources[op] == WORKER else layout.workers + graph.servers[op]


@_inner
def _end_turn(layout, graph, state, slot, now, options, rng, row, outcome):
    """End what a slot did; a stream that has more to send queues again."""
    worker, op = state.slots[slot].worker, state.slots[slot].op
    _account(layout, state, slot, now)
    if slot < layout.thread_offsets[0] and state.stream_left[worker, op] > 0.0:
        _queue_stream(graph, state, slot, worker, op, options, rng)
    else:
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
    state.usage[slot, 0] = 1.0
    if state.workers[worker].kept >= 0:
        outcome.op_start[state.workers[worker].kept, op] = now
    _activate(layout, state, slot, worker, op, graph.work[state.workers[worker].row, op], now)


# --- streams --------------------------------------------------------------------------------


@_inner
def _queue_stream(graph, state, connection, worker, op, options, rng):
    """Add a stream to those of its connection that wait for a turn (a binary heap)."""
    if options.order == RANDOM:
        key = rng.random()
    elif options.order == GIVEN:
        key = graph.priority[state.workers[worker].row, op]
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
    """Let the next stream of a connection send what the window allows.

    The cost per tensor is spread over the bytes of the stream's first turn.
    """
    op = _pop_stream(state, connection)
    worker = connection // (2 * layout.servers)
    direction = (connection // layout.servers) % 2
    left = state.stream_left[worker, op]
    turn = min(left, options.window)
    tensors = 1.0 if left == graph.work[state.workers[worker].row, op] else 0.0
    state.stream_left[worker, op] = left - turn
    takes_over = connection == state.counts[0].vacant
    state.usage[connection, 0] = 1.0
    state.usage[connection, 1] = 1.0
    for end in range(2):
        use = layout.byte_cost[direction, end] + layout.tensor_cost[direction, end] * tensors / turn
        if takes_over:
            _change_use(layout, state, connection, 2 + end, use)
        state.usage[connection, 2 + end] = use
    if not takes_over:
        _draw_weight(layout, state, connection, direction, options, rng)
        _limit_connection(layout, state, connection, direction, options)
    _activate(layout, state, connection, worker, op, turn, now)


@_inner
def _draw_weight(layout, state, connection, direction, options, rng):
    """Weigh a connection that starts to send against those that share its server's link.

    Shares scatter, and on a server's sending link, where connections queue within the sender,
    those that were there first keep more than an even share. The weight holds on both links, as
    max-min fairness needs it to.
    """
    if options.newcomer_share == 1.0 and options.share_spread == 0.0:
        return
    weight = 1.0
    if direction == 0 and options.newcomer_share < 1.0:
        best = 0.0
        link = layout.slot_resources[connection, 0]
        first = layout.member_offsets[link]
        for slot in state.members[first : first + state.resources[link].users]:
            if slot != connection:
                best = max(best, state.weight[slot, 0])
        if best > 0.0:
            weight = options.newcomer_share * best
    # On a link that is never idle, weights would otherwise sink without end.
    weight = max(weight, LEAST_WEIGHT) * np.exp(options.share_spread * rng.normal(0.0, 1.0))
    state.weight[connection, 0] = weight
    state.weight[connection, 1] = weight


@_inner
def _throttle(layout, state, options, rng):
    """Let connections feel that the CPU of their worker has become short, or is no longer.

    A worker whose computation uses its CPU up reads and writes in what time is left: it reaches
    a part of its link's rate only, and leaves its place in the server's queue to the others.
    """
    last_worker = 3 * layout.workers
    for position in range(state.counts[0].changed):
        resource = state.changed[position]
        if resource >= last_worker or resource % 3 != CPU:
            continue
        users = state.resources[resource]
        short = users.level < np.inf
        if short == users.short:
            continue
        users.short = short
        first = layout.member_offsets[resource]
        for slot in state.members[first : first + users.users]:
            if slot < layout.thread_offsets[0]:
                direction = (slot // layout.servers) % 2
                _limit_connection(layout, state, slot, direction, options)
                if short:
                    _draw_weight(layout, state, slot, direction, options, rng)
                for used in layout.slot_resources[slot]:
                    _queue_resource(state, used)
                _touch(state, slot)


@_inner
def _limit_connection(layout, state, connection, direction, options):
    """Limit a connection to a part of its worker's link while the worker's CPU is short."""
    worker = connection // (2 * layout.servers)
    state.limit[connection] = np.inf
    if state.resources[3 * worker + CPU].short:
        link = 3 * worker + (RECEIVE if direction == 0 else SEND)
        state.limit[connection] = options.throttled_rate * layout.capacity[link]


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
        activity.finish = now + work / activity.rate
        _schedule(state, slot)
    else:
        activity.rate = 0.0
        _join(layout, state, slot)
        _touch(state, slot)


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
    """Take a slot that found nothing new to do off the event list and off its resources."""
    slot = state.counts[0].vacant
    state.counts[0].vacant = -1
    if state.slots[slot].active:
        return
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
        if options.newcomer_share < 1.0 or options.throttled_rate < 1.0:
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
