"""The step graph of a profile on a cluster, as the arrays that the engine runs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from asgd_model import ordering
from asgd_model.cluster import Cluster, placement
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, Profile

MESSAGE_BYTES = 160
"""Bytes of header that each tensor's message carries beside its content: the size of the frames
of empty tensors and requests in packet captures."""


NEGLIGIBLE = 1e-3
"""Fraction of a resource's work per step that its smallest operations may make up together and
still count as taking no time: half of a step's operations are that small."""


class StepGraph(NamedTuple):
    """Operations of one step and, per profiled step, what each one demands.

    The steps of several jobs stand side by side (`join`): each job has operations, downloads and
    profiled steps of its own.

    Attributes
    ----------
    op_offsets, download_offsets, step_offsets : ndarray of int64, shape (jobs + 1,)
        Where the operations, the downloads and the profiled steps of each job begin.
    resources, servers : ndarray, shape (ops,)
        As in `Profile`, with the servers of the cluster's placement, counted within the job.
    successor_offsets, successors : ndarray
        Operations that wait for operation i: ``successors[offsets[i]:offsets[i + 1]]``.
    waiting : ndarray of int32, shape (ops,)
        What each operation waits for: its dependencies and, for downloads, the request.
    downloads : ndarray of int32
        The operations that transfer parameters to the worker.
    updates : ndarray of bool, shape (ops,)
        Whether the operation is one of a server that follows a gradient.
    work : ndarray of float64, shape (steps, ops)
        Seconds of one core for a computation, bytes on the connection for a transfer.
    priority : ndarray of float64, shape (steps, ops)
        Turn of a transfer among the streams of its connection, lowest first, where the order is
        given; unused otherwise.
    request_delay : ndarray of float64, shape (steps,)
        Seconds from the beginning of a step to the first request for parameters.
    """

    op_offsets: NDArray[np.int64]
    download_offsets: NDArray[np.int64]
    step_offsets: NDArray[np.int64]
    resources: NDArray[np.int64]
    servers: NDArray[np.int64]
    successor_offsets: NDArray[np.int64]
    successors: NDArray[np.int64]
    waiting: NDArray[np.int64]
    downloads: NDArray[np.int64]
    updates: NDArray[np.bool_]
    work: NDArray[np.float64]
    priority: NDArray[np.float64]
    request_delay: NDArray[np.float64]


def compile_step_graph(profile: Profile, cluster: Cluster) -> StepGraph:
    """Lay the profile's step graph out for the engine.

    The work of computations is reduced by the calibrated overhead of tracing, which runs
    untraced do not have.

    Raises
    ------
    InputError
        If the variables cannot be placed on the cluster's servers (`placement`), or the order
        of its streams names what is not a download.
    """
    servers = placement(profile, len(cluster.servers))
    lengths = np.zeros(profile.ops + 1, dtype=np.int64)
    waiting = np.array([len(row) for row in profile.dependencies], dtype=np.int64)
    for row in profile.dependencies:
        np.add.at(lengths, row + 1, 1)
    offsets = np.cumsum(lengths).astype(np.int64)
    successors = np.empty(offsets[-1], dtype=np.int64)
    filled = offsets[:-1].copy()
    for op, row in enumerate(profile.dependencies):
        for dependency in row:
            successors[filled[dependency]] = op
            filled[dependency] += 1

    work = _without_negligible(profile, servers) / (1.0 + cluster.calibration.tracing_overhead)
    transfers = np.isin(profile.resources, (DOWNLINK, UPLINK))
    work[:, transfers] = profile.sizes[transfers] + MESSAGE_BYTES
    priority = np.zeros_like(work)
    downloads = np.flatnonzero(profile.resources == DOWNLINK).astype(np.int64)
    waiting[downloads] += 1
    if cluster.stream_order == "profile":
        for step in range(profile.steps):
            for server in range(len(cluster.servers)):
                stream = downloads[servers[downloads] == server]
                order = stream[np.argsort(profile.end[step, stream], kind="stable")]
                priority[step, order] = np.arange(len(order))
                if servers is profile.servers and len(order):
                    work[step, order] = _replayed_bytes(
                        work[step, order],
                        profile.end[step, order] - profile.start[step, order].min(),
                    )
    else:
        priority[:, downloads] = _ranks(profile, cluster)[downloads]
    delay = np.zeros(profile.steps)
    if len(downloads):
        delay = profile.start[:, downloads].min(axis=1)
    return StepGraph(
        op_offsets=_offsets([profile.ops]),
        download_offsets=_offsets([len(downloads)]),
        step_offsets=_offsets([profile.steps]),
        resources=profile.resources.astype(np.int64),
        servers=servers.astype(np.int64),
        successor_offsets=offsets,
        successors=successors,
        waiting=waiting,
        downloads=downloads,
        updates=_updates(profile),
        work=np.ascontiguousarray(work),
        priority=priority,
        request_delay=delay,
    )


