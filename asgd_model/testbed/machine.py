"""The machine that plays the cluster: whether it can, what it is, and how busy it is."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import math
import os
import platform
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from asgd_model.testbed.cpu import (
    GROUP,
    find_controller,
    processes,
    remaining_groups,
    remove_groups,
)
from asgd_model.testbed.errors import TestbedError
from asgd_model.testbed.network import namespaces, remove_namespaces
from asgd_model.testbed.platform import Platform

MOST_USED = 0.85
"""Part of the machine's cores that the quotas of all nodes may add up to."""

SAME_SCORE = 0.35
"""Relative difference of two scores up to which machines are alike: on a virtual machine whose
host was shared, scores minutes apart differed by 30 %."""

_PROBE_SECONDS = 0.5
_PROBE_BYTES = 4_000_000

_LOCK = Path("/run/asgd-testbed.lock")
_COMMANDS = {"ip": "iproute2", "tc": "iproute2"}
_NODE_BYTES = 900e6
_WORKER_COPIES = 3.0
_SERVER_COPIES = 1.4
"""Memory of a node without parameters, copies of the parameters that a worker holds, and copies
that all servers hold together, once and once more for each worker: measured, rounded up."""


@dataclass(frozen=True)
class Machine:
    """What a row of measurements says of the machine.

    Attributes
    ----------
    cpu, kernel : str
        Model of the CPU, release of the kernel.
    cores : int
        Number of cores.
    score : float
        MB that a second of CPU time hashes: a short fixed benchmark.
    """

    cpu: str
    cores: int
    kernel: str
    score: float

    def is_like(self, columns: Mapping[str, Any]) -> bool:
        """Whether the machine that these columns describe is like this one."""
        mine = self.as_columns()
        same = all(mine[name] == columns.get(name) for name in mine if name != "machine_score")
        return same and abs(columns["machine_score"] / self.score - 1.0) <= SAME_SCORE

    def as_columns(self) -> dict[str, str | int | float]:
        """The fields, each named ``machine_...``."""
        return {f"machine_{name}": value for name, value in asdict(self).items()}


def this_machine() -> Machine:
    """Describe this machine; takes half a second."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return Machine(model, os.cpu_count() or 1, platform.release(), _score())


def require_root() -> None:
    """Refuse to go on without the rights of root.

    Raises
    ------
    TestbedError
        If this process is not root's.
    """
    if os.geteuid() != 0:
        raise TestbedError("only root can make network namespaces and control groups; try sudo")


def check(needed: Platform, workers: int, servers: int, parameters: int = 0) -> None:
    """Refuse what this machine cannot do.

    Parameters
    ----------
    needed : Platform
        What is to be played.
    workers, servers : int
        Number of nodes.
    parameters : int
        Of the network to be trained; 0 for none.

    Raises
    ------
    TestbedError
        Without root, ``ip`` and ``tc``, TensorFlow or control groups, or if the nodes need more
        CPU than `MOST_USED` of the machine or more memory than is free. The message says which.
    """
    require_root()
    for command, package in _COMMANDS.items():
        if shutil.which(command) is None:
            raise TestbedError(f"the command {command} is missing (Debian package {package})")
    if importlib.util.find_spec("tensorflow") is None:
        raise TestbedError("TensorFlow is missing; install asgd-model[testbed]")
    find_controller()
    cores, available = needed.cores(workers, servers), MOST_USED * (os.cpu_count() or 1)
    if cores > available + 1e-9:
        raise TestbedError(
            f"{workers} workers and {servers} servers of {needed.name} take {cores:.2f} cores; "
            f"at most {available:.2f}, {MOST_USED:.0%} of this machine, may be used, or the nodes "
            "disturb each other"
        )
    copies = _WORKER_COPIES * workers + _SERVER_COPIES * (1 + workers)
    memory = (workers + servers) * _NODE_BYTES + copies * 4.0 * parameters
    free = psutil.virtual_memory().available
    if memory > free:
        raise TestbedError(
            f"{workers} workers and {servers} servers take about {memory / 1e9:.1f} GB of memory; "
            f"{free / 1e9:.1f} GB are free"
        )


@contextmanager
def exclusive() -> Iterator[None]:
    """Keep other runs away.

    Raises
    ------
    TestbedError
        If another run holds the machine.
    """
    with open(_LOCK, "w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TestbedError("another run uses the testbed of this machine") from None
        yield


def remove_remains() -> list[str]:
    """Remove what a killed run left: processes, namespaces, control groups.

    Call it within `exclusive`.

    Returns
    -------
    list of str
        What was removed.
    """
    controller = find_controller()
    running, groups, spaces = processes(controller), remaining_groups(controller), namespaces()
    for process in running:
        os.kill(process, signal.SIGKILL)
    remove_namespaces()
    remove_groups(controller)
    return [
        *(f"process {process}" for process in sorted(running)),
        *(f"namespace {space}" for space in spaces),
        *(f"control group {group}" for group in groups),
    ]


def foreign_seconds() -> float:
    """CPU time used outside the testbed or taken away by the machine's hypervisor, in seconds."""
    controller = find_controller()
    stolen = getattr(psutil.cpu_times(), "steal", 0.0)
    own = controller.seconds(GROUP) if remaining_groups(controller) else 0.0
    return controller.seconds("") + float(stolen) - own


def foreign_load(seconds: float = 3.0) -> float:
    """Cores that others use, mean over some seconds in which this process sleeps."""
    before = foreign_seconds()
    time.sleep(seconds)
    return (foreign_seconds() - before) / seconds


class SpeedProbe:
    """How fast the machine's CPUs are while something else is measured; a context manager.

    The same quota of CPU time does more or less work with what other guests of a virtual machine's
    host do. Twice a second a few megabytes are hashed and the CPU time that it takes is noted,
    one percent of a core.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._samples: list[tuple[float, float]] = []

    def __enter__(self) -> SpeedProbe:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def speed(self, first: float, last: float) -> float:
        """MB that a second of CPU time hashed, mean from one to another monotonic time."""
        chosen = [speed for at, speed in self._samples if first <= at <= last]
        return sum(chosen) / len(chosen) if chosen else math.nan

    def _run(self) -> None:
        block = bytes(_PROBE_BYTES)
        while not self._ended.wait(_PROBE_SECONDS):
            start = time.thread_time()
            hashlib.blake2b(block).digest()
            seconds = time.thread_time() - start
            self._samples.append((time.monotonic(), _PROBE_BYTES / 1e6 / seconds))


def _score() -> float:
    """MB that a second of CPU time hashes, best of five; others on the machine hardly matter."""
    block = bytes(4_000_000)
    times = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(10):
            hashlib.blake2b(block).digest()
        times.append(time.process_time() - start)
    return round(10 * len(block) / 1e6 / min(times), 1)
