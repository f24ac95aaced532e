"""The event engine: workers execute their step graphs on shared links and CPUs.

Everything that takes time is an activity in a *slot*: a connection has one slot per direction
(it sends one stream at a time, or all as one), a node one per thread, a worker one timer. An event
ends what its slot did, which may release operations, which start in free slots; then rates are
brought up to date where a slot changed.

Rates are max-min fair. An activity runs at one rate and uses each of its resources in proportion
to it: a transfer of x bytes/s takes x bytes/s of two links and a number of cores at both ends. A
resource that is short divides its capacity evenly among the activities that it holds back; the
others are held back elsewhere and take less (Bertsekas and Gallager, Data Networks, section
6.5.2; with unequal use per resource, the bottleneck fairness of SimGrid's fluid models). The
*level* of a resource is what each activity gets that it holds back; infinite if it holds back none.

A server's link, and its CPU where communication costs it something, are *hubs*: every worker uses
them. An event must not touch all users of a hub, so those that it holds back have no rate of
their own. They are all served at the hub's level, times a factor that stays, and the hub's *served*
amount, the integral of its level over time, says how far they are: a slot ends when it reaches the
slot's *tag* (the virtual time of fair queueing: Parekh and Gallager, A generalized processor
sharing approach to flow control, IEEE/ACM Transactions on Networking 1, 1993). A heap of the tags
tells the hub's next end. The level follows from sums over the users: the weights of those held
back, the load of those that run at a rate of their own, and what those take that another hub holds
back, per unit of its level. Further heaps tell which slot is first to be held back no more, or
anew, when a level changes. All of this takes logarithmic time per slot that changes its place.

All other resources are *leaves*, with few users, which are looked at one by one. A leaf that is
not short leaves each user some *room*, so that it is looked at again only when one needs more.

A short leaf that slots use which a hub holds back (a worker that computes while it communicates)
is looked at whenever the hub's level changes.

The event list is a heap of the slots that run at a rate of their own and of the hubs.

All compiled code is in this one module: Numba's cache looks for changes in one file only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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


DIGITS = 1e4
"""How many times larger than a sum the numbers may be, in all, that were rounded for it."""

FAR = 1e9
"""How many times longer than the next activity virtual time may be to tell its end."""

LEAST_WEIGHT = 1e-3
"""Weight below which further connections that join a busy link do not get less."""

SERVER_LINK, SERVER_CPU, WORKER_LINK, WORKER_CPU = range(4)
"""Columns of a slot's resources."""

OWN, BY_LINK, BY_CPU, NOWHERE = range(4)
"""What holds a slot back: its limit or a leaf; the hub in the first column, or in the second; or
it does not run."""

TIME, LINK_SIDE, CPU_SIDE, WEIGHT = range(4)
"""Heaps in which a slot may stand at the same time."""

EVENTS = 0
"""The first heap: slots with a rate of their own and hubs (after all slots) by time."""