def join(graphs: Sequence[StepGraph]) -> StepGraph:
    """Lay the step graphs of several jobs out side by side.

    The profiled steps of a job have no work for the operations of the others.
    """
    if len(graphs) == 1:
        return graphs[0]
    ops = _offsets([len(graph.resources) for graph in graphs])
    edges = _offsets([len(graph.successors) for graph in graphs])

    def joined(name: str, shifts: NDArray[np.int64] | None = None) -> NDArray[Any]:
        parts = [getattr(graph, name) for graph in graphs]
        if shifts is not None:
            parts = [part + shift for part, shift in zip(parts, shifts[:-1], strict=True)]
        return np.concatenate(parts)

    ends = [graph.successor_offsets[1:] for graph in graphs]
    return StepGraph(
        op_offsets=ops,
        download_offsets=_offsets([len(graph.downloads) for graph in graphs]),
        step_offsets=_offsets([len(graph.request_delay) for graph in graphs]),
        resources=joined("resources"),
        servers=joined("servers"),
        successor_offsets=np.concatenate([[0], *map(np.add, ends, edges)]),
        successors=joined("successors", ops),
        waiting=joined("waiting"),
        downloads=joined("downloads", ops),
        updates=joined("updates"),
        work=block_diag(*(graph.work for graph in graphs)),
        priority=block_diag(*(graph.priority for graph in graphs)),
        request_delay=joined("request_delay"),
    )


def _offsets(lengths: Sequence[int]) -> NDArray[np.int64]:
    """Where parts of such lengths begin, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _updates(profile: Profile) -> NDArray[np.bool_]:
    """Whether an operation is one of a server that follows a gradient, shape (ops,)."""
    follows: NDArray[np.bool_] = profile.resources == UPLINK
    for op in profile.topological_order:
        follows[op] |= follows[profile.dependencies[op]].any()
    updates: NDArray[np.bool_] = follows & (profile.resources == SERVER)
    return updates


def _ranks(profile: Profile, cluster: Cluster) -> NDArray[np.int64]:
    """Rank of each operation, shape (ops,), in an order that does not depend on the step."""
    order, worker = cluster.stream_order, cluster.workers[0]
    if isinstance(order, tuple):
        return ordering.given(profile, order)
    if order == "tic":
        return ordering.tic(profile)
    if order == "tac":
        rate = min(worker.downlink, cluster.servers[0].uplink)
        return ordering.tac(profile, bandwidth=rate, cores=worker.cores)
    return np.zeros(profile.ops, dtype=np.int64)


def _without_negligible(profile: Profile, servers: NDArray[np.int32]) -> NDArray[np.float64]:
    """Work of the operations, shape (steps, ops); the smallest of a CPU leave theirs to the others.

    `servers` is the placement of the operations, shape (ops,).
    """
    work = profile.work.copy()
    computations = np.isin(profile.resources, (WORKER, SERVER))
    for server in np.unique(servers[computations]):
        ops = np.flatnonzero(computations & (servers == server))
        mean = work[:, ops].mean(axis=0)
        order = np.argsort(mean, kind="stable")
        small = ops[order[np.cumsum(mean[order]) <= NEGLIGIBLE * mean.sum()]]
        total = work[:, ops].sum(axis=1)
        work[:, small] = 0.0
        kept = work[:, ops].sum(axis=1)
        scale = np.divide(total, kept, out=np.ones_like(total), where=kept > 0.0)
        work[:, ops] *= scale[:, np.newaxis]
    return work


def _replayed_bytes(
    sizes: NDArray[np.float64], completion: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Bytes that the connection carried between one completed tensor and the next.

    Large tensors are sent in parts between which others pass, so when a tensor completes more
    bytes were carried than its own and those before it. All parameters of a step are asked for
    at once; the connection is taken to have carried them at a constant rate from the first
    request to the last completion. Serving tensors in the order of their completion, each one
    with the bytes carried since the one before, repeats the recorded interleaving at any rate.

    Parameters
    ----------
    sizes : ndarray, shape (transfers,)
        Bytes of the tensors in the order of their completion.
    completion : ndarray, shape (transfers,)
        Seconds from the first request to each completion, ascending.

    Returns
    -------
    ndarray, shape (transfers,)
        At least `MESSAGE_BYTES` each; the sum is that of `sizes`.
    """
    needed = np.cumsum(sizes)
    if completion[-1] <= 0.0:
        return sizes
    headers = MESSAGE_BYTES * np.arange(1, len(sizes) + 1)
    moved = (needed[-1] - headers[-1]) * completion / completion[-1] + headers
    return np.diff(np.maximum(needed, moved), prepend=0.0)
