"""Phases: how far the throughput of a job depends on when its workers start.

Nearly constant downloads, computations and uploads keep the offsets at which workers start. Two
workers that want a link at the same time slow each other down; at other offsets they do not
notice each other. `sensitivity` says how much that can matter for a job, before any is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.profile import Profile
from asgd_model.simulator import replicate, throughput_interval

if TYPE_CHECKING:
    import pandas as pd


def throughput_by_offset(
    profile: Profile,
    *,
    offsets: int = 12,
    steps: int = 8,
    replications: int = 5,
    seed: int = 0,
) -> pd.DataFrame:
    """Throughput of two workers that start at different offsets from each other.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    offsets : int
        Number of offsets, evenly spread over a profiled step.
    steps : int
        Steps that each worker executes.
    replications : int
        Simulated runs per offset; the same steps are drawn at every offset.
    seed : int
        Of the steps drawn.

    Returns
    -------
    DataFrame
        One row per offset: `offset` (fraction of a step), `steps_per_s` (mean of the runs) and
        `speed_up` (over one worker alone).

    Raises
    ------
    InputError
        If there are fewer than two offsets.
    """
    import pandas as pd

    if offsets < 2:
        raise InputError("throughput_by_offset", offsets, "2 or more", field="offsets")
    length = float(profile.step_times.mean())
    one, two = Cluster.like(profile), Cluster.like(profile, 2)
    alone = _mean(profile, one, [0.0], steps, replications, seed)
    fractions = np.arange(offsets) / offsets
    rates = [
        _mean(profile, two, [0.0, fraction * length], steps, replications, seed)
        for fraction in fractions
    ]
    return pd.DataFrame(
        {"offset": fractions, "steps_per_s": rates, "speed_up": np.array(rates) / alone}
    )


def sensitivity(by_offset: pd.DataFrame) -> float:
    """How far throughput depends on the start: 0 for not at all, towards 1 for entirely.

    Parameters
    ----------
    by_offset : DataFrame
        From `throughput_by_offset`.

    Returns
    -------
    float
        What the worst offset of two workers loses against the best one, as a fraction.
    """
    rates = by_offset["steps_per_s"]
    return float(1.0 - rates.min() / rates.max())


def random_starts(
    profile: Profile,
    workers: Sequence[int],
    *,
    steps: int = 8,
    replications: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """Throughput of runs whose workers start at random.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    workers : sequence of int
        Numbers of workers.
    steps : int
        Steps that each worker executes.
    replications : int
        Simulated runs per number of workers.
    seed : int
        Of starts and steps drawn.

    Returns
    -------
    DataFrame
        One row per run: `workers`, `steps_per_s`.
    """
    import pandas as pd

    rows = [
        (size, result.steps_per_s)
        for size in workers
        for result in replicate(
            profile, Cluster.like(profile, size), replications, steps=steps, seed=seed
        )
    ]
    return pd.DataFrame(rows, columns=["workers", "steps_per_s"])


def lock_breakers(
    profile: Profile,
    variants: Mapping[str, Cluster],
    *,
    steps: int = 30,
    replications: int = 20,
    seed: int = 0,
) -> pd.DataFrame:
    """Throughput of workers that start together, in step, and what would free them.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    variants : mapping of str to Cluster
        Clusters by what they are called: other orders, windows, slowdowns.
    steps : int
        Steps that each worker executes.
    replications : int
        Simulated runs per variant.
    seed : int
        Of the steps drawn.

    Returns
    -------
    DataFrame
        One row per variant: `variant`, `together` and `random` (steps/s, mean over the runs)
        when all workers start at once and at random, and `lost`, how much the former is below
        the latter, as a fraction.
    """
    import pandas as pd

    rows = []
    for name, cluster in variants.items():
        at_once = np.zeros(len(cluster.workers))
        together, scattered = (
            _mean(profile, cluster, starts, steps, replications, seed) for starts in (at_once, None)
        )
        lost = 1.0 - together / scattered
        rows.append({"variant": name, "together": together, "random": scattered, "lost": lost})
    return pd.DataFrame(rows)


def _mean(
    profile: Profile,
    cluster: Cluster,
    starts: ArrayLike | None,
    steps: int,
    replications: int,
    seed: int,
) -> float:
    results = replicate(profile, cluster, replications, steps=steps, starts=starts, seed=seed)
    return throughput_interval(results)[0]
