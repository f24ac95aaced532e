"""From the RunMetadata files of traced TensorFlow steps to a `Profile`.

A file holds what one ``session.run`` with ``trace_level=FULL_TRACE`` recorded: a row for each
executed operation and for each tensor received from another task and, with
``output_partition_graphs=True``, the graph that each device ran. TensorFlow is not needed.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asgd_model.errors import InputError
from asgd_model.files import read_bytes
from asgd_model.profile import (
    DOWNLINK,
    SERVER,
    UPLINK,
    WORKER,
    CommunicationCost,
    Metadata,
    Profile,
)

_log = logging.getLogger(__name__)

_TASK = re.compile(r"/job:(?P<job>[^/]+)/(?:replica:\d+/)?task:(?P<index>\d{1,6})(?=/|$)")
_WORKER_JOBS = ("worker", "chief", "master")
_SERVER_JOB = "ps"
_TRANSFER_ROW = "RecvTensor"
_TRANSFER_LABEL = re.compile(r"(?:^|\s)(?P<name>\S+) from (?P<sender>/\S+) to (?P<receiver>/\S+)$")
_TRANSFER_NODES = frozenset({"_Send", "_Recv"})
_GRAPH_ENDS = frozenset({"_SOURCE", "_SINK"})


class _Node(NamedTuple):
    """A node of a partition graph."""

    device: str
    name: str


class _Transfer(NamedTuple):
    """A tensor that one device sends to another, named as in TensorFlow's rendezvous."""

    sender: str
    receiver: str
    name: str


_Key = _Node | _Transfer


class _Row(NamedTuple):
    """One recorded interval: nanoseconds of the host's clock, and the bytes received."""

    start: int
    end: int
    size: int


@dataclass(frozen=True)
class _Step:
    """The rows of one file; `begin` is the earliest start among them."""

    where: str
    begin: int
    rows: dict[_Key, _Row]


@dataclass(frozen=True)
class _Graph:
    """The partition graphs joined: kind and inputs of every node and transfer.

    `servers` gives the parameter server that a device belongs to, -1 for the worker.
    """

    where: str
    kinds: dict[_Key, str] = field(default_factory=dict)
    inputs: dict[_Key, list[_Key]] = field(default_factory=dict)
    servers: dict[str, int] = field(default_factory=dict)


def read_run_metadata(paths: Sequence[str | os.PathLike[str]], metadata: Metadata) -> Profile:
    """Make a profile from the RunMetadata of one worker's traced steps.

    The partition graphs are joined through their ``_Send`` and ``_Recv`` pairs, each of which
    becomes one transfer. Nodes that no step recorded vanish, and what waited for them waits for
    what they waited for; so do pairs within one task and signals from server to server. Times
    are relative to the earliest row of the step; the clocks of all nodes must agree.

    Not every row reaches the file. A transfer or an operation that this step lacks and another
    one has is taken to run from the last end of its dependencies to the first start of what
    depends on it; the work of such an operation is its mean over the other steps. A warning is
    logged that says how many were filled in.

    Parameters
    ----------
    paths : sequence of path-like
        RunMetadata protobufs, plain or gzip, one for each traced step. At least one contains the
        partition graphs; the first that does is used.
    metadata : Metadata
        Network, platform and calibration. Cores and communication costs enter the recovery of
        the operations' work (`recover_work`).

    Returns
    -------
    Profile
        One step for each path; operations in topological order.

    Raises
    ------
    InputError
        If a file is not a RunMetadata with step statistics; no file has partition graphs; these
        name a node twice, lack one end of a transfer, have a cycle, or hold devices other than
        those of one worker and of parameter servers; a row is not in the graphs, has a negative
        duration or appears twice in a step (loops are not supported); a step lacks all rows of a
        device; a transfer appears in no step or its size differs between steps; or servers
        exchange data with each other.
    """
    if len(paths) == 0:
        raise InputError("paths", "no files", "one RunMetadata file for each traced step")
    steps: list[_Step] = []
    graph: _Graph | None = None
    for path in paths:
        where = os.fspath(path)
        message = _parse(where)
        if graph is None and message.partition_graphs:
            graph = _join(where, message.partition_graphs)
        steps.append(_collect(where, message.step_stats))
    if graph is None:
        expected = "partition graphs in at least one file (output_partition_graphs=True)"
        raise InputError(steps[0].where, "no partition graphs", expected)
    _check_rows(steps, graph)
    sizes = _sizes(steps)
    keys, dependencies = _step_graph(graph, {key for step in steps for key in step.rows}, sizes)
    start, end, missing = _times(steps, keys, dependencies)
    profile = Profile(
        names=tuple(key.name for key in keys),
        kinds=tuple(graph.kinds[key] for key in keys),
        resources=np.array([_resource(graph, key) for key in keys], dtype=np.int8),
        servers=np.array([_server(graph, key) for key in keys], dtype=np.int32),
        sizes=np.array([sizes.get(key, 0) for key in keys], dtype=np.int64),
        dependencies=dependencies,
        work=np.zeros_like(start),
        start=start,
        end=end,
        metadata=metadata,
        source=graph.where,
    )
    return replace(profile, work=_work(profile, missing))


