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
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

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

Key = tuple[str, ...]
"""An operation is (device, node name); a transfer is (sending device, receiving device, tensor),
as in the keys of TensorFlow's rendezvous."""

_TASK = re.compile(r"/job:(?P<job>[^/]+)/(?:replica:\d+/)?task:(?P<task>\d+)(?:/|$)")
_LABEL = re.compile(r"(?:^|\s)(?P<tensor>\S+) from (?P<sender>/\S+) to (?P<receiver>/\S+)$")
_WORKER_JOBS = ("worker", "chief", "master")
_SERVER_JOB = "ps"
_NOT_EXECUTED = ("_SOURCE", "_SINK")


@dataclass
class _Row:
    """One recorded interval: start and end in nanoseconds of the host's clock, bytes received."""

    start: int
    end: int
    size: int = 0


@dataclass
class _Step:
    """The rows of one file, and the beginning of the step in nanoseconds of the host's clock."""

    where: str
    begin: int
    rows: dict[Key, _Row]


@dataclass
class _Graph:
    """Nodes and transfers of all partitions with what each waits for, in order of appearance."""

    kinds: dict[Key, str]
    inputs: dict[Key, list[Key]]


def read_run_metadata(paths: Sequence[str | os.PathLike[str]], metadata: Metadata) -> Profile:
    """Make a profile from the RunMetadata of one worker's traced steps.

    The partition graphs are joined through their ``_Send`` and ``_Recv`` pairs, each of which
    becomes one transfer. Nodes that no step executed vanish, and what waited for them waits for
    what they waited for. Times are relative to the earliest row of the step; the clocks of
    worker and servers must agree.

    Not every row reaches the file. A transfer or an operation that one step lacks and another
    has is taken to run from the last end of its dependencies to the first start of what depends
    on it; the operation's work is then the mean of the other steps. How many were filled in is
    logged as a warning.

    Parameters
    ----------
    paths : sequence of path-like
        RunMetadata protobufs, plain or gzip, one for each traced step; at least one of them
        contains the partition graphs.
    metadata : Metadata
        Network, platform and calibration; cores and communication costs enter the recovery of
        each operation's work (`recover_work`).

    Returns
    -------
    Profile
        One row for each path; operations in topological order.

    Raises
    ------
    InputError
        If a file is not a RunMetadata with step statistics; no file has partition graphs; a row
        has a negative duration or appears twice in a step (loops are not supported) or is not in
        the graphs; a device belongs neither to the worker nor to a parameter server; a step
        lacks all rows of a device; a tensor's size is unknown or differs between steps; servers
        exchange data with each other; or the graph has a cycle.
    """
    if len(paths) == 0:
        raise InputError("paths", "no files", "one RunMetadata file for each traced step")
    steps: list[_Step] = []
    graph: _Graph | None = None
    for path in paths:
        where = os.fspath(path)
        message = _parse(path)
        if graph is None and message.partition_graphs:
            graph = _join(where, message.partition_graphs)
        steps.append(_rows(where, message.step_stats))
    if graph is None:
        expected = "partition graphs in at least one file (output_partition_graphs=True)"
        raise InputError(os.fspath(paths[0]), "no partition graphs", expected)
    _check_rows(steps, graph)
    sizes = _sizes(steps)
    recorded = {key for step in steps for key in step.rows}
    ops, dependencies = _step_graph(os.fspath(paths[0]), graph, recorded, sizes)
    resources, servers = _places(ops)
    start, end, missing = _times(steps, ops, dependencies)
    moved = np.array([sizes.get(key, 0) for key in ops], dtype=np.int64)
    work = np.zeros_like(start)
    for row in range(len(steps)):
        seen = ~missing[row]
        work[row] = _work(start[row], end[row], resources, servers, moved, seen, metadata)
    computed = (resources == WORKER) | (resources == SERVER)
    for op in np.flatnonzero(missing.any(axis=0) & computed):
        work[missing[:, op], op] = work[~missing[:, op], op].mean()
    return Profile(
        names=tuple(key[-1] for key in ops),
        kinds=tuple(graph.kinds[key] for key in ops),
        resources=resources,
        servers=servers,
        sizes=moved,
        dependencies=dependencies,
        work=work,
        start=start,
        end=end,
        metadata=metadata,
        source=os.fspath(paths[0]),
    )


