"""Command lines of any words: a status and one line of error, never a traceback or a long wait."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asgd_model import cli

from .readers import CORPUS, project

words = st.sampled_from(
    [
        *(
            "",
            " ",
            "-",
            "--",
            "-1",
            "0",
            "1",
            "2",
            "1.5",
            "1e999",
            "nan",
            "inf",
            "9" * 30,
            "9" * 500,
        ),
        *("1-2", "2-1", "1,,2", "1-99999", "300M", "1G", "." + "1" * 1000 + "x", "0x10", "1_0"),
        *("simulation", "queueing", "tic", "random", "csv", "json", "é", "\udcff", "\x1b[2J", "\n"),
        *("a.yaml", "notebooks/a.ipynb", ".", "x" * 5000, "%s{0}", "circle.yaml", "circle.yaml/x"),
        *("good.json", "good.csv", "out/new.json", "out/new.png", "good.json/x", "../arguments"),
    ]
)
inputs = words | st.sampled_from(["/", "../" * 50, "/dev/zero", "/proc/self/mem"])
COMMANDS = {
    name: command
    for name, command in {
        **cli.commands.commands,
        **{f"testbed {name}": command for name, command in cli.testbed.commands.items()},
    }.items()
    if isinstance(command, click.Command) and not isinstance(command, click.Group)
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = project(tmp_path_factory.mktemp("arguments"))
    for path in (CORPUS / "profile" / "good.json", CORPUS / "measurements" / "good.csv"):
        (made / path.name).write_bytes(path.read_bytes())
    return made


@pytest.mark.parametrize("name", COMMANDS)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_words(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    data: st.DataObject,
) -> None:
    """Every option of every command with any value, in a folder with good and bad files."""
    command = COMMANDS[name]
    line = name.split()
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            line += data.draw(st.lists(inputs, min_size=parameter.required, max_size=2))
        elif data.draw(st.integers(0, 3)) == 0:
            line.append(parameter.opts[0])
            if not getattr(parameter, "is_flag", False):
                line.append(data.draw(words))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["asgd-model", *line])
    monkeypatch.setattr("os.geteuid", lambda: 1000)  # the testbed itself is not started
    try:
        status = cli.main()
    except SystemExit as error:
        status = error.code
    _, err = capfd.readouterr()
    assert status in (0, 1, 2), (line, err)
    assert "Traceback" not in err
    assert (status == 0) or err.strip()