def recover_work(
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    cores: float,
    busy_start: NDArray[np.float64],
    busy_end: NDArray[np.float64],
    busy_cores: NDArray[np.float64],
) -> NDArray[np.float64]:
    """CPU time that operations took on a node whose cores they shared.

    A node of c cores on which n(t) operations run while communication uses u(t) cores gives each
    of them min(1, (c - u(t)) / n(t)) cores: processor sharing, one thread for each operation.
    The work is the integral of this share over the operation's interval. Where a quota enforces
    the cores, this holds on average over its period (a shorter operation may run at full speed
    or wait for the next period).

    Parameters
    ----------
    start, end : ndarray, shape (ops,)
        Seconds; when each operation ran.
    cores : float
        CPU capacity of the node in cores.
    busy_start, busy_end : ndarray, shape (periods,)
        Seconds; when the node communicated. Periods may overlap.
    busy_cores : ndarray, shape (periods,)
        Cores that communication used in each period; u(t) is their sum, at most `cores`.

    Returns
    -------
    ndarray, shape (ops,)
        Seconds of one core.
    """
    instants = np.unique(np.concatenate([start, end, busy_start, busy_end]))
    running = _height(instants, start, end, np.ones_like(start))
    used = np.clip(_height(instants, busy_start, busy_end, busy_cores), 0.0, cores)
    share = np.minimum(1.0, (cores - used) / np.maximum(running, 1.0))
    received = np.concatenate([[0.0], np.cumsum(share * np.diff(instants))])
    work: NDArray[np.float64] = (
        received[np.searchsorted(instants, end)] - received[np.searchsorted(instants, start)]
    )
    return work


def busy_periods(
    start: NDArray[np.float64], end: NDArray[np.float64], amount: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """When the transfers of one connection in one direction were open, and the mean rate then.

    A record tells when a tensor was asked for and when it was there, not when its bytes moved:
    a large tensor moves while many small ones come and go. But a connection with an open
    transfer is not idle, so within a maximal period with at least one open transfer the rate is
    taken as constant. Each transfer lies in one period: every amount is conserved, and the rate
    is a mean of rates that the link really had. Periods of no length have no rate and are left
    out.

    Parameters
    ----------
    start, end : ndarray, shape (transfers,)
        Seconds.
    amount : ndarray, shape (transfers,)
        What each transfer moves or costs.

    Returns
    -------
    period_start, period_end, rate : ndarray, shape (periods,)
        Seconds, in order of time, and amount per second.
    """
    if len(start) == 0:
        return start, end, amount
    order = np.argsort(start, kind="stable")
    start, end, amount = start[order], end[order], amount[order]
    latest = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate([[True], start[1:] > latest[:-1]]))
    period_start = start[first]
    period_end = np.maximum.reduceat(end, first)
    total = np.add.reduceat(amount, first)
    lasting = period_end > period_start
    period_start, period_end, total = period_start[lasting], period_end[lasting], total[lasting]
    return period_start, period_end, total / (period_end - period_start)


