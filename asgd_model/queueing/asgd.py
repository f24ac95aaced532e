"""Asynchronous SGD as a closed queueing network.

Each worker is a customer that cycles through its step: it downloads the parameters over the
servers' sending links, computes, uploads the gradients over their receiving links, and has the
servers update the parameters. Links and server CPUs are processor-sharing stations, the worker's
own computation a delay. (Lin et al., MASCOTS 2018, as described there: phases one after the
other.)

Transmissions that proceed while the worker computes are not in it: the step of one worker is too
long by what they hide. `asgd_model.queueing.overlap` takes them into account.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from asgd_model.cluster import Cluster, Node, placement
from asgd_model.errors import InputError
from asgd_model.prediction import ONE_WORKER, prediction
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, Profile
from asgd_model.queueing.bounds import asymptotic_bounds
from asgd_model.queueing.mva import exact_mva
from asgd_model.queueing.network import ClosedNetwork, Station, delay, ps

if TYPE_CHECKING:
    import pandas as pd

STATIONS = ("send", "receive", "CPU")
"""Stations of each server: its sending and receiving link and its CPU."""


def network(profile: Profile, cluster: Cluster) -> ClosedNetwork:
    """The closed network of a training job on a cluster.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    cluster : Cluster
        Its workers may differ: equal ones form a class each.

    Returns
    -------
    ClosedNetwork
        Stations ``server s send``, ``server s receive``, ``server s CPU`` for each server s,
        and ``worker``; demands in seconds per step.

    Raises
    ------
    InputError
        If the cluster's workers wait for each other, or its nodes share hosts.
    """
    if cluster.synchronous is not None:
        raise InputError("network", cluster.synchronous, "asynchronous SGD", field="cluster")
    if cluster.shares_hosts:
        raise InputError("network", "shared hosts", "a host for each node", field="cluster")
    kinds = list(dict.fromkeys(cluster.workers))
    names = {kind: f"worker type {index}" for index, kind in enumerate(kinds)}
    if len(kinds) == 1:
        names = {kinds[0]: "worker"}
    demands = {names[kind]: _demands(profile, cluster, kind) for kind in kinds}
    population = {name: 0 for name in names.values()}
    for worker in cluster.workers:
        population[names[worker]] += 1
    stations: list[Station] = []
    for station in next(iter(demands.values())):
        build = delay if station == "worker" else ps
        stations.append(build(station, {name: row[station] for name, row in demands.items()}))
    return ClosedNetwork(stations, population)


def predict(
    profile: Profile, clusters: Sequence[Cluster], measured: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Predict throughput by exact mean value analysis of the closed network.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    clusters : sequence of Cluster
        What to predict for.
    measured : DataFrame, optional
        Not used: the model sees one worker only.

    Returns
    -------
    DataFrame
        As `asgd_model.prediction.prediction`, and `bound_low`, `bound_high`: the asymptotic
        bounds on the throughput in steps/s.
    """
    solved, bounds = [], []
    for cluster in clusters:
        model = network(profile, cluster)
        solved.append(exact_mva(model).total_throughput)
        limits = asymptotic_bounds(model)
        bounds.append((limits["lower"].sum(), limits["upper"].sum()))
    table = prediction(clusters, solved, ONE_WORKER)
    table[["bound_low", "bound_high"]] = np.array(bounds).reshape(-1, 2)
    return table


def _demands(profile: Profile, cluster: Cluster, worker: Node) -> dict[str, float]:
    """Seconds per step that a worker of one kind needs of each station."""
    servers = placement(profile, len(cluster.servers))
    costs = cluster.calibration
    work = profile.work.mean(axis=0) / (1.0 + costs.tracing_overhead)
    download = (profile.resources == DOWNLINK, costs.server_send, costs.worker_receive)
    upload = (profile.resources == UPLINK, costs.server_receive, costs.worker_send)
    demands: dict[str, float] = {}
    computation = worker.slowdown.mean * float(work[profile.resources == WORKER].sum())
    for index, server in enumerate(cluster.servers):
        here = servers == index
        cpu = float(work[(profile.resources == SERVER) & here].sum())
        for (chosen, at_server, at_worker), station, rate in (
            (download, "send", min(server.uplink, worker.downlink)),
            (upload, "receive", min(server.downlink, worker.uplink)),
        ):
            tensors = int((chosen & here).sum())
            moved = float(profile.sizes[chosen & here].sum())
            demands[f"server {index} {station}"] = 8.0 * moved / rate
            cpu += at_server.per_byte * moved + at_server.per_tensor * tensors
            computation += at_worker.per_byte * moved + at_worker.per_tensor * tensors
        demands[f"server {index} CPU"] = cpu / min(server.cores, server.threads)
    demands["worker"] = computation / min(worker.cores, worker.threads)
    return demands
