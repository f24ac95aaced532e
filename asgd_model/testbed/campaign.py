"""A list of measurements, done one after the other and resumed where it was left.

A *set* is one network, batch size, number of servers and policy on one platform: the profile of
one worker, then runs with several numbers of workers. A set belongs to one machine: continued
on one that is not like the first, it starts anew from its profile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from asgd_model.documents import read_yaml, validate
from asgd_model.errors import InputError
from asgd_model.profile import save_profile
from asgd_model.testbed.calibration import calibrated
from asgd_model.testbed.errors import TestbedError
from asgd_model.testbed.machine import Machine, foreign_load, this_machine
from asgd_model.testbed.platform import Platform, load_platform
from asgd_model.testbed.profiling import measure_profile
from asgd_model.testbed.protocol import Policy
from asgd_model.testbed.results import Results
from asgd_model.testbed.run import (
    BatchSize,
    Configuration,
    Measurement,
    NetworkName,
    Nodes,
    Repeat,
    Report,
    RunningJob,
    Seed,
    Steps,
)

MOST_RUNS = 10_000
"""Most runs of a campaign."""

_LONGEST_WAIT = 600.0
"""Seconds that a run waits for a quiet machine."""

_WAIT = 20.0

Found = TypeVar("Found")


class MeasurementSet(BaseModel):
    """A job on a platform, and with how many workers it is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    platform: str = Field(description="YAML file, relative to the campaign's")
    dnn: NetworkName
    batch_size: BatchSize
    servers: Nodes = 1
    policy: Policy = "default"
    workers: dict[Nodes, Repeat] = Field(
        min_length=1, description="repeats of each number of workers"
    )
    steps: Steps | dict[Nodes, Steps] = Field(
        default=20,
        description="of the first worker to end them, or that for each number of workers",
    )
    profiled_steps: Steps = Field(default=20, description="traced steps of one worker")
    keep_traces: bool = False
    seed: Seed = 0

    @model_validator(mode="after")
    def _know_steps(self) -> MeasurementSet:
        if isinstance(self.steps, dict) and (missing := self.workers.keys() - self.steps.keys()):
            raise ValueError(f"steps for {min(missing)} workers too")
        return self

    def configurations(self) -> Iterator[Configuration]:
        """Every run of the set."""
        for workers, repeats in self.workers.items():
            steps = self.steps[workers] if isinstance(self.steps, dict) else self.steps
            for repeat in range(1, repeats + 1):
                yield self.configuration(workers, repeat, steps)

    def configuration(self, workers: int, repeat: int, steps: int) -> Configuration:
        """One run of the set."""
        return Configuration(
            dnn=self.dnn,
            batch_size=self.batch_size,
            servers=self.servers,
            policy=self.policy,
            seed=self.seed,
            workers=workers,
            repeat=repeat,
            steps=steps,
        )


