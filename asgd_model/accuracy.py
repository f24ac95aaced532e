"""Predicted against measured throughput."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asgd_model.baselines import BASELINES, fitted_sizes
from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.measurements import (
    JOB,
    RUN,
    load_all_measurements,
    load_steps,
    steps_of_run,
    steps_per_worker,
)
from asgd_model.predict import predict
from asgd_model.profile import Profile, load_profile
from asgd_model.simulator import replicate, simulate, throughput_interval

if TYPE_CHECKING:
    import pandas as pd


def compare(predictions: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Set every prediction against every measured run of the same size.

    Parameters
    ----------
    predictions : DataFrame
        From `asgd_model.predict`.
    measured : DataFrame
        Runs of one job on one platform, from `load_measurements`.

    Returns
    -------
    DataFrame
        One row per method and run: `method`, `workers`, `servers`, `repeat`, `measured`,
        `predicted` (steps/s), `error` (predicted over measured, minus 1), `covered` (whether
        the measured throughput lies in the prediction's interval; missing without interval) and
        `fitted` (whether the method was fitted to runs of this size).

    Raises
    ------
    InputError
        If no run has a predicted size.
    """
    import pandas as pd

    runs = measured.rename(columns={"parameter_servers": "servers", "steps_per_s": "measured"})
    table = predictions.merge(
        runs[["workers", "servers", "repeat", "measured"]], on=["workers", "servers"]
    )
    if table.empty:
        sizes = sorted(set(predictions["workers"]))
        raise InputError("measured", sorted(set(runs["workers"])), f"runs of {sizes} workers")
    low, high = table["steps_per_s_low"], table["steps_per_s_high"]
    covered = ((table["measured"] >= low) & (table["measured"] <= high)).astype("boolean")
    return pd.DataFrame(
        {
            "method": table["method"],
            "workers": table["workers"],
            "servers": table["servers"],
            "repeat": table["repeat"],
            "measured": table["measured"],
            "predicted": table["steps_per_s"],
            "error": table["steps_per_s"] / table["measured"] - 1.0,
            "covered": covered.mask(low.isna()),
            "fitted": [
                workers in _fitted_sizes(method)
                for method, workers in zip(table["method"], table["workers"], strict=True)
            ],
        }
    )


