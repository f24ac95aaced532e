"""Independent simulated runs, and the prediction that they give."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from asgd_model.cluster import Cluster
from asgd_model.errors import InputError, PrecisionWarning
from asgd_model.profile import Profile
from asgd_model.simulator.memory import MEMORY_LIMIT, required_memory
from asgd_model.simulator.results import SimulationResult, by_role
from asgd_model.simulator.simulation import Simulation, check_precision

if TYPE_CHECKING:
    import pandas as pd

QUANTILES = (0.025, 0.975)

MOST_REPLICATIONS = 100_000
"""Most runs that `replicate` begins with: all of them are kept until the last has ended."""


def replicate(
    profile: Profile,
    cluster: Cluster,
    replications: int = 20,
    *,
    precision: float | None = None,
    most_replications: int = 1000,
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
    precision : float, optional
        Simulate more runs than that until the mean throughput is known so well: the highest
        `relative_half_width`. The true mean is then in the interval somewhat less often than in
        95 % of cases, as with every rule that stops at the first narrow interval.
    most_replications : int
        Number of runs after which to stop all the same, with a warning.
    steps, warm_up, starts
        As for `simulate`; `starts` are the same in all runs.
    seed : int
        Each run has a seed of its own that depends on this one, the size of the cluster and
        the run's number only: the same numbers whatever else is simulated, on any number of
        processors.

    Warns
    -----
    PrecisionWarning
        If `most_replications` did not reach the precision.

    Raises
    ------
    InputError
        As `simulate`, and if `replications` is below 1 (2 with a precision) or above
        `MOST_REPLICATIONS`, `precision` is not
        between 0 and 1, `most_replications` is below `replications` or `seed` below 0.
    """
    fewest = 1 if precision is None else 2
    if not (
        isinstance(replications, int | np.integer) and fewest <= replications <= MOST_REPLICATIONS
    ):
        expected = f"an integer of at least {fewest} and at most {MOST_REPLICATIONS:,}"
        raise InputError("replicate", replications, expected, field="replications")
    if precision is not None:
        check_precision("replicate", precision)
        if most_replications < replications:
            expected = f"at least {replications}"
            raise InputError("replicate", most_replications, expected, field="most_replications")
    if not (isinstance(seed, int | np.integer) and seed >= 0):
        raise InputError("replicate", seed, "an integer of at least 0", field="seed")
    simulation = Simulation(profile, cluster)
    root = np.random.SeedSequence((seed, len(cluster.workers), len(cluster.servers)))

    def run(child: np.random.SeedSequence) -> SimulationResult:
        return simulation.run(steps=steps, warm_up=warm_up, starts=starts, seed=child)

    fitting = int(MEMORY_LIMIT / required_memory(cluster, profile.ops, steps))
    # The engine runs without the interpreter's lock.
    with ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, fitting))) as threads:
        results = list(threads.map(run, root.spawn(int(replications))))
        while precision is not None and (width := relative_half_width(results)) > precision:
            count = len(results)
            if count >= most_replications:
                spent = f"{count} replications of {len(cluster.workers)} workers"
                warnings.warn(PrecisionWarning(width, precision, spent), stacklevel=2)
                break
            # The width falls with the root of their number; not all at once, it is an estimate.
            enough = min(math.ceil(count * (width / precision) ** 2), 2 * count, most_replications)
            results += threads.map(run, root.spawn(max(enough - count, 1)))
    return results


def relative_half_width(results: Sequence[SimulationResult]) -> float:
    """How well the mean throughput of replicated runs is known.

    Returns
    -------
    float
        Half of the width of its 95 % interval over the mean (Student's t over the runs, of which
        there are at least 2; Law, Simulation Modeling and Analysis, chapter 9).
    """
    from scipy.stats import t

    throughput = np.array([result.steps_per_s for result in results])
    deviation = throughput.std(ddof=1) / np.sqrt(len(results))
    return float(t.ppf(0.975, len(results) - 1) * deviation / throughput.mean())


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
    precision: float | None = None,
    most_replications: int = 1000,
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
    replications, precision, most_replications, steps, warm_up, seed
        As for `replicate`; `steps` may differ with the number of workers.

    Returns
    -------
    DataFrame
        As `asgd_model.prediction.prediction`, and the mean utilisation of the busiest server's
        links and CPU and of the workers' CPUs: `server_send`, `server_receive`, `server_cpu`,
        `worker_cpu`, each from 0 to 1; with a precision also the number of `replications` and
        the `precision` that they reached (`relative_half_width`).
    """
    import pandas as pd

    from asgd_model.prediction import ONE_WORKER, prediction

    intervals, further = [], []
    for cluster in clusters:
        workers = len(cluster.workers)
        results = replicate(
            profile,
            cluster,
            replications,
            precision=precision,
            most_replications=most_replications,
            steps=steps if isinstance(steps, int) else steps_for(steps, workers),
            warm_up=warm_up,
            seed=seed,
        )
        intervals.append(throughput_interval(results))
        busy = np.mean([result.busy for result in results], axis=0)
        columns: dict[str, float] = by_role(busy, workers)
        if precision is not None:
            reached = relative_half_width(results)
            columns |= {"replications": len(results), "precision": reached}
        further.append(columns)
    mean, low, high = np.array(intervals).reshape(-1, 3).T
    table = prediction(clusters, mean, ONE_WORKER, low, high)
    return table.join(pd.DataFrame(further))
