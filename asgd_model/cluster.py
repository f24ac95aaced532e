"""What is predicted for: the nodes of a cluster, and how transfers are scheduled on it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asgd_model.errors import InputError
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, Calibration, Profile

if TYPE_CHECKING:
    import pandas as pd

STREAM_ORDERS = ("profile", "fifo", "random", "tic", "tac")
"""How the streams of one connection take turns: as recorded in the profiled step, in the order
in which they became ready, at random, or in the orders of `asgd_model.ordering`."""

MAX_NODES = 1_000_000
"""Most workers, and most servers, that `Cluster.like` makes."""

_VARIABLE_KINDS = frozenset({"VarHandleOp", "VariableV2", "Variable"})


@dataclass(frozen=True)
class Node:
    """A machine of the cluster.

    Attributes
    ----------
    cores : float
        CPU capacity in cores; may be a fraction.
    uplink, downlink : float
        Payload rate in bit/s that the node can send and receive at the same time. For a worker
        the uplink carries its gradients; for a server, the parameters that it sends.
    threads : int
        Operations that the node computes at a time, each on one core at most.
    """

    cores: float
    uplink: float
    downlink: float
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("cores", "uplink", "downlink"):
            value = getattr(self, name)
            if not _is_positive(value):
                raise InputError("Node", value, "a finite number above 0", field=name)
        if not _is_count(self.threads):
            raise InputError("Node", self.threads, "an integer of at least 1", field="threads")


@dataclass(frozen=True)
class Cluster:
    """Workers, parameter servers and the transport between them.

    Attributes
    ----------
    workers, servers : tuple of Node
        One entry per node; nodes may differ.
    stream_order : str or tuple of str
        One of `STREAM_ORDERS`, or the names of downloads in the order in which they are served.
        All but "random" leave uploads in the order in which they become ready.
    stream_window : int or None
        Bytes that a stream sends before the next one of the same connection gets its turn;
        None sends each tensor whole.
    calibration : Calibration
        CPU time that communication takes on both ends, and how connections share a link.
    """

    workers: tuple[Node, ...]
    servers: tuple[Node, ...]
    stream_order: str | tuple[str, ...] = "profile"
    stream_window: int | None = None
    calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        for name in ("workers", "servers"):
            if len(getattr(self, name)) == 0:
                raise InputError("Cluster", "none", "at least one node", field=name)
        order = self.stream_order
        if order not in STREAM_ORDERS and not isinstance(order, tuple):
            expected = f"one of {', '.join(STREAM_ORDERS)} or a tuple of names"
            raise InputError("Cluster", order, expected, field="stream_order")
        window = self.stream_window
        if window is not None and not _is_count(window):
            expected = "None or a number of bytes above 0"
            raise InputError("Cluster", window, expected, field="stream_window")

    @classmethod
    def like(
        cls,
        profile: Profile,
        workers: int = 1,
        servers: int | None = None,
        *,
        bandwidth: float | None = None,
        worker_cores: float | None = None,
        server_cores: float | None = None,
        stream_order: str | tuple[str, ...] = "profile",
        stream_window: int | None = None,
    ) -> Cluster:
        """A cluster of equal nodes, by default those that the profile was measured on.

        Parameters
        ----------
        profile : Profile
            Gives what is not said otherwise: links, cores, threads, window, CPU costs.
        workers, servers : int
            Number of nodes; as many servers as the profiled job had by default.
        bandwidth : float, optional
            Payload rate in bit/s of every link, in each direction.
        worker_cores, server_cores : float, optional
            CPU capacity of a node in cores.
        stream_order, stream_window
            See `Cluster`; the window is the profile's by default.

        Raises
        ------
        InputError
            If a count is not from 1 to `MAX_NODES`, or a rate or capacity not above 0.
        """
        known = profile.metadata
        count = profile.num_servers if servers is None else servers
        for name, value in (("workers", workers), ("servers", count)):
            _check_nodes(name, value)
        rate = known.link_rate if bandwidth is None else bandwidth
        worker = Node(
            cores=known.worker_cores if worker_cores is None else worker_cores,
            uplink=rate,
            downlink=rate,
            threads=known.worker_threads,
        )
        server = Node(
            cores=known.server_cores if server_cores is None else server_cores,
            uplink=rate,
            downlink=rate,
            threads=known.server_threads,
        )
        return cls(
            workers=(worker,) * int(workers),
            servers=(server,) * int(count),
            stream_order=stream_order,
            stream_window=known.stream_window if stream_window is None else stream_window,
            calibration=known.calibration,
        )

    def with_workers(self, workers: int) -> Cluster:
        """The same cluster with another number of workers, all like the first.

        Raises
        ------
        InputError
            If `workers` is not from 1 to `MAX_NODES`.
        """
        _check_nodes("workers", workers)
        return replace(self, workers=self.workers[:1] * int(workers))


def placement(profile: Profile, servers: int) -> NDArray[np.int32]:
    """The server of every operation when the variables are spread over `servers` servers.

    With as many servers as the profiled job had, this is the recorded placement; otherwise
    variables go round-robin over the servers, in the order in which the worker first needs their
    values, those that it never needs last, as TensorFlow's ``replica_device_setter`` places them
    in the order of their creation.

    Returns
    -------
    ndarray of int32, shape (ops,)
        -1 for the worker's operations.

    Raises
    ------
    InputError
        If variables must be placed anew and the profile does not tell which operations belong
        to the same variable.
    """
    if servers == profile.num_servers:
        return profile.servers
    if servers == 1:
        return np.where(profile.servers >= 0, 0, -1).astype(np.int32)
    variables = _variables(profile)
    known = variables[variables >= 0]
    if len(known) == 0:
        expected = f"operations of kind {', '.join(sorted(_VARIABLE_KINDS))} to spread over servers"
        raise InputError(profile.source, "no variables", expected, field="ops.kind")
    used = variables[_by_first_use(profile, variables)].tolist()
    created = dict.fromkeys([*used, *np.unique(known).tolist()])
    position = {variable: index for index, variable in enumerate(created)}
    placed = np.where(profile.servers >= 0, 0, -1).astype(np.int32)
    for op in np.flatnonzero(variables >= 0):
        placed[op] = position[variables[op]] % servers
    return placed


def bytes_per_server(profile: Profile, servers: int) -> pd.DataFrame:
    """What each of so many parameter servers sends and receives in a step of one worker.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    servers : int
        Number of parameter servers.

    Returns
    -------
    DataFrame
        Index: the server, from 0. Columns `sent` and `received` (bytes), and `share`, the
        server's part of all bytes.

    Raises
    ------
    InputError
        As `placement`.
    """
    import pandas as pd

    placed = placement(profile, servers)
    moved = {
        name: [
            int(profile.sizes[(profile.resources == resource) & (placed == server)].sum())
            for server in range(servers)
        ]
        for name, resource in (("sent", DOWNLINK), ("received", UPLINK))
    }
    table = pd.DataFrame(moved, index=pd.RangeIndex(servers, name="server"))
    total = table.sum(axis="columns")
    return table.assign(share=total / total.sum())


def _is_positive(value: object) -> bool:
    """Whether a value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return 0.0 < float(value) < math.inf
    except OverflowError:  # an integer that no float can hold
        return False


