"""Kill real processes at random moments, again and again, until one gets through."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
LONGEST = 120.0
"""Seconds that an undisturbed command may take."""


def undisturbed(command: Sequence[str], **options: object) -> float:
    """Run a command to its end; returns the seconds that it took."""
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, timeout=LONGEST, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr.decode()
    return time.monotonic() - begin


def killed(command: Sequence[str], after: float, **options: object) -> bool:
    """Start a command and kill it after some seconds; whether it was still running.

    What it started ends too: nothing that lives on may write on.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **options,  # type: ignore[call-overload]
    )
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        _, alive = psutil.wait_procs(family, timeout=20)
        assert alive == []
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode != 0


def kill_often(
    command: Sequence[str],
    seconds: float,
    check: Callable[[], None],
    times: int,
    seed: int = 0,
    **options: object,
) -> int:
    """Kill a command at random moments of the `seconds` that it takes, then let it end.

    Parameters
    ----------
    check : callable
        Looks at what each killed process left; raises if something is damaged.
    times : int
        Number of kills.

    Returns
    -------
    int
        How many of the processes were alive when they were killed.
    """
    moments = random.Random(seed)
    alive = 0
    for _ in range(times):
        alive += killed(command, moments.uniform(0.0, seconds), **options)
        check()
    undisturbed(command, **options)
    check()
    return alive


def asgd_model(*arguments: object) -> list[str]:
    """The command line of ``asgd-model``."""
    return [sys.executable, "-m", "asgd_model", *map(str, arguments)]