TAGS, CEILINGS, FLOORS, TO_CPU, TO_LINK, WEIGHTS, KINDS = range(7)
"""The heaps of a hub. Of the slots that it holds back: those by tag, and by the level up to which
neither their limit nor a leaf holds them back. Of those with a rate of their own: by the level
below which the hub holds them back, highest first. Of a link, those that it holds back, and those
that the CPU of its node holds back, by the ratio of the CPU's level and its own at which they
change places, highest and lowest first. Of a link, all that use it, by weight, highest first."""


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
    slot_resources: NDArray[np.int32]  # (slots, 4), -1 where unused
    hubs: NDArray[np.int32]  # (slots, 2): those of the first two columns that are hubs, or -1
    leaves: NDArray[np.int32]  # (slots, 4): those that are leaves, or -1
    is_hub: NDArray[np.bool_]  # (resources,)
    limit: NDArray[np.float64]  # (slots,): highest rate
    member_offsets: NDArray[np.int64]  # (resources + 1,): room for the slots of each leaf
    heap_offsets: NDArray[np.int64]  # (heaps + 1,): room for the slots of each heap
    byte_cost: NDArray[np.float64]  # (connections, 2): of server, worker, core seconds/byte
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
    here, there = 3 * host[server], 3 * host[connection_worker]

    costs = np.array([_communication_costs(cluster.calibration) for cluster in clusters])
    by_connection = costs[job[connection_worker], direction]
    byte_cost, tensor_cost = np.moveaxis(by_connection, -1, 0).copy()

    thread_offsets = (connections + np.concatenate([[0], np.cumsum(threads)])).astype(np.int64)
    timer = int(thread_offsets[-1])
    slots = timer + len(job) + 1
    resources = np.full((slots, 4), -1, dtype=np.int32)
    limit = np.full(slots, np.inf)
    resources[:connections] = np.stack(
        [
            here + np.where(direction == 0, SEND, RECEIVE),
            here + CPU,
            there + np.where(direction == 0, RECEIVE, SEND),
            there + CPU,
        ],
        axis=1,
    )
    of_workers = thread_offsets[len(job)]
    cpus = 3 * np.repeat(host, threads) + CPU
    resources[connections:of_workers, WORKER_CPU] = cpus[: of_workers - connections]
    resources[of_workers:timer, SERVER_CPU] = cpus[of_workers - connections :]
    limit[connections:] = 1.0
    free = (byte_cost == 0.0) & (tensor_cost == 0.0)
    # All workers' connections would be looked at for nothing.
    resources[:connections][free[:, 0], SERVER_CPU] = -1
    local = np.flatnonzero(here == there)
    # Both ends use the same CPU, which must not take them for two.
    resources[local, :WORKER_CPU] = -1
    limit[local] = LOOPBACK_RATE
    for cost in (byte_cost, tensor_cost):
        cost[local, 1] += cost[local, 0]
        cost[local, 0] = 0.0
    has_worker = np.zeros(len(capacity) // 3, dtype=np.bool_)
    has_worker[host[: len(job)]] = True
    is_hub = _hubs(resources[:connections], resources[connections:timer], len(capacity))
    on_hub = (resources >= 0) & is_hub[resources]
    leaves = np.where(on_hub, -1, resources).astype(np.int32)
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
        hubs=np.where(on_hub, resources, -1)[:, :2].astype(np.int32),
        leaves=leaves,
        is_hub=is_hub,
        limit=limit,
        member_offsets=_offsets(np.bincount(leaves[leaves >= 0], minlength=len(capacity))),
        heap_offsets=_heap_offsets(resources, is_hub),
        byte_cost=byte_cost,
        tensor_cost=tensor_cost,
    )


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where parts of the given lengths begin that lie one after the other, and the last ends."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _heap_offsets(resources: NDArray[np.int32], is_hub: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Make room for each heap: the event list, then the heaps of each resource.

    `resources` are those of the slots, shape (slots, 4).
    """
    lengths = np.zeros((len(is_hub), KINDS), dtype=np.int64)
    users = [np.bincount(column[column >= 0], minlength=len(is_hub)) for column in resources.T[:2]]
    lengths[:, [TAGS, CEILINGS, FLOORS]] = (users[0] + users[1])[:, np.newaxis]
    lengths[:, [TO_CPU, TO_LINK]] = users[0][:, np.newaxis]
    lengths[~is_hub] = 0
    lengths[:, WEIGHTS] = users[0]
    return _offsets(np.concatenate([[len(resources) + len(is_hub)], lengths.ravel()]))


def _hubs(
    connections: NDArray[np.int32], threads: NDArray[np.int32], resources: int
) -> NDArray[np.bool_]:
    """Which resources are hubs, shape (resources,): those of servers only, if connections use them.

    `connections` and `threads` are the resources of these slots, each of shape (slots, 4).
    """
    is_hub = np.zeros(resources, dtype=np.bool_)
    for_servers = connections[:, [SERVER_LINK, SERVER_CPU]]
    is_hub[for_servers[for_servers >= 0]] = True
    for slots in (connections, threads):
        for_workers = slots[:, [WORKER_LINK, WORKER_CPU]]
        is_hub[for_workers[for_workers >= 0]] = False
    return is_hub


def _communication_costs(calibration: Calibration) -> list[list[list[float]]]:
    """Core seconds per byte and per tensor, by direction and end (server, worker)."""
    ways = (
        (calibration.server_send, calibration.worker_receive),
        (calibration.server_receive, calibration.worker_send),
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
        ("touched", np.bool_),  # what holds it back must be found anew
        ("holder", np.int8),  # what holds it back
        ("tie", np.int32),  # place among those of its hub that use a short leaf, or -1
        ("worker", np.int32),  # whose operation runs in the slot
        ("op", np.int32),
        ("pace", np.float64),  # rate, or rate per level of the hub that holds it back
        ("left", np.float64),  # work left when it was last accounted for
        ("since", np.float64),  # time of that
        ("rest", np.float64),  # bytes of its stream for further turns
    ],
    align=True,
)
_RESOURCE = np.dtype(
    [
        ("capacity", np.float64),
        ("level", np.float64),  # what each activity gets that the resource holds back
        ("users", np.int64),  # slots that are active on it; of a leaf
        ("short", np.bool_),  # whether it held somebody back
        ("queued", np.bool_),  # for its level to be looked at
        ("changed", np.bool_),
        # Of a hub:
        ("passed_on", np.float64),  # the level that those know who depend on it
        ("served", np.float64),  # virtual time: integral of the level
        ("since", np.float64),  # the time of that
        ("weights", np.float64),  # sum of those that it holds back
        ("rounded", np.float64),  # sum of what has been rounded for it
        ("fixed", np.float64),  # load of those that have a rate of their own
        ("on_cpu", np.float64),  # load on the CPU per level of this link
        ("of_cpu", np.float64),  # load on this link per level of the CPU
        ("ties", np.int64),  # slots that it holds back and that use a short leaf
    ],
    align=True,
)
_ENTRY = np.dtype([("key", np.float64), ("member", np.int64)])
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
_STREAM = np.dtype(
    [("key", np.float64), ("left", np.float64), ("sequence", np.int64), ("op", np.int64)]
)
_COMPUTATION = np.dtype([("worker", np.int32), ("op", np.int32)])
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
        ("head", np.int64),  # first of the resources queued
        ("pending", np.int64),  # resources queued
        ("changed", np.int64),  # resources whose level or next end has changed
        ("touched", np.int64),  # slots of which must be found what holds them back
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
    base_weight: NDArray[np.float64]  # (connections,): without the priority of the job
    used: NDArray[np.float64]  # (slots, 4): core seconds or bytes since `window_start`
    room: NDArray[np.float64]  # (slots, 4): load up to which a leaf surely is not short
    part: NDArray[np.float64]  # (slots, 2): what each adds to its hubs' sums
    entries: NDArray[np.void]  # of all heaps
    counts_of_heaps: NDArray[np.int64]
    places: NDArray[np.int32]  # (4, slots + resources): where each stands in its heaps, or -1
    tied: NDArray[np.int32]  # slots by hub, in the room of its tags
    resources: NDArray[np.void]  # (resources,)
    members: NDArray[np.int64]  # active slots by leaf, the first `users` of its room
    member_columns: NDArray[np.int64]  # column of the leaf among the resources of the slot
    member_place: NDArray[np.int64]  # (slots, 4): where the slot stands in `members`
    pending: NDArray[np.int64]  # ring buffer of resources
    changed: NDArray[np.int64]
    touched: NDArray[np.int64]
    demand: NDArray[np.float64]  # scratch space, one value per slot
    waiting: NDArray[np.int16] | NDArray[np.int32]  # (workers, ops): dependencies not ended
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
        usage=np.ones((slots, 4)),
        weight=np.ones((slots, 4)),
        base_weight=np.ones(layout.thread_offsets[0]),
        used=np.zeros((slots, 4)),
        room=np.zeros((slots, 4)),
        part=np.zeros((slots, 2)),
        entries=np.zeros(layout.heap_offsets[-1], dtype=_ENTRY),
        counts_of_heaps=np.zeros(len(layout.heap_offsets) - 1, dtype=np.int64),
        places=np.full((4, slots + len(layout.capacity)), -1, dtype=np.int32),
        tied=np.zeros(layout.heap_offsets[-1], dtype=np.int32),
        resources=np.zeros(len(layout.capacity), dtype=_RESOURCE),
        members=np.zeros(layout.member_offsets[-1], dtype=np.int64),
        member_columns=np.zeros(layout.member_offsets[-1], dtype=np.int64),
        member_place=np.zeros((slots, 4), dtype=np.int64),
        pending=np.zeros(len(layout.capacity), dtype=np.int64),
        changed=np.zeros(len(layout.capacity), dtype=np.int64),
        touched=np.zeros(slots, dtype=np.int64),
        demand=np.zeros(slots),
        waiting=np.zeros((layout.workers, ops), dtype=_counter(graph.waiting.max(initial=0))),
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
    state.slots["holder"] = NOWHERE
    state.slots["tie"] = -1
    state.resources["capacity"] = layout.capacity
    state.resources["level"] = state.resources["passed_on"] = np.inf
    state.jobs["weight"] = 1.0
    state.jobs["busy"] = state.jobs["warming"] = np.diff(layout.worker_offsets)
    return state


def _counter(highest: int) -> type[np.signedinteger[Any]]:
    """Type for counts: with many workers, those take most of what an event must fetch."""
    return np.int16 if highest <= np.iinfo(np.int16).max else np.int32


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
        used=np.zeros(len(layout.capacity)),
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

_called = njit(  # type: ignore[call-overload]
    error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False
)
"""Compiles what many places call that need little of the state: it is not repeated in each."""

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
    rotations = state.counts_of_heaps[EVENTS] - layout.workers
    while counts.running > 0:
        if state.counts_of_heaps[EVENTS] == rotations:
            return _STUCK, now, count
        if state.entries[0].key > counts.stop:
            break
        now = state.entries[0].key
        while edge < len(bins) and bins[edge] <= now:
            _note_use(layout, state, bins[edge], outcome.used_by_bin[edge])
            edge += 1
        slot = _first_to_end(layout, state, now)
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
    _note_use(layout, state, now, outcome.used)
    return _DONE, now, count


# --- steps and operations -------------------------------------------------------------------


@_inner
def _set_timer(layout, state, worker, time):
    slot = layout.timer + worker
    state.slots[slot].active = True
    state.slots[slot].worker = worker
    _set_key(layout, state, EVENTS, TIME, slot, time)


@_inner
def _first_to_end(layout, state, now):
    """The slot that ends first, now: of a hub, the one with the lowest tag."""
    slot = state.entries[0].member
    if slot >= layout.slots:
        hub = slot - layout.slots
        first = state.entries[layout.heap_offsets[_heap(hub, TAGS)]]
        slot = first.member
        state.resources[hub].served = first.key
        state.resources[hub].since = now
    return slot


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
    _remove(layout, state, EVENTS, TIME, layout.timer + worker)
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
    next_released = queued = 0
    while next_released < state.counts[0].released:
        op = state.released[next_released]
        next_released += 1
        if row >= 0:
            outcome.op_start[row, op] = now
        work = graph.work[state.workers[worker].row, op]
        if work <= 0.0 or (graph.updates[op] and _is_late(layout, state, worker)):
            _complete(graph, state, worker, op, now, row, outcome)
            continue
        if graph.resources[op] in (DOWNLINK, UPLINK):
            connection = _connection(layout, graph, worker, op)
            _queue_stream(layout, graph, state, connection, worker, op, work, now, options, rng)
        else:
            _queue_computation(state, _node(layout, graph, worker, op), worker, op)
        state.released[queued] = op
        queued += 1
    _take_over(layout, graph, state, now, options, rng, outcome)
    for index in range(queued):
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
    if slot < layout.thread_offsets[0] and state.slots[slot].rest > 0.0:
        rest = state.slots[slot].rest
        _queue_stream(layout, graph, state, slot, worker, op, rest, now, options, rng)
    else:
        if slot < layout.thread_offsets[0] and options.jobs[layout.job[worker]].order == SHARED:
            _leave_shared(layout, graph, state, slot, worker)
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
    if state.workers[worker].kept >= 0:
        outcome.op_start[state.workers[worker].kept, op] = now
    _activate(layout, state, slot, worker, op, work, now)


# --- streams --------------------------------------------------------------------------------


@_inner
def _queue_stream(layout, graph, state, connection, worker, op, left, now, options, rng):
    """Add a stream to those of its connection that wait for a turn, or share.

    They are in a binary heap, or a ring buffer if they keep the order in which they came. Streams
    that share all have been served as much since they came: the next to end is the one with the
    least sum of its size and of what had been served before.
    """
    order = options.jobs[layout.job[worker]].order
    if order == RANDOM:
        key = rng.random()
    elif order == GIVEN:
        key = graph.priority[state.workers[worker].row, op]
    elif order == SHARED:
        if state.slots[connection].active and not state.shares[connection].joined:
            _account(layout, state, connection, now)
            streams = state.connections[connection]
            nearest = state.streams[streams.first].key
            to_send = state.slots[connection].left
            state.shares[connection].served = nearest - to_send / streams.count
        state.shares[connection].joined = True
        state.shares[connection].inverse_sizes += 1.0 / left
        key = state.shares[connection].served + left
    else:
        key = 0.0
    sequence = state.counts[0].sequence
    state.counts[0].sequence += 1
    queue = state.connections[connection]
    first, place = queue.first, queue.count
    queue.count += 1
    if _keeps_order(layout, connection, order):
        first += (queue.head + place) % queue.length
        place = 0
    while place > 0:
        parent = (place - 1) >> 1
        if not _precedes(key, sequence, state.streams[first + parent]):
            break
        _put_stream(state, first + place, state.streams[first + parent])
        place = parent
    state.streams[first + place].key = key
    state.streams[first + place].left = left
    state.streams[first + place].sequence = sequence
    state.streams[first + place].op = op


@_inner
def _keeps_order(layout, connection, order):
    """Whether streams are sent in the order in which they became ready, as uploads usually are."""
    return order == FIFO or (order == GIVEN and layout.direction[connection] == 1)


@_inner
def _pop_stream(layout, state, connection, order):
    """Take the stream whose turn is next from those that wait."""
    queue = state.connections[connection]
    first = queue.first
    queue.count -= 1
    if _keeps_order(layout, connection, order):
        first += queue.head
        queue.head = (queue.head + 1) % queue.length
        return state.streams[first].op, state.streams[first].left
    op, left = state.streams[first].op, state.streams[first].left
    count = queue.count
    last = state.streams[first + count]
    key, sequence = last.key, last.sequence
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
    _put_stream(state, first + place, last)
    return op, left


@_inner
def _precedes(key, sequence, stream):
    return key < stream.key or (key == stream.key and sequence < stream.sequence)


@_inner
def _put_stream(state, place, stream):
    state.streams[place].key = stream.key
    state.streams[place].left = stream.left
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
    rest = 0.0
    if how.order == SHARED:
        streams = state.connections[connection]
        share = state.shares[connection]
        share.joined = False
        nearest = state.streams[streams.first]
        op = nearest.op
        turn = max(nearest.key - share.served, 0.0) * streams.count
        tensors_per_byte = share.inverse_sizes / streams.count
    else:
        op, left = _pop_stream(layout, state, connection, how.order)
        turn = min(left, how.window)
        first = left == graph.work[state.workers[worker].row, op]
        tensors_per_byte = 1.0 / turn if first else 0.0
        rest = left - turn
    state.slots[connection].rest = rest
    takes_over = connection == state.counts[0].vacant
    goes_on = state.slots[connection].active  # with one more stream that shares
    for end in range(2):
        use = layout.byte_cost[connection, end]
        use += layout.tensor_cost[connection, end] * tensors_per_byte
        _change_use(layout, state, connection, SERVER_CPU + 2 * end, use, takes_over or goes_on)
    if goes_on:
        state.slots[connection].op = op
        state.slots[connection].left = turn
        _keep_rate(layout, state, connection, now)
        return
    if not takes_over:
        _draw_weight(layout, state, connection, options, rng)
        _limit_connection(layout, state, connection, options)
    _activate(layout, state, connection, worker, op, turn, now)


@_inner
def _leave_shared(layout, graph, state, connection, worker):
    """Take the stream that has ended from those that share a connection."""
    share = state.shares[connection]
    streams = state.connections[connection]
    share.served = state.streams[streams.first].key
    op, _ = _pop_stream(layout, state, connection, SHARED)
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
    how = options.jobs[layout.job[layout.connection_worker[connection]]]
    link = layout.slot_resources[connection, SERVER_LINK]
    queues = options.throttles and layout.direction[connection] == 0 and link >= 0
    best = 0.0
    if queues:
        _remove(layout, state, _heap(link, WEIGHTS), WEIGHT, connection)
        if state.counts_of_heaps[_heap(link, WEIGHTS)] > 0:
            best = -state.entries[layout.heap_offsets[_heap(link, WEIGHTS)]].key
    if how.newcomer_share < 1.0 or how.share_spread > 0.0:
        # On a link that is never idle, weights would otherwise sink without end.
        weight = max(how.newcomer_share * best, LEAST_WEIGHT) if best > 0.0 else 1.0
        weight *= np.exp(how.share_spread * rng.normal(0.0, 1.0))
        state.base_weight[connection] = weight
        _weigh(layout, state, connection)
    if queues:
        weight = state.base_weight[connection]
        _set_key(layout, state, _heap(link, WEIGHTS), WEIGHT, connection, -weight)


@_inner
def _weigh(layout, state, connection):
    """Set the weights of a connection on its links: at the sender, with its job's priority."""
    weight = state.base_weight[connection]
    sender = SERVER_LINK if layout.direction[connection] == 0 else WORKER_LINK
    state.weight[connection, SERVER_LINK] = weight
    state.weight[connection, WORKER_LINK] = weight
    job = layout.job[layout.connection_worker[connection]]
    state.weight[connection, sender] = weight * state.jobs[job].weight