def predict_all(
    folder: str | os.PathLike[str],
    *,
    methods: Sequence[str],
    stand_ins: Mapping[str, str] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Predict every configuration that was measured in a data folder.

    Parameters
    ----------
    folder : path-like
        With ``measurements/<platform>.csv``, ``measurements/<platform>.steps.csv.gz`` and
        ``profiles/<platform>/<dnn>_b<batch size>.profile.json.gz``.
    methods : sequence of str
        Any of `asgd_model.METHODS`.
    stand_ins : mapping of str to str, optional
        For platforms without profiles, the platform whose profiles are taken instead.
    **options
        Of `asgd_model.predict`; `steps` are those of the measured runs.

    Returns
    -------
    DataFrame
        The rows of `asgd_model.predict` for every job, with `platform`, `dnn`, `batch_size` in
        front.

    Raises
    ------
    InputError
        If there are no measurements, or a file is missing or wrong.
    """
    import pandas as pd

    tables = []
    for job, profile, measured, steps in measured_jobs(folder, stand_ins):
        curve = predict(
            profile,
            sorted(measured["workers"].unique()),
            servers=sorted(measured["parameter_servers"].unique()),
            methods=methods,
            measured=measured,
            steps=steps,
            **options,
        )
        tables.append(_of_job(job, curve))
    return pd.concat(tables, ignore_index=True)


def measured_jobs(
    folder: str | os.PathLike[str], stand_ins: Mapping[str, str] | None = None
) -> Iterator[tuple[dict[str, Any], Profile, pd.DataFrame, dict[int, int]]]:
    """All jobs that a data folder has measurements of.

    Parameters
    ----------
    folder, stand_ins
        As for `predict_all`.

    Yields
    ------
    job : dict
        `platform`, `dnn` and `batch_size`.
    profile : Profile
        The job on one worker.
    measured : DataFrame
        Its measured runs.
    steps : dict of int to int
        Their steps per worker, by number of workers (`steps_per_worker`).

    Raises
    ------
    InputError
        If there are no measurements, or a file is missing or wrong.
    """
    data = Path(folder)
    runs = load_all_measurements(data)
    steps: dict[str, pd.DataFrame] = {}
    for (name, dnn, batch_size), measured in runs.groupby(list(JOB), sort=False):
        platform = str(name)
        profiles = data / "profiles" / (stand_ins or {}).get(platform, platform)
        profile = load_profile(profiles / f"{dnn}_b{batch_size}.profile.json.gz")
        if platform not in steps:
            steps[platform] = load_steps(data / "measurements" / f"{platform}.steps.csv.gz")
        of_all = steps[platform]
        own = of_all[(of_all["dnn"] == dnn) & (of_all["batch_size"] == batch_size)]
        job = {"platform": platform, "dnn": dnn, "batch_size": batch_size}
        yield job, profile, measured, steps_per_worker(own)


def compare_all(curves: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Set predictions of several jobs against their measured runs.

    Parameters
    ----------
    curves : DataFrame
        From `predict_all`.
    measured : DataFrame
        From `load_all_measurements`.

    Returns
    -------
    DataFrame
        The rows of `compare` for every job, with `platform`, `dnn`, `batch_size` in front, and
        `interval` and `spread`, the noise of the measurement (`noise`).
    """
    import pandas as pd

    tables = []
    jobs = measured.groupby(list(JOB))
    for (platform, dnn, batch_size), curve in curves.groupby(list(JOB), sort=False):
        own = jobs.get_group((platform, dnn, batch_size))
        table = compare(curve, own).merge(noise(own), on=["workers", "servers", "repeat"])
        job = {"platform": platform, "dnn": dnn, "batch_size": batch_size}
        tables.append(_of_job(job, table))
    return pd.concat(tables, ignore_index=True)


def noise(measured: pd.DataFrame) -> pd.DataFrame:
    """How uncertain the throughput of each run is, relative to it.

    Parameters
    ----------
    measured : DataFrame
        Runs of one job on one platform, from `load_measurements`.

    Returns
    -------
    DataFrame
        One row per run: `workers`, `servers`, `repeat`; `interval`, half the width of the run's
        own 95 % interval; `spread`, how far the largest throughput of all repeats of the
        configuration is above the smallest one, NaN for a single run.
    """
    runs = measured.rename(columns={"parameter_servers": "servers"})
    repeats = runs.groupby(["workers", "servers"])["steps_per_s"]
    spread = repeats.transform("max") / repeats.transform("min") - 1.0
    width = runs["steps_per_s_high"] - runs["steps_per_s_low"]
    return runs[["workers", "servers", "repeat"]].assign(
        interval=width / 2.0 / runs["steps_per_s"],
        spread=spread.where(repeats.transform("size") > 1),
    )


def noise_of_all(measured: pd.DataFrame) -> pd.DataFrame:
    """`noise` of every job of a platform.

    Parameters
    ----------
    measured : DataFrame
        Runs on one platform, from `load_measurements`.

    Returns
    -------
    DataFrame
        The rows of `noise` for each job, with `dnn`, `batch_size` and `policy` in front.
    """
    import pandas as pd

    tables = []
    for (dnn, batch_size, policy), own in measured.groupby(
        ["dnn", "batch_size", "policy"], sort=False
    ):
        job = {"dnn": dnn, "batch_size": batch_size, "policy": policy}
        table = noise(own)
        tables.append(_of_job(job, table))
    return pd.concat(tables, ignore_index=True)


def summarize(comparison: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Accuracy of each method over the runs with more than one worker that it was not fitted to.

    Parameters
    ----------
    comparison : DataFrame
        From `compare` or `compare_all`.
    by : sequence of str
        Columns whose values are looked at separately, such as the platform.

    Returns
    -------
    DataFrame
        Index `by` and `method`; columns `runs`, `mean_abs_error`, `p95_abs_error`,
        `max_abs_error` (fractions) and `coverage` (fraction of runs in the prediction's
        interval).
    """
    import pandas as pd

    several = comparison[(comparison["workers"] > 1) & ~comparison["fitted"]]
    keys = [*by, "method"]
    columns = ["runs", "mean_abs_error", "p95_abs_error", "max_abs_error", "coverage"]
    rows = []
    for key, group in several.groupby(keys, sort=False):
        error = group["error"].abs()
        coverage = group["covered"].astype("Float64").mean()
        rows.append(
            (
                *key,
                len(group),
                float(error.mean()),
                float(error.quantile(0.95)),
                float(error.max()),
                np.nan if pd.isna(coverage) else float(coverage),
            )
        )
    return pd.DataFrame(rows, columns=keys + columns).set_index(keys if by else "method")


def replay(
    profile: Profile,
    measured: pd.DataFrame,
    steps: pd.DataFrame,
    *,
    replications: int = 20,
    warm_up: int = 2,
    seed: int = 0,
) -> pd.DataFrame:
    """Simulate each measured run from the start times that it had, and from random ones.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    measured : DataFrame
        Runs of the job on one platform, from `load_measurements`.
    steps : DataFrame
        Their steps, from `load_steps`.
    replications : int
        Simulations per run and kind of start.
    warm_up : int
        Steps per worker that do not count, as in the measurements.
    seed : int
        Of the simulations.

    Returns
    -------
    DataFrame
        One row per run: `workers`, `servers`, `repeat`, `measured` (steps/s); `replayed`,
        `replayed_low`, `replayed_high` and `replay_error` from the run's own start times;
        `random`, `random_low`, `random_high` and `random_error` from random ones, and `covered`,
        whether the latter interval covers the run. Each simulation executes as many steps per
        worker as the run did.

    Raises
    ------
    InputError
        If the steps of a run are missing.
    """
    import pandas as pd

    rows = []
    for _, run in measured.iterrows():
        own = steps[np.logical_and.reduce([steps[column] == run[column] for column in RUN])]
        if own.empty:
            raise InputError("steps", "none", f"steps of the run {run[list(RUN)].to_dict()}")
        start, _ = steps_of_run(own)
        cluster = Cluster.like(profile, int(run["workers"]), int(run["parameter_servers"]))
        row = {
            "workers": int(run["workers"]),
            "servers": int(run["parameter_servers"]),
            "repeat": int(run["repeat"]),
            "measured": float(run["steps_per_s"]),
        }
        for kind, name, starts in (("replayed", "replay", start[:, 0]), ("random", "random", None)):
            mean, low, high = throughput_interval(
                replicate(
                    profile,
                    cluster,
                    replications,
                    steps=start.shape[1],
                    warm_up=warm_up,
                    starts=starts,
                    seed=seed,
                )
            )
            row |= {kind: mean, f"{kind}_low": low, f"{kind}_high": high}
            row[f"{name}_error"] = mean / row["measured"] - 1.0
        row["covered"] = row["random_low"] <= row["measured"] <= row["random_high"]
        rows.append(row)
    return pd.DataFrame(rows)


def replay_steps(profile: Profile, run: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Simulate one measured run from the start times that it had, step by step.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    run : DataFrame
        Steps of one run, from `load_steps`.
    seed : int
        Of the steps drawn.

    Returns
    -------
    DataFrame
        As `asgd_model.SimulationResult.to_frame`, with as many steps per worker as the run had.

    Raises
    ------
    InputError
        If the steps are not those of one run with one server or more.
    """
    runs = run[list(RUN)].drop_duplicates()
    if len(runs) != 1:
        raise InputError("replay_steps", f"steps of {len(runs)} runs", "steps of one run")
    start, _ = steps_of_run(run)
    cluster = Cluster.like(profile, len(start), int(runs["parameter_servers"].iloc[0]))
    return simulate(
        profile,
        cluster,
        steps=start.shape[1],
        starts=start[:, 0],
        stop_at_first=False,
        seed=seed,
    ).to_frame()


def _of_job(job: dict[str, Any], table: pd.DataFrame) -> pd.DataFrame:
    """The table with columns in front that say which job it is of."""
    import pandas as pd

    return pd.DataFrame(job, index=table.index).join(table)


def _fitted_sizes(method: str) -> tuple[int, ...]:
    return fitted_sizes(method) if method in BASELINES else ()
