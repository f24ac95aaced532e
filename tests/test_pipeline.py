"""The pipeline runs what it is told, says what failed, and survives dying notebooks and itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_notebook

from asgd_model import pipeline
from asgd_model.errors import InputError
from asgd_model.pipeline import load_pipeline, run_pipeline

KERNELSPEC = {"name": "python3", "display_name": "Python 3", "language": "python"}
COUNT = "from pathlib import Path\nlog = Path('../runs.txt').open('a')\nlog.write(f'{label}\\n')\n"
"""A cell that leaves one line for each execution."""


class Project:
    """A small project folder with notebooks and a pipeline."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "notebooks" / "pipeline.yaml"
        self.path.parent.mkdir()

    def notebook(self, name: str, *cells: str, parameters: str | None = None) -> None:
        made = [new_code_cell(cell, id=f"cell-{index}") for index, cell in enumerate(cells)]
        if parameters is not None:
            tagged = new_code_cell(parameters, id="p", metadata={"tags": ["parameters"]})
            made.insert(0, tagged)
        notebook = new_notebook(cells=made, metadata={"kernelspec": KERNELSPEC})
        nbformat.write(notebook, self.root / "notebooks" / name)

    def pipeline(self, *runs: dict[str, Any], **settings: Any) -> None:
        paths = [run | {"notebook": f"notebooks/{run['notebook']}"} for run in runs]
        self.path.write_text(yaml.safe_dump({**settings, "runs": paths}))

    def run(self, **options: Any) -> dict[str, dict[str, Any]]:
        table = run_pipeline(self.path, **options).set_index("name", drop=False)
        return {str(name): dict(row) for name, row in table.iterrows()}

    def executed(self, name: str) -> Any:
        return nbformat.read(self.root / "build" / "reproduce" / f"{name}.ipynb", as_version=4)

    def executions(self) -> list[str]:
        log = self.root / "runs.txt"
        return log.read_text().split() if log.exists() else []


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def statuses(rows: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: row["status"] for name, row in rows.items()}


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.05)