@_inner
def _rotate(layout, state, options, now):
    """Give each job its priority on the senders' links, from now until the next rotation."""
    jobs = len(state.jobs)
    turns = int(np.rint(now / options.rotation)) if now > 0.0 else 0
    for job in range(jobs):
        state.jobs[job].weight = LOWER_PRIORITY ** ((job - turns) % jobs)
    for connection in range(layout.thread_offsets[0]):
        _weigh(layout, state, connection)
        if state.slots[connection].active:
            _reconsider(layout, state, connection)
    if options.rotation < np.inf:
        time = (turns + 1) * options.rotation
        _set_key(layout, state, EVENTS, TIME, layout.slots - 1, time)


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
                _reconsider(layout, state, slot)


@_inner
def _limit_connection(layout, state, connection, options):
    """Limit a connection to a part of its worker's link while the worker's CPU is short."""
    link = layout.slot_resources[connection, WORKER_LINK]
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
    """Start an activity; one that takes over in its slot goes on at the rate of the last."""
    activity = state.slots[slot]
    activity.active = True
    activity.worker = worker
    activity.op = op
    activity.left = work
    activity.since = now
    if slot == state.counts[0].vacant:
        _keep_rate(layout, state, slot, now)
    else:
        _join(layout, state, slot)


@_inner
def _keep_rate(layout, state, slot, now):
    """Time the end of what a slot does at the rate that it had before, if it has one yet."""
    activity = state.slots[slot]
    if activity.holder == NOWHERE or activity.pace == 0.0:
        return
    time = _end(layout, state, slot, now)
    heap = _heap_of(layout, slot, activity.holder, TIME)
    _set_key(layout, state, heap, TIME, slot, time)


