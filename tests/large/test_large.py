"""Simulations that are long or large end, in bounded memory; `measure.py` prints the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.large
@pytest.mark.parametrize(
    ("case", "events", "megabytes"),
    [("events", 10**8, 300), ("workers", 10**6, 1500), ("operations", 10**6, 1500)],
)
def test_large(case: str, events: int, megabytes: int) -> None:
    """So many events at least, in so much memory beyond that of the loaded package at most."""
    command = [sys.executable, str(Path(__file__).with_name("measure.py")), case]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800)
    found = json.loads(done.stdout)
    assert found["events"] >= events
    assert found["megabytes"] <= megabytes
    assert found["steps_per_s"] > 0
