"""The command passes on what it is told, shows what it gets, and reports errors on one line."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread

import asgd_model
from asgd_model import cli, pipeline
from asgd_model.profile import Metadata, Profile, load_profile, save_profile

TRACES = sorted((Path(__file__).parents[1] / "data" / "raw").glob("*/alexnet/*.pb.gz"))

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run ``asgd-model`` with arguments; returns its exit status, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["asgd-model", *map(str, arguments)])
        status = cli.main()
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A profile of one step: receive, compute, send, apply."""
    times = np.array([[0.0, 1.0, 3.0, 4.0]])
    made = Profile(
        names=("receive", "compute", "send", "apply"),
        kinds=("RecvTensor", "MatMul", "RecvTensor", "ApplyGradientDescent"),
        resources=np.array([0, 1, 2, 3], dtype=np.int8),
        servers=np.array([0, -1, 0, 0], dtype=np.int32),
        sizes=np.array([1000, 0, 1000, 0]),
        dependencies=tuple(np.array(row, dtype=np.int32) for row in ([], [0], [1], [2])),
        work=np.array([[0.0, 2.0, 0.0, 0.5]]),
        start=times,
        end=times + 0.5,
        metadata=Metadata(dnn="tiny", batch_size=4, link_rate=1e6),
    )
    path = tmp_path / "tiny.profile.json.gz"
    save_profile(made, path)
    return path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the prediction and its plot: what is tested is what reaches them."""
    seen: list[dict[str, Any]] = []

    def predict(profile: Profile, workers: list[int], **options: Any) -> pd.DataFrame:
        seen.append({"dnn": profile.metadata.dnn, "workers": workers, **options})
        rates = [count / 7 for count in workers]
        return pd.DataFrame({"method": "queueing", "workers": workers, "steps_per_s": rates})

    def throughput(predictions: pd.DataFrame, ax: Axes) -> Axes:
        ax.plot(predictions["workers"], predictions["steps_per_s"])
        return ax

    plotting = ModuleType("asgd_model.plotting")
    plotting.__dict__["throughput"] = throughput
    monkeypatch.setitem(sys.modules, plotting.__name__, plotting)
    monkeypatch.setattr(asgd_model, "plotting", plotting, raising=False)
    monkeypatch.setattr(asgd_model, "predict", predict, raising=False)
    return seen


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1-8", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("3", [3]),
        ("1-2,12,16", [1, 2, 12, 16]),
        ("4, 2-4", [4, 2, 3]),
        ("007", [7]),
    ],
)
def test_workers_are_listed(
    command: Command, profile: Path, calls: list[dict[str, Any]], text: str, numbers: list[int]
) -> None:
    """Numbers and ranges, each number once, in the order given."""
    assert command("predict", profile, "--workers", text)[0] == 0
    assert calls[0]["workers"] == numbers


@pytest.mark.parametrize(
    "text", ["", "0", "0-3", "8-1", "abc", "1,,2", "1-", "-3", "1.5", "1-3-5", "٣", "1-99999999"]
)
def test_bad_workers_are_refused(command: Command, text: str) -> None:
    """One line that names the option and what was found; status 2."""
    status, out, err = command("predict", "any", f"--workers={text}")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"--workers: found {text}; expected" in err


@pytest.mark.parametrize(
    ("text", "rate"), [("1G", 1e9), ("300M", 3e8), ("2.5k", 2500.0), ("1e6", 1e6), (".5T", 5e11)]
)
def test_bandwidth_has_si_prefixes(
    command: Command, profile: Path, calls: list[dict[str, Any]], text: str, rate: float
) -> None:
    """Prefixes are powers of 1000 and the unit is bit/s."""
    assert command("predict", profile, "--bandwidth", text)[0] == 0
    assert calls[0]["bandwidth"] == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "0", "0G", "-1G", "1GB", "1 G", "nan", "inf", "1e999", "G"])
def test_bad_bandwidth_is_refused(command: Command, text: str) -> None:
    """A rate of 0, without end, or in another unit is an error of the option."""
    status, out, err = command("predict", "any", f"--bandwidth={text}")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"--bandwidth: found {text}; expected bit/s" in err


def test_predict_passes_on_only_what_was_said(
    command: Command, profile: Path, calls: list[dict[str, Any]]
) -> None:
    """Without an option the library's default holds; with it, its value gets there."""
    command("predict", profile)
    command(
        *(
            "predict",
            profile,
            "--workers",
            "2",
            "--servers",
            3,
            "--methods",
            "queueing, simulation",
        ),
        *("--worker-cores", 0.5, "--server-cores", 2, "--stream-order", "fifo"),
        *("--window", 4096, "--seed", 7, "--replications", 5),
        *("--precision", 0.01, "--most-replications", 50),
    )
    default = {"methods": ("simulation", "queueing"), "stream_order": "profile", "seed": 0}
    assert (
        calls[0]
        == {"dnn": "tiny", "workers": list(range(1, 9)), "stream_window": "profile"} | default
    )
    assert calls[1] == {
        "dnn": "tiny",
        "workers": [2],
        "servers": 3,
        "methods": ("queueing", "simulation"),
        "worker_cores": 0.5,
        "server_cores": 2.0,
        "stream_order": "fifo",
        "stream_window": 4096,
        "seed": 7,
        "replications": 5,
        "precision": 0.01,
        "most_replications": 50,
    }


