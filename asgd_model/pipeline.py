"""The runs of ``notebooks/pipeline.yaml``, executed by papermill, several at a time.

A run is a notebook with parameters and the files that it writes. Every run has a process of its
own, and so has its kernel. Executed notebooks go to ``build/reproduce/``, next to a small JSON file
that says which runs have succeeded: it lets a killed pipeline resume and ``changed`` skip
what is up to date.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import keyword
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import unicodedata
from collections import Counter, deque
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
from ipykernel.kernelspec import write_kernel_spec
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
)
from tqdm import tqdm

from asgd_model.documents import read_yaml, validate
from asgd_model.errors import InputError
from asgd_model.files import read_json, write_bytes, write_json

if TYPE_CHECKING:
    import pandas as pd
    from nbformat import NotebookNode

DEFAULT_PATH = "notebooks/pipeline.yaml"

_LIBRARY = Path(__file__).parent
_BUILD = Path("build", "reproduce")
_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_KERNEL_START = 60
"""Seconds that a kernel may take to start."""
_GRACE = 30.0
"""Seconds beyond its timeout after which the process of a run is ended from outside."""


def _root(info: ValidationInfo) -> Path:
    return info.context["root"] if info.context else Path.cwd()


def _in_project(path: Path, info: ValidationInfo) -> Path:
    root = _root(info)
    try:
        within = (root / path).resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # links that lead in a circle
        within = False
    if not within:
        raise ValueError("a path that stays within the project's folder")
    return path


def _existing(path: Path, info: ValidationInfo) -> Path:
    if not os.path.exists(_root(info) / path):  # false too for a name that is too long
        raise ValueError("the path of something that exists")
    return path


def _notebook(path: Path) -> Path:
    if path.suffix != ".ipynb":
        raise ValueError("a notebook, *.ipynb")
    return path


def _variable(name: str) -> str:
    plain = unicodedata.normalize("NFKC", name) == name  # else Python takes another name for it
    if not plain or not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError("the name of a variable")
    return name


def _storable(value: JsonValue) -> JsonValue:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise ValueError("finite numbers, and integers of some thousand digits at most") from error
    return value


ProjectPath = Annotated[Path, AfterValidator(_in_project)]
ExistingPath = Annotated[ProjectPath, AfterValidator(_existing)]
Seconds = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class Run(BaseModel):
    """One execution of a notebook. All paths are relative to the project's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100, description="also a file name"
    )
    notebook: Annotated[ExistingPath, AfterValidator(_notebook)]
    parameters: dict[
        Annotated[str, AfterValidator(_variable)], Annotated[JsonValue, AfterValidator(_storable)]
    ] = Field(default={}, description="values for the notebook's `parameters` cell")
    inputs: tuple[ExistingPath, ...] = Field(
        default=(Path("data"),), description="files and folders that the notebook reads"
    )
    outputs: tuple[ProjectPath, ...] = Field(
        default=(), description="files that the notebook writes"
    )
    timeout: Seconds | None = Field(default=None, description="seconds, else the pipeline's")


class Pipeline(BaseModel):
    """What ``pipeline.yaml`` holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    timeout: Seconds = Field(default=300.0, description="seconds that a run may take")
    runs: tuple[Run, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes
    ----------
    name, notebook : str
        The run and its notebook.
    status : str
        ``done``, ``failed``, or ``kept`` for a run that was not executed again.
    seconds : float
        Time that the run took.
    executed : str
        The executed notebook, relative to the project's folder; the output of the run's process
        is beside it, with the extension ``.log``.
    error : str
        Why the run failed, on one line.
    """

    name: str
    notebook: str
    status: str
    seconds: float
    executed: str
    error: str = ""


class _State(BaseModel):
    """What is remembered between pipelines.

    Attributes
    ----------
    succeeded : dict
        Fingerprint of each run when it last succeeded.
    selected : list or None
        Names of all runs of the pipeline that has not come to its end.
    done : list
        Names of those that had succeeded by then.
    """

    succeeded: dict[str, str] = {}
    selected: list[str] | None = None
    done: list[str] = []


def load_pipeline(path: str | os.PathLike[str] = DEFAULT_PATH) -> Pipeline:
    """Read a pipeline file; its project is the folder above the one that it lies in.

    Raises
    ------
    InputError
        If the file is no pipeline: names the file, the field, what was found and what was expected.
    """
    where = os.fspath(path)
    document = read_yaml(path)
    pipeline = validate(Pipeline, document, where, context={"root": _project(path)})
    runs = pipeline.runs
    _refuse_repeated(where, "name", [run.name for run in runs])
    _refuse_repeated(where, "outputs", [output for run in runs for output in run.outputs])
    plain = [run.notebook for run in runs if not run.parameters]
    _refuse_repeated(where, "notebook without parameters", plain)
    return pipeline


