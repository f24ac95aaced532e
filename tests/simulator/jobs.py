"""Step graphs of a few operations and small clusters, built by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asgd_model.cluster import Cluster, Node
from asgd_model.profile import (
    DOWNLINK,
    SERVER,
    UPLINK,
    WORKER,
    Calibration,
    CommunicationCost,
    Metadata,
    Profile,
)
from asgd_model.simulator import simulate
from asgd_model.simulator.step_graph import MESSAGE_BYTES

MB = 1_000_000


class Job:
    """Collects the operations of a step; each method returns the index of the new one.

    Sizes are bytes on the connection, header included. Work is in seconds of one core: one
    number, or one per profiled step.
    """

    def __init__(self) -> None:
        self.resources: list[int] = []
        self.servers: list[int] = []
        self.sizes: list[int] = []
        self.work: list[float | Sequence[float]] = []
        self.dependencies: list[tuple[int, ...]] = []

    def download(self, size: int, *after: int, server: int = 0) -> int:
        return self._add(DOWNLINK, server, size - MESSAGE_BYTES, 0.0, after)

    def compute(self, work: float | Sequence[float], *after: int) -> int:
        return self._add(WORKER, -1, 0, work, after)

    def upload(self, size: int, *after: int, server: int = 0) -> int:
        return self._add(UPLINK, server, size - MESSAGE_BYTES, 0.0, after)

    def update(self, work: float | Sequence[float], *after: int, server: int = 0) -> int:
        return self._add(SERVER, server, 0, work, after)

    def _add(
        self,
        resource: int,
        server: int,
        size: int,
        work: float | Sequence[float],
        after: tuple[int, ...],
    ) -> int:
        self.resources.append(resource)
        self.servers.append(server)
        self.sizes.append(size)
        self.work.append(work)
        self.dependencies.append(after)
        return len(self.resources) - 1

    def profile(self, request_delay: float = 0.0) -> Profile:
        """The profile, as if the operations had run one after the other at 1 MB/s and one core."""
        names = tuple(f"op {index}" for index in range(len(self.resources)))
        work = np.stack(np.broadcast_arrays(*self.work), axis=-1, dtype=np.float64)
        work = work.reshape(-1, len(names))
        end = request_delay + np.cumsum(work + np.array(self.sizes) / MB, axis=1)
        return Profile(
            names=names,
            kinds=names,
            resources=np.array(self.resources, dtype=np.int8),
            servers=np.array(self.servers, dtype=np.int32),
            sizes=np.array(self.sizes, dtype=np.int64),
            dependencies=tuple(np.array(row, dtype=np.int32) for row in self.dependencies),
            work=work,
            start=np.full_like(end, request_delay),
            end=end,
            metadata=Metadata(dnn="small", batch_size=2, link_rate=8.0 * MB),
        )


def chain(
    download: int, work: float | Sequence[float], upload: int, update: float | Sequence[float] = 0.0
) -> Profile:
    """Download, computation, upload and update, one after the other, on one server."""
    job = Job()
    job.update(update, job.upload(upload, job.compute(work, job.download(download))))
    return job.profile()


def node(cores: float = 1.0, down: float = MB, up: float | None = None, threads: int = 1) -> Node:
    """A node whose links carry `down` and `up` bytes/s, the same by default."""
    up = down if up is None else up
    return Node(cores=cores, downlink=8 * down, uplink=8 * up, threads=threads)


def cluster(
    workers: int | Sequence[Node] = 1,
    servers: int | Sequence[Node] = 1,
    *,
    order: str = "fifo",
    window: int | None = None,
    **calibration: CommunicationCost | float,
) -> Cluster:
    """A cluster of given nodes, or of so many with one core and links of 1 MB/s."""
    return Cluster(
        workers=(node(),) * workers if isinstance(workers, int) else tuple(workers),
        servers=(node(),) * servers if isinstance(servers, int) else tuple(servers),
        stream_order=order,
        stream_window=window,
        calibration=Calibration(**calibration),  # type: ignore[arg-type]
    )


def per_byte(seconds: float) -> CommunicationCost:
    return CommunicationCost(per_byte=seconds)


def per_tensor(seconds: float) -> CommunicationCost:
    return CommunicationCost(per_tensor=seconds)


def first_step(profile: Profile, cluster: Cluster, starts: ArrayLike = 0.0) -> NDArray[np.float64]:
    """Seconds at which the operations of each worker's first step end, shape (workers, ops)."""
    workers = len(cluster.workers)
    result = simulate(
        profile,
        cluster,
        steps=1,
        warm_up=0,
        starts=np.broadcast_to(starts, workers),
        record=[(worker, 0) for worker in range(workers)],
        stop_at_first=False,
    )
    return result.op_end