def test_precision_that_is_not_reached(command: Command, alexnet_path: Path) -> None:
    """The table says what was reached, and a line on standard error that it is not enough."""
    arguments = ("--workers", 3, "--methods", "simulation", "--replications", 3, "--format", "csv")
    status, out, err = command(
        "predict", alexnet_path, *arguments, "--precision", 0.001, "--most-replications", 4
    )
    row = pd.read_csv(io.StringIO(out)).iloc[0]
    assert (status, row["replications"]) == (0, 4)
    assert err == (
        f"asgd-model: throughput known to {100 * row['precision']:.2g} %, 0.1 % was asked for, "
        "after 4 replications of 3 workers, the most allowed\n"
    )


def test_predictions_are_written_in_each_format(
    command: Command, profile: Path, calls: list[dict[str, Any]], tmp_path: Path
) -> None:
    """CSV and JSON hold the numbers in full; a table has its header; files replace the output."""
    expected = [1 / 7, 2 / 7]
    _, out, _ = command("predict", profile, "--workers", "1-2", "--format", "csv")
    assert pd.read_csv(io.StringIO(out))["steps_per_s"].tolist() == pytest.approx(expected)
    target = tmp_path / "new" / "predictions.json"
    _, out, _ = command(
        "predict", profile, "--workers", "1-2", "--format", "json", "--output", target
    )
    assert out == ""
    rows = json.loads(target.read_text())
    assert [row["steps_per_s"] for row in rows] == pytest.approx(expected)
    _, out, _ = command("predict", profile, "--workers", "1-2")
    assert out.splitlines()[0].split() == ["method", "workers", "steps_per_s"]
    assert len(out.splitlines()) == 3


def test_plot_has_the_format_of_its_name(
    command: Command, profile: Path, calls: list[dict[str, Any]], tmp_path: Path
) -> None:
    """PNG and SVG by the extension; any other is refused before the work."""
    for name, beginning in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        assert command("predict", profile, "--plot", tmp_path / name)[0] == 0
        assert (tmp_path / name).read_bytes().startswith(beginning)
    done = len(calls)
    status, _, err = command("predict", profile, "--plot", tmp_path / "a.gif")
    assert (status, len(calls)) == (2, done)
    assert "--plot" in err