@_inner
def _end(layout, state, slot, now):
    """When an activity ends at its present rate: the time, or its tag if a hub holds it back."""
    activity = state.slots[slot]
    if activity.holder == OWN:
        return now + activity.left / activity.pace if activity.pace > 0.0 else np.inf
    hub = layout.hubs[slot, activity.holder - BY_LINK]
    amount = activity.left / activity.pace
    _advance(state, hub, now)
    _mark(state, hub)
    if state.resources[hub].served > FAR * amount:
        # It would be lost in rounding, next to slots of a far lower weight.
        first = layout.heap_offsets[_heap(hub, TAGS)]
        for place in range(first, first + state.counts_of_heaps[_heap(hub, TAGS)]):
            state.entries[place].key -= state.resources[hub].served
        state.resources[hub].served = 0.0
    return state.resources[hub].served + amount


@_inner
def _change_use(layout, state, slot, column, use, running):
    """Book what a slot uses of a resource per unit of its rate from now on."""
    if use == state.usage[slot, column]:
        return
    state.usage[slot, column] = use
    if running and layout.slot_resources[slot, column] >= 0:
        _queue_if_short(state, layout.leaves[slot, column])
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
    if slot >= layout.timer:
        _remove(layout, state, EVENTS, TIME, slot)
        return
    activity = state.slots[slot]
    if activity.holder != NOWHERE:
        _let_go(layout, state, slot)
        activity.holder = NOWHERE
        for column in range(2):
            _queue_resource(state, layout.hubs[slot, column])
    if state.places[WEIGHT, slot] >= 0:
        heap = _heap(layout.slot_resources[slot, SERVER_LINK], WEIGHTS)
        _remove(layout, state, heap, WEIGHT, slot)
    for column in range(4):
        leaf = layout.leaves[slot, column]
        if leaf < 0:
            continue
        users = state.resources[leaf]
        users.users -= 1
        place, last = state.member_place[slot, column], layout.member_offsets[leaf] + users.users
        moved, moved_column = state.members[last], state.member_columns[last]
        state.members[place] = moved
        state.member_columns[place] = moved_column
        state.member_place[moved, moved_column] = place
        if state.usage[slot, column] > 0.0:
            _queue_if_short(state, leaf)


