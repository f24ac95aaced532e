"""What is predicted for: the nodes of a cluster, and how transfers are scheduled on it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from asgd_model.errors import InputError
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, Calibration, Profile

if TYPE_CHECKING:
    import pandas as pd

STREAM_ORDERS = ("profile", "fifo", "random", "tic", "tac", "shared")
"""How the streams of one connection take turns: as recorded in the profiled step, in the order
in which they became ready, at random, or in the orders of `asgd_model.ordering`; or they take no
turns, and all that are ready share the connection evenly."""

LATE = ("finish", "abandon")
"""What a worker does with a step whose gradients come too late for a synchronous update."""

MAX_SPREAD = 5.0
"""Largest spread of a `Slowdown`: one step in a thousand takes a million times the median."""

MAX_NODES = 1_000_000
"""Most workers, and most servers, that `Cluster.like` makes."""

_VARIABLE_KINDS = frozenset({"VarHandleOp", "VariableV2", "Variable"})


@dataclass(frozen=True)
class Slowdown:
    """How many times longer than profiled the computations of a worker take.

    A step's factor is the product of a constant, of a lognormal variable of mean 1 and, if
    something disturbs the step, of the disturbance's factor. All computations of the step take
    so many times longer; CPU costs of communication stay as they are.

    Attributes
    ----------
    factor : float
        The constant; below 1 for a worker that is faster than the profiled one.
    spread : float
        Standard deviation of the logarithm of the lognormal variable, drawn for each step.
    probability : float
        Fraction of the steps that are disturbed, each one independently.
    disturbed : float
        Factor of these steps.
    """

    factor: float = 1.0
    spread: float = 0.0
    probability: float = 0.0
    disturbed: float = 1.0

    def __post_init__(self) -> None:
        for name in ("factor", "disturbed"):
            value = getattr(self, name)
            if not _is_positive(value):
                raise InputError("Slowdown", value, "a finite number above 0", field=name)
        for name, most in (("spread", MAX_SPREAD), ("probability", 1.0)):
            value = getattr(self, name)
            if value != 0 and not (_is_positive(value) and value <= most):
                raise InputError("Slowdown", value, f"a number from 0 to {most:g}", field=name)

    @property
    def mean(self) -> float:
        """Mean factor of a step."""
        return self.factor * (1.0 + self.probability * (self.disturbed - 1.0))

    def draw(self, steps: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Factors of so many steps, shape (steps,); only what is random is drawn."""
        factors = np.full(steps, float(self.factor))
        if self.spread > 0.0:
            factors *= np.exp(rng.normal(-0.5 * self.spread**2, self.spread, size=steps))
        if self.probability > 0.0:
            factors[rng.random(steps) < self.probability] *= self.disturbed
        return factors