def test_trace_is_of_a_simulation_or_of_a_recorded_step(
    command: Command, profile: Path, tmp_path: Path
) -> None:
    """Every step of every worker is in the trace, or the one step of the profile that was named."""
    target = tmp_path / "trace.json"

    def steps() -> list[tuple[int, int]]:
        events = json.loads(target.read_text())["traceEvents"]
        chosen = [event for event in events if event["ph"] == "X" and event["cat"] == "step"]
        return sorted((event["pid"], event["args"]["step"]) for event in chosen)

    options = ("--workers", 2, "--steps", 3, "--stream-order", "tac", "--output", target)
    assert command("trace", profile, *options)[0] == 0
    assert steps() == [(pid, step) for pid in (1, 2) for step in range(3)]
    assert command("trace", profile, "--recorded", 0, "--output", target)[0] == 0
    assert steps() == [(1, 0)]
    status, _, err = command("trace", profile, "--recorded", 1, "--output", target)
    assert (status, err) == (2, "asgd-model: step: found 1; expected 0 to 0\n")


def test_convert_makes_a_profile_from_files_and_folders(command: Command, tmp_path: Path) -> None:
    """A folder is its files by name; options win over the file of metadata."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for trace in TRACES[:2]:
        (folder / trace.name).symlink_to(trace)
    (tmp_path / "job.yaml").write_text(
        "{dnn: other, batch_size: 8, link_rate: 300e6, date: 2026-01-31,"
        " calibration: {tracing_overhead: 0.25}}"
    )
    target = tmp_path / "job.profile.json.gz"
    options = ("--output", target, "--metadata", tmp_path / "job.yaml", "--dnn", "AlexNet")
    status, out, err = command("convert", folder, TRACES[2], *options, "--link-rate", "280M")
    assert (status, err) == (0, "")
    made = load_profile(target)
    assert out == f"{target}: {made}\n"
    assert made.steps == 3
    assert made.metadata == Metadata.model_validate(
        {
            "dnn": "AlexNet",
            "batch_size": 8,
            "link_rate": 280e6,
            "date": "2026-01-31",
            "calibration": {"tracing_overhead": 0.25},
        }
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{batch_size: 8, link_rate: 1}", "dnn: found nothing; expected a value"),
        ("{dnn: a, batch_size: 0, link_rate: 1}", "batch_size: found 0; expected greater than"),
        ("{dnn: a, batch_size: 8, link_rate: .nan}", "link_rate: found nan; expected a finite"),
        ("{dnn: a, batch_size: 8, link_rate: 1, cores: 2}", "cores: found 2; expected Extra"),
        ("[dnn, a]", "found list; expected fields of"),
        ("{dnn: [}", "line 1, column 8; expected a YAML document"),
    ],
)
def test_convert_refuses_bad_metadata(
    command: Command, tmp_path: Path, content: str, message: str
) -> None:
    """The error names the file and the field; no profile is left behind."""
    (tmp_path / "job.yaml").write_text(content)
    target = tmp_path / "job.profile.json.gz"
    arguments = ("--output", target, "--metadata", tmp_path / "job.yaml")
    status, _, err = command("convert", TRACES[0], *arguments)
    assert (status, err.count("\n"), target.exists()) == (2, 1, False)
    assert "job.yaml" in err
    assert message in err


def test_convert_has_an_option_for_every_field() -> None:
    """What the metadata can say, a user can say on the command line, but for the calibration."""
    convert = cli.commands.commands["convert"]
    options = {parameter.name for parameter in convert.params}
    assert options - {"traces", "sizes", "output", "metadata"} == set(Metadata.model_fields) - {
        "calibration"
    }


def test_summary_shows_metadata_and_resources(command: Command, profile: Path) -> None:
    """What is known is shown, what is not known is left out."""
    status, out, _ = command("summary", profile)
    assert status == 0
    assert "link_rate: 1000000.0\n" in out
    assert "platform" not in out
    row = next(line.split() for line in out.splitlines() if line.startswith("downlink"))
    assert row[1:3] == ["1", "1000"]


def test_reproduce_fails_if_a_run_did(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 1 and the reason in the table; options reach the pipeline."""
    seen: dict[str, Any] = {}

    def run_pipeline(path: str, **options: Any) -> pd.DataFrame:
        seen.update(options, path=path)
        columns = {"name": ["a", "b"], "status": ["done", "failed"], "error": ["", "lost"]}
        return pd.DataFrame(columns).iloc[: 1 if options["changed"] else 2]

    monkeypatch.setattr(pipeline, "run_pipeline", run_pipeline)
    status, out, _ = command("reproduce", "--only", "a", "--only", "b", "--jobs", 3, "--update")
    assert status == 1
    assert out.splitlines()[-2:] == ["   b failed  lost", "1 of 2 runs failed"]
    assert seen == {
        "path": pipeline.DEFAULT_PATH,
        "only": ("a", "b"),
        "changed": False,
        "jobs": 3,
        "timeout": None,
        "update": True,
    }
    assert command("reproduce", "other.yaml", "--changed", "--timeout", 5)[0] == 0
    assert (seen["path"], seen["timeout"]) == ("other.yaml", 5.0)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("summary", "{tmp}/none.json"), 2),
        (("summary", "{tmp}/empty.json"), 2),
        (("summary", "{tmp}"), 2),
        (("convert", "{tmp}/folder", "--output", "x"), 2),
        (("reproduce", "{tmp}/none.yaml"), 2),
        (("summary", "{tmp}/tiny.profile.json.gz", "--output"), 2),
        (("unknown",), 2),
        (("predict", "{tmp}/tiny.profile.json.gz", "--output", "{tmp}/empty.json/x"), 1),
    ],
)
def test_errors_are_short(
    command: Command,
    profile: Path,
    calls: list[dict[str, Any]],
    tmp_path: Path,
    arguments: tuple[str, ...],
    status: int,
) -> None:
    """Errors of input and of the system end with a status and a message, never a traceback."""
    (tmp_path / "empty.json").touch()
    (tmp_path / "folder").mkdir()
    found, out, err = command(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert (found, out) == (status, "")
    assert err.strip()
    assert "Traceback" not in err


def test_predictions_from_the_shipped_profile(
    command: Command, alexnet_path: Path, tmp_path: Path
) -> None:
    """From a real profile to a table in each format and a plot: the numbers of the library."""
    arguments = ("predict", alexnet_path, "--workers", "1-4", "--replications", 3)
    methods = ("simulation", "queueing", "cynthia")
    expected = asgd_model.predict(
        load_profile(alexnet_path), range(1, 5), methods=methods, replications=3
    )
    arguments = (*arguments, "--methods", ",".join(methods))
    plot = tmp_path / "x.png"
    status, out, err = command(*arguments, "--format", "csv", "--plot", plot)
    assert (status, err) == (0, "")
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(out)), expected)
    height, width, channels = imread(plot).shape
    assert height > 300
    assert width > 400
    assert channels in (3, 4)
    status, out, err = command(*arguments, "--format", "json")
    assert (status, err) == (0, "")
    rows = json.loads(out)
    assert [row["workers"] for row in rows] == [1, 2, 3, 4] * 3
    assert [row["steps_per_s"] for row in rows] == pytest.approx(expected["steps_per_s"].tolist())
    assert rows[-1]["server_cpu"] is None, "what a method does not say is null"
    status, out, err = command(*arguments, "--format", "table")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["method", "workers", "servers", "steps_per_s"]
    assert len(lines) == 13
    assert lines[1].split()[:2] == ["simulation", "1"]
    assert float(lines[1].split()[3]) == pytest.approx(expected["steps_per_s"][0], rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--servers", 0), "Cluster: servers: found 0; expected an integer from 1"),
        (("--methods", "magic"), "predict: methods: found magic; expected one of simulation"),
        (("--methods", ""), "predict: methods: found ; expected one of simulation"),
        (("--stream-order", "lifo"), "Cluster: stream_order: found lifo; expected one of profile"),
        (("--worker-cores", "nan"), "Node: cores: found nan; expected a finite number above 0"),
        (("--server-cores", -1), "Node: cores: found -1.0; expected a finite number above 0"),
        (("--window", 0), "Cluster: stream_window: found 0; expected None or a number of bytes"),
        (("--seed", -1), "replicate: seed: found -1; expected an integer of at least 0"),
        (("--replications", 0), "replicate: replications: found 0; expected an integer of at l"),
        (("--methods", "ernest"), "ernest: found no measurements; expected measurements of"),
    ],
)
def test_impossible_predictions_are_refused(
    command: Command, alexnet_path: Path, options: tuple[object, ...], message: str
) -> None:
    """What the library refuses is one line of standard error and status 2."""
    status, out, err = command("predict", alexnet_path, "--workers", 2, *options)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"asgd-model: {message}")


