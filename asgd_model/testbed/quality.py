"""How good the testbed's measurements are: what limits a platform, and what tracing costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asgd_model.measurements import RUN
from asgd_model.profile import Profile
from asgd_model.testbed.platform import Platform

if TYPE_CHECKING:
    import pandas as pd


def resource_use(measured: pd.DataFrame, platform: Platform) -> pd.DataFrame:
    """How much of its links and CPU quotas each run used, by the counters of the nodes.

    Parameters
    ----------
    measured : DataFrame
        Runs on the platform, from `asgd_model.load_measurements`.
    platform : Platform
        The cluster.

    Returns
    -------
    DataFrame
        One row per run: the columns `RUN` and, as fractions of the capacity, `server_send`,
        `server_receive`, `server_cpu` (the busiest server's) and `worker_cpu` (mean of the
        workers'), and `most_used`, the name of the largest.
    """
    use = measured[list(RUN)].assign(
        server_send=measured["server_sent_bit_s"] / platform.link.rate,
        server_receive=measured["server_received_bit_s"] / platform.link.rate,
        server_cpu=measured["server_cores"] / platform.server.cores,
        worker_cpu=measured["worker_cores"] / platform.worker.cores,
    )
    resources = [column for column in use if column not in RUN]
    return use.assign(most_used=use[resources].idxmax(axis="columns"))


def tracing(profiles: Sequence[Profile], measured: pd.DataFrame) -> pd.DataFrame:
    """How much longer traced steps of one worker are than those of its untraced runs.

    Parameters
    ----------
    profiles : sequence of Profile
        Traced steps.
    measured : DataFrame
        Runs, from `asgd_model.load_measurements`; those of one worker are looked at.

    Returns
    -------
    DataFrame
        One row per profile: `dnn`, `batch_size`, `traced` and `untraced` (seconds per step),
        `overhead` (their ratio, minus 1) and `repeats` (how far apart the untraced runs are,
        relative to the fastest).
    """
    import pandas as pd

    rows = []
    alone = measured[(measured["workers"] == 1) & (measured["parameter_servers"] == 1)]
    for profile in profiles:
        known = profile.metadata
        own = alone[(alone["dnn"] == known.dnn) & (alone["batch_size"] == known.batch_size)]
        seconds = 1.0 / own["steps_per_s"]
        traced = float(profile.step_times.mean())
        rows.append(
            {
                "dnn": known.dnn,
                "batch_size": known.batch_size,
                "traced": traced,
                "untraced": float(seconds.mean()),
                "overhead": traced / float(seconds.mean()) - 1.0,
                "repeats": float(seconds.max() / seconds.min() - 1.0),
            }
        )
    return pd.DataFrame(rows)
