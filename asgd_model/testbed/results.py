"""The folder that measurements are written to, and how it grows run by run.

It has the layout of the project's ``data``: ``measurements/<platform>.csv`` with a row per run
and ``measurements/<platform>.steps.csv.gz`` with a row per step, ``profiles/<platform>/``,
``calibrations/<platform>.json``, and ``raw/`` for traces that are kept and for frames of packet
captures. Every file is replaced as a whole. A run is there once its row is, which is written last.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asgd_model.files import write_bytes
from asgd_model.measurements import RUN, load_measurements, load_steps
from asgd_model.testbed.run import Configuration, Measurement

if TYPE_CHECKING:
    import pandas as pd


class Results:
    """The results of one platform.

    Parameters
    ----------
    folder : Path
        Where results of all platforms are; made when needed.
    platform : str
        Name of the platform.
    """

    def __init__(self, folder: Path, platform: str) -> None:
        self.folder = folder
        self.platform = platform
        self.calibration = folder / "calibrations" / f"{platform}.json"
        self.logs = folder / "logs"
        self._runs = folder / "measurements" / f"{platform}.csv"
        self._steps = folder / "measurements" / f"{platform}.steps.csv.gz"

    def profile(self, configuration: Configuration) -> Path:
        """Where the profile of a configuration's job belongs."""
        return self.folder / "profiles" / self.platform / f"{_job(configuration)}.profile.json.gz"

    def traces(self, configuration: Configuration) -> Path:
        """Where traces of a configuration belong that are kept."""
        name = f"{_job(configuration)}_w{configuration.workers}"
        return self.folder / "raw" / self.platform / name

    def frames(self, configuration: Configuration) -> Path:
        """Where the frames of a configuration's packet capture belong."""
        traces = self.traces(configuration)
        return traces.with_name(f"{traces.name}.frames.csv.gz")

    def runs(self) -> pd.DataFrame | None:
        """All runs so far; None if there is none.

        Raises
        ------
        InputError
            If the table is damaged.
        """
        return load_measurements(self._runs) if self._runs.exists() else None

    def find(self, key: Mapping[str, str | int]) -> list[dict[Any, Any]]:
        """Rows of the runs with these values in some of the columns `RUN`."""
        runs = self.runs()
        if runs is None:
            return []
        return [dict(row) for _, row in runs[_matches(runs, key)].iterrows()]

    def add(self, measurement: Measurement) -> None:
        """Add a run, in place of an earlier one of the same configuration."""
        import pandas as pd

        key = {column: measurement.row[column] for column in RUN}
        self.remove(key)
        steps = measurement.steps.drop(columns="traced").assign(**key)
        steps = steps[[*RUN, *(column for column in steps if column not in RUN)]]
        row = pd.DataFrame([measurement.row])
        for path, old, new in (
            (self._steps, load_steps(self._steps) if self._steps.exists() else None, steps),
            (self._runs, self.runs(), row),
        ):
            _write(path, new if old is None else pd.concat([old, new]))

    def remove(self, key: Mapping[str, str | int]) -> None:
        """Remove all runs with these values in some of the columns `RUN`."""
        for path, load in ((self._runs, load_measurements), (self._steps, load_steps)):
            if path.exists():
                table = load(path)
                kept = table[~_matches(table, key)]
                if kept.empty:
                    path.unlink()
                elif len(kept) < len(table):
                    _write(path, kept)


def _job(configuration: Configuration) -> str:
    """Name of a job, whatever its number of workers."""
    name = f"{configuration.dnn}_b{configuration.batch_size}"
    if configuration.servers > 1:
        name += f"_p{configuration.servers}"
    if configuration.policy != "default":
        name += f"_{configuration.policy}"
    return name


def _matches(table: pd.DataFrame, key: Mapping[str, str | int]) -> pd.Series[bool]:
    import pandas as pd

    matching = pd.Series(True, index=table.index)
    for column, value in key.items():
        matching &= table[column] == value
    return matching


def _write(path: Path, table: pd.DataFrame) -> None:
    ordered = table.sort_values([c for c in (*RUN, "worker", "step") if c in table])
    buffer = io.BytesIO()
    compression = {"method": "gzip", "mtime": 0} if path.suffix == ".gz" else None
    ordered.to_csv(buffer, index=False, lineterminator="\n", compression=compression)
    write_bytes(path, buffer.getvalue())
