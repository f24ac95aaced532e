"""Execution traces in the Chrome trace event format, which Perfetto opens.

A simulated run and the recorded steps of a profile give traces of the same structure: a process
per node, in it a track per thread of its CPU and per direction of each connection, and on a
worker one for its steps. A connection carries one stream at a time: it shows each transfer from
the completion of the one before, or from when the transfer was ready, to its own completion; the
ready time is among its arguments. Sender and receiver show a transfer at the same time, joined by
a flow arrow.

Format: "Trace Event Format", the document that Chrome's tracing tool publishes. Times are in
microseconds since the run, or the recorded step, began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asgd_model.errors import InputError
from asgd_model.profile import DOWNLINK, RESOURCES, UPLINK, WORKER, Profile
from asgd_model.simulator.results import SimulationResult

_STEPS, _CPU, _SEND, _RECEIVE = range(4)
"""Kinds of tracks, in the order in which a node shows them."""


class _Node(NamedTuple):
    """A process of the trace; workers come before servers."""

    is_server: bool
    number: int

    def __str__(self) -> str:
        return f"{'server' if self.is_server else 'worker'} {self.number}"


class _Slice(NamedTuple):
    """An operation on a track, in whole nanoseconds."""

    node: _Node
    kind: int
    peer: int  # the other end of a connection; the thread of a CPU
    start: int
    end: int
    name: str
    category: str
    arguments: dict[str, Any]
    flow: str | None  # phase of the flow event of a transfer


def synthetic_profile(profile: Profile, result: SimulationResult) -> Profile:
    """The recorded steps of a simulated run, as if they had been profiled.

    A synthetic step is all that a real one is: it can be drawn, summarized, saved and set
    against those of `profile`.

    Parameters
    ----------
    profile : Profile
        What was simulated.
    result : SimulationResult
        Of a run with `record`; steps that had not ended or were abandoned are left out.

    Returns
    -------
    Profile
        One step for each that was recorded, in that order. Start and end count from the
        beginning of the step; work is that of the profiled step that was repeated.

    Raises
    ------
    InputError
        If no step was recorded to its end, or the result is not of this profile.
    """
    rows = _ended(profile, result)
    workers, steps = np.array(result.recorded)[rows].T
    begin = result.start[workers, steps][:, np.newaxis]
    return replace(
        profile,
        servers=result.placement,
        work=profile.work[result.drawn[workers, steps]],
        start=result.op_start[rows] - begin,
        end=result.op_end[rows] - begin,
        source=f"simulation of {profile.source}",
    )


def simulation_trace(profile: Profile, result: SimulationResult) -> dict[str, Any]:
    """The trace of a simulated run, of all its recorded steps.

    Parameters
    ----------
    profile : Profile
        What was simulated.
    result : SimulationResult
        Of a run with `record`; steps that had not ended or were abandoned are left out.

    Returns
    -------
    dict
        A JSON document with `traceEvents`.

    Raises
    ------
    InputError
        If no step was recorded to its end, or the result is not of this profile.
    """
    rows = _ended(profile, result)
    ran = replace(profile, servers=result.placement)
    slices: list[_Slice] = []
    for row in rows:
        worker, step = result.recorded[row]
        begin, done = float(result.start[worker, step]), float(result.end[worker, step])
        slices += _slices(ran, worker, step, result.op_start[row], result.op_end[row])
        slices.append(_step(worker, step, begin, done))
    return _document(profile, slices)


def profile_trace(profile: Profile, step: int = 0) -> dict[str, Any]:
    """The trace of one recorded step of a profile.

    Parameters
    ----------
    profile : Profile
        Any.
    step : int
        Index of the recorded step.

    Returns
    -------
    dict
        A JSON document with `traceEvents`.

    Raises
    ------
    InputError
        If there is no such step.
    """
    if not 0 <= step < profile.steps:
        raise InputError("step", step, f"0 to {profile.steps - 1}")
    slices = [*_slices(profile, 0, step, profile.start[step], profile.end[step])]
    slices.append(_step(0, step, 0.0, profile.step_times[step]))
    return _document(profile, slices)


def _ended(profile: Profile, result: SimulationResult) -> NDArray[np.int64]:
    """Rows of `op_start` whose steps have ended, with all their operations."""
    if len(result.placement) != profile.ops:
        expected = f"a run of the profile's {profile.ops} operations"
        raise InputError("result", f"{len(result.placement)} operations", expected)
    rows = [row for row, ends in enumerate(result.op_end) if not np.isnan(ends).any()]
    if not rows:
        raise InputError("result", "none", "a step that ended", field="recorded")
    return np.array(rows)


def _step(worker: int, step: int, start: float, end: float) -> _Slice:
    node = _Node(False, worker)
    name = f"step {step}"
    return _Slice(node, _STEPS, 0, _ns(start), _ns(end), name, "step", {"step": step}, None)


def _slices(
    profile: Profile,
    worker: int,
    step: int,
    start: NDArray[np.float64],
    end: NDArray[np.float64],
) -> Iterator[_Slice]:
    """The operations of one step as slices, those of CPUs not yet assigned to a thread."""
    free: dict[tuple[int, int], int] = {}  # when each connection completed its last transfer
    for op in np.argsort(end, kind="stable").tolist():
        resource, server = int(profile.resources[op]), int(profile.servers[op])
        ready, done = _ns(start[op]), _ns(end[op])
        arguments: dict[str, Any] = {"step": step, "worker": worker, "kind": profile.kinds[op]}
        common = (profile.names[op], RESOURCES[resource])
        if resource in (DOWNLINK, UPLINK):
            begin = max(ready, free.get((resource, server), ready))
            free[resource, server] = done
            arguments |= {"bytes": int(profile.sizes[op]), "ready_us": ready / 1000}
            at_worker = (_Node(False, worker), server)
            at_server = (_Node(True, server), worker)
            ends = (at_server, at_worker) if resource == DOWNLINK else (at_worker, at_server)
            for (node, peer), kind, phase in zip(ends, (_SEND, _RECEIVE), "sf", strict=True):
                yield _Slice(node, kind, peer, begin, done, *common, arguments, phase)
        else:
            node = _Node(False, worker) if resource == WORKER else _Node(True, server)
            yield _Slice(node, _CPU, 0, ready, done, *common, arguments, None)


def _on_threads(slices: Iterable[_Slice]) -> Iterator[_Slice]:
    """Give each computation of a node the first thread that is free.

    Those that take no time occupy none; they are shown on the first.
    """
    busy_until: dict[_Node, list[int]] = {}
    for piece in slices:
        if piece.kind == _CPU and piece.start < piece.end:
            threads = busy_until.setdefault(piece.node, [])
            free = (thread for thread, until in enumerate(threads) if until <= piece.start)
            thread = next(free, len(threads))
            if thread == len(threads):
                threads.append(0)
            threads[thread] = piece.end
            piece = piece._replace(peer=thread)
        yield piece


def _document(profile: Profile, slices: list[_Slice]) -> dict[str, Any]:
    slices = list(_on_threads(sorted(slices, key=lambda piece: (piece.start, piece.end))))
    tracks = sorted({piece[:3] for piece in slices})
    nodes = sorted({node for node, _, _ in tracks})
    process = {node: number for number, node in enumerate(nodes, start=1)}
    thread = {track: number for number, track in enumerate(tracks, start=1)}
    events: list[dict[str, Any]] = []
    for node, number in process.items():
        events += _names("process", str(node), number, {"pid": number})
    for track, number in thread.items():
        where = {"pid": process[track[0]], "tid": number}
        events += _names("thread", _track_name(*track), number, where)
    flows: dict[tuple[Any, ...], int] = {}
    for piece in slices:
        place = {"ts": piece.start / 1000, "pid": process[piece.node], "tid": thread[piece[:3]]}
        duration = (piece.end - piece.start) / 1000
        events.append(
            {"ph": "X", "name": piece.name, "cat": piece.category, **place, "dur": duration}
            | {"args": piece.arguments}
        )
        if piece.flow is not None:
            transfer = (piece.arguments["worker"], piece.arguments["step"], piece.name)
            number = flows.setdefault(transfer, len(flows))
            events.append(
                {"ph": piece.flow, "name": "transfer", "cat": piece.category, **place}
                | {"id": number, "bp": "e"}  # the arrow ends at this slice, not at the next
            )
    known = profile.metadata
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"dnn": known.dnn, "batch_size": known.batch_size, "source": profile.source},
    }


def _names(what: str, name: str, position: int, where: dict[str, int]) -> list[dict[str, Any]]:
    """Metadata events that name a process or a thread, and say where it is shown."""
    return [
        {"ph": "M", "name": f"{what}_name", **where, "args": {"name": name}},
        {"ph": "M", "name": f"{what}_sort_index", **where, "args": {"sort_index": position}},
    ]


def _track_name(node: _Node, kind: int, peer: int) -> str:
    other = _Node(not node.is_server, peer)
    return {
        _STEPS: "steps",
        _CPU: f"CPU, thread {peer}",
        _SEND: f"send to {other}",
        _RECEIVE: f"receive from {other}",
    }[kind]


def _ns(seconds: float) -> int:
    return round(float(seconds) * 1e9)
