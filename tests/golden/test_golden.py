"""Same input, same numbers: today's against the recorded ones, and one process's against another's.

Within one build of the package the numbers are the same to the last bit, whatever the number of
threads, the process, and whether the engine was compiled now, loaded from Numba's cache or run
by the interpreter. Recorded numbers may differ in the last digits after a change of the engine or
of a library; what differs by more is a change of the model: record it with
``python tests/golden/cases.py --record``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .cases import CASES, RECORDED, SMALL

TOLERANCE = 1e-6
"""Relative: rates settle to 1e-9, and an event that two orders of arithmetic place differently
shifts what follows by that much."""


def numbers(*cases: str, **environment: str) -> dict[str, list[float]]:
    """What another process finds."""
    command = [sys.executable, str(Path(__file__).with_name("cases.py")), *cases]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, list[float]]:
    return {name: case() for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_recorded_numbers(found: dict[str, list[float]], name: str) -> None:
    """The model says today what it said when the numbers were recorded."""
    recorded = json.loads(RECORDED.read_bytes())
    assert set(recorded) == set(CASES)
    assert found[name] == pytest.approx(recorded[name], rel=TOLERANCE)


def test_another_process(found: dict[str, list[float]]) -> None:
    """All cases to the last bit; with one thread, and with other hashes of text."""
    assert numbers(NUMBA_NUM_THREADS="1", OMP_NUM_THREADS="1", PYTHONHASHSEED="1") == found


def test_without_a_cache(found: dict[str, list[float]], tmp_path: Path) -> None:
    """Compiled now, not by an earlier process; then loaded from what that one left."""
    for _ in range(2):
        assert numbers(*SMALL, NUMBA_CACHE_DIR=str(tmp_path)) == {
            name: found[name] for name in SMALL
        }
    assert any(tmp_path.rglob("*.nbi"))


@pytest.mark.large
def test_without_compilation(found: dict[str, list[float]]) -> None:
    """The interpreter does the same arithmetic, slowly."""
    assert numbers(*SMALL, NUMBA_DISABLE_JIT="1") == {name: found[name] for name in SMALL}


def interpreters() -> list[str]:
    """Pythons of supported versions that have the package's dependencies (``ASGD_PYTHONS``)."""
    return os.environ.get("ASGD_PYTHONS", "").split()


@pytest.mark.large
@pytest.mark.parametrize("python", interpreters() or ["none"])
def test_other_pythons(found: dict[str, list[float]], python: str) -> None:
    """Python and the versions of the libraries that it has change the last digits at most."""
    if python == "none":
        pytest.skip("ASGD_PYTHONS names no other Python")
    command = [python, str(Path(__file__).with_name("cases.py"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for name, values in json.loads(done.stdout).items():
        assert values == pytest.approx(found[name], rel=TOLERANCE), name