def test_a_damaged_profile_is_refused(command: Command, alexnet_path: Path, tmp_path: Path) -> None:
    """Half a file is named, as are the field and the value of one that was changed."""
    path = tmp_path / "a.profile.json.gz"
    path.write_bytes(alexnet_path.read_bytes()[:5000])
    status, out, err = command("predict", path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"asgd-model: {path}: found damaged gzip data")
    document = json.loads(gzip.decompress(alexnet_path.read_bytes()))
    document["metadata"]["link_rate"] = 0
    path.write_text(json.dumps(document))
    status, out, err = command("predict", path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err == (f"asgd-model: {path}: metadata.link_rate: found 0; expected greater than 0\n")


def test_from_traces_to_predictions(command: Command, alexnet: Profile, tmp_path: Path) -> None:
    """Raw traces become the profile that the project comes with, and that one predictions."""
    target = tmp_path / "job.profile.json.gz"
    known = alexnet.metadata.model_dump(mode="json", exclude_none=True)
    (tmp_path / "job.json").write_text(json.dumps(known))
    options = ("--metadata", tmp_path / "job.json", "--output", target)
    status, out, _ = command("convert", TRACES[0].parent, *options)
    assert (status, out) == (0, f"{target}: {alexnet}\n")
    made = load_profile(target)
    assert made.metadata == alexnet.metadata
    assert made.names == alexnet.names
    np.testing.assert_allclose(made.work, alexnet.work, rtol=0, atol=1.001e-9)
    status, out, err = command("predict", target, "--workers", 2, "--methods", "queueing")
    assert (status, err) == (0, "")
    assert out.splitlines()[1].split()[:3] == ["queueing", "2", "1"]


def test_module_is_the_command() -> None:
    """``python -m asgd_model`` and the script say the same; the start loads no heavy library."""
    heavy = {"numpy", "pandas", "numba", "matplotlib", "papermill", "pydantic"}
    code = f"import sys, asgd_model.cli; print({sorted(heavy)!r}, *sorted(sys.modules))"
    shown = []
    for start in (["-m", "asgd_model"], [str(Path(sys.executable).with_name("asgd-model"))]):
        done = subprocess.run([sys.executable, *start, "--version"], capture_output=True, text=True)
        shown.append((done.returncode, done.stdout, done.stderr))
    assert shown == [(0, f"asgd-model, version {asgd_model.__version__}\n", "")] * 2
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert heavy.isdisjoint(loaded.stdout.split("]")[1].split())


def test_convert_reads_timelines(command: Command, tmp_path: Path) -> None:
    """JSON and protobufs are told apart by what they hold; the sizes of tensors may be a file."""
    timeline = Path(__file__).parent / "data" / "alexnet_timeline.json.gz"
    target = tmp_path / "job.profile.json.gz"
    options = ("--output", target, "--dnn", "a", "--batch-size", 8, "--link-rate", "300M")
    assert command("convert", timeline, *options)[0] == 0
    assert load_profile(target).bytes_moved(0) == 201_215_648
    for content, message in (
        ("{read: -1}", "read: found -1; expected a number of bytes"),
        ("{read: 4.5}", "read: found 4.5; expected a number of bytes"),
        ("[1]", "found list; expected bytes by names of operations"),
    ):
        (tmp_path / "sizes.yaml").write_text(content)
        status, _, err = command("convert", timeline, *options, "--sizes", tmp_path / "sizes.yaml")
        assert status == 2
        assert message in err
