"""RunMetadata built by hand, of a job with one worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboard.compat.proto.config_pb2 import RunMetadata

from asgd_model.profile import Metadata, Profile
from asgd_model.tensorflow_trace import read_run_metadata

CPU = "/job:worker/replica:0/task:0/device:CPU:0"
BEGIN = 1_700_000_000_000_000
"""Microseconds since the epoch at which hand-built steps begin."""


def metadata(**known: Any) -> Metadata:
    return Metadata(**{"dnn": "test", "batch_size": 1, "link_rate": 1e6, **known})


def read(tmp_path: Path, *messages: RunMetadata, **known: Any) -> Profile:
    """Write hand-built messages as files and read them back."""
    paths = [tmp_path / f"step_{index}.pb" for index in range(len(messages))]
    for path, message in zip(paths, messages, strict=True):
        path.write_bytes(message.SerializeToString())
    return read_run_metadata(paths, metadata(**known))


def without_graphs(message: RunMetadata) -> RunMetadata:
    copy = RunMetadata()
    copy.step_stats.CopyFrom(message.step_stats)
    return copy


def ps(index: int = 0) -> str:
    return f"/job:ps/replica:0/task:{index}/device:CPU:0"


def add_node(message: RunMetadata, device: str, name: str, op: str, *inputs: str) -> Any:
    """Add a node to the partition graph of its device, which is made if it is not there."""
    for partition in message.partition_graphs:
        if partition.node[0].device == device:
            return partition.node.add(name=name, op=op, device=device, input=inputs)
    partition = message.partition_graphs.add()
    return partition.node.add(name=name, op=op, device=device, input=inputs)


def add_transfer(message: RunMetadata, sender: str, receiver: str, name: str, source: str) -> None:
    """Add a `_Send` of `source` and the `_Recv` of the same tensor, named `received NAME`."""
    ends = (
        add_node(message, sender, f"{name}/send", "_Send", source),
        add_node(message, receiver, f"{name}/recv", "_Recv"),
    )
    for node in ends:
        node.attr["tensor_name"].s = name.encode()
        node.attr["send_device"].s = sender.encode()
        node.attr["recv_device"].s = receiver.encode()


def add_row(message: RunMetadata, device: str, name: str, start: int, end: int) -> Any:
    """Add an operation's row; microseconds from the beginning of the step."""
    stats = message.step_stats.dev_stats.add(device=device).node_stats.add(node_name=name)
    stats.all_start_micros = BEGIN + start
    stats.all_end_rel_micros = end - start
    return stats


def add_transfer_row(
    message: RunMetadata, sender: str, receiver: str, name: str, start: int, end: int, size: int
) -> None:
    stats = add_row(message, receiver, "RecvTensor", start, end)
    stats.timeline_label = f"[{size}B] [1.0Mb/s] {name} from {sender} to {receiver}"
    description = stats.output.add().tensor_description.allocation_description
    description.requested_bytes = size


def training_step(servers: int = 1) -> RunMetadata:
    """One variable on each server: read, downlink, gradient, uplink, apply.

    Server k's variable has 1000 (k + 1) bytes. Times in ms: read 0 to 1, downlink 1 to 11,
    gradient 20 to 30, uplink 30 to 40, apply 40 to 44; the gradients run together.
    """
    message = RunMetadata()
    for k in range(servers):
        size = 1000 * (k + 1)
        add_node(message, ps(k), f"read{k}", "ReadVariableOp")
        add_transfer(message, ps(k), CPU, f"weight{k}", f"read{k}")
        add_node(message, CPU, f"gradient{k}", "MatMul", f"weight{k}/recv")
        add_transfer(message, CPU, ps(k), f"update{k}", f"gradient{k}")
        add_node(message, ps(k), f"apply{k}", "ResourceApplyGradientDescent", f"update{k}/recv")
        add_row(message, ps(k), f"read{k}", 0, 1_000)
        add_transfer_row(message, ps(k), CPU, f"weight{k}", 1_000, 11_000, size)
        add_row(message, CPU, f"gradient{k}", 20_000, 30_000)
        add_transfer_row(message, CPU, ps(k), f"update{k}", 30_000, 40_000, size)
        add_row(message, ps(k), f"apply{k}", 40_000, 44_000)
    return message


def label(message: RunMetadata, device: str, name: str, text: str) -> None:
    """Give the row of an operation the label ``NAME = TEXT``, as TensorFlow does."""
    (stats,) = (
        stats
        for recorded in message.step_stats.dev_stats
        if recorded.device == device
        for stats in recorded.node_stats
        if stats.node_name == name
    )
    stats.timeline_label = f"{name} = {text}"


def labelled_step(suffix: str = "/_") -> RunMetadata:
    """A step like `training_step`, without graphs, with the labels that TensorFlow gives.

    The worker's gradient also waits for a signal that the variable was read. Times in ms: read 0
    to 1, downlinks 1 to 11 and 1 to 12, gradient 20 to 30, uplink 30 to 40, apply 40 to 44.
    """
    message = RunMetadata()
    rows = (
        (ps(), "weight", "VarHandleOp()", 0, 0),
        (ps(), "read", "ReadVariableOp(weight)", 0, 1_000),
        (ps(), f"read/ctrl{suffix}0", "Const()", 1_000, 1_000),
        (CPU, f"read{suffix}3", f"Identity(read{suffix}2)", 19_000, 19_000),
        (CPU, "gradient", f"MatMul(read{suffix}5, ^read{suffix}3)", 20_000, 30_000),
        (ps(), "apply", f"ResourceApplyGradientDescent(weight, gradient{suffix}7)", 40_000, 44_000),
    )
    for device, name, text, start, end in rows:
        add_row(message, device, name, start, end)
        label(message, device, name, text)
    add_transfer_row(message, ps(), CPU, "edge_3_read", 1_000, 12_000, 0)
    add_transfer_row(message, ps(), CPU, "edge_4_read", 1_000, 11_000, 4000)
    add_transfer_row(message, CPU, ps(), "edge_9_gradient", 30_000, 40_000, 4000)
    return message