def mentioning(path: Path) -> list[psutil.Process]:
    """Processes whose command line names a file under `path`."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(path) in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_failures_are_named_and_do_not_stop_the_others(project: Project) -> None:
    """An error, a dead kernel, a hanging one, a missing output, a typo: each is one failed run."""
    project.notebook("good.ipynb", "open(f'../{label}.txt', 'w').close()", parameters="label = 'a'")
    project.notebook("error.ipynb", "1", "1 / 0", "2")
    project.notebook("dead.ipynb", "1", "import os; os._exit(3)")
    project.notebook("hang.ipynb", "print('here', flush=True)\nimport time; time.sleep(600)")
    project.pipeline(
        {"name": "error", "notebook": "error.ipynb"},
        {"name": "dead", "notebook": "dead.ipynb"},
        {"name": "hang", "notebook": "hang.ipynb", "timeout": 4},
        {"name": "typo", "notebook": "good.ipynb", "parameters": {"lable": "b"}},
        {"name": "missing", "notebook": "good.ipynb", "outputs": ["a.txt", "old.txt", "z.txt"]},
        {
            "name": "good",
            "notebook": "good.ipynb",
            "parameters": {"label": "c"},
            "outputs": ["c.txt"],
        },
    )
    (project.root / "old.txt").write_text("from last year")
    rows = project.run()
    assert statuses(rows) == dict.fromkeys(rows, "failed") | {"good": "done"}
    assert rows["error"]["error"] == "ZeroDivisionError: division by zero (In [2])"
    assert rows["dead"]["error"] == "the kernel died"
    assert rows["hang"]["error"] == "no end after 4 s"
    assert "lable" in rows["typo"]["error"]
    assert rows["missing"]["error"] == "did not write old.txt, z.txt"
    assert rows["good"]["error"] == ""
    assert rows["error"]["notebook"] == "notebooks/error.ipynb"
    assert (project.root / rows["error"]["executed"]).is_file()
    for name, evalue in [("error", "division by zero"), ("dead", "the kernel died")]:
        assert outputs(project.executed(name))[-1].evalue == evalue
    hang = outputs(project.executed("hang"))
    assert (hang[0].text, hang[-1].evalue) == ("here\n", "no end after 4 s")
    assert json.loads((project.root / "build/reproduce/state.json").read_text())["selected"] is None


def test_changed_runs_only_what_depends_on_a_change(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources, parameters, inputs, library and lost outputs cause a run; outputs of cells do not.

    `only` means the run of that name, or else all runs of the notebook of that name.
    """
    body = COUNT + "Path(f'../{label}.txt').write_text(label)"
    project.notebook("count.ipynb", body, parameters="label = 'a'")
    data, library = project.root / "data", project.root / "library"
    data.mkdir()
    library.mkdir()
    monkeypatch.setattr(pipeline, "_LIBRARY", library)
    (data / "one.csv").write_text("1")
    (data / "two.csv").write_text("2")

    def declare(label: str) -> None:
        second = {"notebook": "count.ipynb", "parameters": {"label": label}}
        project.pipeline(
            {"name": "count", "notebook": "count.ipynb", "inputs": ["data/one.csv"]},
            {"name": "b", **second, "inputs": ["data/two.csv"], "outputs": [f"{label}.txt"]},
        )

    declare("b")
    assert statuses(project.run(changed=True, update=True)) == {"count": "done", "b": "done"}
    assert statuses(project.run(changed=True)) == {"count": "kept", "b": "kept"}
    assert sorted(project.executions()) == ["a", "b"]
    (data / "two.csv").write_text("3")
    assert statuses(project.run(changed=True)) == {"count": "kept", "b": "done"}
    (project.root / "b.txt").unlink()
    (library / "notes.txt").touch()
    assert statuses(project.run(changed=True)) == {"count": "kept", "b": "done"}
    declare("c")
    assert statuses(project.run(changed=True)) == {"count": "kept", "b": "done"}
    project.notebook("count.ipynb", body + "# edited", parameters="label = 'a'")
    assert statuses(project.run(changed=True, only=["count"])) == {"count": "done"}
    assert statuses(project.run(changed=True, only=["count.ipynb"])) == {
        "count": "kept",
        "b": "done",
    }
    (library / "model.py").touch()
    assert statuses(project.run(changed=True, only=["b"])) == {"b": "done"}


def test_update_gives_the_same_bytes_twice_and_only_when_asked(project: Project) -> None:
    """Committed notebooks hold outputs and tags, but no time, version or kernel of one machine."""
    noisy = "import sys\nfor i in range(50):\n    print(i)\n    print(-i, file=sys.stderr)"
    project.notebook("plain.ipynb", noisy, "import sys; sys.executable", parameters="x = 1")
    project.pipeline(
        {"name": "plain", "notebook": "plain.ipynb"},
        {"name": "other", "notebook": "plain.ipynb", "parameters": {"x": 2}},
    )
    notebook = project.root / "notebooks" / "plain.ipynb"
    original = notebook.read_bytes()
    assert statuses(project.run()) == {"plain": "done", "other": "done"}
    assert notebook.read_bytes() == original
    assert statuses(project.run(update=True)) == {"plain": "done", "other": "done"}
    first = notebook.read_bytes()
    assert statuses(project.run(update=True, only=["plain"])) == {"plain": "done"}
    assert notebook.read_bytes() == first
    written = nbformat.read(notebook, as_version=4)
    nbformat.validate(written)
    assert [cell.metadata for cell in written.cells] == [{"tags": ["parameters"]}, {}, {}]
    assert set(written.metadata) == {"kernelspec", "language_info"}
    assert "version" not in written.metadata.language_info
    streams = outputs(written)[:2]
    assert [stream.name for stream in streams] == ["stdout", "stderr"]
    assert streams[0].text == "".join(f"{i}\n" for i in range(50))
    assert outputs(written)[2].data["text/plain"] == repr(sys.executable)


