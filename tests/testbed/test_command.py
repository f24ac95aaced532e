"""Refusals of ``asgd-model testbed``: on one line, before anything is made."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from asgd_model import cli
from asgd_model.errors import InputError
from asgd_model.testbed import machine
from asgd_model.testbed.platform import load_platform

from .machine import FAST

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run ``asgd-model testbed`` with the platform FAST; returns status and errors."""
    platform = tmp_path / "fast.yaml"
    platform.write_text(FAST.model_dump_json())

    def run(*arguments: object) -> tuple[int, str]:
        given = [str(platform) if a == "FAST" else str(a) for a in arguments]
        monkeypatch.setattr("sys.argv", ["asgd-model", "testbed", *given])
        return cli.main(), capsys.readouterr().err

    return run


JOB = ("run", "--platform", "FAST", "--dnn", "googlenet", "--batch-size", 1)


@pytest.fixture
def capable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing is missing, as far as the checks see."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(machine, "find_controller", lambda: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


@pytest.mark.usefixtures("capable")
@pytest.mark.parametrize("arguments", [JOB, ("calibrate", "--platform", "FAST"), ("clean",)])
def test_without_root(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...]
) -> None:
    """Only root can make namespaces."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    status, errors = command(*arguments)
    assert status == 1
    assert "only root" in errors


@pytest.mark.usefixtures("capable")
def test_without_tensorflow(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    assert command(*JOB) == (1, "Error: TensorFlow is missing; install asgd-model[testbed]\n")


@pytest.mark.usefixtures("capable")
def test_without_the_commands(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says which package has them."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    status, errors = command(*JOB)
    assert status == 1
    assert "iproute2" in errors


@pytest.mark.usefixtures("capable")
def test_capture_without_tshark(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a capture takes is missed before anything is captured."""
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tshark" else name)
    status, errors = command(*JOB, "--capture")
    assert status == 1
    assert "the command tshark is missing (Debian package tshark)" in errors


@pytest.mark.usefixtures("capable")
def test_more_cores_than_the_machine_may_give(command: Command) -> None:
    """8 x 0.2 + 0.3 cores are more than 85 % of two."""
    status, errors = command(*JOB, "--workers", 8)
    assert status == 1
    assert "take 1.90 cores; at most 1.70" in errors


@pytest.mark.usefixtures("capable")
def test_more_memory_than_is_free(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six workers with the 531 MB of VGG-11 do not fit into 8 GB."""

    class Memory:
        available = 8e9

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    status, errors = command(
        *("run", "--platform", "FAST", "--dnn", "vgg-11", "--batch-size", 1, "--workers", 6)
    )
    assert status == 1
    assert "GB of memory; 8.0 GB are free" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--platform", "nowhere", "--dnn", "googlenet", "--batch-size", 1), "nowhere.yaml"),
        (("run", "--platform", "FAST", "--dnn", "lenet", "--batch-size", 1), "lenet"),
        ((*JOB, "--workers", 0), "workers"),
        ((*JOB, "--policy", "tic"), "policy"),
        ((*JOB, "--starts", "0,1"), "a start for each of 1 workers"),
        ((*JOB, "--starts", "soon"), "starts"),
        ((*JOB, "--capture", "--profile"), "at most one of them"),
        (("campaign", "nothing.yaml"), "nothing.yaml"),
    ],
)
def test_wrong_options(command: Command, arguments: tuple[object, ...], message: str) -> None:
    """Input that cannot be used is named, with the status of wrong input."""
    status, errors = command(*arguments)
    assert status == 2
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_a_wrong_platform_is_refused(tmp_path: Path) -> None:
    """The error names the file, the field, what was found and what was expected."""
    path = tmp_path / "desk.yaml"
    path.write_text("{name: desk, link: {rate: -1}, worker: {cores: 1}, server: {cores: 1}}")
    with pytest.raises(InputError, match=r"desk\.yaml: link\.rate: found -1; expected .*greater"):
        load_platform(path)


def test_the_projects_platforms_are_valid() -> None:
    """Each platform is named like its file, and with six workers fits on two cores."""
    files = sorted((Path(__file__).parents[2] / "data" / "platforms").glob("*.yaml"))
    assert len(files) >= 4
    for file in files:
        platform = load_platform(file)
        assert platform.name == file.stem
        assert platform.cores(6, 1) <= 0.85 * 2