def _is_count(value: object, most: int = sys.maxsize) -> bool:
    """Whether a value is an integer from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return 1 <= int(value) <= most


def _check_nodes(name: str, count: object) -> None:
    if not _is_count(count, MAX_NODES):
        expected = f"an integer from 1 to {MAX_NODES}"
        raise InputError("Cluster", count, expected, field=name)


def _variables(profile: Profile) -> NDArray[np.int32]:
    """The variable that each operation reads, carries or updates, as an index into ops, or -1."""
    variables = np.full(profile.ops, -1, dtype=np.int32)
    for op in profile.topological_order:
        if profile.kinds[op] in _VARIABLE_KINDS:
            variables[op] = op
        elif profile.resources[op] in (SERVER, DOWNLINK):
            inherited = variables[profile.dependencies[op]]
            owners = np.unique(inherited[inherited >= 0])
            if len(owners) == 1:
                variables[op] = owners[0]
    waiting: dict[int, set[int]] = {}  # variables of the operations that wait for a gradient
    for op, dependencies in enumerate(profile.dependencies):
        for dependency in dependencies[profile.resources[dependencies] == UPLINK].tolist():
            waiting.setdefault(dependency, set()).add(int(variables[op]))
    for gradient, known in waiting.items():
        if variables[gradient] < 0 and len(known) == 1:
            (variables[gradient],) = known
    return variables


def _by_first_use(profile: Profile, variables: NDArray[np.int32]) -> Sequence[int]:
    """Downlink transfers of variables, in the order in which the worker needs them.

    Transfers without content come last: a signal is often awaited early.
    """
    rank = np.full(profile.ops, profile.ops)
    for position, op in enumerate(profile.topological_order):
        if profile.resources[op] == WORKER:
            for dependency in profile.dependencies[op]:
                rank[dependency] = min(rank[dependency], position)
    carried = np.flatnonzero((profile.resources == DOWNLINK) & (variables >= 0))
    return sorted(carried.tolist(), key=lambda op: (profile.sizes[op] == 0, rank[op], op))
