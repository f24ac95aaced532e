"""The table that every predictor returns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from asgd_model.cluster import Cluster

ONE_WORKER = "profile of one worker"
"""What a method sees that needs no measurement of larger clusters."""


def prediction(
    clusters: Sequence[Cluster],
    steps_per_s: ArrayLike,
    sees: str,
    low: ArrayLike = np.nan,
    high: ArrayLike = np.nan,
) -> pd.DataFrame:
    """Put predicted throughputs into a table.

    Parameters
    ----------
    clusters : sequence of Cluster
        What was predicted for.
    steps_per_s : array_like, shape (clusters,)
        Throughput of all workers together in steps/s.
    sees : str
        What the method knew of the job.
    low, high : array_like, shape (clusters,)
        Ends of its 95 % interval in steps/s; NaN where the method states no uncertainty.

    Returns
    -------
    DataFrame
        One row per cluster; columns `workers`, `servers`, `steps_per_s`, `steps_per_s_low`,
        `steps_per_s_high`, `sees`.
    """
    return pd.DataFrame(
        {
            "workers": [len(cluster.workers) for cluster in clusters],
            "servers": [len(cluster.servers) for cluster in clusters],
            "steps_per_s": np.asarray(steps_per_s, dtype=np.float64),
            "steps_per_s_low": low,
            "steps_per_s_high": high,
            "sees": sees,
        }
    )