@_inner
def _join(layout, state, slot):
    """Put a slot that becomes active among the users of its leaves, where it has no room yet."""
    for column in range(4):
        leaf = layout.leaves[slot, column]
        if leaf >= 0:
            place = layout.member_offsets[leaf] + state.resources[leaf].users
            state.members[place] = slot
            state.member_columns[place] = column
            state.member_place[slot, column] = place
            state.resources[leaf].users += 1
            state.room[slot, column] = 0.0
    if layout.hubs[slot, 0] >= 0 or layout.hubs[slot, 1] >= 0:
        _touch(state, slot)
    else:
        state.slots[slot].holder = OWN
        state.slots[slot].pace = 0.0
        for column in range(4):
            _queue_resource(state, layout.leaves[slot, column])


@_inner
def _account(layout, state, slot, now):
    """Book what a slot has done since it was last accounted for."""
    activity = state.slots[slot]
    if activity.holder == NOWHERE:
        return
    if activity.holder != OWN:
        _advance(state, layout.hubs[slot, activity.holder - BY_LINK], now)
    left = _left_by(layout, state, slot, now)
    for column in range(4):
        state.used[slot, column] += state.usage[slot, column] * (activity.left - left)
    activity.left = left
    activity.since = now


@_inner
def _note_use(layout, state, now, used):
    """Write into `used` what each resource has been used for by now; nothing else changes."""
    used[:] = 0.0
    for slot in range(layout.timer):
        done = state.slots[slot].left - _left_by(layout, state, slot, now)
        for column in range(4):
            resource = layout.slot_resources[slot, column]
            if resource >= 0:
                used[resource] += state.used[slot, column] + state.usage[slot, column] * done


@_inner
def _left_by(layout, state, slot, now):
    """Work of a slot that will be left by now if its rate stays."""
    activity = state.slots[slot]
    if activity.holder == NOWHERE:
        return activity.left
    if activity.holder == OWN:
        return max(activity.left - activity.pace * (now - activity.since), 0.0)
    hub = layout.hubs[slot, activity.holder - BY_LINK]
    users = state.resources[hub]
    served = users.served
    if users.level < np.inf:
        served += users.level * (now - users.since)
    place = layout.heap_offsets[_heap(hub, TAGS)] + state.places[TIME, slot]
    return max((state.entries[place].key - served) * activity.pace, 0.0)


# --- sharing --------------------------------------------------------------------------------


@_inner
def _update_rates(layout, state, now, options, rng):
    """Share resources anew where slots changed; return whether the levels settled."""
    counts = state.counts[0]
    throttled = False
    for _ in range(2):
        if (counts.pending > 0 or counts.touched > 0) and not _settle(layout, state, now):
            return False
        if not options.throttles or throttled or counts.changed == 0:
            break
        throttled = True
        _throttle(layout, state, options, rng)
    for position in range(counts.changed):
        resource = state.changed[position]
        state.resources[resource].changed = False
        if layout.is_hub[resource]:
            _time_next_end(layout, state, resource, now)
    counts.changed = 0
    return True


@_inner
def _touch(state, slot):
    """Have it found anew what holds a slot back."""
    if not state.slots[slot].touched:
        state.slots[slot].touched = True
        state.touched[state.counts[0].touched] = slot
        state.counts[0].touched += 1


@_inner
def _reconsider(layout, state, slot):
    """Have all looked at that depends on the weight, the limit or the use of an active slot."""
    for column in range(4):
        _queue_if_short(state, layout.leaves[slot, column])
    _touch(state, slot)


@_inner
def _queue_resource(state, resource):
    """Have the level of a resource looked at."""
    if resource >= 0 and not state.resources[resource].queued:
        counts = state.counts[0]
        state.resources[resource].queued = True
        tail = counts.head + counts.pending
        length = len(state.pending)
        state.pending[tail if tail < length else tail - length] = resource
        counts.pending += 1


@_inner
def _queue_if_short(state, resource):
    """Have the level of a resource looked at if it holds somebody back."""
    if resource >= 0 and state.resources[resource].level < np.inf:
        _queue_resource(state, resource)


@_inner
def _mark(state, resource):
    """Remember that the level, or the next end, of a resource has changed."""
    if not state.resources[resource].changed:
        state.resources[resource].changed = True
        state.changed[state.counts[0].changed] = resource
        state.counts[0].changed += 1