def test_update_spares_a_notebook_edited_meanwhile(project: Project) -> None:
    """What a user saves while the pipeline runs is not overwritten."""
    edit = "from pathlib import Path\np = Path('self.ipynb')\n"
    edit += "_ = p.write_text(p.read_text().replace('# old', '# new'))"
    project.notebook("self.ipynb", edit, "# old")
    project.pipeline({"name": "self", "notebook": "self.ipynb"})
    row = project.run(update=True)["self"]
    assert row["status"] == "failed"
    assert "not updated" in row["error"]
    cells = nbformat.read(project.root / "notebooks" / "self.ipynb", as_version=4).cells
    assert (cells[1].source, cells[1].outputs) == ("# new", [])


def test_killed_pipeline_resumes_and_leaves_no_process(project: Project) -> None:
    """After SIGKILL the kernels end; the next pipeline keeps what was done, one more does not."""
    project.notebook("count.ipynb", COUNT, parameters="label = 'first'")
    slow = COUNT + "log.close()\nif not Path('../go').exists():\n    import time; time.sleep(600)"
    project.notebook("slow.ipynb", slow, parameters="label = 'slow'")
    project.pipeline(
        {"name": "first", "notebook": "count.ipynb"},
        {"name": "slow", "notebook": "slow.ipynb"},
    )
    command = [sys.executable, "-m", "asgd_model", "reproduce", str(project.path), "--jobs", "1"]
    killed = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_for(lambda: project.executions() == ["first", "slow"])
    family = psutil.Process(killed.pid).children(recursive=True)
    assert any("ipykernel_launcher" in process.cmdline() for process in family)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    (project.root / "go").touch()
    assert statuses(project.run()) == {"first": "kept", "slow": "done"}
    assert project.executions() == ["first", "slow", "slow"]
    assert statuses(project.run(only=["first"])) == {"first": "done"}


def test_interrupt_ends_also_a_kernel_that_holds_the_interpreter(project: Project) -> None:
    """Ctrl-C: status 130, one line, no traceback, and no kernel left that cannot listen."""
    stuck = "import re\nopen('../started', 'w').close()\nre.match('(a+)+$', 'a' * 60 + 'b')"
    project.notebook("stuck.ipynb", stuck)
    project.pipeline({"name": "stuck", "notebook": "stuck.ipynb"})
    command = [sys.executable, "-m", "asgd_model", "reproduce", str(project.path)]
    interrupted = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for((project.root / "started").exists)
    family = psutil.Process(interrupted.pid).children(recursive=True)
    os.killpg(interrupted.pid, signal.SIGINT)
    out, err = interrupted.communicate(timeout=30)
    assert (interrupted.returncode, out, err.strip()) == (130, "", "asgd-model: interrupted")
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


