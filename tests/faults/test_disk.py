"""A disk that is full or must not be written: an error on one line, and what was there stays."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from asgd_model.files import write_bytes
from asgd_model.profile import load_profile
from asgd_model.testbed.results import Results
from asgd_model.testbed.run import Measurement

from .kills import ROOT, asgd_model

PROFILE = ROOT / "data" / "profiles" / "cpu-0.15-300mbit-reno" / "alexnet_b8.profile.json.gz"


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        asgd_model(*arguments), capture_output=True, text=True, timeout=120, **options
    )


def mounted(folder: Path, options: str) -> None:
    """Mount a file system in memory; skip where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no command mount")
    if done.returncode:
        pytest.skip(f"cannot mount a file system: {done.stderr.strip()}")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB, nearly full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted(folder, "size=64k")
    (folder / "rest").write_bytes(bytes(40_000))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that was written once and is read-only now."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted(folder, "size=1m")
    write_bytes(folder / "old.json.gz", PROFILE.read_bytes())
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_to_a_full_disk(full_disk: Path) -> None:
    """The old file stays as it was and nothing else is left; what fits can be written."""
    write_bytes(full_disk / "a", b"old")
    with pytest.raises(OSError, match="No space left"):
        write_bytes(full_disk / "a", bytes(100_000))
    assert (full_disk / "a").read_bytes() == b"old"
    assert names(full_disk) == ["a", "rest"]
    write_bytes(full_disk / "a", b"new")
    assert (full_disk / "a").read_bytes() == b"new"


def test_command_on_a_full_disk(full_disk: Path) -> None:
    """Status 1, one line; the trace that was there before can still be read."""
    target = full_disk / "trace.json"
    target.write_bytes(b"{}")
    done = run("trace", PROFILE, "--recorded", 0, "--output", target)
    assert (done.returncode, done.stdout) == (1, "")
    assert "No space left" in done.stderr
    assert done.stderr.count("\n") == 1
    assert target.read_bytes() == b"{}"
    assert names(full_disk) == ["rest", "trace.json"]


def test_results_on_a_full_disk(full_disk: Path) -> None:
    """A campaign's tables are what they were; with space again the run is added."""

    def found(repeat: int, workers: int) -> Measurement:
        row = dict.fromkeys(
            ("steps_per_s", "steps_per_s_low", "steps_per_s_high", "examples_per_s"), 1.0
        )
        key = {"platform": "fast", "dnn": "alexnet", "batch_size": 8, "parameter_servers": 1}
        key |= {"workers": workers, "policy": "default", "repeat": repeat}
        steps = pd.DataFrame({"worker": range(workers), "step": 0, "start": 0.0, "traced": False})
        steps["end"] = 1.0 + steps.index * 0.123456789
        return Measurement({**key, **row}, steps)

    results = Results(full_disk, "fast")
    results.add(found(1, 1))
    with pytest.raises(OSError, match="No space left"):
        results.add(found(2, 20_000))
    assert [row["repeat"] for row in results.find({})] == [1]
    (full_disk / "rest").unlink()
    results.add(found(2, 100))
    assert [row["repeat"] for row in results.find({})] == [1, 2]


def test_file_size_limit(tmp_path: Path) -> None:
    """A limit of the user's shell is a full disk like any other; needs no rights."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    target = tmp_path / "trace.json"
    target.write_bytes(b"{}")
    options = {"preexec_fn": limit, "env": os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}}
    done = run("trace", PROFILE, "--recorded", 0, "--output", target, **options)
    assert (done.returncode, done.stdout) == (1, "")
    assert "File too large" in done.stderr
    assert done.stderr.count("\n") == 1
    assert target.read_bytes() == b"{}"
    assert names(tmp_path) == ["trace.json"]


def test_devices_are_written_not_replaced(tmp_path: Path) -> None:
    """``/dev/full`` is full and ``/dev/null`` takes all; both stay what they are."""
    with pytest.raises(OSError, match="No space left"):
        write_bytes("/dev/full", b"content")
    write_bytes("/dev/null", b"content")
    assert Path("/dev/full").is_char_device()
    assert Path("/dev/null").is_char_device()
    link = tmp_path / "link"
    link.symlink_to("file")
    write_bytes(link, b"content")
    assert link.is_symlink()
    assert (tmp_path / "file").read_bytes() == b"content"


def test_read_only_disk(read_only_disk: Path) -> None:
    """What is there can be read and predicted from; what cannot be written is named."""
    assert load_profile(read_only_disk / "old.json.gz").ops > 0
    target = read_only_disk / "new" / "trace.json"
    done = run("trace", read_only_disk / "old.json.gz", "--recorded", 0, "--output", target)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Read-only file system" in done.stderr
    assert done.stderr.count("\n") == 1
    assert names(read_only_disk) == ["old.json.gz"]


def test_read_only_folder(tmp_path: Path) -> None:
    """Without the right to write a folder its files stay; root has every right."""
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; test_read_only_disk says the same")
    write_bytes(tmp_path / "a", b"old")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            write_bytes(tmp_path / "a", b"new")
    finally:
        tmp_path.chmod(0o700)
    assert (tmp_path / "a").read_bytes() == b"old"


def test_no_place_for_compiled_code() -> None:
    """Where Numba finds no folder for its cache, the package works all the same."""
    code = "import asgd_model.queueing, asgd_model.simulator.engine"
    # Of all places that Numba knows only this one, which nobody has set.
    places = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator", "NUMBA_CACHE_DIR": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | places, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
