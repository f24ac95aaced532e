"""When a GPU worked for an operation.

The row of a GPU's operation covers its launch, not its execution. What the GPU did is in rows of
its streams, on devices such as ``/device:GPU:0/stream:all`` or ``/gpu:0/stream:13``: a row for
each kernel, with the name of the operation that launched it, so that the same name returns once
or more without inputs. Copies between host and GPU are rows of ``/device:GPU:0/memcpy``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from asgd_model.errors import InputError
from asgd_model.step_graph import Kernel, Key, Node, Row, TracedStep

_log = logging.getLogger(__name__)

_GPU = re.compile(r"(?:^|/)(?:device:)?gpu:(\d+)(?=/|$)", re.IGNORECASE)
_ALL_STREAMS = "/stream:all"
_ANNOTATION = re.compile(r"@@([^#]+)")


def is_stream(device: str) -> bool:
    """Whether the rows of a device are what a GPU did, not what the host ran."""
    return "/stream:" in device or "/memcpy" in device


def launched_by(row: str, label: str) -> str:
    """Name of the operation that launched a kernel.

    Parameters
    ----------
    row, label : str
        Name and label of the kernel's row: ``NAME:KIND``, or an annotation ``@@NAME:KIND#``
        within the label.
    """
    annotation = _ANNOTATION.search(label)
    return (annotation[1] if annotation else row).partition(":")[0]


def place_kernels(
    step: TracedStep, rows: dict[Key, Row]
) -> tuple[dict[Key, Row], dict[str, tuple[Node, ...]]]:
    """Give the operations of GPUs the time in which they held the GPU.

    A GPU is taken to serve one operation after the other, in the order of their first kernels:
    each one from its launch, or the end of the one before, to the end of its last kernel. The
    clock of the kernels is taken to be the host's unless a kernel starts before its launch or
    all start after the step; then it is moved to where the fastest launch takes no time.

    Parameters
    ----------
    step : TracedStep
        Gives the kernels.
    rows : dict
        The rows of the step; operations of a GPU have the time of their launch.

    Returns
    -------
    rows : dict
        The same with the operations of GPUs moved; those without kernels stay as they are.
    queues : dict of str to tuple of Node
        For each device that is a GPU its operations in the order in which it served them.

    Raises
    ------
    InputError
        If the operations of a GPU have no kernels.
    """
    launched: dict[str, dict[str, Node]] = {}
    for key in rows:
        if isinstance(key, Node) and _GPU.search(key.device):
            launched.setdefault(key.device, {})[key.name] = key
    placed, queues, used = dict(rows), {}, 0
    kernels = _each_once(step.kernels)
    for device, nodes in sorted(launched.items()):
        spans: dict[Node, tuple[int, int]] = {}
        for kernel in kernels:
            node = nodes.get(kernel.operation)
            if node is not None and _same_gpu(kernel.device, device):
                first, last = spans.get(node, (kernel.start, kernel.end))
                spans[node] = (min(first, kernel.start), max(last, kernel.end))
                used += 1
        if not spans:
            found = f"{len(nodes)} operations of a GPU, but no rows of its streams"
            expected = "rows of kernels (trace_level=FULL_TRACE, with CUPTI on the library path)"
            raise InputError(step.where, found, expected, field=device)
        queues[device] = _serve(rows, spans, placed)
    if used < len(kernels):
        _log.warning(
            "%s: %d of %d rows of GPU streams belong to no operation and are left out",
            step.where,
            len(kernels) - used,
            len(kernels),
        )
    return placed, queues


def _serve(
    rows: dict[Key, Row], spans: dict[Node, tuple[int, int]], placed: dict[Key, Row]
) -> tuple[Node, ...]:
    """Enter into `placed` when the GPU served each operation; return their order."""
    latest_lead = max(rows[node].start - first for node, (first, _) in spans.items())
    host_end = max(row.end for row in rows.values())
    another_clock = latest_lead > 0 or min(first for first, _ in spans.values()) > host_end
    shift = latest_lead if another_clock else 0
    order = sorted(spans, key=lambda node: (spans[node][0], rows[node].start, node.name))
    free = min(rows[node].start for node in order)
    for node in order:
        start = max(rows[node].start, free)
        free = max(start, spans[node][1] + shift)
        placed[node] = Row(start, free)
    return tuple(order)


def _each_once(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Kernels of ``stream:all`` where there is one; single streams repeat them."""
    summed = [kernel for kernel in kernels if kernel.device.lower().endswith(_ALL_STREAMS)]
    return summed or [kernel for kernel in kernels if "/memcpy" not in kernel.device]


def _same_gpu(stream: str, device: str) -> bool:
    """Whether a stream is one of a device; its name may lack the task."""
    ours, theirs = _GPU.search(device), _GPU.search(stream)
    if ours is None or theirs is None or ours[1] != theirs[1]:
        return False
    task = stream[: theirs.start()]
    return task in ("", device[: ours.start()]) or task.startswith("/job:localhost")