class Campaign(BaseModel):
    """Sets to be measured, in this order."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    sets: tuple[MeasurementSet, ...] = Field(min_length=1)
    most_foreign_load: float = Field(
        default=0.1, gt=0.0, description="cores that others may use during a run"
    )
    attempts: int = Field(default=3, ge=1, description="at a run that saw more than that")

    @model_validator(mode="after")
    def _limit_runs(self) -> Campaign:
        if sum(sum(one.workers.values()) for one in self.sets) > MOST_RUNS:
            raise ValueError(f"at most {MOST_RUNS:,} runs")
        return self


def load_campaign(path: str | os.PathLike[str]) -> tuple[Campaign, list[Platform]]:
    """Read a campaign and the platform of each of its sets.

    Raises
    ------
    InputError
        If the file is not a campaign or one of its platforms is not one.
    """
    campaign = validate(Campaign, read_yaml(path), os.fspath(path))
    return campaign, [load_platform(Path(path).parent / one.platform) for one in campaign.sets]


def run_campaign(path: str | os.PathLike[str], folder: Path, report: Report) -> list[str]:
    """Measure what of a campaign is not yet in a folder.

    Parameters
    ----------
    path : path-like
        YAML file with a `Campaign`.
    folder : Path
        For the results, see `asgd_model.testbed.results`.
    report : callable
        Is told of the progress.

    Returns
    -------
    list of str
        What could not be measured, and why.

    Raises
    ------
    InputError
        As `load_campaign`, or if results in the folder are damaged.
    """
    campaign, platforms = load_campaign(path)
    sets = [
        _Set(job, platform, Results(folder, platform.name), campaign)
        for job, platform in zip(campaign.sets, platforms, strict=True)
    ]
    machine = this_machine()
    for one in sets:
        one.forget_unlike(machine, report)
    progress = _Progress(sum(len(one.missing) for one in sets), report)
    failures = []
    for one in sets:
        try:
            for failure in one.measure(progress):
                failures.append(failure)
                report(failure)
        except (TestbedError, InputError) as error:
            failures.append(f"{one.name}: {error}")
            report(failures[-1])
    return failures


class _Progress:
    """Tells what is done and how long the rest will take."""

    def __init__(self, runs: int, report: Report) -> None:
        self.report = report
        self._runs = runs
        self._done = 0
        self._begin = time.monotonic()

    def next(self, what: str) -> None:
        """Say what begins."""
        left = ""
        if self._done:
            seconds = (time.monotonic() - self._begin) / self._done * (self._runs - self._done)
            left = f"; about {seconds / 60:.0f} min left"
        self._done += 1
        self.report(f"[{self._done}/{self._runs}] {what}{left}")


@dataclass(frozen=True)
class _Set:
    """A set of a campaign and its results."""

    job: MeasurementSet
    platform: Platform
    results: Results
    campaign: Campaign

    @property
    def name(self) -> str:
        """How the set is called in messages."""
        job = self.job
        return f"{job.dnn} b{job.batch_size} p{job.servers} {job.policy} on {self.platform.name}"

    @property
    def key(self) -> dict[str, str | int]:
        """Columns and values that all runs of the set share."""
        columns = next(self.job.configurations()).key(self.platform)
        return {name: columns[name] for name in columns if name not in ("workers", "repeat")}

    @property
    def missing(self) -> list[Configuration]:
        """Runs that are yet to be done."""
        return [
            run
            for run in self.job.configurations()
            if not self.results.find(run.key(self.platform))
        ]

    def forget_unlike(self, machine: Machine, report: Report) -> None:
        """If runs are missing, remove what was done on a machine unlike this one."""
        if not self.missing:
            return
        if not all(machine.is_like(row) for row in self.results.find(self.key)):
            report(f"{self.name}: was begun on another machine and starts anew")
            self.results.remove(self.key)
        if not self.results.find(self.key):  # a profile alone may be of any machine
            self.results.profile(self.job.configuration(1, 1, 2)).unlink(missing_ok=True)

    def measure(self, progress: _Progress) -> Iterator[str]:
        """Measure what is missing; yields what could not be measured, and why."""
        missing, report = self.missing, progress.report
        if not missing:
            return
        calibration = calibrated(self.platform, self.results, report)
        running = _Restarted(self, report)
        with running:
            profiled = self.job.configuration(1, 1, self.job.profiled_steps)
            if not self.results.profile(profiled).exists():
                report(f"{self.name}: profile")
                traces = self.results.traces(profiled) if self.job.keep_traces else None
                profile = self._undisturbed(
                    lambda: measure_profile(running.job(), profiled, calibration, traces), report
                )
                save_profile(profile, self.results.profile(profiled))
            for run in missing:
                progress.next(f"{self.name}: {run.workers} workers, repeat {run.repeat}")
                try:
                    found = self._undisturbed(partial(_measure, running, run), report)
                except (TestbedError, InputError) as error:
                    running.end()
                    yield f"{self.name}, {run.workers} workers, repeat {run.repeat}: {error}"
                else:
                    self.results.add(found)
                    report(f"{found.row['steps_per_s']:.4f} steps/s")

    def _undisturbed(
        self, attempt: Callable[[], tuple[Found, Measurement]], report: Report
    ) -> Found:
        """The result of the first attempt that saw little foreign load, or of the least one."""
        most = self.campaign.most_foreign_load
        results = []
        for _ in range(self.campaign.attempts):
            _wait_for_quiet(most, report)
            found, measurement = attempt()
            results.append((measurement.foreign_load, found))
            if measurement.foreign_load <= most:
                break
            report(f"others used {measurement.foreign_load:.2f} cores, more than {most}")
        return min(results, key=lambda result: result[0])[1]


class _Restarted:
    """The processes of a set's job: started when first needed, and again after a failure."""

    def __init__(self, one: _Set, report: Report) -> None:
        self._set = one
        self._report = report
        self._stack = ExitStack()
        self._job: RunningJob | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def job(self) -> RunningJob:
        """The job, with as many workers as the set has at most."""
        if self._job is None:
            job, results = self._set.job, self._set.results
            largest = job.configuration(max(job.workers), 1, 2)
            running = RunningJob(self._set.platform, largest, results.logs, self._report)
            self._job = self._stack.enter_context(running)
        return self._job

    def end(self) -> None:
        """End the processes, if they run."""
        self._job = None
        self._stack.close()


def _measure(running: _Restarted, run: Configuration) -> tuple[Measurement, Measurement]:
    found = running.job().measure(run)
    return found, found


def _wait_for_quiet(most: float, report: Report) -> None:
    """Wait until others use little of the machine, but not for ever."""
    deadline = time.monotonic() + _LONGEST_WAIT
    while (load := foreign_load()) > most and time.monotonic() < deadline:
        report(f"waiting: others use {load:.2f} cores, more than {most}")
        time.sleep(_WAIT)