def run_pipeline(
    path: str | os.PathLike[str] = DEFAULT_PATH,
    *,
    only: Collection[str] = (),
    changed: bool = False,
    jobs: int | None = None,
    timeout: float | None = None,
    update: bool = False,
) -> pd.DataFrame:
    """Execute the runs of a pipeline; a run that fails does not stop the others.

    If the last pipeline with the same runs was interrupted, those that it completed are kept.

    Parameters
    ----------
    path : path-like
        The pipeline file.
    only : collection of str
        Names of runs, or of notebooks with or without folder and extension; all by default.
    changed : bool
        Keep runs whose notebook, parameters, library and inputs are those of their last success.
    jobs : int, optional
        Runs at a time; by default as many as the machine has cores.
    timeout : float, optional
        Seconds that each run may take, instead of what the file says.
    update : bool
        Write the executed notebooks of runs without parameters over the notebooks.

    Returns
    -------
    DataFrame
        One row per selected run in the file's order, with the columns of `Outcome`.

    Raises
    ------
    InputError
        If the file is no pipeline, `only` names no run, or `jobs` or `timeout` is not above 0.
    """
    import pandas as pd

    for name, value in (("jobs", jobs), ("timeout", timeout)):
        if value is not None and not value > 0:
            raise InputError(name, value, "a number above 0")
    root = _project(path)
    pipeline = load_pipeline(path)
    runs = _select(pipeline.runs, only)
    cores = os.cpu_count() or 1
    jobs = min(jobs or cores, len(runs))

    state_file = root / _BUILD / "state.json"
    state = _load_state(state_file)
    prints = _fingerprints(root, runs)
    names = [run.name for run in runs]
    if state.selected != names:
        state.selected, state.done = names, []

    kept = [
        run
        for run in runs
        if (changed or run.name in state.done)
        and state.succeeded.get(run.name) == prints[run.name]
        and all((root / file).exists() for file in (_executed(run), *run.outputs))
    ]
    waiting = [run for run in runs if run not in kept]
    limits = {run.name: timeout or run.timeout or pipeline.timeout for run in waiting}
    outcomes = {run.name: _outcome(run, "kept") for run in kept}
    for run in waiting:  # killed in between, what an execution left is not taken for its result
        state.succeeded.pop(run.name, None)
    write_json(state_file, state.model_dump())
    executions = _execute_all(root, waiting, limits, jobs, threads=max(1, cores // jobs))
    with contextlib.closing(executions):  # an interrupt ends the runs before it goes on
        for outcome in executions:
            outcomes[outcome.name] = outcome
            if outcome.status == "done":
                state.succeeded[outcome.name] = prints[outcome.name]
                state.done.append(outcome.name)
            write_json(state_file, state.model_dump())
    state.selected, state.done = None, []
    write_json(state_file, state.model_dump())

    if update:
        for run in runs:
            if outcomes[run.name].status != "failed" and not run.parameters:
                outcomes[run.name] = _update(root, run, outcomes[run.name], prints[run.name])
    return pd.DataFrame([asdict(outcomes[name]) for name in names])


def _project(path: str | os.PathLike[str]) -> Path:
    return Path(path).resolve().parent.parent


def _refuse_repeated(where: str, field: str, values: Sequence[str | Path]) -> None:
    value, times = Counter(values).most_common(1)[0] if values else ("", 0)
    if times > 1:
        raise InputError(where, f"{value} {times} times", "no repetition", field=f"runs: {field}")


def _select(runs: Sequence[Run], only: Collection[str]) -> list[Run]:
    if not only:
        return list(runs)
    chosen: set[str] = set()
    for name in only:
        found = {run.name for run in runs if name == run.name} or {
            run.name
            for run in runs
            if name in (run.notebook.as_posix(), run.notebook.name, run.notebook.stem)
        }
        if not found:
            expected = f"a notebook or one of the runs {', '.join(run.name for run in runs)}"
            raise InputError("only", name, expected)
        chosen |= found
    return [run for run in runs if run.name in chosen]


def _load_state(path: Path) -> _State:
    """What the file says; nothing if it is missing or damaged, as it only saves work."""
    try:
        return _State.model_validate(read_json(path))
    except (InputError, ValidationError):
        return _State()


def _fingerprints(root: Path, runs: Sequence[Run]) -> dict[str, str]:
    """A digest of all that each run depends on, by the run's name."""
    library = _content(_LIBRARY, "*.py")
    contents = {path: _content(root / path, "*") for run in runs for path in run.inputs}
    return {
        run.name: _digest(
            json.dumps([_sources(root / run.notebook), run.parameters], sort_keys=True).encode(),
            library,
            *(contents[path] for path in run.inputs),
        )
        for run in runs
    }


def _content(path: Path, pattern: str) -> bytes:
    """A digest of a file, or of the names and contents of the files under a folder."""
    files = sorted(file for file in path.rglob(pattern) if file.is_file()) or [path]
    parts = []
    for file in files:
        if file.is_file():
            parts += [file.relative_to(path).as_posix().encode(), file.read_bytes()]
    return _digest(*parts).encode()


def _digest(*parts: bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()


def _sources(notebook: Path) -> list[list[Any]]:
    """Kind, source and tags of each cell: what a notebook says, without its outputs."""
    document = read_json(notebook)
    try:
        return [
            [cell["cell_type"], "".join(cell["source"]), cell["metadata"].get("tags", [])]
            for cell in document["cells"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        expected = "the JSON document of a notebook, nbformat 4"
        raise InputError(str(notebook), "other content", expected) from error


def _executed(run: Run) -> Path:
    return _BUILD / f"{run.name}.ipynb"


def _outcome(run: Run, status: str, seconds: float = 0.0, error: str = "") -> Outcome:
    notebook, executed = run.notebook.as_posix(), _executed(run).as_posix()
    return Outcome(run.name, notebook, status, seconds, executed, error)


def _update(root: Path, run: Run, outcome: Outcome, fingerprint: str) -> Outcome:
    """Write the executed notebook over the notebook, unless that was edited meanwhile."""
    if _fingerprints(root, [run])[run.name] != fingerprint:
        error = "not updated: the notebook or its inputs changed during the run"
        return replace(outcome, status="failed", error=error)
    write_bytes(root / run.notebook, (root / _executed(run)).read_bytes())
    return outcome


def _execute_all(
    root: Path, runs: Sequence[Run], limits: Mapping[str, float], jobs: int, threads: int
) -> Generator[Outcome, None, None]:
    """Execute runs, `jobs` at a time, and yield the outcome of each one when it ends."""
    waiting = deque(runs)
    running: dict[int, _Execution] = {}
    build = root / _BUILD
    build.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=".jupyter-", dir=build) as folder,
        tqdm(total=len(runs), unit="run", smoothing=0, disable=None) as bar,
    ):
        environment = _environment(Path(folder), threads)
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    run = waiting.popleft()
                    execution = _Execution(root, run, limits[run.name], environment)
                    running[execution.process.sentinel] = execution
                bar.set_postfix_str(", ".join(each.run.name for each in running.values()))
                ended = wait(list(running), timeout=1.0)
                for sentinel, execution in list(running.items()):
                    if sentinel in ended or execution.overdue():
                        del running[sentinel]
                        yield execution.outcome()
                        bar.update()
        finally:
            for execution in running.values():
                execution.stop()


def _environment(folder: Path, threads: int) -> dict[str, str]:
    """Environment of the runs, so that they do not depend on the user's Jupyter or shell.

    Kernels run this very Python, whatever kernels are installed under the name ``python3``; they
    read no personal IPython profile, draw into the notebook, and share the cores.
    """
    write_kernel_spec(folder / "kernels" / "python3")
    search = [str(folder), os.environ.get("JUPYTER_PATH", "")]
    limits = {f"{name}_NUM_THREADS": str(threads) for name in ("NUMBA", "OMP", "OPENBLAS", "MKL")}
    return {
        **os.environ,
        **limits,
        "JUPYTER_PATH": os.pathsep.join(filter(None, search)),
        "IPYTHONDIR": str(folder / "ipython"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }


class _Execution:
    """A run that is being executed, in a process of its own."""

    def __init__(
        self, root: Path, run: Run, timeout: float, environment: Mapping[str, str]
    ) -> None:
        self.root, self.run, self.timeout = root, run, timeout
        self.started = time.monotonic()
        self.before = self._written()
        # A server forked once has papermill loaded, which takes longer than most notebooks.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["papermill"])
        self.result, result = context.Pipe(duplex=False)
        arguments = (root / run.notebook, root / _executed(run), run.parameters, timeout)
        self.process = context.Process(target=_execute, args=(*arguments, environment, result))
        self.process.start()
        result.close()

    def overdue(self) -> bool:
        """Whether the process has not ended although it should have ended itself."""
        return time.monotonic() - self.started > self.timeout + _KERNEL_START + _GRACE

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.join(_GRACE)
        self.process.kill()
        self.process.join()

    def outcome(self) -> Outcome:
        """What came of the run; ends its process if it still runs."""
        seconds = time.monotonic() - self.started
        overdue = self.overdue()
        self.stop()
        try:
            error = self.result.recv_bytes().decode()
        except EOFError:
            status = f"its process ended with exit status {self.process.exitcode}"
            error = f"no end after {seconds:.0f} s" if overdue else status
        written = self._written()
        missing = [str(path) for path in self.run.outputs if written[path] == self.before[path]]
        if not error and missing:
            error = f"did not write {', '.join(missing)}"
        return _outcome(self.run, "failed" if error else "done", round(seconds, 1), error)

    def _written(self) -> dict[Path, int | None]:
        """When each output was written, in nanoseconds; None if it is not there."""
        paths = {path: self.root / path for path in self.run.outputs}
        return {
            path: file.stat().st_mtime_ns if file.is_file() else None
            for path, file in paths.items()
        }


def _execute(
    source: Path,
    target: Path,
    parameters: Mapping[str, Any],
    timeout: float,
    environment: Mapping[str, str],
    result: Connection,
) -> None:
    """Execute one notebook in this process and send what went wrong, or nothing, to `result`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the pipeline, which ends its runs
    signal.signal(signal.SIGTERM, lambda *_: _end())
    threading.Thread(target=_end_with_pipeline, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    log = os.open(target.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    target.unlink(missing_ok=True)
    result.send_bytes(_execute_notebook(source, target, parameters, timeout).encode())


def _end_with_pipeline() -> None:
    pipeline = multiprocessing.parent_process()
    if pipeline is not None:
        pipeline.join()
        _end()


def _end() -> None:
    """End this process and its kernel at once, also a kernel that hangs."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    os._exit(1)


def _execute_notebook(
    source: Path, target: Path, parameters: Mapping[str, Any], timeout: float
) -> str:
    """Execute a notebook and return why it failed, on one line, or nothing."""
    import nbformat
    import papermill

    deadline = time.monotonic() + timeout
    failure: Exception | None = None
    try:
        if parameters:
            known = papermill.inspect_notebook(source)
            unknown = ", ".join(sorted(set(parameters) - set(known)))
            if unknown:
                raise InputError("parameters", unknown, f"some of {', '.join(known)}")
        papermill.execute_notebook(
            source,
            target,
            parameters,
            kernel_name=_KERNEL["name"],
            language=_KERNEL["language"],
            cwd=source.parent,
            progress_bar=False,
            start_timeout=_KERNEL_START,
            timeout_func=lambda cell: max(0.1, deadline - time.monotonic()),
            coalesce_streams=True,
        )
    except Exception as raised:  # whatever it is, the summary says so
        failure = raised
    error = _reason(failure, timeout) if failure else ""
    if target.exists():
        notebook = nbformat.read(target, as_version=4)
        if failure and not isinstance(failure, papermill.PapermillExecutionError):
            _mark(notebook, error)
        _clean(notebook)
        write_bytes(target, nbformat.writes(notebook).encode())
    return error


def _reason(failure: Exception, timeout: float) -> str:
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill import PapermillExecutionError

    match failure:
        case PapermillExecutionError():
            reason = f"{failure.ename}: {failure.evalue} (In [{failure.exec_count}])"
        case CellTimeoutError():
            reason = f"no end after {timeout:g} s"
        case DeadKernelError():
            reason = "the kernel died"
        case _:
            reason = f"{type(failure).__name__}: {failure}"
    return " ".join(reason.split())[:1000]


def _mark(notebook: NotebookNode, error: str) -> None:
    """Show in the cell that was running why it was stopped."""
    from nbformat.v4 import new_output

    started = [cell for cell in notebook.cells if cell.metadata.papermill.get("start_time")]
    if started:
        shown = new_output("error", ename="Stopped", evalue=error, traceback=[error])
        started[-1].outputs.append(shown)


def _clean(notebook: NotebookNode) -> None:
    """Take out what differs from one execution to the next or from one machine to another."""
    for key in ("papermill", "widgets"):
        notebook.metadata.pop(key, None)
    notebook.metadata["kernelspec"] = dict(_KERNEL)
    notebook.metadata.get("language_info", {}).pop("version", None)
    for cell in notebook.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if not cell.metadata.get("tags", ["some"]):
            del cell.metadata["tags"]
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
