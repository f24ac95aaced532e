"""A step without its details: download, computation, upload and update, one after the other.

Most baselines know no more of a job than these four numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from asgd_model.cluster import Cluster, Node
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, Profile

BITS = 8
"""Bits in a byte: links are in bit/s, tensors in bytes."""


@dataclass(frozen=True)
class Phases:
    """What one step asks of each resource.

    Attributes
    ----------
    download, upload : float
        Bytes from the servers to the worker and back.
    computation, update : float
        Seconds of one core on the worker and, over all servers, on the servers.
    """

    download: float
    computation: float
    upload: float
    update: float

    @classmethod
    def of(cls, profile: Profile) -> Phases:
        """The phases of the profiled steps: bytes moved and mean work."""
        return cls(
            download=profile.bytes_moved(DOWNLINK),
            computation=profile.mean_work(WORKER),
            upload=profile.bytes_moved(UPLINK),
            update=profile.mean_work(SERVER),
        )


@dataclass(frozen=True)
class PhaseTimes:
    """Seconds of each phase of a step when one worker has the servers to itself."""

    download: float
    computation: float
    upload: float
    update: float

    @classmethod
    def of(cls, phases: Phases, worker: Node, servers: tuple[Node, ...]) -> PhaseTimes:
        """Times on a worker and servers that share the parameters by their speed.

        A transfer runs at the rate of the worker's link or of all servers' links together,
        whichever is less.
        """
        return cls(
            download=phases.download / min(worker.downlink / BITS, sending_rate(servers)),
            computation=phases.computation / usable_cores(worker),
            upload=phases.upload / min(worker.uplink / BITS, receiving_rate(servers)),
            update=phases.update / sum(map(usable_cores, servers)),
        )


def usable_cores(node: Node) -> float:
    """Cores that a node can keep busy, as of the profiled node: one per operation at most."""
    return min(node.cores, node.threads) / node.slowdown.mean


def sending_rate(servers: tuple[Node, ...]) -> float:
    """Bytes per second that all servers together can send."""
    return sum(server.uplink for server in servers) / BITS


def receiving_rate(servers: tuple[Node, ...]) -> float:
    """Bytes per second that all servers together can receive."""
    return sum(server.downlink for server in servers) / BITS


def exchange_time(step: Phases, cluster: Cluster) -> float:
    """Seconds in which all workers download, and then upload, at the same time.

    The servers' links carry the tensors of all workers, a worker's link its own.
    """
    workers, servers = cluster.workers, cluster.servers
    download = len(workers) * step.download / sending_rate(servers)
    upload = len(workers) * step.upload / receiving_rate(servers)
    own_download, own_upload = _own_transfers(step, workers)
    return max(download, own_download) + max(upload, own_upload)


def peer_exchange_time(step: Phases, workers: tuple[Node, ...]) -> float:
    """Seconds in which the worker with the slowest links receives and sends all tensors once."""
    return sum(_own_transfers(step, workers))


def _own_transfers(step: Phases, workers: tuple[Node, ...]) -> tuple[float, float]:
    """Seconds of the download and of the upload over the slowest worker's link."""
    downlink = min(worker.downlink for worker in workers)
    uplink = min(worker.uplink for worker in workers)
    return BITS * step.download / downlink, BITS * step.upload / uplink


def slowest_computation(work: float, workers: tuple[Node, ...]) -> float:
    """Seconds of some work, in seconds of one core, on the slowest of the workers."""
    return work / min(map(usable_cores, workers))
