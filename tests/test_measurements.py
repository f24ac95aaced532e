"""Measured runs are read with care; throughput and its interval are what they say."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from asgd_model.errors import InputError
from asgd_model.measurements import (
    load_measurements,
    load_steps,
    measurement_window,
    run_throughput,
    step_time_correlation,
    steps_of_run,
)

NAN = float("nan")
RUNS = (
    "platform,dnn,batch_size,parameter_servers,workers,policy,repeat,"
    "steps_per_s,steps_per_s_low,steps_per_s_high,examples_per_s,note\n"
)
RUN = "fast,007,8,1,2,default,1,2.0,1.5,2.5,16,any\n"
STEPS = "platform,dnn,batch_size,parameter_servers,workers,policy,repeat,worker,step,start,end\n"
STEP = "fast,007,8,1,2,default,1,0,0,0.0,1.5\n"

Loader = Callable[[Path], pd.DataFrame]


def refusal(load: Loader, path: Path, content: bytes) -> str:
    """The message with which a file is refused, without the path that it begins with."""
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_runs_are_read(tmp_path: Path, compress: Any) -> None:
    """Names stay text, numbers become numbers, other columns are kept."""
    path = tmp_path / "runs.csv"
    path.write_bytes(compress((RUNS + RUN + RUN.replace("default,1", "default,2")).encode()))
    table = load_measurements(path)
    assert table["dnn"].tolist() == ["007", "007"]
    assert table["workers"].tolist() == [2, 2]
    assert table["repeat"].tolist() == [1, 2]
    assert table["steps_per_s_low"].tolist() == [1.5, 1.5]
    assert table["note"].tolist() == ["any", "any"]


def test_steps_are_read(tmp_path: Path) -> None:
    """One row per step."""
    path = tmp_path / "steps.csv"
    path.write_text(STEPS + STEP + STEP.replace("1,0,0,0.0,1.5", "1,1,0,0.25,2.0"))
    table = load_steps(path)
    assert table["worker"].tolist() == [0, 1]
    assert table["start"].tolist() == [0.0, 0.25]
    assert table["end"].tolist() == [1.5, 2.0]


@pytest.mark.parametrize("load", [load_measurements, load_steps])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found an empty file; expected content"),
        (b"\n\n", "found No columns to parse from file; expected a CSV table"),
        (b"some text", "found ['some text']; expected also the columns platform, dnn, batch_size"),
        (b"platform,dnn\na,b\n", "found ['platform', 'dnn']; expected also the columns batch_size"),
        (b"a,b\n1,2\n1,2,3\n", "found Error tokenizing data."),
        (b"platform\n\xe9\n", "found 'utf-8' codec can't decode byte 0xe9"),
        (gzip.compress(RUNS.encode())[:40], "found damaged gzip data"),
    ],
    ids=["empty", "blank", "text", "columns", "ragged", "latin-1", "truncated"],
)
def test_what_is_no_table(tmp_path: Path, load: Loader, content: bytes, message: str) -> None:
    """The file is named, and what is wrong with it."""
    found = refusal(load, tmp_path / "a.csv", content)
    assert found.startswith(message)
    assert "; expected " in found


@pytest.mark.parametrize("load", [load_measurements, load_steps])
def test_tables_without_rows(tmp_path: Path, load: Loader) -> None:
    """A heading alone is no measurement."""
    header = RUNS if load is load_measurements else STEPS
    message = refusal(load, tmp_path / "a.csv", header.encode())
    assert message == "found no rows; expected at least one row"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",2.0,", ",-2.0,", "column steps_per_s, line 3: found -2.0; expected above 0"),
        (",2.0,", ",0,", "column steps_per_s, line 3: found 0.0; expected above 0"),
        (",2.0,", ",,", "column steps_per_s, line 3: found nan; expected above 0"),
        (",2.0,", ",inf,", "column steps_per_s, line 3: found inf; expected above 0"),
        (",2.0,", ",fast,", "column steps_per_s, line 3: found fast; expected a number"),
        (",2.0,", ",True,", "column steps_per_s, line 3: found True; expected a number"),
        (",1.5,", ",2.1,", "column steps_per_s_low, line 3: found 2.1; expected at most steps"),
        (",2.5,", ",1.9,", "column steps_per_s_high, line 3: found 1.9; expected at least steps"),
        (",1,2,", ",1,0,", "column workers, line 3: found 0; expected an integer of at least 1"),
        (",1,2,", ",0,2,", "column parameter_servers, line 3: found 0; expected an integer"),
        (",1,2,", ",1,-2,", "column workers, line 3: found -2; expected an integer of at least 1"),
        (",1,2,", ",1,2.5,", "column workers, line 3: found 2.5; expected an integer of at least"),
        (",1,2,", ",1,,", "column workers, line 3: found nan; expected an integer of at least 1"),
        (",1,2,", ",1,two,", "column workers, line 3: found two; expected a number"),
        ("007", "", "column dnn, line 3: found nan; expected a name"),
        ("default,2", "default,1", "line 3: found a run twice; expected one row per run"),
    ],
)
def test_bad_runs(tmp_path: Path, old: str, new: str, message: str) -> None:
    """The cell is named by its column and its line in the file."""
    second = RUN.replace("default,1", "default,2")
    assert old in second
    content = RUNS + RUN + second.replace(old, new)
    assert refusal(load_measurements, tmp_path / "a.csv", content.encode()).startswith(message)


@pytest.mark.parametrize("value", ["True", "1j", "0x10"])
def test_column_without_any_number(tmp_path: Path, value: str) -> None:
    """Booleans are no counts, also where a whole column holds nothing else."""
    message = refusal(
        load_measurements,
        tmp_path / "a.csv",
        (RUNS + RUN.replace(",1,2,", f",1,{value},")).encode(),
    )
    assert message == f"column workers, line 2: found {value}; expected a number"


def test_integers_of_any_length(tmp_path: Path) -> None:
    """A rate with more digits than 64 bits hold is a number like any other."""
    path = tmp_path / "a.csv"
    path.write_text(RUNS + RUN.replace("2.0,1.5,2.5", f"{10**30},1,{10**40}"))
    assert load_measurements(path)["steps_per_s"].tolist() == [1e30]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0,0,0.0,1.5", "0,0,0.0,0.0", "column end, line 2: found 0.0; expected a time after the"),
        ("0,0,0.0,1.5", "0,0,0.0,", "column end, line 2: found nan; expected a time after the"),
        ("0,0,0.0,1.5", "0,0,0.0,inf", "column end, line 2: found inf; expected a time after the"),
        ("0,0,0.0,1.5", "0,0,-1.0,1.5", "column start, line 2: found -1.0; expected 0 or more"),
        ("0,0,0.0,1.5", "-1,0,0.0,1.5", "column worker, line 2: found -1; expected 0 or more"),
        ("0,0,0.0,1.5", "0,x,0.0,1.5", "column step, line 2: found x; expected a number"),
    ],
)
def test_bad_steps(tmp_path: Path, old: str, new: str, message: str) -> None:
    """A step has a worker, a number, and an end after its start."""
    content = (STEPS + STEP.replace(old, new)).encode()
    assert refusal(load_steps, tmp_path / "a.csv", content).startswith(message)


def test_a_step_counts_once(tmp_path: Path) -> None:
    """The same step of the same worker and run in two rows would count twice."""
    content = STEPS + STEP + STEP.replace("1,0,0,0.0", "2,0,0,0.0") + STEP
    message = refusal(load_steps, tmp_path / "a.csv", content.encode())
    assert message == "line 4: found a step twice; expected one row per step"


# --- throughput -----------------------------------------------------------------------------


def test_steps_of_run() -> None:
    """Workers by row, steps by column, in any order of the rows; NaN where a worker has none."""
    table = pd.DataFrame(
        {
            "worker": [1, 0, 0],
            "step": [0, 1, 0],
            "start": [0.5, 2.0, 0.0],
            "end": [3.5, 4.0, 2.0],
        }
    )
    start, end = steps_of_run(table)
    np.testing.assert_array_equal(start, [[0.0, 2.0], [0.5, NAN]])
    np.testing.assert_array_equal(end, [[2.0, 4.0], [3.5, NAN]])


def run_of(times: dict[int, list[float]]) -> pd.DataFrame:
    """Steps of a run by the workers' step times."""
    rows = [
        (worker, step, 0.0, time) for worker in times for step, time in enumerate(times[worker])
    ]
    return pd.DataFrame(rows, columns=["worker", "step", "start", "end"])