def test_kernel_is_this_python_whatever_is_installed(project: Project) -> None:
    """A broken kernel of the same name in the user's folders is not used, nor their profile."""
    home = project.root / "home"
    for folder in ("jupyter", "ipython/profile_default/startup", "kernels/python3"):
        (home / folder).mkdir(parents=True)
    spec = {"argv": ["/nonexistent/python"], "display_name": "broken", "language": "python"}
    (home / "kernels" / "python3" / "kernel.json").write_text(json.dumps(spec))
    (home / "ipython/profile_default/startup/me.py").write_text("raise SystemExit")
    project.notebook(
        "where.ipynb", "import os, sys", "print(sys.executable, os.environ['MPLBACKEND'])"
    )
    project.pipeline({"name": "where", "notebook": "where.ipynb"})
    environment = os.environ | {
        "JUPYTER_PATH": str(home),
        "IPYTHONDIR": str(home / "ipython"),
        "MPLBACKEND": "agg",
    }
    command = [sys.executable, "-m", "asgd_model", "reproduce", str(project.path)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    shown = outputs(project.executed("where"))[-1].text
    assert shown.split() == [sys.executable, "module://matplotlib_inline.backend_inline"]


def test_parallel_runs_share_the_cores(project: Project) -> None:
    """As many kernels as jobs at once, each with its part of the cores for its threads."""
    meet = COUNT + (
        "log.close()\nimport os, time\nend = time.monotonic() + 20\n"
        "while len(Path('../runs.txt').read_text().split()) < 2 and time.monotonic() < end:\n"
        "    time.sleep(0.05)\n"
        "assert time.monotonic() < end\nos.environ['NUMBA_NUM_THREADS']"
    )
    project.notebook("meet.ipynb", meet, parameters="label = 'a'")
    project.pipeline(
        {"name": "a", "notebook": "meet.ipynb"},
        {"name": "b", "notebook": "meet.ipynb", "parameters": {"label": "b"}},
    )
    assert statuses(project.run(jobs=2)) == {"a": "done", "b": "done"}
    threads = max(1, (os.cpu_count() or 1) // 2)
    assert outputs(project.executed("b"))[-1].data["text/plain"] == repr(str(threads))


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        ("", None, "a valid dictionary"),
        ("runs: [", None, "a YAML document"),
        ("runs: 2026-02-30", None, "a YAML document"),
        ("runs: []", "runs", "at least 1 item"),
        ("runs: [{name: a}]", "runs[0].notebook", "a value"),
        ("{runs: [{name: a, notebook: notebooks/a.ipynb}], job: 2}", "job", "not permitted"),
        (
            "{runs: [{name: a, notebook: notebooks/a.ipynb}], timeout: 0}",
            "timeout",
            "greater than 0",
        ),
        ("runs: [{name: ../a, notebook: notebooks/a.ipynb}]", "runs[0].name", "pattern"),
        ("runs: [{name: a, notebook: notebooks/b.ipynb}]", "runs[0].notebook", "exists"),
        ("runs: [{name: a, notebook: data.csv}]", "runs[0].notebook", "*.ipynb"),
        ("runs: [{name: a, notebook: ../a.ipynb}]", "runs[0].notebook", "within"),
        ("runs: [{name: a, notebook: notebooks/out.ipynb}]", "runs[0].notebook", "within"),
        (
            "runs: [{name: a, notebook: notebooks/a.ipynb, outputs: [/etc/x]}]",
            "runs[0].outputs[0]",
            "within",
        ),
        (
            "runs: [{name: a, notebook: notebooks/a.ipynb, parameters: {'x=1;y': 2}}]",
            "runs[0].parameters.x=1;y.[key]",
            "the name of a variable",
        ),
        (
            "runs: [&run {name: a, notebook: notebooks/a.ipynb}, *run]",
            "runs: name",
            "no repetition",
        ),
    ],
)
def test_bad_pipeline_is_refused(
    project: Project, tmp_path_factory: pytest.TempPathFactory, text: str, field: str, expected: str
) -> None:
    """The error names the file, the field and what was expected; nothing runs."""
    outside = tmp_path_factory.mktemp("outside") / "a.ipynb"
    project.notebook("a.ipynb", "1")
    outside.write_bytes((project.root / "notebooks" / "a.ipynb").read_bytes())
    (project.root / "notebooks" / "out.ipynb").symlink_to(outside)
    (project.root / "data.csv").touch()
    project.path.write_text(text or " ")
    with pytest.raises(InputError) as caught:
        load_pipeline(project.path)
    assert caught.value.where == str(project.path)
    assert caught.value.field == field
    assert expected in caught.value.expected


def test_bad_arguments_are_refused(project: Project) -> None:
    """Unknown names, no jobs, no time and a notebook that is none are errors, not empty runs."""
    project.notebook("a.ipynb", "1")
    project.pipeline({"name": "a", "notebook": "a.ipynb"})
    for options in ({"only": ["b"]}, {"jobs": 0}, {"timeout": -1.0}, {"timeout": float("nan")}):
        with pytest.raises(InputError):
            project.run(**options)
    (project.root / "notebooks" / "a.ipynb").write_text('{"cells": 3}')
    with pytest.raises(InputError, match=r"a\.ipynb"):
        project.run()
