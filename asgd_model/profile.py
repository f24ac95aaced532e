"""The profile of one worker: its step graph and what was measured of every operation.

A `Profile` is all that a prediction starts from. It is stored as columnar JSON, gzip, with the
extension ``.profile.json.gz``: one dependency graph that all profiled steps share, and one row
per step of work, start and end times.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from asgd_model.documents import validate
from asgd_model.errors import InputError
from asgd_model.files import read_json, write_json

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "asgd_model profile"
VERSION = 1
RESOURCES = ("downlink", "worker", "uplink", "server")
"""What an operation occupies: a link from server to worker, the worker's CPU, a link from
worker to server, or the server's CPU."""

DOWNLINK, WORKER, UPLINK, SERVER = range(4)

_MOST = 2**63 - 1
"""Largest integer in a profile: that of 64 bits."""


class CommunicationCost(BaseModel):
    """CPU time that moving tensors costs one node, in one direction."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    per_byte: float = Field(default=0.0, ge=0.0, description="seconds of one core per byte")
    per_tensor: float = Field(default=0.0, ge=0.0, description="seconds of one core per tensor")


class Calibration(BaseModel):
    """What was measured beside the trace, with one worker only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    worker_send: CommunicationCost = CommunicationCost()
    worker_receive: CommunicationCost = CommunicationCost()
    server_send: CommunicationCost = CommunicationCost()
    server_receive: CommunicationCost = CommunicationCost()
    tracing_overhead: float = Field(
        default=0.0,
        gt=-1.0,
        description="time of a recorded computation over that of an untraced one, minus 1",
    )
    share_spread: float = Field(
        default=0.0,
        ge=0.0,
        description="standard deviation of the logarithm of a connection's share of a busy link",
    )
    newcomer_share: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="share of a connection that joins a busy sending link of a server, over theirs",
    )
    throttled_rate: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="part of its link's rate that a worker reaches while its CPU is short",
    )

    def costs(self) -> pd.DataFrame:
        """The costs of communication as a table.

        Returns
        -------
        DataFrame
            A row for ``worker sends``, ``worker receives``, ``server sends`` and ``server
            receives``: `ns_per_byte` and `us_per_tensor`, nanoseconds and microseconds of a core.
        """
        import pandas as pd

        rows = {
            f"{node} {does}s": getattr(self, f"{node}_{does}")
            for node in ("worker", "server")
            for does in ("send", "receive")
        }
        table = pd.DataFrame(
            {name: [1e9 * cost.per_byte, 1e6 * cost.per_tensor] for name, cost in rows.items()},
            index=["ns_per_byte", "us_per_tensor"],
        )
        return table.T


