"""The command ``asgd-model``: a thin layer over the library.

Input that cannot be used is reported on one line of standard error with exit status 2; an
interrupt ends the command with status 130.
"""

from __future__ import annotations

import datetime
import io
import math
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import asgd_model
from asgd_model.errors import InputError, PrecisionWarning
from asgd_model.testbed.command import testbed

if TYPE_CHECKING:
    import pandas as pd

NAME = "asgd-model"

_MAX_NUMBERS = 10_000
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_PLOT_FORMATS = (".png", ".svg")


def _numbers(context: click.Context, option: click.Parameter, text: str) -> list[int]:
    """Return the numbers that a text such as ``1-8,12,16`` lists, each one once."""
    numbers: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*0*([1-9][0-9]{0,8})(?:-0*([1-9][0-9]{0,8}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            expected = "numbers above 0 and rising ranges of them, such as 1-8,12,16"
            raise InputError(option.opts[0], text, expected)
        if last - first >= _MAX_NUMBERS or len(numbers) >= _MAX_NUMBERS:
            raise InputError(option.opts[0], text, f"at most {_MAX_NUMBERS:,} numbers")
        numbers.update(dict.fromkeys(range(first, last + 1)))
    return list(numbers)


def _bit_rate(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Return the bit/s that a text such as ``1G``, ``300M`` or ``2.5e9`` says."""
    if text is None:
        return None
    match = re.fullmatch(r"((?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)([kMGT]?)", text)
    rate = float(match[1]) * _PREFIXES[match[2]] if match else 0.0
    if not 0.0 < rate < math.inf:
        raise InputError(option.opts[0], text, "bit/s above 0, such as 300M or 1G")
    return rate


def _window(context: click.Context, option: click.Parameter, text: str) -> int | str | None:
    """Return the number of bytes that a text says, or what stands for it."""
    if text == "none":
        return None
    if text != "profile" and not re.fullmatch(r"[0-9]{1,18}", text):
        raise InputError(option.opts[0], text, "a number of bytes, profile or none")
    return text if text == "profile" else int(text)


@click.group()
@click.version_option(asgd_model.__version__, prog_name=NAME)
def commands() -> None:
    """Predict the throughput of asynchronous SGD on N workers from the profile of one."""


@commands.command()
@click.argument("profile")
@click.option("--workers", metavar="NUMBERS", callback=_numbers, default="1-8", show_default=True)
@click.option("--servers", type=int, help="Parameter servers; the profile's by default.")
@click.option("--methods", default="simulation,queueing", show_default=True)
@click.option(
    "--bandwidth",
    metavar="BIT/S",
    callback=_bit_rate,
    help="Of every link; the profile's by default.",
)
@click.option("--worker-cores", type=float, help="The profile's by default.")
@click.option("--server-cores", type=float, help="The profile's by default.")
@click.option(
    "--stream-order",
    default="profile",
    show_default=True,
    help="Or fifo, random, tic, tac, shared.",
)
@click.option(
    "--window",
    "stream_window",
    metavar="BYTES",
    callback=_window,
    default="profile",
    show_default=True,
    help="Of a stream's turn, or none for whole tensors.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--replications", type=int, help="Simulations with other random starts.")
@click.option(
    "--precision",
    type=float,
    help="Simulate more until the mean is known to so much of itself, such as 0.01.",
)
@click.option("--most-replications", type=int, help="Where that ends; 1000 by default.")
@click.option("--format", "layout", type=click.Choice(["table", "csv", "json"]), default="table")
@click.option("--output", metavar="FILE", help="Write there instead of to standard output.")
@click.option("--plot", metavar="FILE", help="Also draw throughput against workers: png or svg.")
def predict(
    profile: str,
    workers: list[int],
    methods: str,
    stream_window: int | str | None,
    layout: str,
    output: str | None,
    plot: str | None,
    **options: Any,
) -> None:
    """Predict throughput from PROFILE.

    NUMBERS of workers are given like 1-8,12,16, and BIT/S like 300M or 1G.
    """
    if plot and Path(plot).suffix not in _PLOT_FORMATS:
        raise InputError("--plot", plot, f"a file name ending in {' or '.join(_PLOT_FORMATS)}")
    from asgd_model import files

    loaded = asgd_model.load_profile(profile)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PrecisionWarning)
        predictions = asgd_model.predict(
            loaded,
            workers,
            methods=tuple(method.strip() for method in methods.split(",")),
            stream_window=stream_window,
            **{name: value for name, value in options.items() if value is not None},
        )
    for warning in caught:
        click.echo(f"{NAME}: {warning.message}", err=True)
    if output:
        files.write_bytes(output, _text(predictions, layout).encode())
    else:
        click.echo(_text(predictions, layout), nl=False)
    if plot:
        files.write_bytes(plot, _throughput_plot(predictions, Path(plot).suffix[1:]))


def _text(table: pd.DataFrame, layout: str) -> str:
    if layout == "csv":
        return table.to_csv(index=False)
    if layout == "json":
        return table.to_json(orient="records", indent=2) + "\n"
    return table.to_string(index=False, float_format="{:.4g}".format) + "\n"


def _throughput_plot(predictions: pd.DataFrame, file_format: str) -> bytes:
    from matplotlib.figure import Figure

    from asgd_model import plotting

    figure = Figure(layout="constrained")
    plotting.throughput(predictions, ax=figure.subplots())
    image = io.BytesIO()
    figure.savefig(image, format=file_format, dpi=150)
    return image.getvalue()


@commands.command()
@click.argument("traces", nargs=-1, required=True)
@click.option("--output", required=True, metavar="FILE", help="Such as job.profile.json.gz.")
@click.option("--metadata", metavar="FILE", help="YAML or JSON with what the options below say.")
@click.option("--sizes", metavar="FILE", help="YAML or JSON with the bytes of tensors.")
@click.option("--dnn", help="Name of the network.")
@click.option("--batch-size", type=int, help="Examples per step.")
@click.option("--parameters", type=int, help="Number of the network's parameters.")
@click.option("--platform", help="Name of the measured platform.")
@click.option("--framework", help="Its name and version.")
@click.option("--date", help="Day of the measurement, ISO 8601.")
@click.option("--source", help="What the profile is made from.")
@click.option(
    "--link-rate", metavar="BIT/S", callback=_bit_rate, help="Payload rate of a node's link."
)
@click.option("--worker-cores", type=float, help="Cores of the worker.")
@click.option("--server-cores", type=float, help="Cores of each server.")
@click.option("--worker-threads", type=int, help="Operations that the worker runs at a time.")
@click.option("--server-threads", type=int, help="Operations that a server runs at a time.")
@click.option("--stream-window", type=int, help="Bytes that a stream sends in one turn.")
@click.option("--machine-speed", type=float, help="MB hashed per second of CPU time.")
def convert(
    traces: tuple[str, ...],
    output: str,
    metadata: str | None,
    sizes: str | None,
    **options: Any,
) -> None:
    """Make a profile from traced steps.

    TRACES are files, one for each step, or folders that hold nothing else, read in the order of
    their names: RunMetadata, or timelines that TensorFlow wrote for Chrome. BIT/S are given like
    300M or 1G. Options take precedence over the file of --metadata, which may also hold the
    calibration. Timelines without show_memory need --sizes: the bytes of each transferred tensor
    by the name of the operation that makes it.
    """
    from asgd_model.documents import validate
    from asgd_model.profile import Metadata
    from asgd_model.traces import read_traces

    known = _fields(metadata, "fields of a profile's metadata") if metadata else {}
    known = {  # YAML makes a date of 2026-01-31
        name: value.isoformat() if isinstance(value, datetime.date) else value
        for name, value in known.items()
    }
    known |= {name: value for name, value in options.items() if value is not None}
    where = f"options and {metadata}" if metadata else "options"
    paths = [file for path in traces for file in _expanded(Path(path))]
    profile = read_traces(paths, validate(Metadata, known, where), _sizes(sizes) if sizes else None)
    asgd_model.save_profile(profile, output)
    click.echo(f"{click.format_filename(output)}: {profile}")


def _fields(path: str, expected: str) -> dict[str, Any]:
    """Return the mapping of text to values in a YAML or JSON file."""
    from asgd_model.documents import read_yaml
    from asgd_model.files import read_json

    document = read_json(path) if Path(path).suffix == ".json" else read_yaml(path)
    if not isinstance(document, dict):
        raise InputError(path, type(document).__name__, expected)
    return document


def _sizes(path: str) -> dict[str, int]:
    sizes = _fields(path, "bytes by names of operations")
    for name, size in sizes.items():
        if not isinstance(name, str) or type(size) is not int or not 0 <= size < 2**63:
            raise InputError(path, size, "a number of bytes", field=str(name))
    return sizes


def _expanded(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file() and file.name[0] != ".")
    if not files:
        raise InputError(os.fspath(path), "an empty folder", "files of traced steps")
    return files


@commands.command()
@click.argument("profile")
def summary(profile: str) -> None:
    """Show what PROFILE holds.

    That is its metadata, and the operations, bytes and work of a step per resource.
    """
    loaded = asgd_model.load_profile(profile)
    click.echo(loaded)
    for name, value in loaded.metadata.model_dump(exclude={"calibration"}).items():
        if value is not None:
            click.echo(f"{name}: {value}")
    click.echo(loaded.summary().to_string(float_format="{:.4g}".format))


@commands.command()
@click.argument("profile")
@click.option("--output", required=True, metavar="FILE", help="Such as trace.json.")
@click.option("--workers", type=int, default=1, show_default=True)
@click.option("--servers", type=int, help="Parameter servers; the profile's by default.")
@click.option("--steps", type=click.IntRange(1), default=3, show_default=True, help="Per worker.")
@click.option(
    "--stream-order",
    default="profile",
    show_default=True,
    help="Or fifo, random, tic, tac, shared.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--recorded", type=int, metavar="STEP", help="Write this step of PROFILE instead.")
def trace(
    profile: str,
    output: str,
    workers: int,
    servers: int | None,
    steps: int,
    stream_order: str,
    seed: int,
    recorded: int | None,
) -> None:
    """Write an execution trace that Perfetto opens.

    The trace is that of a simulation, or, with --recorded, of a step that PROFILE holds.
    """
    from asgd_model import files

    loaded = asgd_model.load_profile(profile)
    if recorded is not None:
        document = asgd_model.profile_trace(loaded, recorded)
    else:
        if workers * steps > _MAX_NUMBERS:
            found, expected = f"{workers * steps} steps in all", f"at most {_MAX_NUMBERS:,}"
            raise InputError("--steps", found, expected)
        cluster = asgd_model.Cluster.like(loaded, workers, servers, stream_order=stream_order)
        result = asgd_model.simulate(
            loaded,
            cluster,
            steps=steps,
            warm_up=0,
            record=[(worker, step) for worker in range(workers) for step in range(steps)],
            stop_at_first=False,
            seed=seed,
        )
        document = asgd_model.simulation_trace(loaded, result)
    files.write_json(output, document)
    click.echo(f"{click.format_filename(output)}: {len(document['traceEvents'])} events")


@commands.command()
@click.argument("pipeline", default="notebooks/pipeline.yaml")
@click.option("--only", multiple=True, metavar="NAME", help="A run or notebook; may be repeated.")
@click.option("--changed", is_flag=True, help="Only runs whose inputs have changed.")
@click.option("--jobs", type=int, help="Runs at a time; the number of cores by default.")
@click.option("--timeout", type=float, metavar="SECONDS", help="That a run may take.")
@click.option("--update", is_flag=True, help="Write executed notebooks over the notebooks.")
def reproduce(
    pipeline: str,
    only: tuple[str, ...],
    changed: bool,
    jobs: int | None,
    timeout: float | None,
    update: bool,
) -> int:
    """Execute the notebooks of PIPELINE.

    A pipeline that was interrupted resumes when the same command is given again.
    """
    from asgd_model.pipeline import run_pipeline

    outcomes = run_pipeline(
        pipeline, only=only, changed=changed, jobs=jobs, timeout=timeout, update=update
    )
    failed = int((outcomes["status"] == "failed").sum())
    click.echo(outcomes.to_string(index=False))
    click.echo(f"{failed} of {len(outcomes)} runs failed")
    return 1 if failed else 0


commands.add_command(testbed)


def main() -> int:
    """Run the command of the command line and return its exit status."""
    try:
        return commands.main(prog_name=NAME, standalone_mode=False) or 0
    except InputError as error:
        click.echo(f"{NAME}: {error}", err=True)
        return 2
    except OSError as error:
        click.echo(f"{NAME}: {error}", err=True)
        return 1
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo(f"{NAME}: interrupted", err=True)
        return 130
