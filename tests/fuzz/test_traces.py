"""RunMetadata of any structure: a profile that is consistent, or an `InputError`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.config_pb2 import RunMetadata

from asgd_model.errors import InputError
from asgd_model.profile import Profile

from .readers import CORPUS, project, read

devices = st.sampled_from(
    [
        *(f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in (0, 1, 9999, 10_000)),
        *(f"/job:worker/replica:0/task:{index}/device:{unit}:0" for index, unit in [(0, "CPU")]),
        *("/job:worker/replica:0/task:0/device:GPU:0", "/job:worker/replica:0/task:1", ""),
    ]
)
names = st.sampled_from(["read0", "gradient0", "apply0", "new", "_SOURCE", "RecvTensor", "", "\n"])
times = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 10**6)
labels = st.sampled_from(
    [
        "[1000B] weight0 from /job:ps/replica:0/task:0/device:CPU:0"
        " to /job:worker/replica:0/task:0/device:CPU:0",
        *("a from /b to /c", "weight0", " from / to /", ""),
    ]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("traces"))


def any_partition(message: RunMetadata, data: st.DataObject) -> Any:
    return message.partition_graphs[data.draw(st.integers(0, len(message.partition_graphs) - 1))]


def any_of(entries: Any, data: st.DataObject) -> Any:
    return entries[data.draw(st.integers(0, len(entries) - 1))] if entries else None


def change(message: RunMetadata, data: st.DataObject) -> None:
    """Change one thing: a node, an input, an attribute, a row, a time, a size, a device."""
    partition, device = any_partition(message, data), any_of(message.step_stats.dev_stats, data)
    node, row = any_of(partition.node, data), any_of(device.node_stats, data)
    match data.draw(st.integers(0, 11)):
        case 0:
            op = data.draw(st.sampled_from(["MatMul", "_Send", "_Recv", "", "Merge"]))
            inputs = data.draw(st.lists(names.map("^{}:0".format) | names, max_size=3))
            partition.node.add(
                name=data.draw(names), op=op, device=data.draw(devices), input=inputs
            )
        case 1 if node:
            node.input.append(any_of(partition.node, data).name)
        case 2 if node:
            node.name = data.draw(names)
        case 3 if node:
            node.device = data.draw(devices)
        case 4 if node:
            name = data.draw(st.sampled_from(["tensor_name", "send_device", "recv_device"]))
            node.attr[name].s = data.draw(st.binary(max_size=4))
        case 5 if node:
            node.attr["client_terminated"].b = data.draw(st.booleans())
        case 6 if row:
            device.node_stats.add().CopyFrom(row)
        case 7 if row:
            row.all_start_micros, row.all_end_rel_micros = data.draw(times), data.draw(times)
            row.all_start_nanos, row.all_end_rel_nanos = data.draw(times), data.draw(times)
        case 8 if row:
            row.node_name, row.timeline_label = data.draw(names), data.draw(labels)
        case 9 if row:
            output = row.output.add().tensor_description.allocation_description
            output.requested_bytes = data.draw(times)
        case 10 if row:
            device.node_stats.remove(row)
        case _:
            device.device = data.draw(devices)


@pytest.mark.parametrize("seed", ["good-one-server.pb", "good-two-servers.pb"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_changed_traces(folder: Path, seed: str, data: st.DataObject) -> None:
    """Nodes, rows and edges that are missing, doubled, misplaced, circular or out of range."""
    message = RunMetadata.FromString((CORPUS / "run_metadata" / seed).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        change(message, data)
    profile = read("run_metadata", folder, message.SerializeToString() or b"\0")
    if isinstance(profile, Profile):
        assert (profile.work >= 0).all()
        assert np.isfinite(profile.work).all()


def test_a_long_chain(folder: Path) -> None:
    """Thousands of operations in a row are no deeper than others; in a circle they are refused."""
    message = RunMetadata.FromString((CORPUS / "run_metadata" / "good-one-server.pb").read_bytes())
    worker = next(graph for graph in message.partition_graphs if "worker" in graph.node[0].device)
    device = worker.node[0].device
    for index in range(20_000):
        before = f"n{index - 1}" if index else "gradient0"
        worker.node.add(name=f"n{index}", op="NoOp", device=device, input=[before])
    profile = read("run_metadata", folder, message.SerializeToString())
    assert profile.ops == 5, "what no step recorded is no operation"
    worker.node[[node.name for node in worker.node].index("n0")].input.append("n19999")
    refused = read("run_metadata", folder, message.SerializeToString())
    assert isinstance(refused, InputError)
    assert "cycle" in str(refused)


def test_dependencies_that_multiply(folder: Path) -> None:
    """Nodes that never ran pass on what they wait for: 4,000 times 4,000 in a file of 1 MB."""
    message = RunMetadata.FromString((CORPUS / "run_metadata" / "good-one-server.pb").read_bytes())
    worker = next(graph for graph in message.partition_graphs if "worker" in graph.node[0].device)
    device = worker.node[0].device
    rows = next(stats for stats in message.step_stats.dev_stats if stats.device == device)
    for index in range(4000):
        worker.node.add(name=f"ran{index}", op="NoOp", device=device)
        rows.node_stats.add(
            node_name=f"ran{index}", all_start_micros=rows.node_stats[0].all_start_micros
        )
    worker.node.add(name="all", op="NoOp", device=device, input=[f"ran{i}" for i in range(4000)])
    for index in range(4000):
        worker.node.add(name=f"waits{index}", op="NoOp", device=device, input=["all"])
    refused = read("run_metadata", folder, message.SerializeToString())
    assert isinstance(refused, InputError)
    assert "too many dependencies" in str(refused)