def _height(
    instants: NDArray[np.float64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    heights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Sum the heights of the intervals that cover each gap between sorted `instants`."""
    change = np.zeros(len(instants))
    np.add.at(change, np.searchsorted(instants, start), heights)
    np.subtract.at(change, np.searchsorted(instants, end), heights)
    return np.cumsum(change)[:-1]


def _parse(where: str) -> Any:
    """Return the RunMetadata in a file."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorboard.compat.proto.config_pb2 import RunMetadata

    message = RunMetadata()
    try:
        message.ParseFromString(read_bytes(where))
    except DecodeError as error:
        found = "data that is not a complete RunMetadata protobuf"
        raise InputError(where, found, "a RunMetadata protobuf, plain or gzip") from error
    if not any(device.node_stats for device in message.step_stats.dev_stats):
        expected = "the rows of a traced step (trace_level=FULL_TRACE)"
        raise InputError(where, "no step statistics", expected, field="step_stats")
    return message


def _collect(where: str, step_stats: Any) -> _Step:
    """Return the rows of one step."""
    rows: dict[_Key, _Row] = {}
    starts = []
    for device in step_stats.dev_stats:
        for stats in device.node_stats:
            key, row = _row(where, device.device, stats)
            starts.append(row.start)
            if key.name in _GRAPH_ENDS:
                continue
            if row.end < row.start:
                found = f"a duration of {row.end - row.start} ns"
                raise InputError(where, found, "a duration of at least 0", field=key.name)
            if not 0 <= row.size < 2**63:
                raise InputError(where, f"{row.size} bytes", "0 to 2**63 - 1", field=key.name)
            if key in rows:
                expected = "one row for each operation of a step (loops are not supported)"
                raise InputError(where, "a second row", expected, field=key.name)
            rows[key] = row
    return _Step(where, min(starts), rows)


def _row(where: str, device: str, stats: Any) -> tuple[_Key, _Row]:
    """Read one NodeExecStats; operations have nanoseconds, transfers only microseconds."""
    if stats.all_start_nanos:
        start, duration = stats.all_start_nanos, stats.all_end_rel_nanos
    else:
        start, duration = stats.all_start_micros * 1000, stats.all_end_rel_micros * 1000
    if stats.node_name != _TRANSFER_ROW:
        return _Node(device, stats.node_name), _Row(start, start + duration, 0)
    label = _TRANSFER_LABEL.search(stats.timeline_label)
    if label is None:
        expected = "TENSOR from DEVICE to DEVICE"
        raise InputError(where, repr(stats.timeline_label), expected, field="timeline_label")
    size = sum(
        output.tensor_description.allocation_description.requested_bytes for output in stats.output
    )
    return _Transfer(**label.groupdict()), _Row(start, start + duration, size)


def _join(where: str, partitions: Iterable[Any]) -> _Graph:
    """Join the partition graphs through their pairs of ``_Send`` and ``_Recv``."""
    graph = _Graph(where)
    ends: dict[str, dict[_Transfer, _Node]] = {kind: {} for kind in _TRANSFER_NODES}
    for partition in partitions:
        local = {node.name: _Node(node.device, node.name) for node in partition.node}
        for node in partition.node:
            key = local[node.name]
            if key in graph.kinds:
                raise InputError(where, "a second node", "one node of this name", field=node.name)
            graph.kinds[key] = node.op
            graph.inputs[key] = inputs = []
            for text in node.input:
                name = text.removeprefix("^").partition(":")[0]
                if name not in local:
                    expected = "a node of the same partition graph"
                    raise InputError(where, f"the input {text}", expected, field=node.name)
                inputs.append(local[name])
            # What a client feeds or fetches has one end only.
            if node.op in _TRANSFER_NODES and not node.attr["client_terminated"].b:
                transfer = _transfer(node.attr)
                if transfer in ends[node.op]:
                    expected = f"one {node.op} of each tensor"
                    raise InputError(where, f"a second {node.op}", expected, field=transfer.name)
                ends[node.op][transfer] = key
    _place_devices(graph)
    for present, absent in (("_Send", "_Recv"), ("_Recv", "_Send")):
        for transfer in ends[present]:
            if transfer not in ends[absent]:
                found, expected = f"a {present} alone", f"its {absent} too"
                raise InputError(where, found, expected, field=transfer.name)
    for transfer, sender in ends["_Send"].items():
        receiver = ends["_Recv"][transfer]
        if graph.servers[sender.device] == graph.servers[receiver.device]:
            graph.inputs[receiver].append(sender)
        else:
            graph.kinds[transfer] = _TRANSFER_ROW
            graph.inputs[transfer] = [sender]
            graph.inputs[receiver].append(transfer)
    return graph


def _transfer(attributes: Any) -> _Transfer:
    """Return the transfer that a ``_Send`` or ``_Recv`` with these attributes is an end of."""
    names = ("send_device", "recv_device", "tensor_name")
    return _Transfer(*(attributes[name].s.decode(errors="replace") for name in names))


def _place_devices(graph: _Graph) -> None:
    """Find the parameter server or the worker that each device of the graph belongs to."""
    workers = set()
    for device in dict.fromkeys(key.device for key in graph.kinds if isinstance(key, _Node)):
        task = _TASK.match(device)
        if task is None or task["job"] not in (_SERVER_JOB, *_WORKER_JOBS):
            expected = f"a device of job {_SERVER_JOB}, {' or '.join(_WORKER_JOBS)}"
            raise InputError(graph.where, repr(device), expected, field="partition_graphs")
        if task["job"] == _SERVER_JOB:
            graph.servers[device] = int(task["index"])
        else:
            graph.servers[device] = -1
            workers.add(task.group())
    if len(workers) != 1:
        found = ", ".join(sorted(workers)) or "no worker"
        raise InputError(graph.where, found, "one worker", field="partition_graphs")


def _check_rows(steps: list[_Step], graph: _Graph) -> None:
    """Refuse rows that the graph does not have, and steps without any row of some device."""
    recorded = [{key.device for key in step.rows if isinstance(key, _Node)} for step in steps]
    for step, devices in zip(steps, recorded, strict=True):
        for key in step.rows:
            if key not in graph.kinds:
                found = f"a row of {' to '.join(key[:-1])}"
                expected = f"a node of the partition graphs in {graph.where}"
                raise InputError(step.where, found, expected, field=key.name)
        for device in sorted(set().union(*recorded) - devices):
            raise InputError(step.where, "no rows", "rows as in the other steps", field=device)


def _sizes(steps: list[_Step]) -> dict[_Key, int]:
    """Bytes of each recorded transfer."""
    sizes: dict[_Key, int] = {}
    for step in steps:
        for key, row in step.rows.items():
            if isinstance(key, _Transfer) and sizes.setdefault(key, row.size) != row.size:
                expected = f"{sizes[key]} bytes as in an earlier step"
                raise InputError(step.where, f"{row.size} bytes", expected, field=key.name)
    return sizes


def _step_graph(
    graph: _Graph, recorded: set[_Key], sizes: dict[_Key, int]
) -> tuple[list[_Key], tuple[NDArray[np.int32], ...]]:
    """Operations in topological order, and the indices that each one depends on."""
    try:
        order = list(TopologicalSorter(graph.inputs).static_order())
    except CycleError as error:
        cycle = " -> ".join(key.name for key in error.args[1])
        expected = "a graph without cycles"
        raise InputError(graph.where, f"the cycle {cycle}", expected) from error
    keys: list[_Key] = []
    dependencies: list[NDArray[np.int32]] = []
    reached: dict[_Key, set[int]] = {}
    for key in order:
        waits = set().union(*(reached[source] for source in graph.inputs[key]))
        if _is_operation(graph, key, recorded, sizes):
            reached[key] = {len(keys)}
            keys.append(key)
            dependencies.append(np.array(sorted(waits), dtype=np.int32))
        else:
            reached[key] = waits
    return keys, tuple(dependencies)


def _is_operation(graph: _Graph, key: _Key, recorded: set[_Key], sizes: dict[_Key, int]) -> bool:
    """Whether a node or transfer becomes an operation of the profile."""
    if isinstance(key, _Node):
        return key in recorded and graph.kinds[key] not in _TRANSFER_NODES
    if key not in recorded:
        expected = f"a {_TRANSFER_ROW} row in at least one step"
        raise InputError(graph.where, "a transfer without rows", expected, field=key.name)
    between_servers = -1 not in (graph.servers[key.sender], graph.servers[key.receiver])
    if between_servers and sizes[key] > 0:
        found = f"{sizes[key]} bytes from {key.sender} to {key.receiver}"
        raise InputError(graph.where, found, "no data between servers", field=key.name)
    return not between_servers


def _resource(graph: _Graph, key: _Key) -> int:
    if isinstance(key, _Transfer):
        return UPLINK if graph.servers[key.sender] < 0 else DOWNLINK
    return WORKER if graph.servers[key.device] < 0 else SERVER


def _server(graph: _Graph, key: _Key) -> int:
    """Index of the server that an operation belongs to; -1 for the worker's."""
    return max(graph.servers[device] for device in key[:-1])


def _times(
    steps: list[_Step], keys: list[_Key], dependencies: tuple[NDArray[np.int32], ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Start and end in seconds from the beginning of the step, and which were filled in."""
    dependants: list[list[int]] = [[] for _ in keys]
    for op, sources in enumerate(dependencies):
        for source in sources:
            dependants[source].append(op)
    start = np.full((len(steps), len(keys)), np.nan)
    end = np.full_like(start, np.nan)
    for index, step in enumerate(steps):
        for op, key in enumerate(keys):
            if key in step.rows:
                row = step.rows[key]
                start[index, op] = (row.start - step.begin) / 1e9
                end[index, op] = (row.end - step.begin) / 1e9
    missing = np.isnan(start)
    for index, op in np.argwhere(missing):
        earliest = end[index, dependencies[op]].max(initial=0.0)
        latest = np.fmin.reduce(start[index, dependants[op]], initial=np.inf)
        start[index, op] = earliest
        end[index, op] = latest if earliest < latest < np.inf else earliest
    is_transfer = np.array([isinstance(key, _Transfer) for key in keys], dtype=bool)
    for step, lacks in zip(steps, missing, strict=True):
        if lacks.any():
            _log.warning(
                "%s: filled in %d transfers and %d operations that have no row",
                step.where,
                np.sum(lacks & is_transfer),
                np.sum(lacks & ~is_transfer),
            )
    return start, end, missing


def _work(profile: Profile, missing: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Work of all operations in seconds of one core, shape (steps, ops); 0 for transfers."""
    known = profile.metadata
    costs = known.calibration
    servers = np.unique(profile.servers[profile.servers >= 0])
    computes = (profile.resources == WORKER) | (profile.resources == SERVER)
    work = np.zeros_like(profile.start)
    for node in (-1, *servers):
        if node < 0:
            cores, connections = known.worker_cores, servers
            downlink_cost, uplink_cost = costs.worker_receive, costs.worker_send
        else:
            cores, connections = known.server_cores, servers[servers == node]
            downlink_cost, uplink_cost = costs.server_send, costs.server_receive
        own = computes & (profile.servers == node)
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
