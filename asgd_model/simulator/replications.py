"""Independent simulated runs, and the prediction that they give."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.profile import Profile
from asgd_model.simulator.results import SimulationResult
from asgd_model.simulator.simulation import Simulation

if TYPE_CHECKING:
    import pandas as pd

QUANTILES = (0.025, 0.975)


def replicate(
    profile: Profile,
    cluster: Cluster,
    replications: int = 20,
    *,
    steps: int = 20,
    warm_up: int = 2,
    starts: ArrayLike | None = None,
    seed: int = 0,
) -> list[SimulationResult]:
    """Simulate a run several times, each time with other steps drawn and other start times.

    Parameters
    ----------
    replications : int
        Number of runs.
    steps, warm_up, starts
        As for `simulate`; `starts` are the same in all runs.
    seed : int
        Each run has a seed of its own that depends on this one, the size of the cluster and
        the run's number only: the same numbers whatever else is simulated, on any number of
        processors.

    Raises
    ------
    InputError
        As `simulate`, and if `replications` is below 1 or `seed` below 0.
    """
    if not (isinstance(replications, int | np.integer) and replications >= 1):
        expected = "an integer of at least 1"
        raise InputError("replicate", replications, expected, field="replications")
    if not (isinstance(seed, int | np.integer) and seed >= 0):
        raise InputError("replicate", seed, "an integer of at least 0", field="seed")
    simulation = Simulation(profile, cluster)
    root = np.random.SeedSequence((seed, len(cluster.workers), len(cluster.servers)))

    def run(child: np.random.SeedSequence) -> SimulationResult:
        return simulation.run(steps=steps, warm_up=warm_up, starts=starts, seed=child)

    # The engine runs without the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(run, root.spawn(int(replications))))


def throughput_interval(results: Sequence[SimulationResult]) -> tuple[float, float, float]:
    """Return the mean throughput of replicated runs and the interval for one more such run.

    Returns
    -------
    mean, low, high : float
        Steps/s; `low` and `high` are the quantiles `QUANTILES` over the runs. They contain the
        variability of the steps, the random starts and the length of the measured window.
    """
    throughput = np.array([result.steps_per_s for result in results])
    low, high = np.quantile(throughput, QUANTILES)
    return float(throughput.mean()), float(low), float(high)


def compare(
    profile: Profile,
    variants: Mapping[str, Sequence[Cluster]],
    *,
    replications: int = 20,
    steps: int = 20,
    warm_up: int = 2,
    seed: int = 0,
) -> pd.DataFrame:
    """How much faster a job is on some clusters than on others, run by run.

    The same runs, with the same steps drawn and the same starts, are simulated for every variant
    of a cluster (common random numbers): what differs is the variant alone.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    variants : mapping of str to sequence of Cluster
        Clusters by the name of the variant. All variants have clusters of the same numbers of
        workers and servers, in the same order; the first one is what the others are compared to.
    replications, steps, warm_up, seed
        As for `replicate`; at least 2 replications.

    Returns
    -------
    DataFrame
        One row per variant and cluster: `variant`, `workers`, `servers`, `steps_per_s` (mean),
        `gain` (mean over the runs of the throughput over that of the first variant, minus 1) and
        its 95 % interval `gain_low` to `gain_high` (Student's t over the runs).

    Raises
    ------
    InputError
        If there are no variants, their clusters do not match or there are too few replications.
    """
    import pandas as pd
    from scipy.stats import t

    sizes = {tuple((len(c.workers), len(c.servers)) for c in some) for some in variants.values()}
    if len(sizes) != 1:
        expected = "clusters of the same numbers of workers and servers in every variant"
        raise InputError("compare", sorted(sizes) or "none", expected, field="variants")
    if replications < 2:
        raise InputError("compare", replications, "at least 2", field="replications")

    def runs(cluster: Cluster) -> list[float]:
        results = replicate(profile, cluster, replications, steps=steps, warm_up=warm_up, seed=seed)
        return [result.steps_per_s for result in results]

    throughput = np.array([[runs(c) for c in clusters] for clusters in variants.values()])
    gain = throughput / throughput[0] - 1.0
    margin = t.ppf(0.975, replications - 1) * gain.std(axis=2, ddof=1) / np.sqrt(replications)
    names = np.repeat(list(variants), throughput.shape[1])
    workers, servers = np.array(list(sizes.pop()) * len(variants)).T
    return pd.DataFrame(
        {
            "variant": names,
            "workers": workers,
            "servers": servers,
            "steps_per_s": throughput.mean(axis=2).ravel(),
            "gain": gain.mean(axis=2).ravel(),
            "gain_low": (gain.mean(axis=2) - margin).ravel(),
            "gain_high": (gain.mean(axis=2) + margin).ravel(),
        }
    )


def steps_for(steps: Mapping[int, int], workers: int) -> int:
    """Steps that each of so many workers executes: of the next number that is known.

    Parameters
    ----------
    steps : mapping of int to int
        Steps by number of workers, such as `asgd_model.steps_per_worker` of measured runs.
    workers : int
        Any number.

    Raises
    ------
    InputError
        If the mapping is empty.
    """
    if not steps:
        raise InputError("steps", "none", "steps for one number of workers at least")
    return steps[min(steps, key=lambda known: (abs(known - workers), known))]


def predict(
    profile: Profile,
    clusters: Sequence[Cluster],
    measured: pd.DataFrame | None = None,
    *,
    replications: int = 20,
    steps: int | Mapping[int, int] = 20,
    warm_up: int = 2,
    seed: int = 0,
) -> pd.DataFrame:
    """Predict throughput by simulation.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    clusters : sequence of Cluster
        What to predict for.
    measured : DataFrame, optional
        Not used: the simulation sees one worker only.
    replications, steps, warm_up, seed
        As for `replicate`; `steps` may differ with the number of workers.

    Returns
    -------
    DataFrame
        As `asgd_model.prediction.prediction`, and the mean utilisation of the busiest server's
        links and CPU and of the workers' CPUs: `server_send`, `server_receive`, `server_cpu`,
        `worker_cpu`, each from 0 to 1.
    """
    from asgd_model.prediction import ONE_WORKER, prediction

    intervals, busy = [], []
    for cluster in clusters:
        workers = len(cluster.workers)
        own = steps if isinstance(steps, int) else steps_for(steps, workers)
        results = replicate(profile, cluster, replications, steps=own, warm_up=warm_up, seed=seed)
        intervals.append(throughput_interval(results))
        mean = np.mean([result.busy for result in results], axis=0)
        cpu, send, receive = mean[workers:].max(axis=0)
        busy.append((send, receive, cpu, mean[:workers, 0].mean()))
    mean, low, high = np.array(intervals).reshape(-1, 3).T
    columns = ["server_send", "server_receive", "server_cpu", "worker_cpu"]
    table = prediction(clusters, mean, ONE_WORKER, low, high)
    table[columns] = np.array(busy).reshape(-1, 4)
    return table