@_inner
def _settle(layout, state, now):
    """Bring all levels to the fair allocation; return False if they do not settle.

    A level is computed anew where a slot changed, and again where it depends on another that
    has changed, until none does: each resource then either is not short or gives its capacity
    away, evenly among those that it holds back, which is the max-min fair allocation. Where a
    link and a CPU hold back the same connections, of unequal weights, this takes many rounds and
    may even go in circles, unless it makes half of each change.
    """
    counts = state.counts[0]
    length = len(state.pending)
    patience = 10_000 * length
    attempts, source, hub, old, halved = 0, -1, -1, np.inf, False
    while True:
        if counts.touched > 0:
            counts.touched -= 1
            slot = state.touched[counts.touched]
        elif hub >= 0:
            # Each slot that changes sides raises the level that the sums give, until none has to.
            if not halved:
                state.resources[hub].level = _hub_level(layout, state, hub)
            slot = _on_wrong_side(layout, state, hub)
            if slot < 0:
                level = state.resources[hub].level
                if attempts > patience and not halved and max(old, level) < np.inf:
                    state.resources[hub].level = 0.5 * (old + level)
                    halved = True
                else:
                    _pass_on(layout, state, hub, old)
                    hub = -1
                continue
        elif counts.pending > 0:
            attempts += 1
            if attempts > 2 * patience:
                return False
            source = state.pending[counts.head]
            counts.head = counts.head + 1 if counts.head + 1 < length else 0
            counts.pending -= 1
            state.resources[source].queued = False
            if layout.is_hub[source]:
                _advance(state, source, now)
                hub, old, halved = source, state.resources[source].level, False
            else:
                _settle_leaf(layout, state, source, attempts > patience)
            continue
        else:
            return True
        _place(layout, state, slot, source, now)


@_inner
def _place(layout, state, slot, source, now):
    """Find what holds a slot back at the present levels, and book it there.

    `source` is the resource that is being looked at, which need not be told.
    """
    activity = state.slots[slot]
    activity.touched = False
    if not activity.active:
        return
    link, cpu = layout.hubs[slot, 0], layout.hubs[slot, 1]
    use_of_link = state.usage[slot, 0]
    use_of_cpu = state.usage[slot, 1] if cpu >= 0 else 0.0
    weight, weight_on_cpu = state.weight[slot, 0], state.weight[slot, 1]
    own = state.limit[slot]
    for column in range(4):
        leaf = layout.leaves[slot, column]
        if leaf >= 0 and state.usage[slot, column] > 0.0:
            level = state.resources[leaf].level * state.weight[slot, column]
            own = min(own, level / state.usage[slot, column])
    by_link = by_cpu = np.inf
    if link >= 0:
        by_link = state.resources[link].level * weight / use_of_link
    if use_of_cpu > 0.0:
        by_cpu = state.resources[cpu].level * weight_on_cpu / use_of_cpu

    rate = min(own, by_link, by_cpu)
    before = holder = activity.holder
    if (
        (holder == OWN and own > rate)
        or (holder == BY_LINK and by_link > rate)
        or (holder == BY_CPU and (by_cpu > rate or use_of_cpu == 0.0))
        or holder == NOWHERE
    ):
        if link >= 0 and by_link == rate:
            holder = BY_LINK
        elif use_of_cpu > 0.0 and by_cpu == rate:
            holder = BY_CPU
        elif use_of_cpu > 0.0 and before == NOWHERE and _is_full(state, cpu, own * use_of_cpu):
            holder = BY_CPU  # as its level will tell
        else:
            holder = OWN
    if holder == BY_LINK:
        pace = weight / use_of_link
        parts = weight, pace * use_of_cpu
    elif holder == BY_CPU:
        pace = weight_on_cpu / use_of_cpu
        parts = pace * use_of_link, weight_on_cpu
    else:
        pace = rate if rate < np.inf else 0.0  # until its leaves have been looked at
        parts = pace * use_of_link, pace * use_of_cpu
    moved = holder != before or pace != activity.pace
    if moved and before != NOWHERE:
        _account(layout, state, slot, now)

    # Leaves
    ceiling, tied = own, False
    for column in range(4):
        leaf, use = layout.leaves[slot, column], state.usage[slot, column]
        if leaf < 0 or use <= 0.0:
            continue
        if state.resources[leaf].level < np.inf:
            tied = holder != OWN
            if moved and leaf != source:
                _queue_resource(state, leaf)
        elif rate * use > state.room[slot, column] * (1.0 + ROUNDING):
            state.room[slot, column] = np.inf
            _queue_resource(state, leaf)
        else:
            ceiling = min(ceiling, state.room[slot, column] / use)

    # Hubs
    if holder != before and before != NOWHERE:
        _let_go(layout, state, slot)
    activity.holder = holder
    activity.pace = pace
    for column in range(2):
        hub = layout.hubs[slot, column]
        if hub >= 0 and (holder != before or parts[column] != state.part[slot, column]):
            _book(layout, state, slot, column, parts[column])
            if hub != source:
                _queue_resource(state, hub)
    _tie(layout, state, slot, tied)
    for role in range(3):
        heap, key = _heap_of(layout, slot, holder, role), 0.0
        column = role - LINK_SIDE
        if role == TIME:
            if not moved:
                continue
            key = _end(layout, state, slot, now)
        elif heap < 0:
            continue
        elif holder == OWN:
            key = -pace * state.usage[slot, column] / state.weight[slot, column]
        elif holder - BY_LINK == column:
            key = ceiling * state.usage[slot, column] / state.weight[slot, column]
        else:
            # At this ratio of the CPU's level and the link's, both hold the slot back.
            key = use_of_cpu * weight / (weight_on_cpu * use_of_link)
            if holder == BY_LINK:
                key = -key
        _set_key(layout, state, heap, role, slot, key)


@_inner
def _let_go(layout, state, slot):
    """Take a slot off the heaps and the sums in which what holds it back has put it."""
    holder = state.slots[slot].holder
    _tie(layout, state, slot, False)
    for column in range(2):
        if layout.hubs[slot, column] >= 0:
            _book(layout, state, slot, column, 0.0)
    if holder != OWN:
        _mark(state, layout.hubs[slot, holder - BY_LINK])
    for role in range(3):
        heap = _heap_of(layout, slot, holder, role)
        if heap >= 0:
            _remove(layout, state, heap, role, slot)


@_inner
def _book(layout, state, slot, column, part):
    """Change what a slot contributes to the sums of one of its hubs."""
    more = part - state.part[slot, column]
    state.part[slot, column] = part
    holder, link = state.slots[slot].holder, layout.hubs[slot, 0]
    users = state.resources[layout.hubs[slot, column]]
    if holder == OWN:
        users.fixed += more
    elif holder - BY_LINK == column:
        users.weights += more
        users.rounded += users.weights + abs(more)
    elif holder == BY_LINK:
        state.resources[link].on_cpu += more
    else:
        users.of_cpu += more