def test_correlation_of_step_times() -> None:
    """1 for workers that slow down together, -1 for those that take turns; the mean over pairs."""
    assert step_time_correlation(run_of({0: [1, 2, 3], 1: [2, 4, 6]})) == pytest.approx(1)
    assert step_time_correlation(run_of({0: [1, 2, 1, 2], 1: [2, 1, 2, 1]})) == pytest.approx(-1)
    three = {0: [1, 2, 1, 2], 1: [2, 1, 2, 1], 2: [1, 2, 1, 2]}
    assert step_time_correlation(run_of(three)) == pytest.approx(-1 / 3)


def test_correlation_of_runs_of_different_length() -> None:
    """A run ends with its first worker: the steps that a pair has in common count."""
    longer = {0: [1, 2, 1, 2, 9], 1: [2, 1, 2, 1], 2: [1, 2, 1]}
    assert step_time_correlation(run_of(longer)) == pytest.approx(-1 / 3)


def test_correlation_needs_steps_that_vary() -> None:
    """Workers whose steps all take the same time are left out of the mean, or are an error."""
    steady = {0: [1, 2, 3], 1: [2, 4, 6], 2: [5, 5, 5]}
    assert step_time_correlation(run_of(steady)) == pytest.approx(1)
    for times in ({0: [1, 2, 3]}, {0: [1, 2], 1: [5, 5]}, {0: [1, 2], 1: [3]}):
        with pytest.raises(InputError, match=f"step_time_correlation: found {len(times)} workers"):
            step_time_correlation(run_of(times))