def recover_work(
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    cores: float,
    busy_start: NDArray[np.float64],
    busy_end: NDArray[np.float64],
    busy_cores: NDArray[np.float64],
) -> NDArray[np.float64]:
    """CPU time that operations took on a node whose cores they shared.

    A node of `cores` c on which n(t) operations run while communication uses u(t) cores gives
    each of them min(1, (c - u(t)) / n(t)) cores (processor sharing, one thread for each
    operation). The work is the integral of this share over the operation's interval.

    Parameters
    ----------
    start, end : ndarray, shape (ops,)
        Seconds; when each operation ran.
    cores : float
        CPU capacity of the node in cores.
    busy_start, busy_end : ndarray, shape (periods,)
        Seconds; when the node communicated. Periods may overlap.
    busy_cores : ndarray, shape (periods,)
        Cores that communication used in each period. The sum over periods is capped at `cores`.

    Returns
    -------
    ndarray, shape (ops,)
        Seconds of one core.
    """
    instants = np.unique(np.concatenate([start, end, busy_start, busy_end]))
    running = _level(instants, start, end, np.ones_like(start))
    used = np.clip(_level(instants, busy_start, busy_end, busy_cores), 0.0, cores)
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
    taken as constant. Each transfer lies in one period, so every amount is conserved, and the
    rate is never above what the link really carried. Periods of no length are left out.

    Parameters
    ----------
    start, end : ndarray, shape (transfers,)
        Seconds.
    amount : ndarray, shape (transfers,)
        What each transfer moves or costs.

    Returns
    -------
    period_start, period_end, rate : ndarray, shape (periods,)
        Seconds, and amount per second.
    """
    order = np.argsort(start, kind="stable")
    start, end, amount = start[order], end[order], amount[order]
    latest = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate([[True], start[1:] > latest[:-1]])[: len(start)])
    if len(first) == 0:
        return start, end, amount
    period_start = start[first]
    period_end = np.maximum.reduceat(end, first)
    total = np.add.reduceat(amount, first)
    lasting = period_end > period_start
    period_start, period_end = period_start[lasting], period_end[lasting]
    return period_start, period_end, total[lasting] / (period_end - period_start)


def _level(
    instants: NDArray[np.float64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    height: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Sum of the heights of the intervals that cover each gap between sorted `instants`."""
    change = np.zeros(len(instants))
    np.add.at(change, np.searchsorted(instants, start), height)
    np.subtract.at(change, np.searchsorted(instants, end), height)
    return np.cumsum(change)[:-1]


