"""Closed queueing network of phases that do not overlap.

Source
    Lin, Paolieri, Chou, Golubchik, A Model-Based Approach to Streamlining Distributed Training
    for Asynchronous SGD, MASCOTS 2018; as described in the literature, not checked against the
    text.
Equations
    One customer per worker. It cycles through the download, a processor-sharing station with the
    demand G / B of the server's sending link; the computation, a delay C; the upload, a
    processor-sharing station with the demand G / B of the receiving link; and the update, a
    processor-sharing station with the demand of the server's CPU. Throughput by exact mean value
    analysis.
Inputs
    Bytes and work of one step (`asgd_model.baselines.phases`), links and cores of the cluster.
    Unequal workers are classes of their own. With several servers there is one station of each
    kind per server, with an equal share of the parameters; a worker visits them in turn, since
    its own link would not take more at once.
Sees
    The profile of one worker; no measurement.
Limits
    Communication that hides behind computation counts in full, so that few workers are predicted
    too slow. CPU time of sending and receiving is not in the model. Where a worker's own link is
    slower than the servers', the difference is added to the delay, which the paper does not treat.

Examples
--------
Links of 1 MB/s, 100 kB each way and 0.4 s of computation. One worker makes 1 / 0.6 steps/s and
keeps each link busy for a sixth of the time; by mean value analysis two spend 0.1 (1 + 1/6) s on
each link and make 2 / (0.4 + 2 x 0.11667) steps/s.

>>> from asgd_model.cluster import Node
>>> node = Node(cores=1, uplink=8e6, downlink=8e6)
>>> step = Phases(download=1e5, computation=0.4, upload=1e5, update=0.0)
>>> pair = network(step, Cluster(workers=(node, node), servers=(node,)))
>>> round(exact_mva(pair).total_throughput, 4)
3.1579
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asgd_model.baselines.phases import BITS, Phases, usable_cores
from asgd_model.cluster import Cluster
from asgd_model.prediction import ONE_WORKER, prediction
from asgd_model.profile import Profile
from asgd_model.queueing import ClosedNetwork, delay, exact_mva, ps

if TYPE_CHECKING:
    import pandas as pd


def predict(
    profile: Profile, clusters: Sequence[Cluster], measured: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Throughput by mean value analysis; see `prediction` for the columns.

    Parameters
    ----------
    profile : Profile
        Steps of one worker.
    clusters : sequence of Cluster
        What to predict for.
    measured : DataFrame, optional
        Not looked at.

    Raises
    ------
    InputError
        If the workers are of so many types that exact analysis does not fit into memory.
    """
    step = Phases.of(profile)
    throughput = [exact_mva(network(step, cluster)).total_throughput for cluster in clusters]
    return prediction(clusters, throughput, ONE_WORKER)


def network(step: Phases, cluster: Cluster) -> ClosedNetwork:
    """The closed network of a job on a cluster, one class per type of worker."""
    share = 1 / len(cluster.servers)
    sending = [BITS * step.download * share / server.uplink for server in cluster.servers]
    receiving = [BITS * step.upload * share / server.downlink for server in cluster.servers]
    updating = [step.update * share / usable_cores(server) for server in cluster.servers]
    stations = []
    for index, demands in enumerate(zip(sending, receiving, updating, strict=True)):
        names = (f"server {index} sending", f"server {index} receiving", f"server {index} CPU")
        stations += [ps(name, demand) for name, demand in zip(names, demands, strict=True)]
    think, population = {}, {}
    for index, (worker, count) in enumerate(Counter(cluster.workers).items()):
        kind = f"worker type {index}"
        population[kind] = count
        slower_down = max(0.0, BITS * step.download / worker.downlink - sum(sending))
        slower_up = max(0.0, BITS * step.upload / worker.uplink - sum(receiving))
        think[kind] = step.computation / usable_cores(worker) + slower_down + slower_up
    return ClosedNetwork([*stations, delay("worker", think)], population)
