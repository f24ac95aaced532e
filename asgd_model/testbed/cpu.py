"""CPU quotas and CPU time of the nodes: one control group each, version 1 or 2."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from asgd_model.testbed.errors import TestbedError

GROUP = "asgd-testbed"
"""The group that holds those of all nodes."""

_REMOVAL_SECONDS = 5.0


class Controller(Protocol):
    """How control groups of one version limit and count CPU time."""

    def folders(self, group: str) -> tuple[Path, ...]:
        """The folders of a group, one in each hierarchy."""

    def prepare(self) -> None:
        """Let groups below `GROUP` limit CPU time."""

    def limit(self, group: str, cores: float | None, period: float) -> None:
        """Allow a group so many cores; None removes the limit."""

    def seconds(self, group: str) -> float:
        """CPU time that a group has used, in seconds."""


@dataclass(frozen=True)
class ControllerV1:
    """Version 1: quota and accounting in two hierarchies, which may be one."""

    cpu: Path
    accounting: Path

    def folders(self, group: str) -> tuple[Path, ...]:
        """The folders of a group, one in each hierarchy."""
        return tuple(dict.fromkeys((self.cpu / group, self.accounting / group)))

    def prepare(self) -> None:
        """Let groups below `GROUP` limit CPU time: nothing to do."""

    def limit(self, group: str, cores: float | None, period: float) -> None:
        """Allow a group so many cores; None removes the limit."""
        quota = -1 if cores is None else round(cores * period * 1e6)
        _write(self.cpu / group / "cpu.cfs_period_us", round(period * 1e6))
        _write(self.cpu / group / "cpu.cfs_quota_us", quota)

    def seconds(self, group: str) -> float:
        """CPU time that a group has used, in seconds."""
        return int((self.accounting / group / "cpuacct.usage").read_text()) / 1e9


@dataclass(frozen=True)
class ControllerV2:
    """Version 2: one hierarchy."""

    root: Path

    def folders(self, group: str) -> tuple[Path, ...]:
        """The folders of a group, one in each hierarchy."""
        return (self.root / group,)

    def prepare(self) -> None:
        """Let groups below `GROUP` limit CPU time."""
        for folder in (self.root, self.root / GROUP):
            _write(folder / "cgroup.subtree_control", "+cpu")

    def limit(self, group: str, cores: float | None, period: float) -> None:
        """Allow a group so many cores; None removes the limit."""
        quota = "max" if cores is None else str(round(cores * period * 1e6))
        _write(self.root / group / "cpu.max", f"{quota} {round(period * 1e6)}")

    def seconds(self, group: str) -> float:
        """CPU time that a group has used, in seconds."""
        for line in (self.root / group / "cpu.stat").read_text().splitlines():
            name, value = line.split()
            if name == "usage_usec":
                return int(value) / 1e6
        raise TestbedError(f"{self.root / group / 'cpu.stat'} has no usage_usec")


class CpuGroup:
    """The control group of one node."""

    def __init__(self, controller: Controller, node: str) -> None:
        self.name = f"{GROUP}/{node}"
        self._controller = controller
        for folder in controller.folders(GROUP):
            folder.mkdir(exist_ok=True)
        controller.prepare()
        for folder in controller.folders(self.name):
            folder.mkdir(exist_ok=True)

    def add(self, process: int) -> None:
        """Move a process, with all its threads, into the group."""
        for folder in self._controller.folders(self.name):
            _write(folder / "cgroup.procs", process)

    def limit(self, cores: float | None, period: float) -> None:
        """Allow so many cores, enforced over a period in seconds; None removes the limit."""
        self._controller.limit(self.name, cores, period)

    @property
    def seconds(self) -> float:
        """CPU time that the group's processes have used, in seconds."""
        return self._controller.seconds(self.name)


def find_controller(mounts: Path = Path("/proc/mounts")) -> Controller:
    """The CPU controller of this machine.

    Parameters
    ----------
    mounts : Path
        The table of mounted file systems.

    Raises
    ------
    TestbedError
        If neither version offers quotas and accounting, or they cannot be written.
    """
    hierarchies: dict[str, Path] = {}
    for line in mounts.read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup":
            for option in options.split(","):
                hierarchies.setdefault(option, Path(place))
        elif kind == "cgroup2":
            hierarchies.setdefault("unified", Path(place))
    if "cpu" in hierarchies and "cpuacct" in hierarchies:
        found: Controller = ControllerV1(hierarchies["cpu"], hierarchies["cpuacct"])
    elif "unified" in hierarchies and "cpu" in _controllers(hierarchies["unified"]):
        found = ControllerV2(hierarchies["unified"])
    else:
        raise TestbedError("no CPU controller of control groups is mounted, version 1 or 2")
    for folder in found.folders(""):
        if not os.access(folder, os.W_OK):
            raise TestbedError(f"control groups in {folder} cannot be made: no permission")
    return found


def remaining_groups(controller: Controller) -> list[str]:
    """Names of the testbed's control groups that exist, inner ones first."""
    found = {
        str(folder.relative_to(outer.parent))
        for outer in controller.folders(GROUP)
        if outer.is_dir()
        for folder in (outer, *(inner for inner in outer.iterdir() if inner.is_dir()))
    }
    return sorted(found, reverse=True)


def processes(controller: Controller) -> set[int]:
    """Processes in the testbed's control groups."""
    return {process for group in remaining_groups(controller) for process in _in(controller, group)}


def remove_groups(controller: Controller) -> None:
    """Remove all of the testbed's control groups, once their processes have ended.

    Raises
    ------
    TestbedError
        If a group is still in use after some seconds.
    """
    deadline = time.monotonic() + _REMOVAL_SECONDS
    for group in remaining_groups(controller):
        for folder in controller.folders(group):
            while folder.is_dir():
                try:
                    folder.rmdir()
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise TestbedError(f"{folder} cannot be removed: {error}") from error
                    time.sleep(0.05)


def _in(controller: Controller, group: str) -> Iterator[int]:
    for folder in controller.folders(group):
        if folder.is_dir():
            yield from map(int, (folder / "cgroup.procs").read_text().split())


def _controllers(root: Path) -> list[str]:
    return (root / "cgroup.controllers").read_text().split()


def _write(file: Path, value: object) -> None:
    try:
        file.write_text(str(value))
    except OSError as error:
        raise TestbedError(f"{file}: {value} is refused: {error.strerror}") from error