class Metadata(BaseModel):
    """Where a profile comes from, and the nodes that it was measured on."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dnn: str = Field(min_length=1, description="name of the network")
    batch_size: int = Field(ge=1, le=_MOST, description="examples per step")
    parameters: int | None = Field(default=None, ge=1, le=_MOST, description="number of parameters")
    platform: str | None = Field(default=None, description="name of the measured platform")
    framework: str | None = Field(default=None, description="name and version")
    date: str | None = Field(default=None, description="day of the measurement, ISO 8601")
    source: str | None = Field(default=None, description="what the profile was made from")
    link_rate: float = Field(gt=0.0, description="payload rate of a node's link, bit/s")
    worker_cores: float = Field(default=1.0, gt=0.0, description="cores of the worker")
    server_cores: float = Field(default=1.0, gt=0.0, description="cores of each server")
    worker_threads: int = Field(default=1, ge=1, le=1024, description="operations at a time")
    server_threads: int = Field(default=1, ge=1, le=1024, description="operations at a time")
    stream_window: int | None = Field(
        default=None,
        gt=0,
        le=_MOST,
        description="bytes that a stream sends before the next one may",
    )
    machine_speed: float | None = Field(
        default=None,
        gt=0.0,
        description="MB hashed per second of CPU time meanwhile: how fast the machine was",
    )
    calibration: Calibration = Calibration()


@dataclass(frozen=True, eq=False)
class Profile:
    """The step graph of a training job and the measurements of its operations on one worker.

    Attributes
    ----------
    names, kinds : tuple of str, length ops
        Name of each operation and its type, such as ``MatMul`` or ``RecvTensor``.
    resources : ndarray of int8, shape (ops,)
        Index into `RESOURCES` of what the operation occupies.
    servers : ndarray of int32, shape (ops,)
        The parameter server of a transfer or a server's operation; -1 for the worker's.
    sizes : ndarray of int64, shape (ops,)
        Bytes that a transfer moves; 0 for computations.
    dependencies : tuple of ndarray of int32, length ops
        For each operation the operations that must end before it starts.
    work : ndarray of float64, shape (steps, ops)
        Seconds of one core that a computation takes; 0 for transfers.
    start, end : ndarray of float64, shape (steps, ops)
        Seconds from the beginning of the step. For a transfer: from the request, or the
        tensor being there to be sent, to the parsed result.
    metadata : Metadata
        Network, platform, calibration.

    Raises
    ------
    InputError
        If shapes disagree, a value is negative or not finite, an index points nowhere, or the
        graph has a cycle. `source` names the place in the message.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    resources: NDArray[np.int8]
    servers: NDArray[np.int32]
    sizes: NDArray[np.int64]
    dependencies: tuple[NDArray[np.int32], ...]
    work: NDArray[np.float64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    metadata: Metadata
    source: str = "profile"

    def __post_init__(self) -> None:
        _check(self)

    @property
    def steps(self) -> int:
        """Number of profiled steps."""
        return len(self.work)

    @property
    def ops(self) -> int:
        """Number of operations in the step graph."""
        return len(self.names)

    @property
    def num_servers(self) -> int:
        """Number of parameter servers that the profiled job used."""
        return int(self.servers.max(initial=0)) + 1

    @cached_property
    def topological_order(self) -> NDArray[np.int32]:
        """Operations in an order in which each one follows its dependencies, shape (ops,)."""
        return _topological_order(self.dependencies, self.source)

    @property
    def step_times(self) -> NDArray[np.float64]:
        """Seconds from the beginning to the last end of each profiled step, shape (steps,)."""
        longest: NDArray[np.float64] = self.end.max(axis=1)
        return longest

    def recalibrated(self, **values: Any) -> Profile:
        """The same profile with other values in its calibration.

        Parameters
        ----------
        **values
            Fields of `Calibration`.

        Raises
        ------
        InputError
            If there is no such field, or the value is out of range.
        """
        known = self.metadata.calibration
        calibration = validate(Calibration, {**known.model_dump(), **values}, "calibration")
        return replace(self, metadata=self.metadata.model_copy(update={"calibration": calibration}))

    def with_batch_size(self, batch_size: int, other: Profile | None = None) -> Profile:
        """The same job with another batch size, as far as that is known without profiling it.

        Tensors keep their sizes and servers their work: parameters and gradients do not depend
        on the batch. All of the worker's operations take longer by the same factor. With one
        profile their time is taken to be proportional to the batch, which overrates what does
        not depend on it, such as a fixed cost per operation. With two, it lies on the line
        through the mean work of a step in both. Recorded times stay as they are.

        Parameters
        ----------
        batch_size : int
            Examples per step.
        other : Profile, optional
            Of the same job with another batch size than this one.

        Raises
        ------
        InputError
            If the batch size is not above 0, `other` has the same one as this profile, or the
            line through both gives no work for this one.
        """
        known = self.metadata
        wanted = {**known.model_dump(), "batch_size": batch_size}
        metadata = validate(Metadata, wanted, "with_batch_size")
        factor = batch_size / known.batch_size
        if other is not None:
            distance = other.metadata.batch_size - known.batch_size
            if distance == 0:
                expected = f"another batch size than {known.batch_size}"
                raise InputError("with_batch_size", other, expected, field="other")
            growth = other.mean_work(WORKER) / self.mean_work(WORKER) - 1.0
            factor = 1.0 + growth * (batch_size - known.batch_size) / distance
        if factor <= 0.0:
            expected = "a batch size for which the line through both profiles is above 0"
            raise InputError("with_batch_size", batch_size, expected, field="batch_size")
        factors = np.where(self.resources == WORKER, factor, 1.0)
        return replace(self, work=self.work * factors, metadata=metadata)

    def bytes_moved(self, resource: int) -> int:
        """Bytes that one step moves over `resource` (`DOWNLINK` or `UPLINK`)."""
        return int(self.sizes[self.resources == resource].sum())

    def mean_work(self, resource: int) -> float:
        """Mean seconds of one core that a step computes on `resource` (`WORKER` or `SERVER`)."""
        return float(self.work[:, self.resources == resource].sum(axis=1).mean())

    def summary(self) -> pd.DataFrame:
        """Count, bytes, work and span of the operations per resource.

        Returns
        -------
        DataFrame
            Index `resource`; columns `operations`, `bytes` (per step), `work_s` (seconds of one
            core, mean over steps), `first_start_s` and `last_end_s` (seconds from the beginning
            of the step, mean over steps).
        """
        import pandas as pd

        rows = []
        for index, resource in enumerate(RESOURCES):
            chosen = self.resources == index
            present = bool(chosen.any())
            rows.append(
                {
                    "resource": resource,
                    "operations": int(chosen.sum()),
                    "bytes": int(self.sizes[chosen].sum()),
                    "work_s": float(self.work[:, chosen].sum(axis=1).mean()),
                    "first_start_s": (
                        float(self.start[:, chosen].min(axis=1).mean()) if present else np.nan
                    ),
                    "last_end_s": (
                        float(self.end[:, chosen].max(axis=1).mean()) if present else np.nan
                    ),
                }
            )
        return pd.DataFrame(rows).set_index("resource")

    def overlap(self) -> pd.DataFrame:
        """How long each step transferred, computed, and did both at once.

        Returns
        -------
        DataFrame
            One row per profiled step, in seconds: `step_s`, its length; `transferring_s`, in
            which a transfer of at least a byte was open; `computing_s`, in which the worker
            computed; `both_s`.
        """
        import pandas as pd

        transfers = np.isin(self.resources, (DOWNLINK, UPLINK)) & (self.sizes > 0)
        computations = self.resources == WORKER
        rows = []
        for start, end, length in zip(self.start, self.end, self.step_times, strict=True):
            transferring, computing, either = (
                _covered(start[chosen], end[chosen])
                for chosen in (transfers, computations, transfers | computations)
            )
            rows.append((length, transferring, computing, transferring + computing - either))
        return pd.DataFrame(rows, columns=["step_s", "transferring_s", "computing_s", "both_s"])

    def to_frame(self, step: int = 0) -> pd.DataFrame:
        """The operations of one profiled step, one row each, in order of their start.

        Parameters
        ----------
        step : int
            Index of the profiled step.

        Returns
        -------
        DataFrame
            Columns `name`, `kind`, `resource`, `server`, `bytes`, `work_s`, `start_s`, `end_s`.
        """
        import pandas as pd

        if not 0 <= step < self.steps:
            raise InputError("step", step, f"0 to {self.steps - 1}")
        frame = pd.DataFrame(
            {
                "name": self.names,
                "kind": self.kinds,
                "resource": np.array(RESOURCES)[self.resources],
                "server": self.servers,
                "bytes": self.sizes,
                "work_s": self.work[step],
                "start_s": self.start[step],
                "end_s": self.end[step],
            }
        )
        return frame.sort_values(["start_s", "end_s"], kind="stable", ignore_index=True)

    def __repr__(self) -> str:
        return (
            f"<Profile {self.metadata.dnn}, batch {self.metadata.batch_size}: "
            f"{self.steps} steps of {self.ops} operations, "
            f"{self.bytes_moved(DOWNLINK) / 1e6:.1f} MB down, "
            f"{self.bytes_moved(UPLINK) / 1e6:.1f} MB up>"
        )


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a profile, plain JSON or gzip.

    Raises
    ------
    InputError
        If the file is not a profile of this version, naming the file, the field, what was found
        and what was expected.
    """
    where = os.fspath(path)
    document = read_json(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format", "no format") if isinstance(document, dict) else "no object"
        raise InputError(where, found, f'"{FORMAT}"', field="format")
    version = document.get("version", "no version")
    if type(version) is not int or version != VERSION:
        raise InputError(where, version, f"version {VERSION}", field="version")
    expected = {"format", "version", "metadata", "ops", "steps"}
    unknown = sorted(set(document) - expected)
    if unknown:
        raise InputError(where, unknown, f"only {sorted(expected)}", field="top level")
    metadata = validate(Metadata, document.get("metadata"), where, "metadata", strict=True)
    ops = _columns(where, document, "ops", _OP_COLUMNS)
    steps = _columns(where, document, "steps", _STEP_COLUMNS)
    names = ops["name"]
    resources = []
    for index, resource in enumerate(ops["resource"]):
        if resource not in RESOURCES:
            field = f"ops.resource[{index}]"
            raise InputError(where, resource, f"one of {', '.join(RESOURCES)}", field=field)
        resources.append(RESOURCES.index(resource))
    count = len(names)
    return Profile(
        names=_strings(where, "ops.name", names),
        kinds=_strings(where, "ops.kind", ops["kind"]),
        resources=np.array(resources, dtype=np.int8),
        servers=_integers(where, "ops.server", ops["server"], np.int32),
        sizes=_integers(where, "ops.bytes", ops["bytes"], np.int64),
        dependencies=tuple(
            _integers(where, f"ops.dependencies[{index}]", row, np.int32)
            for index, row in enumerate(ops["dependencies"])
        ),
        work=_table(where, "steps.work", steps["work"], count),
        start=_table(where, "steps.start", steps["start"], count),
        end=_table(where, "steps.end", steps["end"], count),
        metadata=metadata,
        source=where,
    )


def save_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write a profile all or nothing; gzip if the name ends in ``.gz``.

    Values are rounded to the nanosecond. The same profile gives the same bytes.
    """

    def rounded(table: NDArray[np.float64]) -> list[list[float]]:
        return [[round(value, 9) for value in row] for row in table.tolist()]

    write_json(
        path,
        {
            "format": FORMAT,
            "version": VERSION,
            "metadata": profile.metadata.model_dump(mode="json"),
            "ops": {
                "name": list(profile.names),
                "kind": list(profile.kinds),
                "resource": [RESOURCES[index] for index in profile.resources],
                "server": profile.servers.tolist(),
                "bytes": profile.sizes.tolist(),
                "dependencies": [row.tolist() for row in profile.dependencies],
            },
            "steps": {
                "work": rounded(profile.work),
                "start": rounded(profile.start),
                "end": rounded(profile.end),
            },
        },
    )


_OP_COLUMNS = ("name", "kind", "resource", "server", "bytes", "dependencies")
_STEP_COLUMNS = ("work", "start", "end")


def _columns(
    where: str, document: dict[str, Any], field: str, names: tuple[str, ...]
) -> dict[str, list[Any]]:
    table = document.get(field)
    if not isinstance(table, dict) or sorted(table) != sorted(names):
        found = sorted(table) if isinstance(table, dict) else type(table).__name__
        raise InputError(where, found, f"the columns {', '.join(names)}", field=field)
    for name in names:
        if not isinstance(table[name], list):
            raise InputError(where, type(table[name]).__name__, "a list", field=f"{field}.{name}")
    return table


def _strings(where: str, field: str, values: list[Any]) -> tuple[str, ...]:
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise InputError(where, value, "a string", field=f"{field}[{index}]")
    return tuple(values)


def _integers(where: str, field: str, values: Any, dtype: type) -> NDArray[Any]:
    if not isinstance(values, list):
        raise InputError(where, type(values).__name__, "a list of integers", field=field)
    limits = np.iinfo(dtype)
    for index, value in enumerate(values):
        if type(value) is not int or not limits.min <= value <= limits.max:
            raise InputError(
                where, value, f"an integer of {limits.bits} bits", field=f"{field}[{index}]"
            )
    return np.array(values, dtype=dtype)


def _table(where: str, field: str, rows: list[Any], columns: int) -> NDArray[np.float64]:
    for index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != columns:
            found = f"{len(row)} values" if isinstance(row, list) else type(row).__name__
            raise InputError(where, found, f"{columns} values", field=f"{field}[{index}]")
        for column, value in enumerate(row):
            if type(value) not in (int, float):
                place = f"{field}[{index}][{column}]"
                raise InputError(where, value, "a number of seconds", field=place)
    try:
        return np.array(rows, dtype=np.float64).reshape(len(rows), columns)
    except OverflowError as error:
        raise InputError(where, "an integer too large", "seconds", field=field) from error


def _check(profile: Profile) -> None:
    """Raise `InputError` unless the profile is consistent."""
    where = profile.source
    ops = len(profile.names)
    if ops == 0:
        raise InputError(where, "no operations", "at least one operation", field="ops")
    columns = {
        "ops.kind": len(profile.kinds),
        "ops.resource": len(profile.resources),
        "ops.server": len(profile.servers),
        "ops.bytes": len(profile.sizes),
        "ops.dependencies": len(profile.dependencies),
    }
    for field, length in columns.items():
        if length != ops:
            raise InputError(where, f"{length} values", f"{ops}, one for each op", field=field)
    if profile.work.ndim != 2 or profile.work.shape[0] == 0:
        raise InputError(where, "no steps", "at least one profiled step", field="steps.work")
    for field in _STEP_COLUMNS:
        table = getattr(profile, field)
        if table.shape != (profile.work.shape[0], ops):
            expected = f"shape {(profile.work.shape[0], ops)}"
            raise InputError(where, table.shape, expected, field=f"steps.{field}")
        _refuse(where, f"steps.{field}", table, ~np.isfinite(table) | (table < 0), "seconds >= 0")
    _refuse(
        where, "steps.end", profile.end, profile.end < profile.start, "an end not before its start"
    )
    _refuse(where, "ops.bytes", profile.sizes, profile.sizes < 0, "bytes >= 0")
    on_worker = profile.resources == WORKER
    _refuse(
        where,
        "ops.server",
        profile.servers,
        np.where(on_worker, profile.servers != -1, profile.servers < 0),
        "-1 for the worker's operations, the server's index for all others",
    )
    for index, row in enumerate(profile.dependencies):
        if len(row) and (row.min() < 0 or row.max() >= ops):
            field = f"ops.dependencies[{index}]"
            raise InputError(where, row.tolist(), f"indices from 0 to {ops - 1}", field=field)
    profile.topological_order  # noqa: B018 - raises for a cycle


def _covered(start: NDArray[np.float64], end: NDArray[np.float64]) -> float:
    """Length of the union of intervals."""
    if len(start) == 0:
        return 0.0
    order = np.argsort(start)
    start, reach = start[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(start[1:] - reach[:-1], 0.0).sum()
    return float(reach[-1] - start[0] - gaps)


def _refuse(
    where: str, field: str, values: NDArray[Any], wrong: NDArray[np.bool_], expected: str
) -> None:
    if wrong.any():
        place = np.argwhere(wrong)[0]
        suffix = "".join(f"[{index}]" for index in place)
        raise InputError(where, values[tuple(place)], expected, field=field + suffix)


def _topological_order(dependencies: Sequence[NDArray[np.int32]], where: str) -> NDArray[np.int32]:
    """Order operations after their dependencies, smallest index first (Kahn 1962)."""
    count = len(dependencies)
    waiting = np.array([len(row) for row in dependencies])
    successors: list[list[int]] = [[] for _ in range(count)]
    for index, row in enumerate(dependencies):
        for dependency in row:
            successors[dependency].append(index)
    order = [index for index in range(count) if waiting[index] == 0]
    for index in order:
        for successor in successors[index]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                order.append(successor)
    if len(order) < count:
        stuck = np.flatnonzero(waiting > 0)[:5].tolist()
        expected = "a graph without cycles"
        raise InputError(where, f"a cycle through ops {stuck}", expected, field="ops.dependencies")
    return np.array(order, dtype=np.int32)