@dataclass(frozen=True)
class Synchronous:
    """Synchronous SGD: workers begin a step together, once the last one's update is made.

    Of W workers, the first W - b gradients of a step make the update; those of the b slowest, the
    backup workers, come too late and are dropped (Chen, Pan, Monga, Bengio and Jozefowicz,
    Revisiting distributed synchronous SGD, arXiv 1604.00981). Every gradient costs the server
    the work of its profiled update when it comes; that their mean is applied once more is
    neglected.

    Attributes
    ----------
    backups : int
        Backup workers b, fewer than there are workers.
    late : str
        What a worker does that is still busy with its step when the update is made.

        ``"finish"``, as with TensorFlow's ``SyncReplicasOptimizer``: nobody tells the worker. It
        computes and sends to the end; the server receives its gradients, sees that they belong
        to a past step and drops them without further work. Then the worker takes the newest
        parameters and begins the step that the others are at, behind them. (TensorFlow lets
        workers begin by tokens, one per worker and update. One that a late worker has not
        taken yet may let a fast one compute twice for the same update, or from outdated
        parameters; the model leaves this out.)

        ``"abandon"``: the worker drops everything at once and begins the next step with the
        others. What it had sent until then was in vain.
    """

    backups: int = 0
    late: Literal["finish", "abandon"] = "finish"

    def __post_init__(self) -> None:
        if not _is_count(self.backups, least=0):
            expected = "an integer of at least 0"
            raise InputError("Synchronous", self.backups, expected, field="backups")
        if self.late not in LATE:
            expected = f"one of {', '.join(LATE)}"
            raise InputError("Synchronous", self.late, expected, field="late")


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, or a part of one that several nodes share.

    Attributes
    ----------
    cores : float
        CPU capacity in cores; may be a fraction.
    uplink, downlink : float
        Payload rate in bit/s that the node can send and receive at the same time. For a worker
        the uplink carries its gradients; for a server, the parameters that it sends.
    threads : int
        Operations that the node computes at a time, each on one core at most.
    slowdown : Slowdown
        How much slower than the profiled worker it computes; only for workers.
    host : str or None
        Name of the machine. Nodes of the same name, of one job or of several, share its cores
        and its links; what they send to each other does not cross the links. Unnamed, a node is
        a machine of its own.
    """

    cores: float
    uplink: float
    downlink: float
    threads: int = 1
    slowdown: Slowdown = field(default_factory=Slowdown)
    host: str | None = None

    def __post_init__(self) -> None:
        for name in ("cores", "uplink", "downlink"):
            value = getattr(self, name)
            if not _is_positive(value):
                raise InputError("Node", value, "a finite number above 0", field=name)
        if not _is_count(self.threads):
            raise InputError("Node", self.threads, "an integer of at least 1", field="threads")
        if not isinstance(self.slowdown, Slowdown):
            raise InputError("Node", self.slowdown, "a Slowdown", field="slowdown")
        if self.host is not None and not (isinstance(self.host, str) and self.host):
            raise InputError("Node", self.host, "None or a name", field="host")


@dataclass(frozen=True)
class Cluster:
    """Workers, parameter servers and the transport between them.

    Attributes
    ----------
    workers, servers : tuple of Node
        One entry per node; nodes may differ.
    stream_order : str or tuple of str
        One of `STREAM_ORDERS`, or the names of downloads in the order in which they are served.
        All but "random" and "shared" leave uploads in the order in which they become ready.
    stream_window : int or None
        Bytes that a stream sends before the next one of the same connection gets its turn, the
        window of the flow control; None sends each tensor whole. Without effect on streams
        that share.
    calibration : Calibration
        CPU time that communication takes on both ends, and how connections share a link.
    synchronous : Synchronous or None
        How workers wait for each other; None for asynchronous SGD, in which they do not.
    """

    workers: tuple[Node, ...]
    servers: tuple[Node, ...]
    stream_order: str | tuple[str, ...] = "profile"
    stream_window: int | None = None
    calibration: Calibration = field(default_factory=Calibration)
    synchronous: Synchronous | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "servers"):
            if len(getattr(self, name)) == 0:
                raise InputError("Cluster", "none", "at least one node", field=name)
        for server in _distinct(self.servers):
            if server.slowdown != Slowdown():
                expected = "servers without slowdown; give them fewer cores"
                raise InputError("Cluster", server.slowdown, expected, field="servers")
        check_hosts([*_distinct(self.workers), *_distinct(self.servers)])
        order = self.stream_order
        if order not in STREAM_ORDERS and not isinstance(order, tuple):
            expected = f"one of {', '.join(STREAM_ORDERS)} or a tuple of names"
            raise InputError("Cluster", order, expected, field="stream_order")
        window = self.stream_window
        if window is not None and not _is_count(window):
            expected = "None or a number of bytes above 0"
            raise InputError("Cluster", window, expected, field="stream_window")
        barrier = self.synchronous
        if barrier is not None and not isinstance(barrier, Synchronous):
            raise InputError("Cluster", barrier, "None or Synchronous", field="synchronous")
        if barrier is not None and barrier.backups >= len(self.workers):
            expected = f"fewer backups than the {len(self.workers)} workers"
            raise InputError("Cluster", barrier.backups, expected, field="synchronous")

    @property
    def shares_hosts(self) -> bool:
        """Whether any two of its nodes are on the same host."""
        named = [node.host for node in (*self.workers, *self.servers) if node.host is not None]
        return len(set(named)) < len(named)

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
        slowdown: Slowdown | None = None,
        stream_order: str | tuple[str, ...] = "profile",
        stream_window: int | Literal["profile"] | None = "profile",
        synchronous: Synchronous | None = None,
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
        slowdown : Slowdown, optional
            Of every worker.
        stream_order, stream_window, synchronous
            See `Cluster`; "profile" is the window that the profile was measured with.

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
            slowdown=Slowdown() if slowdown is None else slowdown,
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
            stream_window=known.stream_window if stream_window == "profile" else stream_window,
            calibration=known.calibration,
            synchronous=synchronous,
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

    def on_hosts(self, workers: Sequence[str], servers: Sequence[str]) -> Cluster:
        """The same cluster on named machines, which nodes may share.

        Parameters
        ----------
        workers, servers : sequence of str
            The host of each node.

        Raises
        ------
        InputError
            If their numbers are not those of the nodes, or nodes of one host differ in its
            cores or links.
        """
        placed = []
        for name, nodes, hosts in (
            ("workers", self.workers, workers),
            ("servers", self.servers, servers),
        ):
            if isinstance(hosts, str) or len(hosts) != len(nodes):
                raise InputError("Cluster", hosts, f"{len(nodes)} names of hosts", field=name)
            placed.append(tuple(map(_on_host, nodes, hosts)))
        return replace(self, workers=placed[0], servers=placed[1])


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


def check_hosts(nodes: Iterable[Node]) -> None:
    """Check that nodes of the same host say the same of its cores and links.

    Raises
    ------
    InputError
        If they do not.
    """
    known: dict[str, Node] = {}
    for node in nodes:
        if node.host is None:
            continue
        first = known.setdefault(node.host, node)
        for name in ("cores", "uplink", "downlink"):
            value, expected = getattr(node, name), getattr(first, name)
            if value != expected:
                where = f"host {node.host}"
                raise InputError(where, value, f"{expected:g} as on all its nodes", field=name)


def _distinct(nodes: Sequence[Node]) -> Iterable[Node]:
    """Return the nodes without repeating the same object: a large cluster holds one many times."""
    return {id(node): node for node in nodes}.values()


def _on_host(node: Node, host: str) -> Node:
    return replace(node, host=host)


def _is_positive(value: object) -> bool:
    """Whether a value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return 0.0 < float(value) < math.inf
    except OverflowError:  # an integer that no float can hold
        return False


def _is_count(value: object, most: int = sys.maxsize, least: int = 1) -> bool:
    """Whether a value is an integer from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return least <= int(value) <= most


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
