"""Errors are predicted over measured, and a run is replayed from its own start times."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from asgd_model.accuracy import compare, compare_all, noise, predict_all, replay, summarize
from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.measurements import load_all_measurements
from asgd_model.profile import Calibration, Profile
from asgd_model.simulator import SimulationResult, simulate

NAN = float("nan")
DATA = Path(__file__).parents[1] / "data"
RENO, BBR = "cpu-0.15-300mbit-reno", "cpu-0.15-300mbit-bbr"


@pytest.fixture
def predictions() -> pd.DataFrame:
    """A method with an interval and one without, for one, two and four workers."""
    return pd.DataFrame(
        {
            "method": ["a", "a", "a", "b", "b", "b"],
            "workers": [1, 2, 4] * 2,
            "servers": 1,
            "steps_per_s": [1.0, 2.0, 3.0, 1.0, 2.0, 4.0],
            "steps_per_s_low": [0.9, 1.9, 2.5, NAN, NAN, NAN],
            "steps_per_s_high": [1.1, 2.1, 3.5, NAN, NAN, NAN],
        }
    )


@pytest.fixture
def measured() -> pd.DataFrame:
    """Two repeats with two workers, one run each with one, four and eight."""
    return pd.DataFrame(
        {
            "platform": "p",
            "dnn": "d",
            "batch_size": 8,
            "parameter_servers": 1,
            "workers": [1, 2, 2, 4, 8],
            "policy": "default",
            "repeat": [1, 1, 2, 1, 1],
            "steps_per_s": [0.5, 1.6, 2.0, 4.0, 5.0],
        }
    )


def test_compare(predictions: pd.DataFrame, measured: pd.DataFrame) -> None:
    """Each prediction meets each run of its size; sizes that only one side has are left out."""
    table = compare(predictions, measured)
    assert table["method"].tolist() == ["a"] * 4 + ["b"] * 4
    assert table["workers"].tolist() == [1, 2, 2, 4] * 2
    assert table["repeat"].tolist() == [1, 1, 2, 1] * 2
    assert table["measured"].tolist() == [0.5, 1.6, 2.0, 4.0] * 2
    assert table["predicted"].tolist() == [1, 2, 2, 3, 1, 2, 2, 4]
    assert table["error"].tolist() == pytest.approx([1, 0.25, 0, -0.25, 1, 0.25, 0, 0])
    assert table["covered"][:4].tolist() == [False, False, True, False]
    assert table["covered"][4:].isna().all()


def test_interval_includes_its_ends(predictions: pd.DataFrame, measured: pd.DataFrame) -> None:
    """A run at the very end of the interval is covered."""
    measured["steps_per_s"] = [0.9, 1.9, 2.1, 2.4999, 1.0]
    covered = compare(predictions, measured)["covered"]
    assert covered[:4].tolist() == [True, True, True, False]


def test_other_numbers_of_servers_are_not_compared(
    predictions: pd.DataFrame, measured: pd.DataFrame
) -> None:
    """A run on two servers says nothing about a prediction for one."""
    measured["parameter_servers"] = [1, 1, 2, 2, 1]
    assert compare(predictions, measured)["workers"].tolist() == [1, 2] * 2


def test_nothing_to_compare(predictions: pd.DataFrame, measured: pd.DataFrame) -> None:
    """An empty result would look like perfect agreement."""
    with pytest.raises(InputError) as caught:
        compare(predictions, measured[measured["workers"] == 8])
    assert str(caught.value) == "measured: found [8]; expected runs of [1, 2, 4] workers"


def test_summarize(predictions: pd.DataFrame, measured: pd.DataFrame) -> None:
    """One worker does not count: its throughput is what the methods start from."""
    table = summarize(compare(predictions, measured))
    assert table.index.tolist() == ["a", "b"]
    assert table["runs"].tolist() == [3, 3]
    assert table["mean_abs_error"].tolist() == pytest.approx([0.5 / 3, 0.25 / 3])
    assert table["p95_abs_error"].tolist() == pytest.approx([0.25, 0.225])
    assert table["max_abs_error"].tolist() == pytest.approx([0.25, 0.25])
    assert table["coverage"]["a"] == pytest.approx(1 / 3)
    assert np.isnan(table["coverage"]["b"])


def test_summarize_one_worker(predictions: pd.DataFrame, measured: pd.DataFrame) -> None:
    """No run of several workers: an empty table with the usual columns."""
    comparison = compare(predictions, measured[measured["workers"] == 1])
    table = summarize(comparison)
    assert len(table) == 0
    assert table.index.name == "method"
    assert "mean_abs_error" in table


def test_fitted_sizes_do_not_count(predictions: pd.DataFrame, measured: pd.DataFrame) -> None:
    """Ernest has seen one, two and four workers: its errors there say nothing."""
    curve = predictions.replace({"method": {"b": "ernest"}})
    more = curve.tail(1).assign(workers=8, steps_per_s=6.0)
    comparison = compare(pd.concat([curve, more]), measured)
    fitted = comparison.query("fitted")
    assert set(fitted["method"]) == {"ernest"}
    assert set(fitted["workers"]) == {1, 2, 4}
    table = summarize(comparison)
    assert table["runs"].to_dict() == {"a": 3, "ernest": 1}
    assert table["mean_abs_error"]["ernest"] == pytest.approx(0.2)


def test_summary_by_group(predictions: pd.DataFrame, measured: pd.DataFrame) -> None:
    """Each group's errors are its own."""
    comparison = compare(predictions, measured)
    worse = comparison.assign(dnn="worse", error=comparison["error"] - 0.5)
    both = pd.concat([comparison.assign(dnn="d"), worse])
    table = summarize(both, by=["dnn"])
    assert table.index.names == ["dnn", "method"]
    pd.testing.assert_frame_equal(table.loc["d"], summarize(comparison))
    assert table.loc[("worse", "a"), "mean_abs_error"] == pytest.approx(1.5 / 3)


