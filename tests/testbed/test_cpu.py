"""Control groups of both versions, in folders that stand for theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from asgd_model.testbed.cpu import (
    ControllerV1,
    ControllerV2,
    CpuGroup,
    find_controller,
    processes,
    remaining_groups,
)
from asgd_model.testbed.errors import TestbedError


def test_version_1_has_quota_and_accounting_apart(tmp_path: Path) -> None:
    """A quota is microseconds per period, a group is in both hierarchies, time is nanoseconds."""
    cpu, accounting = tmp_path / "cpu", tmp_path / "cpuacct"
    cpu.mkdir()
    accounting.mkdir()
    controller = ControllerV1(cpu, accounting)
    group = CpuGroup(controller, "worker0")
    own = cpu / "asgd-testbed" / "worker0"
    group.limit(0.15, 0.01)
    assert (own / "cpu.cfs_period_us").read_text() == "10000"
    assert (own / "cpu.cfs_quota_us").read_text() == "1500"
    group.limit(None, 0.01)
    assert (own / "cpu.cfs_quota_us").read_text() == "-1"
    group.add(4711)
    counted = accounting / "asgd-testbed" / "worker0"
    assert (counted / "cgroup.procs").read_text() == "4711"
    (counted / "cpuacct.usage").write_text("2500000000\n")
    assert group.seconds == 2.5


def test_version_2_has_one_hierarchy(tmp_path: Path) -> None:
    """The controller is enabled above the group; limit and usage are in its own formats."""
    controller = ControllerV2(tmp_path)
    group = CpuGroup(controller, "ps0")
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "asgd-testbed" / "cgroup.subtree_control").read_text() == "+cpu"
    own = tmp_path / "asgd-testbed" / "ps0"
    group.limit(0.5, 0.01)
    assert (own / "cpu.max").read_text() == "5000 10000"
    group.limit(None, 0.01)
    assert (own / "cpu.max").read_text() == "max 10000"
    (own / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\n")
    assert group.seconds == 1.5


def test_groups_are_listed_from_the_inside(tmp_path: Path) -> None:
    """Groups are removed in this order, and an outer one only goes when it is empty."""
    controller = ControllerV2(tmp_path)
    for node in ("ps0", "worker0"):
        CpuGroup(controller, node)
        (tmp_path / "asgd-testbed" / node / "cgroup.procs").write_text("1\n22\n")
    (tmp_path / "asgd-testbed" / "cgroup.procs").write_text("")
    groups = remaining_groups(controller)
    assert groups == ["asgd-testbed/worker0", "asgd-testbed/ps0", "asgd-testbed"]
    assert processes(controller) == {1, 22}


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("cgroup {0} cgroup rw,cpu,cpuacct 0 0", ControllerV1),
        ("cgroup2 {0} cgroup2 rw 0 0", ControllerV2),
        ("cgroup2 {0} cgroup2 rw 0 0\ncgroup {0} cgroup rw,cpu,cpuacct 0 0", ControllerV1),
    ],
)
def test_the_controller_that_is_mounted_is_found(
    tmp_path: Path, mounts: str, expected: type
) -> None:
    """Either version, and version 1 where both are mounted and it has the CPU."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    table = tmp_path / "mounts"
    table.write_text(f"proc /proc proc rw 0 0\n{mounts.format(tmp_path)}\n")
    assert isinstance(find_controller(table), expected)


def test_no_controller_is_refused(tmp_path: Path) -> None:
    """A hierarchy without the CPU is of no use."""
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    table = tmp_path / "mounts"
    table.write_text(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    with pytest.raises(TestbedError, match="no CPU controller"):
        find_controller(table)
