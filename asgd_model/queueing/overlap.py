"""The queueing model of asynchronous SGD when communication and computation overlap.

A closed network visits its stations one after the other; a real step uses several at once. Here
the network is kept for what workers do to each other, and the step graph of one worker for what
that does to a step, as in models of parallel programs that alternate between contention and
precedence (Mak and Lundstrom, Predicting performance of parallel computations, IEEE TPDS 1(3),
1990; Liang and Tripathi, On performance prediction of parallel computations with precedent
constraints, IEEE TPDS 11(5), 2000).

Work that takes D_k seconds alone takes D_k (1 + A_k) at a processor-sharing station where a worker
finds A_k others on average (Reiser and Lavenberg 1980). With Schweitzer's estimate for A_k and
Little's law for the mean number Q_k of workers of one class at the station,

    s_k = 1 + Q_k (N - 1) / N,    T = f(s),    Q_k = N D_k s_k / T,

where s_k is the slowdown of station k and f the step time of a single worker whose servers' links
and CPUs are s_k times slower, from the simulator. Without overlap f(s) = Z + sum_k D_k s_k, and
this is Bard and Schweitzer's approximate MVA. Since a worker's transfers take at least
D_k s_k, T >= D_k s_k, and the fixed point keeps the bound N / T <= 1 / D_k:
s_k = 1 / (1 - (N - 1) D_k / T), one over the share of the station that the others leave (as in
`asgd_model.baselines.yan`, there along a path of layers). Nothing is fitted to more than one
worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asgd_model.cluster import Cluster
from asgd_model.prediction import ONE_WORKER, prediction
from asgd_model.profile import Profile
from asgd_model.queueing.asgd import STATIONS, network
from asgd_model.queueing.network import ClosedNetwork

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

TOLERANCE = 1e-5
MAX_ROUNDS = 100


@dataclass(frozen=True)
class OverlapSolution:
    """Mean performance of workers whose communication and computation overlap.

    Attributes
    ----------
    network : ClosedNetwork
        Demands and populations: K stations, the last one the worker's own computation, and R
        classes.
    step_time : ndarray, shape (R,)
        Seconds of a step.
    slowdown : ndarray, shape (K - 1, R)
        How many times longer work takes at each station of the servers than it does alone.
    """

    network: ClosedNetwork
    step_time: Floats
    slowdown: Floats

    @property
    def total_throughput(self) -> float:
        """Steps/s of all workers together."""
        return float((self.network.population / self.step_time).sum())

    def per_station(self) -> pd.DataFrame:
        """What happens at each station of the servers.

        Returns
        -------
        DataFrame
            Index (station, class); columns demand (seconds per step), slowdown, residence_time
            (seconds per step), queue_length (workers) and utilisation.
        """
        import pandas as pd

        names = [station.name for station in self.network.stations[:-1]]
        demand = self.network.demands[:-1]
        throughput = self.network.population / self.step_time
        residence = demand * self.slowdown
        columns = {
            "demand": demand,
            "slowdown": self.slowdown,
            "residence_time": residence,
            "queue_length": throughput * residence,
            "utilisation": throughput * demand,
        }
        index = pd.MultiIndex.from_product(
            [names, self.network.classes], names=["station", "class"]
        )
        return pd.DataFrame({name: table.ravel() for name, table in columns.items()}, index=index)


def solve_with_overlap(profile: Profile, cluster: Cluster) -> OverlapSolution:
    """Solve the equations of the module's docstring by iteration.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    cluster : Cluster
        Its workers may differ: equal ones form a class each.

    Returns
    -------
    OverlapSolution
        After the round in which no step time changes by more than `TOLERANCE` relatively, or
        after `MAX_ROUNDS`: an order of events may jump back and forth between two rounds.
    """
    model = network(profile, cluster)
    population, demands = model.population, model.demands[:-1]
    fewer = population[None, :] - np.eye(len(population))  # [r, j] of class j, one of r left out
    queue = np.tile(population / len(model.stations), (len(demands), 1))
    previous = np.full(len(population), np.inf)
    for _ in range(MAX_ROUNDS):
        slowdown = 1.0 + (queue / population) @ fewer.T
        step_time = _step_times(profile, cluster, slowdown)
        queue = population * demands * slowdown / step_time
        if np.allclose(step_time, previous, rtol=TOLERANCE, atol=0.0):
            break
        previous = step_time
    return OverlapSolution(model, step_time, slowdown)


def predict(
    profile: Profile, clusters: Sequence[Cluster], measured: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Predict throughput by the overlap-aware model.

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
        As `asgd_model.prediction.prediction`, and `bound_low`, `bound_high`: throughput in
        steps/s if each step met all other workers at every station, and if it met none and the
        busiest station were never idle.
    """
    rows = [_throughput_and_bounds(profile, cluster) for cluster in clusters]
    throughput, low, high = np.array(rows).reshape(-1, 3).T
    table = prediction(clusters, throughput, ONE_WORKER)
    table["bound_low"], table["bound_high"] = low, high
    return table


def _throughput_and_bounds(profile: Profile, cluster: Cluster) -> tuple[float, float, float]:
    solution = solve_with_overlap(profile, cluster)
    population, demands = solution.network.population, solution.network.demands[:-1]
    crowded = _step_times(profile, cluster, np.full_like(demands, population.sum()))
    alone = _step_times(profile, cluster, np.ones_like(demands))
    high = np.minimum(population / alone, 1.0 / demands.max(axis=0)).sum()
    return solution.total_throughput, float((population / crowded).sum()), float(high)


def _step_times(profile: Profile, cluster: Cluster, slowdown: Floats) -> Floats:
    """Seconds of a step of a single worker of each class at slower servers."""
    from asgd_model.simulator import simulate

    times = []
    for worker, slow in zip(dict.fromkeys(cluster.workers), slowdown.T, strict=True):
        servers = tuple(
            replace(
                server,
                uplink=min(server.uplink, worker.downlink) / send,
                downlink=min(server.downlink, worker.uplink) / receive,
                cores=min(server.cores, server.threads) / cpu,
            )
            for server, (send, receive, cpu) in zip(
                cluster.servers, slow.reshape(-1, len(STATIONS)), strict=True
            )
        )
        alone = replace(cluster, workers=(worker,), servers=servers)
        steps = simulate(profile, alone, steps=2 * profile.steps + 1, warm_up=1).step_times
        times.append(steps.mean())
    return np.array(times)