# --- all runs -------------------------------------------------------------------------------


def test_noise(measured: pd.DataFrame) -> None:
    """Half the interval over the rate; largest over smallest repeat where there are several."""
    rate = measured["steps_per_s"]
    low, high = rate * [1.0, 0.9, 0.8, 1.0, 1.0], rate * [1.0, 1.1, 1.2, 1.0, 1.0]
    table = noise(measured.assign(steps_per_s_low=low, steps_per_s_high=high))
    assert table["repeat"].tolist() == measured["repeat"].tolist()
    assert table["interval"].tolist() == pytest.approx([0.0, 0.1, 0.2, 0.0, 0.0])
    assert table["spread"].tolist() == pytest.approx([NAN, 0.25, 0.25, NAN, NAN], nan_ok=True)


def test_all_runs_are_compared() -> None:
    """Every run of every platform has one row per method, with its own measurement."""
    measured = load_all_measurements(DATA)
    curves = predict_all(DATA, methods=["queueing", "ernest"], stand_ins={BBR: RENO})
    table = compare_all(curves, measured)
    for method in ("queueing", "ernest"):
        rows = table[table["method"] == method]
        keys = ["platform", "dnn", "batch_size", "workers", "repeat"]
        joined = rows.merge(measured, on=keys)
        assert len(rows) == len(joined) == len(measured)
        assert joined["measured"].tolist() == joined["steps_per_s"].tolist()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """A platform without profiles needs a stand-in; no measurements are no agreement."""
    with pytest.raises(InputError, match=re.escape(BBR)):
        predict_all(DATA, methods=["queueing"])
    with pytest.raises(InputError, match="files measurements/"):
        predict_all(tmp_path, methods=["queueing"])


# --- replay ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def constant(small: Profile) -> Profile:
    """A job whose steps are all alike, on links that are shared evenly."""
    known = small.metadata.model_copy(update={"calibration": Calibration()})
    rows = {name: getattr(small, name)[:1] for name in ("work", "start", "end")}
    return replace(small, metadata=known, **rows)


def as_measured(result: SimulationResult, repeat: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A simulated run, written down as a measured one."""
    run = {
        "platform": "p",
        "dnn": "d",
        "batch_size": result.batch_size,
        "parameter_servers": 1,
        "workers": result.num_workers,
        "policy": "default",
        "repeat": repeat,
    }
    measured = pd.DataFrame([{**run, "steps_per_s": result.steps_per_s}])
    return measured, result.to_frame().assign(**run)


def test_replay_repeats_the_run(constant: Profile) -> None:
    """Without chance, the same starts give the same run; other starts give other runs."""
    cluster = Cluster.like(constant, 2)
    together, apart = (
        as_measured(simulate(constant, cluster, steps=8, starts=starts), repeat)
        for repeat, starts in enumerate(([0.0, 0.0], [0.0, 4.8]), 1)
    )
    measured = pd.concat([together[0], apart[0]])
    steps = pd.concat([together[1], apart[1]])
    assert apart[0]["steps_per_s"][0] > 1.05 * together[0]["steps_per_s"][0]
    table = replay(constant, measured, steps, replications=8)
    assert table["workers"].tolist() == [2, 2]
    assert table["servers"].tolist() == [1, 1]
    assert table["repeat"].tolist() == [1, 2]
    assert table["measured"].tolist() == measured["steps_per_s"].tolist()
    assert table["replay_error"].tolist() == pytest.approx([0, 0], abs=1e-9)
    for end in ("replayed", "replayed_low", "replayed_high"):
        assert table[end].tolist() == pytest.approx(measured["steps_per_s"].tolist())
    assert (table["random_low"] < table["random_high"]).all()
    assert table["random"][0] == table["random"][1]
    for row in table.itertuples():
        assert row.random_error == pytest.approx(row.random / row.measured - 1.0)
        assert row.covered == (row.random_low <= row.measured <= row.random_high)


def test_replay_needs_the_steps(constant: Profile) -> None:
    """The error names the run whose steps are missing."""
    measured, steps = as_measured(simulate(constant, Cluster.like(constant, 2), steps=5), 1)
    with pytest.raises(InputError, match=r"steps: found none; expected steps of the run .*'rep"):
        replay(constant, measured.assign(repeat=2), steps)
