"""Measured throughput: the runs of a platform, and the steps of a run.

A platform has two files in ``data/measurements``: ``<platform>.csv`` with a row per run and
``<platform>.steps.csv.gz`` with a row per step of each worker. `RUN` columns identify a run.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asgd_model.errors import InputError
from asgd_model.files import read_bytes

if TYPE_CHECKING:
    import pandas as pd

RUN = ("platform", "dnn", "batch_size", "parameter_servers", "workers", "policy", "repeat")
"""Columns that identify a run."""

JOB = ("platform", "dnn", "batch_size")
"""Columns that identify a job."""

MAX_CSV_BYTES = 1 << 26
"""Largest table that is read, in bytes after decompression."""

MAX_COLUMNS = 1000

_TEXT = ("platform", "dnn", "policy")
_COUNTS = ("batch_size", "parameter_servers", "workers", "repeat")
_RATES = ("steps_per_s", "steps_per_s_low", "steps_per_s_high", "examples_per_s")


def load_measurements(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read the runs of a platform.

    Parameters
    ----------
    path : path-like
        CSV file with a row per run: the columns `RUN`, `steps_per_s` with its 95 % interval
        `steps_per_s_low` to `steps_per_s_high`, `examples_per_s`, and others.

    Raises
    ------
    InputError
        If the file is not such a table, naming column, row and value.
    """
    table = _read_table(path, RUN + _RATES)
    for column in _RATES:
        _require(path, table, column, np.isfinite(table[column]) & (table[column] > 0), "above 0")
    rate = table["steps_per_s"]
    below, above = table["steps_per_s_low"] <= rate, table["steps_per_s_high"] >= rate
    _require(path, table, "steps_per_s_low", below, "at most steps_per_s")
    _require(path, table, "steps_per_s_high", above, "at least steps_per_s")
    _require_once(path, table, RUN, "run")
    return table


