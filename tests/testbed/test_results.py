"""Files that grow run by run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from asgd_model.errors import InputError
from asgd_model.measurements import load_measurements, load_steps
from asgd_model.testbed.results import Results
from asgd_model.testbed.run import Measurement


def measurement(workers: int, repeat: int = 1, rate: float = 1.0, dnn: str = "tiny") -> Measurement:
    """A run of `workers` workers that each ended one step."""
    row = {
        "platform": "desk",
        "dnn": dnn,
        "batch_size": 4,
        "parameter_servers": 1,
        "workers": workers,
        "policy": "default",
        "repeat": repeat,
        "steps_per_s": rate,
        "steps_per_s_low": 0.9 * rate,
        "steps_per_s_high": 1.1 * rate,
        "examples_per_s": 4.0 * rate,
        "foreign_load": 0.0,
    }
    steps = pd.DataFrame(
        {"worker": range(workers), "step": 0, "start": 0.0, "end": 1.0 / rate, "traced": False}
    )
    return Measurement(row, steps)


def test_runs_are_kept_in_order_and_found(tmp_path: Path) -> None:
    """Both tables hold what was added, sorted by run whatever the order of adding."""
    results = Results(tmp_path, "desk")
    assert results.find({"dnn": "tiny"}) == []
    for workers, repeat in ((2, 2), (1, 1), (2, 1)):
        results.add(measurement(workers, repeat))
    runs = load_measurements(tmp_path / "measurements" / "desk.csv")
    assert list(zip(runs.workers, runs.repeat, strict=True)) == [(1, 1), (2, 1), (2, 2)]
    steps = load_steps(tmp_path / "measurements" / "desk.steps.csv.gz")
    assert len(steps) == 5
    assert [row["repeat"] for row in results.find({"workers": 2})] == [1, 2]
    assert results.find({"workers": 3}) == []


def test_a_run_replaces_its_predecessor(tmp_path: Path) -> None:
    """Measured again, a run is there once, with its steps."""
    results = Results(tmp_path, "desk")
    results.add(measurement(1))
    results.add(measurement(2))
    results.add(measurement(1, rate=2.0))
    assert [row["steps_per_s"] for row in results.find({})] == [2.0, 1.0]
    steps = load_steps(tmp_path / "measurements" / "desk.steps.csv.gz")
    assert steps.query("workers == 1").end.tolist() == [0.5]


def test_steps_without_their_run_are_replaced(tmp_path: Path) -> None:
    """A run's row is written last: killed before, it counts as not done and can be added."""
    results = Results(tmp_path, "desk")
    results.add(measurement(1))
    (tmp_path / "measurements" / "desk.csv").unlink()
    assert results.find({}) == []
    results.add(measurement(1, rate=2.0))
    steps = load_steps(tmp_path / "measurements" / "desk.steps.csv.gz")
    assert steps.end.tolist() == [0.5]


def test_some_runs_are_removed(tmp_path: Path) -> None:
    """Only those that match go; the last one takes the files with it."""
    results = Results(tmp_path, "desk")
    results.add(measurement(1))
    results.add(measurement(1, dnn="other"))
    results.remove({"dnn": "other"})
    assert [row["dnn"] for row in results.find({})] == ["tiny"]
    results.remove({})
    assert list((tmp_path / "measurements").iterdir()) == []


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    """Nothing is overwritten that cannot be read."""
    results = Results(tmp_path, "desk")
    results.add(measurement(1))
    path = tmp_path / "measurements" / "desk.csv"
    content = path.read_bytes()[:-20]
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"desk\.csv"):
        results.add(measurement(2))
    assert path.read_bytes() == content
