"""The step graph from the labels of a trace's rows, where the trace has no graphs.

The label of a row, ``NAME = KIND(INPUT, ^CONTROL)``, names the inputs that the operation had in
its device's partition of the graph. An input that is no operation of the same device is the end
of a transfer: TensorFlow calls it after the operation that makes the tensor, with a number added
(``NAME/_5``, in newer versions ``NAME_S5``). A signal without content leaves from a constant
``NAME/ctrl/_3`` whose number is smaller by two. Labels lack what constants wait for, and the
control inputs that TensorFlow's optimisers added.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from asgd_model.errors import InputError
from asgd_model.gpu_kernels import place_kernels
from asgd_model.step_graph import (
    TRANSFER,
    Arrival,
    Key,
    Node,
    Row,
    Step,
    StepGraph,
    TracedStep,
    Transfer,
)

_log = logging.getLogger(__name__)

_LABEL = re.compile(r" = (?P<kind>[^\s(]+)\((?P<inputs>.*)\)$")
_TRANSFER_LABEL = re.compile(r"(?:^|\s)(?P<name>\S+) from (?P<sender>/\S+) to (?P<receiver>/\S+)$")
_EDGE = re.compile(r"edge_\d+_(?P<source>.+)")
_RECEIVED = re.compile(r"(?P<source>.+?)(?:/_|_S)(?P<number>\d{1,9})")
_UNKNOWN = "unknown"


@dataclass
class _Receipt:
    """A transfer that a step has, and what tells its row among the others.

    `sizes` has the bytes that it may have, none if they are not known.
    """

    key: Transfer
    source: str
    producer: Node
    is_signal: bool
    consumers: list[Node]
    sizes: set[int] = field(default_factory=set)


def parse_label(label: str) -> tuple[str, tuple[str, ...] | None]:
    """Kind and inputs of an operation; "unknown" and None if the label does not tell them.

    Examples
    --------
    >>> parse_label("[cpu 1.2MB] y = MatMul(x, w/_3, ^init)")
    ('MatMul', ('x', 'w/_3', '^init'))
    """
    match = _LABEL.search(label)
    if match is None:
        return _UNKNOWN, None
    return match["kind"], tuple(match["inputs"].split(", ")) if match["inputs"] else ()


def parse_transfer_label(where: str, label: str) -> tuple[str, str, str]:
    """Sender, receiver and name of a received tensor.

    Raises
    ------
    InputError
        If the label does not tell them.
    """
    match = _TRANSFER_LABEL.search(label)
    if match is None:
        expected = "TENSOR from DEVICE to DEVICE"
        raise InputError(where, repr(label), expected, field="timeline_label")
    return match["sender"], match["receiver"], match["name"]


def join_labels(
    traced: Sequence[TracedStep], sizes: Mapping[str, int] | None = None
) -> tuple[StepGraph, list[Step]]:
    """Join traced steps by the labels of their rows.

    A row of a received tensor that does not say which one it is, is taken for one of its size
    (if known) from the same sender (if known), in order of time: of such rows, the one that ends
    first for the transfer that is first waited for. No tensor is used before it is there, if
    that is possible at all, and all that are mistaken for each other are of the same size.

    Parameters
    ----------
    traced : sequence of TracedStep
        Of the same job; at least one.
    sizes : mapping of str to int, optional
        Bytes of tensors by the operation that makes them, for those that the trace does not
        tell.

    Returns
    -------
    StepGraph, list of Step
        The graph of all steps together, and the rows of each one.

    Raises
    ------
    InputError
        If an operation has other inputs than in the first step that has it; devices are not
        those of one worker and of parameter servers; or the size of a transfer is not known.
    """
    graph = StepGraph(traced[0].where)
    labels = _labels(traced)
    for node in sorted(labels):
        graph.kinds[node] = labels[node][0]
        graph.inputs[node] = []
    graph.place_devices()
    receipts = _receipts(graph, {node: inputs for node, (_, inputs) in labels.items()})
    _expect_sizes(receipts, traced, sizes or {})
    matches = [_match(step, receipts) for step in traced]
    known_sizes = _known_sizes(graph.where, receipts, matches)
    steps = []
    for step, match in zip(traced, matches, strict=True):
        rows: dict[Key, Row] = {node: known.row for node, known in step.operations.items()}
        for key, arrival in match.items():
            size = known_sizes[key] if arrival.size is None else arrival.size
            rows[key] = Row(arrival.start, arrival.end, size)
        rows, queues = place_kernels(step, rows)
        steps.append(Step(step.where, rows, step.begins, queues))
    return graph, steps


def _labels(traced: Sequence[TracedStep]) -> dict[Node, tuple[str, tuple[str, ...]]]:
    """Kind and inputs of all operations."""
    labels: dict[Node, tuple[str, tuple[str, ...]]] = {}
    unlabelled = set()
    for step in traced:
        for node, operation in step.operations.items():
            if operation.inputs is None:
                unlabelled.add(node)
                continue
            label = (operation.kind, operation.inputs)
            if labels.setdefault(node, label) != label:
                expected = f"{labels[node]} as in an earlier step"
                raise InputError(step.where, label, expected, field=node.name)
    unlabelled -= labels.keys()
    if unlabelled:
        _log.warning("%s: %d operations without inputs", traced[0].where, len(unlabelled))
    return labels | {node: (_UNKNOWN, ()) for node in unlabelled}


def _receipts(graph: StepGraph, inputs: Mapping[Node, tuple[str, ...]]) -> list[_Receipt]:
    """Enter the inputs into the graph; return the transfers among them."""
    makers: dict[str, list[Node]] = {}
    for node in graph.kinds:
        if isinstance(node, Node):
            makers.setdefault(node.name, []).append(node)
    waiting: dict[Node, list[Node]] = {}
    for node in sorted(inputs):
        for text in inputs[node]:
            name = text.removeprefix("^")
            local = Node(node.device, name.partition(":")[0])
            if local in graph.kinds:
                graph.inputs[node].append(local)
            else:
                waiting.setdefault(Node(node.device, name), []).append(node)
    receipts, absent = [], 0
    for (receiver, name), consumers in sorted(waiting.items()):
        receipt = _receipt(graph, makers, receiver, name, consumers)
        if receipt is None:
            absent += 1
            continue
        producer, key = receipt.producer, receipt.key
        joins = graph.servers[producer.device] == graph.servers[receiver]
        for consumer in consumers:
            graph.inputs[consumer].append(producer if joins else key)
        constant = Node(producer.device, receipt.source)
        if receipt.is_signal and constant in graph.kinds:
            graph.inputs[producer].append(constant)
        if not joins:
            graph.kinds[key] = TRANSFER
            graph.inputs[key] = [producer]
            receipts.append(receipt)
    if absent:
        _log.warning(
            "%s: %d inputs that no recorded operation makes are taken as there from the beginning",
            graph.where,
            absent,
        )
    return receipts


def _receipt(
    graph: StepGraph,
    makers: Mapping[str, list[Node]],
    receiver: str,
    name: str,
    consumers: list[Node],
) -> _Receipt | None:
    """The transfer that ends as `name` on the device `receiver`; None if nobody makes it."""
    match = _RECEIVED.fullmatch(name)
    source = match["source"] if match else name
    number = int(match["number"]) - 2 if match else 0
    signals = (f"{source}/ctrl/_{number}", f"{source}/ctrl_S{number}")
    for made_by in (*signals, source):
        for producer in makers.get(made_by, ()):
            if producer.device != receiver:
                key = Transfer(producer.device, receiver, name)
                return _Receipt(key, source, producer, made_by in signals, consumers)
    return None


def _expect_sizes(
    receipts: Iterable[_Receipt], traced: Sequence[TracedStep], sizes: Mapping[str, int]
) -> None:
    for receipt in receipts:
        maker = receipt.producer.name
        if receipt.is_signal:
            receipt.sizes.add(0)
        elif maker in sizes:
            receipt.sizes.add(sizes[maker])
        else:
            receipt.sizes.update(*(step.outputs.get(maker, ()) for step in traced))


def _match(step: TracedStep, receipts: Sequence[_Receipt]) -> dict[Transfer, Arrival]:
    """Find the row of each transfer among those of one step."""
    matched: dict[Transfer, Arrival] = {}
    waiting = sorted(receipts, key=lambda receipt: (_first_use(step, receipt), receipt.key))
    arrivals = sorted(step.arrivals, key=lambda arrival: (arrival.end, arrival.start))
    # First by size where both sides know it, then whatever is left.
    for by_size in (True, False):
        alike: dict[tuple[object, ...], list[_Receipt]] = {}
        for receipt in reversed(waiting):
            for group in _groups(receipt, by_size):
                alike.setdefault(group, []).append(receipt)
        left = []
        for arrival in arrivals:
            candidates = alike.get(_group(arrival, by_size), [])
            while candidates and (
                candidates[-1].key in matched or _first_use(step, candidates[-1]) < arrival.end
            ):
                candidates.pop()
            if candidates:
                matched[candidates.pop().key] = arrival
            else:
                left.append(arrival)
        arrivals = left
        waiting = [receipt for receipt in waiting if receipt.key not in matched]
    if arrivals:
        _log.warning(
            "%s: %d rows of received tensors belong to no input of a recorded operation",
            step.where,
            len(arrivals),
        )
    return matched


def _first_use(step: TracedStep, receipt: _Receipt) -> float:
    """When the first operation starts that waits for a transfer, in nanoseconds."""
    starts = [
        step.operations[node].row.start for node in receipt.consumers if node in step.operations
    ]
    return min(starts, default=float("inf"))


def _group(arrival: Arrival, by_size: bool) -> tuple[object, ...]:
    """What a row and its transfer have in common, as far as the row tells."""
    edge = _EDGE.fullmatch(arrival.name or "")
    source = edge["source"] if edge else arrival.name
    size = arrival.size if by_size or arrival.size is None else arrival.size == 0
    return arrival.receiver, arrival.sender, source, size


def _groups(receipt: _Receipt, by_size: bool) -> Iterable[tuple[object, ...]]:
    """All groups that the row of a transfer may be in."""
    sender, receiver, _ = receipt.key
    sizes: set[object] = set(receipt.sizes) if by_size else {receipt.is_signal, None}
    for size in sizes:
        yield receiver, sender, receipt.source, size
        yield receiver, None, None, size


def _known_sizes(
    where: str, receipts: Sequence[_Receipt], matches: Sequence[Mapping[Transfer, Arrival]]
) -> dict[Transfer, int]:
    """Bytes of all transfers: as their rows say, or the only ones that are possible."""
    known: dict[Transfer, int] = {}
    unknown = []
    for receipt in receipts:
        rows = [match[receipt.key] for match in matches if receipt.key in match]
        sizes = {row.size for row in rows if row.size is not None} or receipt.sizes
        if len(sizes) == 1:
            (known[receipt.key],) = sizes
        elif rows and not all(row.size is not None for row in rows):
            unknown.append(receipt.producer.name)
    if unknown:
        names = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        found = f"no sizes of {len(unknown)} transferred tensors ({names})"
        expected = (
            "generate_chrome_trace_format(show_memory=True), or the bytes of each tensor by the "
            "name of the operation that makes it (sizes)"
        )
        raise InputError(where, found, expected)
    return known
