"""Every reader of outside input as a function of a file's content.

A reader returns something or raises `InputError`; all else is a defect. The readers are what the
fuzz tests and `fuzz.py` call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from asgd_model.chrome_timeline import read_chrome_timeline
from asgd_model.errors import InputError
from asgd_model.files import read_json
from asgd_model.measurements import load_measurements, load_steps
from asgd_model.pipeline import load_pipeline
from asgd_model.profile import Metadata, load_profile
from asgd_model.tensorflow_trace import read_run_metadata
from asgd_model.testbed.calibration import load_calibration
from asgd_model.testbed.campaign import load_campaign
from asgd_model.testbed.platform import load_platform

METADATA = Metadata(dnn="fuzzed", batch_size=1, link_rate=1e9)
CORPUS = Path(__file__).parent / "corpus"
PLATFORM = "{name: fast, link: {rate: 1.0e+9}, worker: {cores: 0.2}, server: {cores: 0.3}}"


class Reader(NamedTuple):
    """A reader and the file name under which it gets the content."""

    read: Callable[[Path], Any]
    name: str


READERS = {
    "profile": Reader(load_profile, "a.profile.json.gz"),
    "run_metadata": Reader(lambda path: read_run_metadata([path], METADATA), "a.pb.gz"),
    "timeline": Reader(lambda path: read_chrome_timeline([path], METADATA), "a.json"),
    "json": Reader(read_json, "a.json"),
    "calibration": Reader(load_calibration, "a.json"),
    "measurements": Reader(load_measurements, "a.csv"),
    "steps": Reader(load_steps, "a.csv"),
    "platform": Reader(load_platform, "a.yaml"),
    "campaign": Reader(load_campaign, "campaigns/a.yaml"),
    "pipeline": Reader(load_pipeline, "notebooks/a.yaml"),
}


def project(folder: Path) -> Path:
    """Make what pipelines and campaigns refer to, and links that lead out and in a circle."""
    notebooks = folder / "notebooks"
    notebooks.mkdir()
    (notebooks / "a.ipynb").write_text('{"cells": []}')
    (notebooks / "out.ipynb").symlink_to("/dev/null")
    (notebooks / "circle.ipynb").symlink_to("circle.ipynb")
    (folder / "data").mkdir()
    (folder / "fast.yaml").write_text(PLATFORM)
    (folder / "circle.yaml").symlink_to("circle.yaml")
    (folder / "campaigns").mkdir()
    return folder


def read(reader: str, folder: Path, content: bytes) -> Any:
    """What a reader makes of a file with this content; the `InputError` if it refuses it.

    The file is written into a `project`.
    """
    path = folder / READERS[reader].name
    path.write_bytes(content)
    try:
        return READERS[reader].read(path)
    except InputError as error:
        message = str(error)
        assert message.isprintable(), "one line that does nothing to a terminal"
        assert "; expected " in message
        return error
