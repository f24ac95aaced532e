"""The commands ``asgd-model testbed ...``: a thin layer over the testbed."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import click

from asgd_model.errors import InputError
from asgd_model.testbed.errors import TestbedError

if TYPE_CHECKING:
    from asgd_model.testbed.platform import Platform

P = ParamSpec("P")
R = TypeVar("R")

PLATFORMS = Path("data/platforms")
"""Folder of the platforms that are known by name."""

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.group()
def testbed() -> None:
    """Measure real TensorFlow jobs on a cluster that this machine plays.

    Needs root, Linux and asgd-model[testbed].
    """


def _guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Report what the testbed cannot do as an error of the command, and end on signals."""

    @functools.wraps(function)
    def guarded(*arguments: P.args, **options: P.kwargs) -> R:
        with _ended_by_signals():
            try:
                return function(*arguments, **options)
            except TestbedError as error:
                raise click.ClickException(str(error)) from error

    return guarded


def _platform(context: click.Context, option: click.Parameter, name: str) -> Platform:
    """The platform with a name, or in a file."""
    from asgd_model.testbed.platform import load_platform

    path = Path(name)
    return load_platform(path if path.suffix else PLATFORMS / f"{name}.yaml")


_OUT = click.option(
    "--out",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default="data",
    show_default=True,
    help="Where results go.",
)
_PLATFORM = click.option(
    "--platform",
    metavar="NAME",
    callback=_platform,
    required=True,
    help=f"One of {PLATFORMS}, or a YAML file.",
)


@testbed.command()
@_PLATFORM
@_OUT
@click.option("--dnn", metavar="NAME", required=True, help="Network, such as alexnet.")
@click.option("--batch-size", type=int, required=True, help="Examples per step.")
@click.option("--workers", type=int, default=1, show_default=True)
@click.option("--servers", type=int, default=1, show_default=True, help="Parameter servers.")
@click.option("--policy", default="default", show_default=True, help="Or layers.")
@click.option("--steps", type=int, default=20, show_default=True, help="Of the fastest worker.")
@click.option("--warm-up", type=int, default=2, show_default=True, help="Steps not to count.")
@click.option("--repeat", type=int, default=1, show_default=True, help="Number of the run.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of starts and images.")
@click.option("--starts", metavar="SECONDS", help="Of the workers, such as 0,1.5; else random.")
@click.option("--profile", "profiled", is_flag=True, help="Trace so many steps of one worker.")
@click.option("--trace", "traced", is_flag=True, help="Keep the traces, of a run or a profile.")
@click.option("--capture", "captured", is_flag=True, help="Capture packets of the first worker.")
@_guarded
def run(
    platform: Platform,
    folder: Path,
    starts: str | None,
    profiled: bool,
    traced: bool,
    captured: bool,
    **options: Any,
) -> None:
    """Measure one configuration, or profile it with one worker.

    The run's row and its steps are added to DIR/measurements, a profile goes to DIR/profiles and
    traces to DIR/raw. A traced run is no measurement and adds no row. Nor is a capture: it writes
    the HTTP/2 frames of the first worker's steps after its warm-up to DIR/raw.
    """
    from asgd_model.capture import save_frames
    from asgd_model.documents import validate
    from asgd_model.profile import save_profile
    from asgd_model.testbed.calibration import calibrated
    from asgd_model.testbed.profiling import measure_profile
    from asgd_model.testbed.results import Results
    from asgd_model.testbed.run import Configuration, RunningJob, capture, measure

    if captured and profiled:
        raise InputError("options", "--capture and --profile", "at most one of them")
    if starts is not None:
        options["starts"] = starts.split(",")
    configuration = validate(Configuration, options, "options")
    results = Results(folder, platform.name)
    traces = results.traces(configuration) if traced else None
    if captured:
        frames = capture(platform, configuration, results.logs, click.echo, traces)
        path = results.frames(configuration)
        save_frames(frames, path)
        click.echo(f"{path}: {len(frames)} frames, {frames['step'].max() + 1} steps")
        return
    if profiled:
        calibration = calibrated(platform, results, click.echo)
        with RunningJob(platform, configuration, results.logs, click.echo) as job:
            profile, found = measure_profile(job, configuration, calibration, traces)
        path = results.profile(configuration)
        save_profile(profile, path)
        click.echo(f"{path}: {profile}")
    else:
        found = measure(platform, configuration, results.logs, click.echo, traces)
        if not traced:
            results.add(found)
    for name, value in found.row.items():
        click.echo(f"{name}: {value}")


@testbed.command()
@_PLATFORM
@_OUT
@_guarded
def calibrate(platform: Platform, folder: Path) -> None:
    """Measure the links of a platform and what communication costs its CPUs.

    That is payload rates, how flows share a link, and CPU time per byte and per tensor for
    sending and receiving on a worker and on a server; it goes to DIR/calibrations. What tracing
    costs depends on the network: it is measured with each profile.
    """
    from asgd_model.testbed import calibration
    from asgd_model.testbed.results import Results

    results = Results(folder, platform.name)
    found = calibration.calibrate(platform, results.logs, click.echo)
    calibration.save_calibration(found, results.calibration)
    click.echo(f"link: {found.links.rate / 1e6:.1f} Mbit/s of payload")
    click.echo(f"link in both directions: {found.links.rate_both_ways / 1e6:.1f} Mbit/s each")
    for name, value in found.calibration.model_dump().items():
        if isinstance(value, dict):
            per_byte, per_tensor = value["per_byte"] * 1e9, value["per_tensor"] * 1e6
            value = f"{per_byte:.3f} ns per byte, {per_tensor:.1f} us per tensor"
        click.echo(f"{name}: {value}")


@testbed.command()
@click.argument("campaign", metavar="FILE")
@_OUT
@_guarded
def campaign(campaign: str, folder: Path) -> int:
    """Measure what FILE lists and DIR does not yet have.

    Interrupt it at any time; the same command goes on where it was.
    """
    from asgd_model.testbed.campaign import run_campaign

    failures = run_campaign(campaign, folder, click.echo)
    for failure in failures:
        click.echo(f"not measured: {failure}", err=True)
    return 1 if failures else 0


@testbed.command()
@_guarded
def clean() -> None:
    """Remove what a killed run left: processes, namespaces, control groups."""
    from asgd_model.testbed.machine import exclusive, remove_remains, require_root

    require_root()
    with exclusive():
        removed = remove_remains()
    for name in removed:
        click.echo(f"removed {name}")
    if not removed:
        click.echo("nothing to remove")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let the first interrupt or SIGTERM end the command; clean-up is not interrupted again."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for ending in _ENDING:
            signal.signal(ending, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        click.echo("terminated: removing the cluster", err=True)
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, end) for number in _ENDING}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)
