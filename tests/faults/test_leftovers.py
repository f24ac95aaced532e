"""What an attempt left that was killed does not get into the next one's result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from asgd_model.errors import InputError
from asgd_model.files import read_bytes
from asgd_model.profile import Calibration
from asgd_model.testbed import profiling
from asgd_model.testbed.platform import Link, NodeLimits, Platform
from asgd_model.testbed.run import Configuration, Measurement

LIMITS = NodeLimits(cores=0.2)
PLATFORM = Platform(name="fast", link=Link(rate=1e9), worker=LIMITS, server=LIMITS)


class ReadError(Exception):
    """Takes the place of a profile: which files would have been read."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.names = [path.name for path in paths]


def test_traces_of_an_earlier_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile is made of the traces of one run, also where traces are kept."""
    folder = tmp_path / "worker0"
    folder.mkdir()
    for index in range(3):
        (folder / f"run_metadata_{index:02}.pb.gz").write_bytes(b"old")

    def measure(run: Configuration, traces: Path) -> Measurement:
        (traces / "worker0" / "run_metadata_00.pb.gz").write_bytes(b"new")
        row = {"framework": "TensorFlow", "date": "2026-01-31", "machine_speed": 1.0}
        return Measurement(row, pd.DataFrame())

    def read(paths: Sequence[Path], metadata: Any) -> None:
        raise ReadError(paths)

    monkeypatch.setattr(profiling, "read_run_metadata", read)
    job: Any = SimpleNamespace(platform=PLATFORM, measure=measure)
    calibration: Any = SimpleNamespace(links=SimpleNamespace(rate=1e9), calibration=Calibration())
    configuration = Configuration(dnn="alexnet", batch_size=1, workers=1)
    with pytest.raises(ReadError) as caught:
        profiling.measure_profile(job, configuration, calibration, tmp_path)
    assert caught.value.names == ["run_metadata_00.pb.gz"]


def test_a_file_that_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen and then gone, a file is an error of the input, not of the program."""
    path = tmp_path / "a"
    path.write_bytes(b"content")
    is_file = Path.is_file

    def vanish(self: Path) -> bool:
        found = is_file(self)
        self.unlink()
        return found

    monkeypatch.setattr(Path, "is_file", vanish)
    with pytest.raises(InputError, match="No such file or directory; expected a readable file"):
        read_bytes(path)