@_inner
def _tie(layout, state, slot, tied):
    """Keep a slot among those of its hub whose leaves must be told of the hub's level, or not."""
    activity = state.slots[slot]
    if tied == (activity.tie >= 0):
        return
    hub = layout.hubs[slot, activity.holder - BY_LINK]
    first = layout.heap_offsets[_heap(hub, TAGS)]
    if tied:
        activity.tie = state.resources[hub].ties
        state.tied[first + activity.tie] = slot
        state.resources[hub].ties += 1
    else:
        state.resources[hub].ties -= 1
        last = state.tied[first + state.resources[hub].ties]
        state.tied[first + activity.tie] = last
        state.slots[last].tie = activity.tie
        activity.tie = -1


# --- hubs -----------------------------------------------------------------------------------


@_inner
def _advance(state, hub, now):
    """Bring the served amount of a hub up to date, before its level changes."""
    users = state.resources[hub]
    if users.level < np.inf:
        users.served += users.level * (now - users.since)
    users.since = now


@_inner
def _hub_level(layout, state, hub):
    """Level at which those that a hub holds back take what the others leave.

    Infinite if it holds back none and need not; 0 if it must, so that the first ones are found.
    """
    users = state.resources[hub]
    # What rounding has left in the sums goes when nobody is left.
    if state.counts_of_heaps[_heap(hub, TAGS)] == 0:
        users.weights = users.on_cpu = users.rounded = users.served = 0.0
    elif users.rounded > DIGITS * users.weights:
        _sum_anew(layout, state, hub)
    if state.counts_of_heaps[_heap(hub, FLOORS)] == 0:
        users.fixed = 0.0
    load = users.fixed
    if hub % 3 == CPU:
        for link in (hub + SEND, hub + RECEIVE):
            if state.resources[link].level < np.inf:
                load += state.resources[link].on_cpu * state.resources[link].level
    else:
        if state.counts_of_heaps[_heap(hub, TO_LINK)] == 0:
            users.of_cpu = 0.0
        cpu = hub - hub % 3 + CPU
        if state.resources[cpu].level < np.inf:
            load += users.of_cpu * state.resources[cpu].level
    if state.counts_of_heaps[_heap(hub, TAGS)] > 0:
        return max((users.capacity - load) / users.weights, 0.0)
    return np.inf if load <= users.capacity * (1.0 + ROUNDING) else 0.0


@_inner
def _is_full(state, hub, load):
    """Whether a hub that holds back none must do so with so much more load."""
    users = state.resources[hub]
    return users.level == np.inf and users.fixed + load > users.capacity


@_inner
def _sum_anew(layout, state, hub):
    """Sum up what a hub holds back: what has been added and taken off makes the sums coarse."""
    users = state.resources[hub]
    column = 1 if hub % 3 == CPU else 0
    users.weights = users.on_cpu = users.rounded = 0.0
    first = layout.heap_offsets[_heap(hub, TAGS)]
    for place in range(first, first + state.counts_of_heaps[_heap(hub, TAGS)]):
        slot = state.entries[place].member
        users.weights += state.part[slot, column]
        users.on_cpu += state.part[slot, 1]
    users.rounded = users.weights


@_inner
def _on_wrong_side(layout, state, hub):
    """A slot that a hub wrongly holds back at its level, or wrongly does not, or -1."""
    margin = 1.0 + 2.0 * ROUNDING
    level = state.resources[hub].level
    heap = _heap(hub, CEILINGS)
    if state.counts_of_heaps[heap] > 0:
        top = state.entries[layout.heap_offsets[heap]]
        if level > top.key * margin:
            return top.member
    heap = _heap(hub, FLOORS)
    if state.counts_of_heaps[heap] > 0:
        top = state.entries[layout.heap_offsets[heap]]
        if -top.key > level * margin:
            return top.member
    cpu = hub - hub % 3 + CPU
    if not layout.is_hub[cpu]:
        return -1
    level_of_cpu = state.resources[cpu].level
    for link in (cpu + SEND, cpu + RECEIVE):
        if hub != cpu and hub != link:
            continue
        level = state.resources[link].level
        heap = _heap(link, TO_CPU)
        if state.counts_of_heaps[heap] > 0:
            top = state.entries[layout.heap_offsets[heap]]
            if -top.key * level > level_of_cpu * margin:
                return top.member
        heap = _heap(link, TO_LINK)
        if state.counts_of_heaps[heap] > 0:
            top = state.entries[layout.heap_offsets[heap]]
            if level_of_cpu > top.key * level * margin:
                return top.member
    return -1


@_inner
def _pass_on(layout, state, hub, old):
    """Have those looked at that depend on a hub's level, once it has changed enough."""
    users = state.resources[hub]
    if users.level != old:
        _mark(state, hub)
    if users.level == users.passed_on or (
        abs(users.level - users.passed_on) <= SETTLED * min(users.level, users.passed_on)
    ):
        return
    users.passed_on = users.level
    if hub % 3 == CPU:
        for link in (hub + SEND, hub + RECEIVE):
            if state.counts_of_heaps[_heap(link, TO_LINK)] > 0:
                _queue_resource(state, link)
    elif users.on_cpu > 0.0:
        _queue_resource(state, hub - hub % 3 + CPU)
    first = layout.heap_offsets[_heap(hub, TAGS)]
    for slot in state.tied[first : first + users.ties]:
        for column in range(4):
            _queue_if_short(state, layout.leaves[slot, column])


@_inner
def _time_next_end(layout, state, hub, now):
    """Set when the first of those that a hub holds back will end."""
    item, heap = layout.slots + hub, _heap(hub, TAGS)
    if state.counts_of_heaps[heap] == 0:
        _remove(layout, state, EVENTS, TIME, item)
        return
    _advance(state, hub, now)
    to_serve = state.entries[layout.heap_offsets[heap]].key - state.resources[hub].served
    time = now + max(to_serve, 0.0) / state.resources[hub].level
    _set_key(layout, state, EVENTS, TIME, item, time)


