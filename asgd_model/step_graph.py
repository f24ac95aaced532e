"""Traced steps of one job joined to one step graph, and the `Profile` made of them.

Readers of trace formats fill `TracedStep` and `StepGraph`; what follows is the same for all.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asgd_model.errors import InputError
from asgd_model.profile import (
    DOWNLINK,
    SERVER,
    UPLINK,
    WORKER,
    CommunicationCost,
    Metadata,
    Profile,
)
from asgd_model.recovery import busy_periods, recover_work

TRANSFER = "RecvTensor"
"""Kind of a transfer, and name of its row in a trace."""

MAX_DEPENDENCIES = 10_000_000
"""Most dependencies of a step's operations; a node that never ran passes on all of its own."""

_log = logging.getLogger(__name__)

_TASK = re.compile(r"/job:(?P<job>[^/]+)/(?:replica:\d+/)?task:(?P<index>\d{1,4})(?=/|$)")
_WORKER_JOBS = ("worker", "chief", "master")
_SERVER_JOB = "ps"
_TRANSFER_NODES = frozenset({"_Send", "_Recv"})
_GRAPH_ENDS = frozenset({"_SOURCE", "_SINK"})

_RESOLUTION = 2e-6
"""Seconds that the end of a row may be early: start and duration are cut to microseconds."""

_CLOCK_SLEW = 500e-6
"""How fast NTP turns a clock forward or back at most (RFC 5905), seconds per second."""


class Node(NamedTuple):
    """An operation on a device."""

    device: str
    name: str


class Transfer(NamedTuple):
    """A tensor that one device sends to another."""

    sender: str
    receiver: str
    name: str


Key = Node | Transfer


class Row(NamedTuple):
    """One recorded interval: nanoseconds of its host's clock, and the bytes received."""

    start: int
    end: int
    size: int = 0


class Operation(NamedTuple):
    """The row of an operation; `inputs` are those of its label, None if it has none."""

    row: Row
    kind: str
    inputs: tuple[str, ...] | None


class Arrival(NamedTuple):
    """The row of a received tensor, with what the trace tells of it."""

    receiver: str
    start: int
    end: int
    size: int | None = None
    sender: str | None = None
    name: str | None = None


class Kernel(NamedTuple):
    """Something that a GPU did for an operation, in nanoseconds of the GPU's clock."""

    device: str
    operation: str
    start: int
    end: int


@dataclass(frozen=True)
class TracedStep:
    """What one file recorded of one step.

    `begins` has the earliest start on each device, `outputs` the bytes of the tensors that an
    operation made, where they are known.
    """

    where: str
    operations: dict[Node, Operation] = field(default_factory=dict)
    arrivals: list[Arrival] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    begins: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, set[int]] = field(default_factory=dict)

    def add_operation(self, node: Node, operation: Operation) -> None:
        """Add a row.

        A row that repeats another one is left out, and so is one without label for a node that
        has a row with a label.

        Raises
        ------
        InputError
            If the duration is negative, or the node has another row.
        """
        self._check_duration(node.name, operation.row.start, operation.row.end)
        self._begin(node.device, operation.row.start)
        if node.name in _GRAPH_ENDS or operation.kind in _TRANSFER_NODES:
            return
        known = self.operations.setdefault(node, operation)
        if (operation.inputs is None) != (known.inputs is None):
            self.operations[node] = operation if known.inputs is None else known
        elif operation.row != known.row:
            expected = "one row for each operation of a step (loops are not supported)"
            raise InputError(self.where, "a second row", expected, field=node.name)

    def add_arrival(self, arrival: Arrival) -> None:
        """Add the row of a received tensor.

        Raises
        ------
        InputError
            If the duration or the size is negative.
        """
        name = arrival.name or TRANSFER
        self._check_duration(name, arrival.start, arrival.end)
        if arrival.size is not None and not 0 <= arrival.size < 2**63:
            raise InputError(
                self.where, f"{arrival.size} bytes", "0 to 2**63 - 1", field=arrival.name
            )
        self._begin(arrival.receiver, arrival.start)
        self.arrivals.append(arrival)

    def add_kernel(self, kernel: Kernel) -> None:
        """Add a row of a GPU's stream.

        Raises
        ------
        InputError
            If the duration is negative.
        """
        self._check_duration(kernel.operation, kernel.start, kernel.end)
        self.kernels.append(kernel)

    def _begin(self, device: str, start: int) -> None:
        self.begins[device] = min(start, self.begins.get(device, start))

    def _check_duration(self, name: str, start: int, end: int) -> None:
        if end < start:
            found = f"a duration of {end - start} ns"
            raise InputError(self.where, found, "a duration of at least 0", field=name)