def load_all_measurements(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Read the runs of all platforms of a data folder.

    Parameters
    ----------
    folder : path-like
        With ``measurements/<platform>.csv``.

    Raises
    ------
    InputError
        If there is no such file, or one is not a table of runs.
    """
    import pandas as pd

    paths = sorted((Path(folder) / "measurements").glob("*.csv"))
    if not paths:
        raise InputError(os.fspath(folder), "none", "files measurements/<platform>.csv")
    return pd.concat([load_measurements(path) for path in paths], ignore_index=True)


def load_steps(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read the steps of all runs of a platform.

    Parameters
    ----------
    path : path-like
        CSV file, plain or gzip, with the columns `RUN`, `worker`, `step`, `start`, `end`
        (seconds from the first step of the run).

    Raises
    ------
    InputError
        If the file is not such a table, naming column, row and value.
    """
    table = _read_table(path, (*RUN, "worker", "step", "start", "end"))
    for column in ("worker", "step", "start"):
        right = np.isfinite(table[column]) & (table[column] >= 0)
        _require(path, table, column, right, "0 or more")
    for column in ("worker", "step"):
        _require(path, table, column, table[column] % 1 == 0, "a whole number")
    later = np.isfinite(table["end"]) & (table["end"] > table["start"])
    _require(path, table, "end", later, "a time after the start")
    _require_once(path, table, (*RUN, "worker", "step"), "step")
    return table


def steps_of_run(steps: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each step of one run.

    Parameters
    ----------
    steps : DataFrame
        Rows of `load_steps` that belong to one run.

    Returns
    -------
    start, end : ndarray of float64, shape (workers, steps)
        Seconds; NaN where a worker executed fewer steps.
    """
    table = steps.pivot(index="worker", columns="step", values=["start", "end"])
    start, end = (table[column].to_numpy(dtype=np.float64) for column in ("start", "end"))
    return start, end


def steps_per_worker(steps: pd.DataFrame) -> dict[int, int]:
    """How many steps the fastest worker executed, for each number of workers.

    Parameters
    ----------
    steps : DataFrame
        Rows of `load_steps` of one job.

    Returns
    -------
    dict of int to int
        Steps by number of workers, the largest of all repeats.
    """
    executed = steps.groupby("workers")["step"].max() + 1
    return dict(zip(executed.index.tolist(), executed.tolist(), strict=True))


def measurement_window(
    start: NDArray[np.float64], end: NDArray[np.float64], warm_up: int
) -> tuple[float, float]:
    """Interval of a run in which throughput is counted.

    From when every worker has ended `warm_up` steps to when the first worker has ended all of
    its own: in between all workers are at work.

    Parameters
    ----------
    start, end : ndarray of float64, shape (workers, steps)
        Seconds at which each step began and ended; NaN for steps not reached.
    warm_up : int
        Steps per worker that do not count.

    Returns
    -------
    first, last : float
        Seconds.

    Raises
    ------
    InputError
        If no time is left between the two.
    """
    finished = end[~np.isnan(end[:, -1]), -1]
    if 0 <= warm_up < end.shape[1] and len(finished):
        first = end[:, warm_up - 1].max() if warm_up > 0 else start[:, 0].max()
        if first < finished.min():
            return float(first), float(finished.min())
    expected = "fewer, so that all workers have ended them before the first one has ended all"
    raise InputError("measurement_window", f"{warm_up} steps", expected, field="warm_up")


def run_throughput(
    start: NDArray[np.float64], end: NDArray[np.float64], warm_up: int = 2
) -> tuple[float, float, float]:
    """Throughput of a run and its 95 % interval.

    The sum of the workers' own throughputs: each counts its steps in the window over the time
    from the end of the step before the first of them to the end of the last. Counting the steps
    of all workers over the whole window would depend on where its ends cut their steps.

    Each worker's steps are taken for a renewal process: over a time of T seconds the number
    of steps of mean m and variance v has the variance v T / m^3 (Cox, Renewal Theory, 1962,
    section 3.3). The interval is that of the run's own mean: how a repetition may differ
    because its workers start otherwise is not in it.

    Parameters
    ----------
    start, end : ndarray of float64, shape (workers, steps)
        Seconds at which each step began and ended.
    warm_up : int
        Steps per worker that do not count.

    Returns
    -------
    throughput, low, high : float
        Steps/s of all workers together.

    Raises
    ------
    InputError
        As `measurement_window`.
    """
    first, last = measurement_window(start, end, warm_up)
    throughput = variance = 0.0
    for own_start, own_end in zip(start, end, strict=True):
        counted = np.flatnonzero((own_end > first) & (own_end <= last))
        if len(counted) == 0:  # a worker so slow that the step before the window must do
            counted = np.flatnonzero(own_end <= last)[-1:]
        if len(counted) == 0:
            continue
        length = own_end[counted[-1]] - own_start[counted[0]]
        throughput += len(counted) / length
        if len(counted) > 1:
            times = (own_end - own_start)[counted]
            variance += times.var(ddof=1) / times.mean() ** 3 / length
    margin = 1.96 * np.sqrt(variance)
    return float(throughput), float(throughput - margin), float(throughput + margin)


def step_time_correlation(steps: pd.DataFrame) -> float:
    """How much the workers of a run slow down and speed up together.

    Parameters
    ----------
    steps : DataFrame
        Rows of `load_steps` that belong to one run of two workers or more.

    Returns
    -------
    float
        Correlation of the times of the k-th steps of two workers, mean over pairs. A pair counts
        with the steps that both executed; one whose step times do not vary does not count.

    Raises
    ------
    InputError
        If there is no pair whose step times vary.
    """
    import pandas as pd

    start, end = steps_of_run(steps)
    correlation = pd.DataFrame((end - start).T).corr().to_numpy()
    pairs = correlation[np.triu_indices(len(start), k=1)]
    known = pairs[~np.isnan(pairs)]
    if len(known) == 0:
        expected = "two workers with the same steps, of varying length"
        raise InputError("step_time_correlation", f"{len(start)} workers", expected)
    return float(known.mean())


def _read_table(path: str | os.PathLike[str], columns: tuple[str, ...]) -> pd.DataFrame:
    import pandas as pd

    where = os.fspath(path)
    content = read_bytes(path, MAX_CSV_BYTES)
    try:
        text = content.decode("utf-8-sig")
        _check_heading(where, text)
        table = pd.read_csv(io.StringIO(text), dtype=dict.fromkeys(_TEXT, str), low_memory=False)
    except (
        pd.errors.ParserError,
        pd.errors.EmptyDataError,
        UnicodeDecodeError,
        csv.Error,
    ) as error:
        raise InputError(where, str(error).strip(), "a CSV table in UTF-8") from error
    except InputError:
        raise
    except (ValueError, OverflowError) as error:
        raise InputError(where, str(error), "a CSV table") from error
    missing = [column for column in columns if column not in table]
    if missing:
        raise InputError(where, list(table.columns), f"also the columns {', '.join(missing)}")
    if table.empty:
        raise InputError(where, "no rows", "at least one row")
    for column in columns:
        if column in _TEXT:
            _require(path, table, column, table[column].notna(), "a name")
        elif table[column].dtype.kind not in "iuf":  # text, or integers of more than 64 bits
            numbers = pd.to_numeric(table[column].astype(str), errors="coerce")
            _require(path, table, column, numbers.notna(), "a number")
            table[column] = numbers
        if column in _COUNTS:
            whole = table[column].notna() & (table[column] >= 1) & (table[column] % 1 == 0)
            _require(path, table, column, whole, "an integer of at least 1")
    return table


def _check_heading(where: str, text: str) -> None:
    """Refuse what pandas would make the best of: it renames columns and takes some for an index."""
    records = (record for record in csv.reader(io.StringIO(text, newline="")) if record)
    heading, *first_row = [*islice(records, 2)] or [[]]
    if len(heading) > MAX_COLUMNS:
        raise InputError(where, f"{len(heading)} columns", f"at most {MAX_COLUMNS}")
    for name, times in Counter(heading).items():
        if times > 1:
            raise InputError(where, f"the column {name} {times} times", "each column once")
    if first_row and len(first_row[0]) > len(heading):
        found, expected = f"{len(first_row[0])} values", f"{len(heading)}, one for each column"
        raise InputError(where, found, expected, "line 2")


def _require(
    path: str | os.PathLike[str], table: pd.DataFrame, column: str, right: pd.Series, expected: str
) -> None:
    if not right.all():
        row = int(np.flatnonzero(~right.to_numpy())[0])
        found = table[column].iloc[row]
        raise InputError(os.fspath(path), found, expected, f"column {column}, line {row + 2}")


def _require_once(
    path: str | os.PathLike[str], table: pd.DataFrame, columns: tuple[str, ...], what: str
) -> None:
    repeated = table.duplicated(list(columns)).to_numpy()
    if repeated.any():
        line = int(np.flatnonzero(repeated)[0]) + 2
        raise InputError(os.fspath(path), f"a {what} twice", f"one row per {what}", f"line {line}")