# --- leaves ---------------------------------------------------------------------------------


@_inner
def _settle_leaf(layout, state, leaf, halved):
    """Find the level of a leaf, given those of all others (water-filling), or make room."""
    first = layout.member_offsets[leaf]
    users = state.resources[leaf]
    fixed = flexible = weights = 0.0
    for index in range(users.users):
        slot, column = state.members[first + index], state.member_columns[first + index]
        use = state.usage[slot, column]
        state.demand[index] = -1.0
        if use > 0.0:
            demand = use * _rate_elsewhere(layout, state, slot, leaf)
            state.demand[index] = demand
            weights += state.weight[slot, column]
            if state.slots[slot].holder == OWN:
                fixed += demand
            else:
                flexible += demand
    level = np.inf
    if fixed + flexible > users.capacity * (1.0 + ROUNDING):
        level = _filled_level(state, leaf, first, users.capacity, weights)
    if halved and max(level, users.level) < np.inf:
        level = 0.5 * (level + users.level)
    growth = 1.0
    if level == np.inf and flexible > 0.0:
        growth = max((users.capacity - fixed) / flexible, 1.0)
    changed = level != users.level and not (
        abs(level - users.level) <= SETTLED * min(level, users.level)
    )
    if changed:
        users.level = level
        _mark(state, leaf)
    for index in range(users.users):
        slot, column = state.members[first + index], state.member_columns[first + index]
        use = state.usage[slot, column]
        if level == np.inf:
            room = max(state.demand[index], 0.0)
            if state.slots[slot].holder != OWN and use > 0.0:
                room *= growth
                if room < state.room[slot, column]:
                    _lower_ceiling(layout, state, slot, room / use)
            state.room[slot, column] = room
        if changed or state.slots[slot].pace == 0.0:
            _touch(state, slot)


@_inner
def _lower_ceiling(layout, state, slot, rate):
    """Have a slot that a hub holds back looked at if it would get more than a rate."""
    column = state.slots[slot].holder - BY_LINK
    heap = _heap(layout.hubs[slot, column], CEILINGS)
    role = LINK_SIDE + column
    key = rate * state.usage[slot, column] / state.weight[slot, column]
    if key < state.entries[layout.heap_offsets[heap] + state.places[role, slot]].key:
        _set_key(layout, state, heap, role, slot, key)


@_inner
def _filled_level(state, leaf, first, capacity, weights):
    """Level at which the demands use a capacity up."""
    # Those that are held back elsewhere to less than their share leave the rest to the others.
    level = capacity / weights
    while True:
        left, hungry = capacity, 0.0
        for index in range(state.resources[leaf].users):
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
def _rate_elsewhere(layout, state, slot, without):
    """Rate at which a slot may run if the leaf `without` does not hold it back."""
    rate = state.limit[slot]
    for column in range(4):
        resource = layout.slot_resources[slot, column]
        if resource >= 0 and resource != without and state.usage[slot, column] > 0.0:
            level = state.resources[resource].level * state.weight[slot, column]
            rate = min(rate, level / state.usage[slot, column])
    return rate


# --- heaps ----------------------------------------------------------------------------------


@_inner
def _heap(resource, kind):
    return 1 + KINDS * resource + kind


@_inner
def _heap_of(layout, slot, holder, role):
    """The heap in which a slot stands in a role, -1 if in none."""
    link, cpu = layout.hubs[slot, 0], layout.hubs[slot, 1]
    if role == TIME:
        if holder == OWN:
            return EVENTS
        return _heap(link if holder == BY_LINK else cpu, TAGS)
    if role == LINK_SIDE:
        if link < 0:
            return -1
        if holder == BY_CPU:
            return _heap(link, TO_LINK)
        return _heap(link, CEILINGS if holder == BY_LINK else FLOORS)
    if cpu < 0:
        return -1
    if holder == BY_LINK:
        return _heap(link, TO_CPU)
    return _heap(cpu, CEILINGS if holder == BY_CPU else FLOORS)


@_inner
def _set_key(layout, state, heap, role, item, key):
    """Insert an item into a heap, or move it after its key has changed."""
    place = state.places[role, item]
    if place < 0:
        place = state.counts_of_heaps[heap]
        state.counts_of_heaps[heap] += 1
    elif state.entries[layout.heap_offsets[heap] + place].key == key:
        return
    first, count = layout.heap_offsets[heap], state.counts_of_heaps[heap]
    _sift(state.entries, state.places, first, count, role, item, key, place)


@_inner
def _remove(layout, state, heap, role, item):
    """Take an item off a heap if it stands there."""
    place = state.places[role, item]
    if place < 0:
        return
    state.places[role, item] = -1
    state.counts_of_heaps[heap] -= 1
    first, count = layout.heap_offsets[heap], state.counts_of_heaps[heap]
    last = state.entries[first + count]
    if last.member != item:
        _sift(state.entries, state.places, first, count, role, last.member, last.key, place)


@_called
def _sift(entries, places, first, count, role, item, key, place):
    """Put an item in order that a heap has a free place for; each entry has four children."""
    free = place
    while place > 0:
        parent = (place - 1) >> 2
        above = entries[first + parent]
        if not _earlier(key, item, above.key, above.member):
            break
        _put(entries, places, first, role, place, above.member, above.key)
        place = parent
    if place == free:
        child = 4 * place + 1
        while child < count:
            best = entries[first + child]
            least, least_item, next_place = best.key, best.member, child
            for other in range(child + 1, min(child + 4, count)):
                entry = entries[first + other]
                if _earlier(entry.key, entry.member, least, least_item):
                    least, least_item, next_place = entry.key, entry.member, other
            if not _earlier(least, least_item, key, item):
                break
            _put(entries, places, first, role, place, least_item, least)
            place = next_place
            child = 4 * place + 1
    _put(entries, places, first, role, place, item, key)


@_inner
def _put(entries, places, first, role, place, item, key):
    entries[first + place].key = key
    entries[first + place].member = item
    places[role, item] = place


@_inner
def _earlier(key, item, other_key, other_item):
    # Equal keys go by item, so that the order of events does not depend on history.
    return (key < other_key) | ((key == other_key) & (item < other_item))
