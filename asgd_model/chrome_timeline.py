"""From the timelines that TensorFlow writes for Chrome to a `Profile`.

``timeline.Timeline(run_metadata.step_stats).generate_chrome_trace_format(show_memory=True)``
(module ``tensorflow.python.client.timeline``) makes JSON of a RunMetadata. Of operations it keeps
all but nanoseconds; of received tensors only when, where to and, with ``show_memory``, how many
bytes. Which tensor it was is found by what waits for it (`asgd_model.step_labels`). Whether the
timeline shows the data flow makes no difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from asgd_model.errors import InputError
from asgd_model.files import read_json
from asgd_model.gpu_kernels import is_stream, launched_by
from asgd_model.profile import Metadata, Profile
from asgd_model.step_graph import (
    TRANSFER,
    Arrival,
    Kernel,
    Node,
    Operation,
    Row,
    TracedStep,
    profile_of_steps,
)
from asgd_model.step_labels import join_labels

MAX_TIMELINE_BYTES = 1 << 28
"""Largest timeline that is read, in bytes after decompression."""

MAX_EVENTS = 2_000_000
"""Most events that a timeline may have."""

_COMPUTE = " Compute"
_TENSORS = " Tensors"
_UNKNOWN = "unknown"
_MOST_MICROSECONDS = 2**63 // 1000
_REQUESTED_BYTES = re.compile(r"allocation_description \{\s*(?:requested_bytes: (\d{1,18})\b)?")
_RECORDING = "what tensorflow.python.client.timeline makes of the RunMetadata of a traced step"


def is_chrome_timeline(content: bytes) -> bool:
    """Whether the content of a file is a Chrome timeline rather than a protobuf."""
    return content.lstrip()[:1] == b"{" and b'"traceEvents"' in content


def read_chrome_timeline(
    paths: Sequence[str | os.PathLike[str]],
    metadata: Metadata,
    sizes: Mapping[str, int] | None = None,
) -> Profile:
    """Make a profile from the Chrome timelines of one worker's traced steps.

    Parameters
    ----------
    paths : sequence of path-like
        JSON, plain or gzip, one for each traced step.
    metadata : Metadata
        As for `asgd_model.read_run_metadata`.
    sizes : mapping of str to int, optional
        Bytes of the transferred tensors by the name of the operation that makes each one, such
        as ``fc/weights/read``; needed for timelines without ``show_memory=True``.

    Returns
    -------
    Profile
        One step for each path; operations in topological order.

    Raises
    ------
    InputError
        If a file is too large, not JSON or not a timeline of TensorFlow's; an event lacks what
        such an event has; operations have no inputs; the size of a transferred tensor is not
        known; or as `asgd_model.read_run_metadata`.
    """
    if len(paths) == 0:
        raise InputError("paths", "no files", "one timeline for each traced step")
    steps = [_read(os.fspath(path)) for path in paths]
    if not any(known.inputs for step in steps for known in step.operations.values()):
        raise InputError(steps[0].where, "no operation with inputs", _RECORDING)
    graph, rows = join_labels(steps, sizes)
    return profile_of_steps(rows, graph, metadata)


def _read(where: str) -> TracedStep:
    """Return what one timeline tells of a step."""
    document = read_json(where, MAX_TIMELINE_BYTES)
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise InputError(where, "no list of events", _RECORDING, field="traceEvents")
    if len(events) > MAX_EVENTS:
        found = f"{len(events)} events"
        raise InputError(where, found, f"at most {MAX_EVENTS}", field="traceEvents")
    for index, event in enumerate(events):
        if not isinstance(event, dict):
            raise InputError(where, event, "an event", field=f"traceEvents[{index}]")
    reader = _Reader(where)
    for phase, read in (("M", reader.process), ("O", reader.tensor), ("X", reader.operation)):
        for index, event in enumerate(events):
            if event.get("ph") == phase:
                read(event, f"traceEvents[{index}]")
    if not reader.devices:
        raise InputError(where, f"no process named DEVICE{_COMPUTE}", _RECORDING)
    return reader.step


class _Reader:
    """Collects the events of one timeline, its processes first, its operations last."""

    def __init__(self, where: str) -> None:
        self.step = TracedStep(where)
        self.devices: dict[int, str] = {}
        self._tensors_of: dict[int, int] = {}
        self._computes: dict[str, int] = {}
        self._snapshots: dict[tuple[int, int, int], list[int]] = {}

    def process(self, event: dict[str, Any], place: str) -> None:
        """Learn the device of a process, which has one for operations and one for tensors."""
        if event.get("name") != "process_name":
            return
        pid = self._integer(event, "pid", place)
        name = self._text(self._mapping(event, "args", place), "name", f"{place}.args")
        device = name.removesuffix(_COMPUTE)
        if device != name:
            self.devices[pid] = device
            self._computes[device] = pid
        elif name.removesuffix(_TENSORS) in self._computes:
            self._tensors_of[self._computes[name.removesuffix(_TENSORS)]] = pid

    def tensor(self, event: dict[str, Any], place: str) -> None:
        """Learn the size of a tensor, whose snapshot is of a microsecond before its row ends."""
        if event.get("cat") != "Tensor":
            return
        name = self._text(event, "name", place).partition(":")[0]
        arguments = self._mapping(event, "args", place)
        snapshot = self._mapping(arguments, "snapshot", f"{place}.args")
        allocation = _REQUESTED_BYTES.search(
            self._text(snapshot, "tensor_description", f"{place}.args.snapshot")
        )
        if allocation is None:
            return
        size = int(allocation[1] or 0)
        if name == TRANSFER:
            pid, tid = self._integer(event, "pid", place), self._integer(event, "tid", place)
            end = self._nanoseconds(event, "ts", place) + 1000
            self._snapshots.setdefault((pid, tid, end), []).append(size)
        else:
            self.step.outputs.setdefault(name, set()).add(size)

    def operation(self, event: dict[str, Any], place: str) -> None:
        """Read the row of an operation, of a received tensor or of a kernel."""
        pid = self._integer(event, "pid", place)
        if pid not in self.devices:
            return
        device = self.devices[pid]
        start = self._nanoseconds(event, "ts", place)
        end = start + self._nanoseconds(event, "dur", place)
        arguments = self._mapping(event, "args", place)
        name = self._text(arguments, "name", f"{place}.args")
        if is_stream(device):
            self.step.add_kernel(Kernel(device, launched_by(name, ""), start, end))
        elif name == TRANSFER:
            lane = (self._tensors_of.get(pid, -1), self._integer(event, "tid", place), end)
            snapshots = self._snapshots.get(lane)
            size = snapshots.pop(0) if snapshots else None
            self.step.add_arrival(Arrival(device, start, end, size))
        else:
            kind = self._text(arguments, "op", f"{place}.args")
            inputs = [
                self._text(arguments, field, f"{place}.args")
                for field in (f"input{index}" for index in range(len(arguments)))
                if field in arguments
            ]
            labelled = tuple(inputs) if kind != _UNKNOWN else None
            self.step.add_operation(Node(device, name), Operation(Row(start, end), kind, labelled))

    def _text(self, values: dict[str, Any], field: str, place: str) -> str:
        value = values.get(field)
        if not isinstance(value, str):
            raise InputError(self.step.where, value, "a text", field=f"{place}.{field}")
        return value

    def _mapping(self, values: dict[str, Any], field: str, place: str) -> dict[str, Any]:
        value = values.get(field)
        if not isinstance(value, dict):
            raise InputError(self.step.where, value, "an object", field=f"{place}.{field}")
        return value

    def _integer(self, values: dict[str, Any], field: str, place: str) -> int:
        value = values.get(field)
        if type(value) is not int:
            raise InputError(self.step.where, value, "an integer", field=f"{place}.{field}")
        return value

    def _nanoseconds(self, values: dict[str, Any], field: str, place: str) -> int:
        value: Any = values.get(field)
        if type(value) not in (int, float) or not abs(value) < _MOST_MICROSECONDS:
            raise InputError(self.step.where, value, "microseconds", field=f"{place}.{field}")
        nanoseconds: int = round(1000 * value)
        return nanoseconds
