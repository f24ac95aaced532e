"""Killed at any moment, a command leaves nothing that is taken for more than it is.

The next start of the same command completes what is missing, with the same result. The moments
are random, the processes are real; `make test-all` kills more often.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_notebook

from asgd_model.files import read_json
from asgd_model.measurements import RUN, load_measurements, load_steps
from asgd_model.profile import Profile, load_profile, save_profile

from .kills import ROOT, asgd_model, kill_often, killed, undisturbed

TRACES = sorted((ROOT / "data" / "raw").glob("*/alexnet/*.pb.gz"))[:2]
KERNELSPEC = {"name": "python3", "display_name": "Python 3", "language": "python"}

pytestmark = pytest.mark.slow

often = pytest.mark.parametrize(
    "times", [pytest.param(4, id="some"), pytest.param(40, id="many", marks=pytest.mark.large)]
)


def complete(folder: Path) -> list[Path]:
    """The files in a folder, but for those that a killed process was writing."""
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")
    )


@often
def test_convert(tmp_path: Path, times: int) -> None:
    """The profile is there and whole, or the file is what it was before."""
    options = ("--dnn", "alexnet", "--batch-size", 8, "--link-rate", "300M", "--output")
    reference, target = tmp_path / "reference.json.gz", tmp_path / "a" / "target.json.gz"
    seconds = undisturbed(asgd_model("convert", *TRACES, *options, reference))
    expected = reference.read_bytes()

    def check() -> None:
        if target.exists():
            assert target.read_bytes() == expected

    command = asgd_model("convert", *TRACES, *options, target)
    assert kill_often(command, seconds, check, times) > 0
    assert target.read_bytes() == expected


@often
def test_campaign(tmp_path: Path, small: Profile, times: int) -> None:
    """Every table can be read at any time; in the end each run is there once, as undisturbed."""
    platform = "{name: fast, link: {rate: 2.0e+8}, worker: {cores: 0.2}, server: {cores: 0.3}}"
    jobs = "{platform: fast.yaml, dnn: %s, batch_size: 4, workers: {1: 3, 2: 3}}"
    folders = [tmp_path / name for name in ("undisturbed", "killed")]
    for folder in folders:
        folder.mkdir()
        (folder / "fast.yaml").write_text(platform)
        sets = "\n".join(f"  - {jobs % dnn}" for dnn in ("googlenet", "alexnet"))
        (folder / "campaign.yaml").write_text(f"sets:\n{sets}\n")
        save_profile(small, folder / "given.json")
    script = str(Path(__file__).parent / "laboratory.py")
    seconds = undisturbed([sys.executable, script, str(folders[0])])
    measured = folders[1] / "measurements"

    def check() -> None:
        runs, steps = measured / "fast.csv", measured / "fast.steps.csv.gz"
        if runs.exists():
            table = load_measurements(runs)
            known = set(load_steps(steps)[list(RUN)].itertuples(index=False, name=None))
            assert set(table[list(RUN)].itertuples(index=False, name=None)) <= known
        elif steps.exists():
            load_steps(steps)
        for path in complete(folders[1]):
            if path.name.endswith(".profile.json.gz"):
                load_profile(path)

    assert kill_often([sys.executable, script, str(folders[1])], seconds, check, times) > 0
    for name in ("fast.csv", "fast.steps.csv.gz"):
        left, right = (pd.read_csv(folder / "measurements" / name) for folder in folders)
        pd.testing.assert_frame_equal(left, right)
    relative = [[path.relative_to(folder) for path in complete(folder)] for folder in folders]
    assert relative[0] == relative[1]


@often
def test_sweep(tmp_path: Path, alexnet_path: Path, times: int) -> None:
    """What each simulated run found is whole or not there; the table is that of one go."""
    script = str(Path(__file__).parent / "sweeping.py")
    folders = [tmp_path / name for name in ("undisturbed", "killed")]
    commands = [[sys.executable, script, str(alexnet_path), str(folder)] for folder in folders]
    seconds = undisturbed(commands[0])

    def check() -> None:
        for path in complete(folders[1]):
            assert read_json(path) == read_json(folders[0] / path.name)

    assert kill_often(commands[1], seconds, check, times) > 0
    tables = [
        subprocess.run(command, capture_output=True, check=True).stdout for command in commands
    ]
    assert tables[0] == tables[1]
    assert len(complete(folders[1])) == 160


class Notebooks:
    """A project with three notebooks, each of which writes what it has done in two steps."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pipeline = root / "notebooks" / "pipeline.yaml"
        self.pipeline.parent.mkdir(parents=True)
        (root / "data").mkdir()
        cells = [
            new_code_cell("name = ''", metadata={"tags": ["parameters"]}, id="p"),
            new_code_cell("print('begin', name)", id="begin"),
            new_code_cell(
                "from asgd_model.files import write_bytes\n"
                "write_bytes(f'../figures/{name}.txt', b'done' * 100_000)",
                id="write",
            ),
            new_code_cell("print('end', name)", id="end"),
        ]
        notebook = new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC})
        nbformat.write(notebook, root / "notebooks" / "a.ipynb")
        runs = [
            {
                "name": name,
                "notebook": "notebooks/a.ipynb",
                "parameters": {"name": name},
                "outputs": [f"figures/{name}.txt"],
            }
            for name in ("one", "two", "three")
        ]
        self.pipeline.write_text(yaml.safe_dump({"runs": runs}))

    def command(self, *options: str) -> list[str]:
        return asgd_model("reproduce", self.pipeline, "--jobs", 1, *options)

    def check(self) -> None:
        """What the state calls a success is a notebook that was executed to its end."""
        build = self.root / "build" / "reproduce"
        if not (build / "state.json").exists():
            return
        for name in json.loads((build / "state.json").read_bytes())["succeeded"]:
            notebook = nbformat.read(build / f"{name}.ipynb", as_version=4)
            nbformat.validate(notebook)
            assert notebook.cells[-1].outputs[0].text == f"end {name}\n"
            assert (self.root / "figures" / f"{name}.txt").read_bytes() == b"done" * 100_000


@often
def test_reproduce(tmp_path: Path, times: int) -> None:
    """Also over an earlier success, a run counts as done only when it has ended again."""
    undisturbed_project = Notebooks(tmp_path / "undisturbed")
    seconds = undisturbed(undisturbed_project.command())
    undisturbed_project.check()
    project = Notebooks(tmp_path / "killed")
    assert kill_often(project.command(), seconds, project.check, times) > 0
    names = ("one", "two", "three")
    made = [
        [(root / "build" / "reproduce" / f"{name}.ipynb").read_bytes() for name in names]
        for root in (undisturbed_project.root, project.root)
    ]
    assert made[0] == made[1]
    for moment in (0.5, 0.8):
        killed(project.command(), moment * seconds)
        project.check()
    undisturbed(project.command("--changed"))
    project.check()
    state = json.loads((project.root / "build" / "reproduce" / "state.json").read_bytes())
    assert set(state["succeeded"]) == set(names)