@dataclass(frozen=True)
class Step:
    """The rows of one step; `queues` has the operations of each GPU in the order it ran them."""

    where: str
    rows: dict[Key, Row]
    begins: dict[str, int]
    queues: dict[str, tuple[Node, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class StepGraph:
    """Kind and inputs of every node and transfer of a step.

    `servers` gives the parameter server that a device belongs to, -1 for the worker.
    """

    where: str
    kinds: dict[Key, str] = field(default_factory=dict)
    inputs: dict[Key, list[Key]] = field(default_factory=dict)
    servers: dict[str, int] = field(default_factory=dict)

    def place_devices(self) -> None:
        """Find the parameter server or the worker that each device belongs to.

        Raises
        ------
        InputError
            If there is a device of neither, or not exactly one worker.
        """
        workers = set()
        for device in dict.fromkeys(key.device for key in self.kinds if isinstance(key, Node)):
            task = _TASK.match(device)
            if task is None or task["job"] not in (_SERVER_JOB, *_WORKER_JOBS):
                expected = f"a device of job {_SERVER_JOB}, {' or '.join(_WORKER_JOBS)}"
                raise InputError(self.where, repr(device), expected, field="device")
            if task["job"] == _SERVER_JOB:
                self.servers[device] = int(task["index"])
            else:
                self.servers[device] = -1
                workers.add(task.group())
        if len(workers) != 1:
            found = ", ".join(sorted(workers)) or "no worker"
            expected = "the step of one worker (between-graph replication: a session per worker)"
            raise InputError(self.where, found, expected, field="device")


def profile_of_steps(steps: Sequence[Step], graph: StepGraph, metadata: Metadata) -> Profile:
    """Make a profile from the rows of traced steps and the graph that they ran.

    Nodes that no step recorded vanish, and what waited for them waits for what they waited for;
    so do signals from server to server. Operations of a GPU wait for each other in the order in
    which the first step ran them, and their work is the time that they held the GPU; that of all
    others is recovered from how they shared the CPU (`recover_work`).

    Each server's clock may differ from the worker's by a constant. It is taken to agree where no
    tensor arrives before it exists; otherwise the correction is the middle of those with which
    none does, as when round trips in both directions bound it (Cristian, "Probabilistic clock
    synchronization", 1989).

    A transfer or an operation that one step lacks and another one has is taken to run from the
    last end of its dependencies to the first start of what depends on it; the work of such an
    operation is its mean over the other steps. Warnings are logged of both.

    Parameters
    ----------
    steps : sequence of Step
        At least one.
    graph : StepGraph
        With its devices placed.
    metadata : Metadata
        Cores and communication costs enter the recovery of the work.

    Returns
    -------
    Profile
        One step for each step; operations in topological order.

    Raises
    ------
    InputError
        If the graph has a cycle; a row is not in the graph; a step lacks all rows of a device; a
        transfer has a row in no step or sizes that differ; servers exchange data with each
        other; or the clocks of two nodes contradict each other.
    """
    _check_rows(steps, graph)
    sizes = _sizes(steps)
    recorded = {key for step in steps for key in step.rows}
    keys, dependencies = _operations(graph, steps[0].queues, recorded, sizes)
    resources = np.array([_resource(graph, key) for key in keys], dtype=np.int8)
    servers = np.array([_server(graph, key) for key in keys], dtype=np.int32)
    start, end = _recorded_times(steps, keys)
    for index, step in enumerate(steps):
        shift, begin = _clock_corrections(
            step, graph, start[index], end[index], dependencies, resources, servers
        )
        start[index] += shift - begin
        end[index] += shift - begin
    missing = np.isnan(start)
    _fill_in(start, end, dependencies)
    is_transfer = np.array([isinstance(key, Transfer) for key in keys], dtype=bool)
    _report_filled_in(steps, missing, is_transfer)
    queued = {node for step in steps for queue in step.queues.values() for node in queue}
    profile = Profile(
        names=tuple(key.name for key in keys),
        kinds=tuple(graph.kinds[key] for key in keys),
        resources=resources,
        servers=servers,
        sizes=np.array([sizes.get(key, 0) for key in keys], dtype=np.int64),
        dependencies=dependencies,
        work=np.zeros_like(start),
        start=start,
        end=end,
        metadata=metadata,
        source=graph.where,
    )
    on_gpu = np.array([key in queued for key in keys], dtype=bool)
    return replace(profile, work=_work(profile, missing, on_gpu))


def _check_rows(steps: Sequence[Step], graph: StepGraph) -> None:
    """Refuse rows that the graph does not have, and steps without any row of some device."""
    recorded = [{key.device for key in step.rows if isinstance(key, Node)} for step in steps]
    for step in steps:
        if not step.begins:
            raise InputError(step.where, "no rows of a host", "rows of operations and transfers")
    for step, devices in zip(steps, recorded, strict=True):
        for key in step.rows:
            if key not in graph.kinds:
                found = f"a row of {' to '.join(key[:-1])}"
                expected = f"a node of the partition graphs in {graph.where}"
                raise InputError(step.where, found, expected, field=key.name)
        for device in sorted(set().union(*recorded) - devices):
            raise InputError(step.where, "no rows", "rows as in the other steps", field=device)


def _sizes(steps: Sequence[Step]) -> dict[Key, int]:
    """Bytes of each recorded transfer."""
    sizes: dict[Key, int] = {}
    for step in steps:
        for key, row in step.rows.items():
            if isinstance(key, Transfer) and sizes.setdefault(key, row.size) != row.size:
                expected = f"{sizes[key]} bytes as in an earlier step"
                raise InputError(step.where, f"{row.size} bytes", expected, field=key.name)
    return sizes


def _operations(
    graph: StepGraph,
    queues: dict[str, tuple[Node, ...]],
    recorded: set[Key],
    sizes: dict[Key, int],
) -> tuple[list[Key], tuple[NDArray[np.int32], ...]]:
    """Operations in topological order, and the indices that each one depends on."""
    inputs = {key: list(sources) for key, sources in graph.inputs.items()}
    for queue in queues.values():
        for before, after in pairwise(queue):
            inputs[after].append(before)
    try:
        order = list(TopologicalSorter(inputs).static_order())
    except CycleError as error:
        cycle = " -> ".join(key.name for key in error.args[1])
        expected = "a graph without cycles"
        raise InputError(graph.where, f"the cycle {cycle}", expected) from error
    keys: list[Key] = []
    dependencies: list[NDArray[np.int32]] = []
    reached: dict[Key, set[int]] = {}
    total = 0
    for key in order:
        waits = set().union(*(reached[source] for source in inputs[key]))
        total += len(waits)
        if total > MAX_DEPENDENCIES:
            expected = f"at most {MAX_DEPENDENCIES:,}"
            raise InputError(graph.where, "too many dependencies", expected)
        if _is_operation(graph, key, recorded, sizes):
            reached[key] = {len(keys)}
            keys.append(key)
            dependencies.append(np.array(sorted(waits), dtype=np.int32))
        else:
            reached[key] = waits
    return keys, tuple(dependencies)


def _is_operation(graph: StepGraph, key: Key, recorded: set[Key], sizes: dict[Key, int]) -> bool:
    """Whether a node or transfer becomes an operation of the profile."""
    if isinstance(key, Node):
        return key in recorded and graph.kinds[key] not in _TRANSFER_NODES
    if key not in recorded:
        expected = f"a {TRANSFER} row in at least one step (trace_level=FULL_TRACE)"
        raise InputError(graph.where, "a transfer without rows", expected, field=key.name)
    between_servers = -1 not in (graph.servers[key.sender], graph.servers[key.receiver])
    if between_servers and sizes[key] > 0:
        found = f"{sizes[key]} bytes from {key.sender} to {key.receiver}"
        raise InputError(graph.where, found, "no data between servers", field=key.name)
    return not between_servers


def _resource(graph: StepGraph, key: Key) -> int:
    if isinstance(key, Transfer):
        return UPLINK if graph.servers[key.sender] < 0 else DOWNLINK
    return WORKER if graph.servers[key.device] < 0 else SERVER


def _server(graph: StepGraph, key: Key) -> int:
    """Index of the server that an operation belongs to; -1 for the worker's."""
    return max(graph.servers[device] for device in key[:-1])


def _recorded_times(
    steps: Sequence[Step], keys: list[Key]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end in seconds since the earliest row of the step, NaN where there is no row."""
    queued = {node for step in steps for queue in step.queues.values() for node in queue}
    start = np.full((len(steps), len(keys)), np.nan)
    end = np.full_like(start, np.nan)
    for index, step in enumerate(steps):
        begin = min(step.begins.values())
        ran = {node for queue in step.queues.values() for node in queue}
        for op, key in enumerate(keys):
            # The row of a GPU's operation whose kernels were lost tells its launch only.
            if key in step.rows and (key not in queued or key in ran):
                row = step.rows[key]
                start[index, op] = (row.start - begin) / 1e9
                end[index, op] = (row.end - begin) / 1e9
    return start, end


def _clock_corrections(
    step: Step,
    graph: StepGraph,
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    dependencies: tuple[NDArray[np.int32], ...],
    resources: NDArray[np.int8],
    servers: NDArray[np.int32],
) -> tuple[NDArray[np.float64], float]:
    """What to add to each operation's times so that all are on the worker's clock.

    Also returns the earliest start of the step on that clock.
    """
    tolerance = _RESOLUTION + _CLOCK_SLEW * float(np.fmax.reduce(end, initial=0.0))
    # Uploads are recorded where they arrive.
    clocks = np.where((resources == SERVER) | (resources == UPLINK), servers, -1)
    corrections = {-1: 0.0}
    for server in np.unique(clocks[clocks >= 0]).tolist():
        lowest, highest = -np.inf, np.inf
        for op in np.flatnonzero((servers == server) & (resources != SERVER)):
            sources = dependencies[op]
            sources = sources[clocks[sources] == (-1 if resources[op] == UPLINK else server)]
            ready = end[sources].max(initial=-np.inf)
            if np.isnan(ready) or np.isnan(end[op]):
                continue
            if resources[op] == UPLINK:
                lowest = max(lowest, ready - end[op])
            else:
                highest = min(highest, end[op] - ready)
        if lowest > highest + tolerance:
            found = (
                f"clocks of the worker and of server {server} that contradict each other by "
                f"{lowest - highest:.6f} s"
            )
            expected = "clocks that differ by a constant within a step (kept by NTP or PTP)"
            raise InputError(step.where, found, expected)
        corrections[server] = _nearest_middle(lowest, highest)
        if corrections[server]:
            _log.warning(
                "%s: clock of server %d moved by %+.6f s", step.where, server, corrections[server]
            )
    shift = np.array([corrections[clock] for clock in clocks.tolist()])
    first = min(step.begins.values())
    begin = min(
        (begin - first) / 1e9 + corrections.get(graph.servers.get(device, -1), 0.0)
        for device, begin in step.begins.items()
    )
    return shift, begin


def _nearest_middle(lowest: float, highest: float) -> float:
    """0 if it lies between the bounds, else their middle, or the one that is finite."""
    if lowest <= 0.0 <= highest:
        return 0.0
    if np.isinf(lowest):
        return highest
    if np.isinf(highest):
        return lowest
    return 0.5 * (lowest + highest)


def _fill_in(
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    dependencies: tuple[NDArray[np.int32], ...],
) -> None:
    """Put what has no row between its dependencies and what depends on it, in place."""
    dependants: list[list[int]] = [[] for _ in dependencies]
    for op, sources in enumerate(dependencies):
        for source in sources:
            dependants[source].append(op)
    for index, op in np.argwhere(np.isnan(start)):
        earliest = end[index, dependencies[op]].max(initial=0.0)
        latest = np.fmin.reduce(start[index, dependants[op]], initial=np.inf)
        start[index, op] = earliest
        end[index, op] = latest if earliest < latest < np.inf else earliest


def _report_filled_in(
    steps: Sequence[Step], missing: NDArray[np.bool_], is_transfer: NDArray[np.bool_]
) -> None:
    for step, lacks in zip(steps, missing, strict=True):
        if lacks.any():
            _log.warning(
                "%s: filled in %d transfers and %d operations that have no row",
                step.where,
                np.sum(lacks & is_transfer),
                np.sum(lacks & ~is_transfer),
            )


def _work(
    profile: Profile, missing: NDArray[np.bool_], on_gpu: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Work of all operations in seconds of one core, shape (steps, ops); 0 for transfers."""
    known = profile.metadata
    costs = known.calibration
    servers = np.unique(profile.servers[profile.servers >= 0])
    computes = (profile.resources == WORKER) | (profile.resources == SERVER)
    work = np.where(on_gpu, profile.end - profile.start, 0.0)
    for node in (-1, *servers):
        if node < 0:
            cores, connections = known.worker_cores, servers
            downlink_cost, uplink_cost = costs.worker_receive, costs.worker_send
        else:
            cores, connections = known.server_cores, servers[servers == node]
            downlink_cost, uplink_cost = costs.server_send, costs.server_receive
        own = computes & (profile.servers == node) & ~on_gpu
        for step in range(profile.steps):
            busy = _communication(profile, step, connections, downlink_cost, uplink_cost)
            ran = own & ~missing[step]
            start, end = profile.start[step, ran], profile.end[step, ran]
            work[step, ran] = recover_work(start, end, cores, *busy)
    for op in np.flatnonzero(computes & missing.any(axis=0)):
        work[missing[:, op], op] = work[~missing[:, op], op].mean()
    return work


def _communication(
    profile: Profile,
    step: int,
    connections: NDArray[np.int32],
    downlink_cost: CommunicationCost,
    uplink_cost: CommunicationCost,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Start, end and cores of a node's communication with the given servers in one step."""
    periods = [(np.empty(0), np.empty(0), np.empty(0))]
    for direction, cost in ((DOWNLINK, downlink_cost), (UPLINK, uplink_cost)):
        for server in connections:
            moved = (profile.resources == direction) & (profile.servers == server)
            spent = cost.per_byte * profile.sizes[moved] + cost.per_tensor
            periods.append(
                busy_periods(profile.start[step, moved], profile.end[step, moved], spent)
            )
    start, end, cores = (np.concatenate(column) for column in zip(*periods, strict=True))
    return start, end, cores