def _work(
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    resources: NDArray[np.int8],
    servers: NDArray[np.int32],
    sizes: NDArray[np.int64],
    seen: NDArray[np.bool_],
    metadata: Metadata,
) -> NDArray[np.float64]:
    """Work of one step's operations in seconds of one core, shape (ops,); 0 for transfers."""
    work = np.zeros_like(start)
    costs = metadata.calibration
    indices = np.unique(servers[servers >= 0])

    def communication(
        send: CommunicationCost, receive: CommunicationCost, downlink_sends: bool, peers: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        periods = []
        for direction in (DOWNLINK, UPLINK):
            cost = send if (direction == DOWNLINK) == downlink_sends else receive
            for server in peers:
                chosen = (resources == direction) & (servers == server)
                spent = cost.per_byte * sizes[chosen] + cost.per_tensor
                periods.append(busy_periods(start[chosen], end[chosen], spent))
        columns = [np.concatenate(column) for column in zip(*periods, strict=True)]
        return columns[0], columns[1], columns[2]

    ran = seen & (resources == WORKER)
    used = communication(costs.worker_send, costs.worker_receive, False, indices)
    work[ran] = recover_work(start[ran], end[ran], metadata.worker_cores, *used)
    for server in indices:
        ran = seen & (resources == SERVER) & (servers == server)
        used = communication(costs.server_send, costs.server_receive, True, [server])
        work[ran] = recover_work(start[ran], end[ran], metadata.server_cores, *used)
    return work


def _parse(path: str | os.PathLike[str]) -> Any:
    """Return the RunMetadata in a file."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorboard.compat.proto.config_pb2 import RunMetadata

    where = os.fspath(path)
    message = RunMetadata()
    try:
        message.ParseFromString(read_bytes(path))
    except DecodeError as error:
        found = "data that is not a complete RunMetadata protobuf"
        raise InputError(where, found, "a RunMetadata protobuf, plain or gzip") from error
    if not any(device.node_stats for device in message.step_stats.dev_stats):
        expected = "the step statistics of a traced step (trace_level=FULL_TRACE)"
        raise InputError(where, "no step statistics", expected, field="step_stats")
    return message


def _rows(where: str, step_stats: Any) -> _Step:
    """Collect what one step recorded."""
    rows: dict[Key, _Row] = {}
    begins = []
    for device in step_stats.dev_stats:
        for stats in device.node_stats:
            row = _row(stats)
            key: Key = (device.device, stats.node_name)
            begins.append(row.start)
            if stats.node_name in _NOT_EXECUTED:
                continue
            if stats.node_name == "RecvTensor":
                label = _LABEL.search(stats.timeline_label)
                if label is None:
                    expected = '"TENSOR from DEVICE to DEVICE"'
                    raise InputError(where, stats.timeline_label, expected, field="timeline_label")
                key = (label["sender"], label["receiver"], label["tensor"])
            if row.end < row.start:
                found = f"a duration of {row.end - row.start} ns"
                raise InputError(where, found, "a duration of at least 0", field=key[-1])
            if row.size < 0:
                raise InputError(where, f"{row.size} bytes", "at least 0 bytes", field=key[-1])
            if key in rows:
                expected = "one row for each operation of a step (loops are not supported)"
                raise InputError(where, "a second row", expected, field=key[-1])
            rows[key] = row
    return _Step(where, min(begins), rows)


def _row(stats: Any) -> _Row:
    """Read one NodeExecStats; nanoseconds are there for operations, not for transfers."""
    if stats.all_start_nanos:
        start, length = stats.all_start_nanos, stats.all_end_rel_nanos
    else:
        start, length = stats.all_start_micros * 1000, stats.all_end_rel_micros * 1000
    size = 0
    if stats.node_name == "RecvTensor":
        for output in stats.output:
            size += output.tensor_description.allocation_description.requested_bytes
    return _Row(start, start + length, size)


def _join(where: str, partitions: Iterable[Any]) -> _Graph:
    """Join the partition graphs through their pairs of ``_Send`` and ``_Recv``."""
    graph = _Graph({}, {})
    senders: dict[Key, Key] = {}
    receivers: dict[Key, Key] = {}
    for partition in partitions:
        devices = {node.name: node.device for node in partition.node}
        for node in partition.node:
            key = (node.device, node.name)
            if key in graph.kinds:
                raise InputError(where, "a second node", "unique names", field=node.name)
            graph.kinds[key] = node.op
            graph.inputs[key] = []
            for text in node.input:
                name = text.removeprefix("^").partition(":")[0]
                if name not in devices:
                    expected = "the name of a node of the same partition graph"
                    raise InputError(where, f"input {name}", expected, field=node.name)
                graph.inputs[key].append((devices[name], name))
            if node.op in ("_Send", "_Recv") and not node.attr["client_terminated"].b:
                attributes = ("send_device", "recv_device", "tensor_name")
                transfer = tuple(node.attr[name].s.decode() for name in attributes)
                (senders if node.op == "_Send" else receivers)[transfer] = key
    for transfer in senders.keys() ^ receivers.keys():
        found, expected = ("_Send", "_Recv") if transfer in senders else ("_Recv", "_Send")
        raise InputError(
            where, f"a {found} alone", f"its {expected} in a partition graph", field=transfer[-1]
        )
    for transfer, sender in senders.items():
        receiver = receivers[transfer]
        if _server(where, transfer[0]) == _server(where, transfer[1]):
            graph.inputs[receiver].append(sender)
        else:
            graph.kinds[transfer] = "RecvTensor"
            graph.inputs[transfer] = [sender]
            graph.inputs[receiver].append(transfer)
    workers = {device for key in graph.kinds for device in key[:-1]}
    tasks = {_TASK.match(name)[0] for name in workers if _server(where, name) < 0}  # type: ignore[index]
    if len(tasks) != 1:
        raise InputError(where, f"{len(tasks)} workers", "the graphs of one worker's step")
    return graph


def _server(where: str, device: str) -> int:
    """Index of the parameter server that a device belongs to; -1 for the worker."""
    task = _TASK.match(device)
    if task is None or task["job"] not in (_SERVER_JOB, *_WORKER_JOBS):
        expected = f"a device of job {_SERVER_JOB} or {', '.join(_WORKER_JOBS)}"
        raise InputError(where, f"device {device!r}", expected)
    return int(task["task"]) if task["job"] == _SERVER_JOB else -1


def _check_rows(steps: list[_Step], graph: _Graph) -> None:
    """Refuse rows that the graphs do not have, and steps without any row of some device."""
    devices = {key[0] for step in steps for key in step.rows if len(key) == 2}
    for step in steps:
        for key in step.rows:
            if key not in graph.kinds:
                expected = "a node of the partition graphs"
                raise InputError(step.where, f"a row on {key[0]}", expected, field=key[-1])
        for device in sorted(devices - {key[0] for key in step.rows if len(key) == 2}):
            raise InputError(step.where, "no rows", "rows as in the other steps", field=device)


def _sizes(steps: list[_Step]) -> dict[Key, int]:
    """Bytes of each recorded transfer."""
    sizes: dict[Key, int] = {}
    for step in steps:
        for key, row in step.rows.items():
            if len(key) == 3 and sizes.setdefault(key, row.size) != row.size:
                expected = f"{sizes[key]} bytes as in an earlier step"
                raise InputError(step.where, f"{row.size} bytes", expected, field=key[-1])
    return sizes


def _step_graph(
    where: str, graph: _Graph, recorded: set[Key], sizes: dict[Key, int]
) -> tuple[list[Key], tuple[NDArray[np.int32], ...]]:
    """Operations in topological order, and the indices that each one depends on."""
    try:
        order = list(TopologicalSorter(graph.inputs).static_order())
    except CycleError as error:
        cycle = " -> ".join(key[-1] for key in error.args[1])
        raise InputError(where, f"a cycle {cycle}", "a graph without cycles") from error
    ops: list[Key] = []
    dependencies: list[NDArray[np.int32]] = []
    reached: dict[Key, set[int]] = {}
    for key in order:
        waits = set().union(*(reached[source] for source in graph.inputs[key]))
        if len(key) == 3 and key not in recorded:
            expected = "a RecvTensor row in at least one step"
            raise InputError(where, "a transfer that no step recorded", expected, field=key[-1])
        between_servers = len(key) == 3 and min(_server(where, name) for name in key[:2]) >= 0
        if between_servers and sizes[key] > 0:
            found = f"{sizes[key]} bytes from {key[0]} to {key[1]}"
            raise InputError(where, found, "no data between servers", field=key[-1])
        if key in recorded and not between_servers:
            reached[key] = {len(ops)}
            ops.append(key)
            dependencies.append(np.array(sorted(waits), dtype=np.int32))
        else:
            reached[key] = waits
    return ops, tuple(dependencies)


def _places(ops: list[Key]) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Resource and server of each operation."""
    resources = np.empty(len(ops), dtype=np.int8)
    servers = np.empty(len(ops), dtype=np.int32)
    for index, key in enumerate(ops):
        sender = _server("", key[0])
        if len(key) == 2:
            resources[index], servers[index] = (WORKER if sender < 0 else SERVER), sender
        else:
            resources[index] = UPLINK if sender < 0 else DOWNLINK
            servers[index] = max(sender, _server("", key[1]))
    return resources, servers


def _times(
    steps: list[_Step], ops: list[Key], dependencies: tuple[NDArray[np.int32], ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Start and end in seconds from the beginning of the step, and which were not recorded."""
    start = np.full((len(steps), len(ops)), np.nan)
    end = np.full_like(start, np.nan)
    dependants: list[list[int]] = [[] for _ in ops]
    for op, waits in enumerate(dependencies):
        for dependency in waits:
            dependants[dependency].append(op)
    for index, step in enumerate(steps):
        for op, key in enumerate(ops):
            if key in step.rows:
                start[index, op] = (step.rows[key].start - step.begin) / 1e9
                end[index, op] = (step.rows[key].end - step.begin) / 1e9
    missing = np.isnan(start)
    for index, op in np.argwhere(missing):
        begin = end[index, dependencies[op]].max(initial=0.0)
        following = start[index, dependants[op]]
        start[index, op] = begin
        end[index, op] = max(begin, np.min(following, initial=np.inf, where=following >= begin))
        if end[index, op] == np.inf:
            end[index, op] = begin
    for index, step in enumerate(steps):
        if missing[index].any():
            transfers = sum(len(ops[op]) == 3 for op in np.flatnonzero(missing[index]))
            _log.warning(
                "%s: filled in %d transfers and %d operations that the trace lacks",
                step.where,
                transfers,
                missing[index].sum() - transfers,
            )
    return start, end, missing