START = np.array([[0.0, 2.0, 4.0, 6.0, 8.0], [1.0, 4.0, 7.0, 10.0, NAN]])
END = np.array([[2.0, 4.0, 6.0, 8.0, 10.0], [4.0, 7.0, 10.0, 13.0, NAN]])
"""A worker with steps of 2 s from 0 s, and one with steps of 3 s from 1 s that is cut off."""


@pytest.mark.parametrize(
    ("warm_up", "window"), [(0, (1.0, 10.0)), (1, (4.0, 10.0)), (2, (7.0, 10.0))]
)
def test_measurement_window(warm_up: int, window: tuple[float, float]) -> None:
    """From when both have ended the warm-up to when the first has ended all that it does."""
    assert measurement_window(START, END, warm_up) == window


@pytest.mark.parametrize("warm_up", [-1, 3, 4, 5, 6])
def test_no_window(warm_up: int) -> None:
    """The slower worker's third step ends with the other's last: nothing is left to count."""
    with pytest.raises(InputError) as caught:
        measurement_window(START, END, warm_up)
    where = "measurement_window: warm_up"
    assert str(caught.value).startswith(f"{where}: found {warm_up} steps; expected fewer, so that")


def test_no_window_without_steps() -> None:
    """A run in which a worker never got through, or none got to its end."""
    stuck = END.copy()
    stuck[1] = NAN
    for end in (stuck, np.full_like(END, NAN)):
        with pytest.raises(InputError, match="measurement_window: warm_up: found 1 steps"):
            measurement_window(START, end, 1)


def test_throughput_by_hand() -> None:
    """Steps of 2 s and of 3 s, wherever the window cuts them, and no variance."""
    for warm_up in (0, 1, 2):
        assert run_throughput(START, END, warm_up) == pytest.approx((1 / 2 + 1 / 3,) * 3)


def test_throughput_of_a_worker_without_a_step_in_the_window() -> None:
    """A step that ended when the window opens is the best that is known of a slow worker."""
    start = np.array([[0.0, 1.0, 2.0], [0.0, 2.5, NAN]])
    end = np.array([[1.0, 2.0, 3.0], [2.5, 9.0, NAN]])
    assert run_throughput(start, end, warm_up=1)[0] == pytest.approx(1.0 + 1 / 2.5)


def test_interval_by_hand() -> None:
    """Steps of 1, 3, 1, 3 s: mean 2, variance 4/3; over 8 s the variance is 4/3 / 2**3 / 8."""
    end = np.array([[1.0, 2.0, 5.0, 6.0, 9.0]])
    start = np.array([[0.0, 1.0, 2.0, 5.0, 6.0]])
    rate, low, high = run_throughput(start, end, warm_up=1)
    assert rate == 0.5
    assert high - rate == pytest.approx(1.96 * np.sqrt(4 / 3 / 8 / 8))
    assert rate - low == pytest.approx(high - rate)


def renewal_run(
    rng: np.random.Generator, workers: int, steps: int, shape: float
) -> tuple[np.ndarray, np.ndarray]:
    """Workers whose steps of mean 1 s are independent and gamma-distributed.

    The run ends with the first worker that has ended all of its steps, as a measured one does.
    """
    times = rng.gamma(shape, 1.0 / shape, size=(workers, steps))
    end = np.cumsum(times, axis=1) + rng.uniform(0.0, 1.0, size=(workers, 1))
    start = end - times
    end[end > end[:, -1].min()] = NAN
    return start, end


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("shape", [1.0, 4.0, 50.0])
def test_interval_covers_the_rate(workers: int, shape: float) -> None:
    """In 95 % of runs, from steps as variable as a Poisson process's to nearly constant ones.

    With 1000 runs, four standard errors of the share are 2.8 %; a further 1.5 % is for what the
    normal approximation of a run of 100 steps is off.
    """
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        _, low, high = run_throughput(*renewal_run(rng, workers, 102, shape))
        covered += low <= workers <= high
    assert covered / 1000 == pytest.approx(0.95, abs=0.043)
