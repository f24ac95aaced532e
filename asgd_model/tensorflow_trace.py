"""From the RunMetadata files of traced TensorFlow steps to a `Profile`.

A file holds what one ``session.run`` with ``trace_level=FULL_TRACE`` recorded: a row for each
executed operation and for each tensor received from another task and, with
``output_partition_graphs=True``, the graph that each device ran. TensorFlow is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from asgd_model.errors import InputError
from asgd_model.files import read_bytes
from asgd_model.gpu_kernels import is_stream, launched_by, place_kernels
from asgd_model.profile import Metadata, Profile
from asgd_model.step_graph import (
    TRANSFER,
    Arrival,
    Kernel,
    Key,
    Node,
    Operation,
    Row,
    Step,
    StepGraph,
    TracedStep,
    Transfer,
    profile_of_steps,
)
from asgd_model.step_labels import join_labels, parse_label, parse_transfer_label

MAX_BYTES = 1 << 26
"""Largest RunMetadata that is read, in bytes after decompression."""

_TRANSFER_NODES = frozenset({"_Send", "_Recv"})


def read_run_metadata(paths: Sequence[str | os.PathLike[str]], metadata: Metadata) -> Profile:
    """Make a profile from the RunMetadata of one worker's traced steps.

    The partition graphs are joined through their ``_Send`` and ``_Recv`` pairs, each of which
    becomes one transfer; pairs within one task vanish. Files without partition graphs are joined
    by the labels of their rows (`asgd_model.step_labels`), which tell all inputs but some that
    only order operations.

    Operations of a GPU run where the rows of its streams say (`asgd_model.gpu_kernels`); copies
    between host and GPU are left out. Clocks of different hosts may differ
    (`asgd_model.step_graph.profile_of_steps`). Times are relative to the earliest row of the
    step. What a step lacks and another one has is filled in, with a warning.

    Parameters
    ----------
    paths : sequence of path-like
        RunMetadata protobufs, plain or gzip, one for each traced step. The first partition
        graphs that are found are used for all.
    metadata : Metadata
        Network, platform and calibration. Cores and communication costs enter the recovery of
        the operations' work (`asgd_model.recovery.recover_work`).

    Returns
    -------
    Profile
        One step for each path; operations in topological order.

    Raises
    ------
    InputError
        If a file is not a RunMetadata with step statistics; the partition graphs name a node
        twice, lack one end of a transfer, have a cycle, or hold devices other than those of one
        worker and of parameter servers; there are no partition graphs, and no labels either; a
        row is not in the graphs, has a negative duration or appears twice in a step (loops are
        not supported); a GPU has no rows of its streams; a step lacks all rows of a device; a
        transfer appears in no step or its size differs between steps; servers exchange data
        with each other; or clocks contradict each other.
    """
    if len(paths) == 0:
        raise InputError("paths", "no files", "one RunMetadata file for each traced step")
    traced: list[TracedStep] = []
    graph: StepGraph | None = None
    for path in paths:
        where = os.fspath(path)
        message = _parse(where)
        if graph is None and message.partition_graphs:
            graph = _join(where, message.partition_graphs)
        traced.append(_collect(where, message.step_stats))
    if graph is None:
        if not any(known.inputs for step in traced for known in step.operations.values()):
            found = "no partition graphs, and no inputs in the labels of operations"
            expected = "partition graphs in at least one file (output_partition_graphs=True)"
            raise InputError(traced[0].where, found, expected)
        graph, steps = join_labels(traced)
    else:
        steps = [_named_rows(step) for step in traced]
    return profile_of_steps(steps, graph, metadata)


def _parse(where: str) -> Any:
    """Return the RunMetadata in a file."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorboard.compat.proto.config_pb2 import RunMetadata

    message = RunMetadata()
    try:
        message.ParseFromString(read_bytes(where, MAX_BYTES))
    except DecodeError as error:
        found = "data that is not a complete RunMetadata protobuf"
        raise InputError(where, found, "a RunMetadata protobuf, plain or gzip") from error
    if not any(device.node_stats for device in message.step_stats.dev_stats):
        expected = "the rows of a traced step (trace_level=FULL_TRACE)"
        raise InputError(where, "no step statistics", expected, field="step_stats")
    return message


def _collect(where: str, step_stats: Any) -> TracedStep:
    """Return the rows of one step."""
    step = TracedStep(where)
    for device in step_stats.dev_stats:
        for stats in device.node_stats:
            start, end = _interval(stats)
            if is_stream(device.device):
                operation = launched_by(stats.node_name, stats.timeline_label)
                step.add_kernel(Kernel(device.device, operation, start, end))
            elif stats.node_name == TRANSFER:
                sender, receiver, name = parse_transfer_label(where, stats.timeline_label)
                step.add_arrival(Arrival(receiver, start, end, _size(stats), sender, name))
            else:
                kind, inputs = parse_label(stats.timeline_label)
                node = Node(device.device, stats.node_name)
                step.add_operation(node, Operation(Row(start, end), kind, inputs))
    return step


def _interval(stats: Any) -> tuple[int, int]:
    """Nanoseconds; operations have them, transfers and kernels only microseconds."""
    if stats.all_start_nanos:
        return stats.all_start_nanos, stats.all_start_nanos + stats.all_end_rel_nanos
    start, duration = stats.all_start_micros * 1000, stats.all_end_rel_micros * 1000
    return start, start + duration


def _size(stats: Any) -> int:
    return sum(
        output.tensor_description.allocation_description.requested_bytes for output in stats.output
    )


def _named_rows(traced: TracedStep) -> Step:
    """The rows by the names that they have in the partition graphs."""
    rows: dict[Key, Row] = {node: operation.row for node, operation in traced.operations.items()}
    for arrival in traced.arrivals:
        key = Transfer(arrival.sender or "", arrival.receiver, arrival.name or "")
        row = Row(arrival.start, arrival.end, arrival.size or 0)
        if rows.setdefault(key, row) != row:
            expected = "one row for each transfer of a step (loops are not supported)"
            raise InputError(traced.where, "a second row", expected, field=key.name)
    rows, queues = place_kernels(traced, rows)
    return Step(traced.where, rows, traced.begins, queues)


def _join(where: str, partitions: Iterable[Any]) -> StepGraph:
    """Join the partition graphs through their pairs of ``_Send`` and ``_Recv``."""
    graph = StepGraph(where)
    ends: dict[str, dict[Transfer, Node]] = {kind: {} for kind in _TRANSFER_NODES}
    for partition in partitions:
        local = {node.name: Node(node.device, node.name) for node in partition.node}
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
    graph.place_devices()
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
            graph.kinds[transfer] = TRANSFER
            graph.inputs[transfer] = [sender]
            graph.inputs[receiver].append(transfer)
    return graph


def _transfer(attributes: Any) -> Transfer:
    """Return the transfer that a ``_Send`` or ``_Recv`` with these attributes is an end of."""
    names = ("send_device", "recv_device", "tensor_name")
    return Transfer(*(attributes[name].s.decode(errors="replace") for name in names))
