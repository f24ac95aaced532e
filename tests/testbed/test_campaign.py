"""A campaign measures what is missing, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asgd_model.errors import InputError
from asgd_model.profile import Profile
from asgd_model.testbed import campaign
from asgd_model.testbed.campaign import run_campaign
from asgd_model.testbed.errors import TestbedError
from asgd_model.testbed.machine import Machine
from asgd_model.testbed.platform import Platform
from asgd_model.testbed.results import Results
from asgd_model.testbed.run import Configuration, Measurement

from .machine import FAST
from .test_results import measurement

MACHINE = Machine("some CPU", 2, "6.1.0-x", 800.0)


class Job:
    """The processes of a job, as a context manager that counts its starts and ends."""

    def __init__(self, laboratory: Laboratory, platform: Platform, job: Configuration) -> None:
        self.laboratory = laboratory
        self.platform = platform
        self.job = job

    def __enter__(self) -> Job:
        self.laboratory.started.append(self.job.workers)
        return self

    def __exit__(self, *_: object) -> None:
        self.laboratory.ended += 1

    def measure(self, run: Configuration) -> Measurement:
        return self.laboratory.measure(self.platform, run)


class Laboratory:
    """Takes the place of the machine; records what it is asked to measure."""

    def __init__(self, folder: Path, profile: Profile) -> None:
        self.folder = folder
        self.machine = MACHINE
        self.measured: list[str] = []
        self.started: list[int] = []
        self.steps: list[int] = []
        self.ended = 0
        self.loads: list[float] = []
        self.fail: Callable[[Configuration], bool] = lambda run: False
        self.reports: list[str] = []
        self._profile = profile

    def start(self, platform: Platform, job: Configuration, *_: Any) -> Job:
        return Job(self, platform, job)

    def measure(self, platform: Platform, run: Configuration) -> Measurement:
        self.measured.append(f"w{run.workers} r{run.repeat}")
        self.steps.append(run.steps)
        if self.fail(run):
            raise TestbedError("worker1 was ended by SIGKILL")
        made = measurement(run.workers, run.repeat, rate=float(len(self.measured)), dnn=run.dnn)
        made.row.update(run.key(platform), **self.machine.as_columns())
        made.row["foreign_load"] = self.loads.pop(0) if self.loads else 0.0
        return made

    def measure_profile(self, *_: Any) -> tuple[Profile, Measurement]:
        self.measured.append("profile")
        return self._profile, measurement(1)

    def run(self) -> list[str]:
        return run_campaign(self.folder / "campaign.yaml", self.folder, self.reports.append)


@pytest.fixture
def laboratory(tmp_path: Path, small: Profile, monkeypatch: pytest.MonkeyPatch) -> Laboratory:
    made = Laboratory(tmp_path, small)
    monkeypatch.setattr(campaign, "this_machine", lambda: made.machine)
    monkeypatch.setattr(campaign, "foreign_load", lambda: 0.0)
    monkeypatch.setattr(campaign, "calibrated", lambda *_: None)
    monkeypatch.setattr(campaign, "RunningJob", made.start)
    monkeypatch.setattr(campaign, "measure_profile", made.measure_profile)
    (tmp_path / "fast.yaml").write_text(FAST.model_dump_json())
    (tmp_path / "campaign.yaml").write_text(
        "sets:\n  - {platform: fast.yaml, dnn: googlenet, batch_size: 4, workers: {1: 1, 2: 2}}\n"
    )
    return made


def test_all_is_measured_once(laboratory: Laboratory) -> None:
    """The profile first, then every run, by processes started once; then nothing is left to do."""
    assert laboratory.run() == []
    assert (laboratory.started, laboratory.ended) == ([2], 1)
    assert laboratory.measured == ["profile", "w1 r1", "w2 r1", "w2 r2"]
    assert len(Results(laboratory.folder, "fast").find({"dnn": "googlenet"})) == 3
    assert laboratory.run() == []
    assert len(laboratory.measured) == 4


def test_an_interrupted_campaign_goes_on(laboratory: Laboratory) -> None:
    """Runs that were done stay, and so does the profile."""

    def interrupt(run: Configuration) -> bool:
        if run.repeat == 2:
            raise KeyboardInterrupt
        return False

    laboratory.fail = interrupt
    with pytest.raises(KeyboardInterrupt):
        laboratory.run()
    laboratory.fail = lambda run: False
    laboratory.measured.clear()
    laboratory.run()
    assert laboratory.measured == ["w2 r2"]


@pytest.mark.parametrize(
    ("machine", "anew"),
    [
        (Machine("some CPU", 2, "6.1.0-x", 830.0), False),
        (Machine("some CPU", 2, "6.1.0-x", 1300.0), True),
        (Machine("another CPU", 2, "6.1.0-x", 800.0), True),
    ],
)
def test_a_set_belongs_to_one_machine(laboratory: Laboratory, machine: Machine, anew: bool) -> None:
    """Continued on a machine unlike the first, a set is measured again from its profile."""
    laboratory.fail = lambda run: run.repeat == 2
    laboratory.run()
    laboratory.measured.clear()
    laboratory.machine = machine
    laboratory.fail = lambda run: False
    laboratory.run()
    expected = ["profile", "w1 r1", "w2 r1", "w2 r2"] if anew else ["w2 r2"]
    assert laboratory.measured == expected


def test_a_disturbed_run_is_repeated(laboratory: Laboratory) -> None:
    """A run that saw others at work is done again; of three such the quietest is kept."""
    laboratory.loads = [0.5, 0.0, 0.4, 0.2, 0.3]
    laboratory.run()
    assert laboratory.measured[1:] == ["w1 r1"] * 2 + ["w2 r1"] * 3 + ["w2 r2"]
    rows = Results(laboratory.folder, "fast").find({})
    assert [row["foreign_load"] for row in rows] == [0.0, 0.2, 0.0]
    assert any("others used 0.50 cores" in line for line in laboratory.reports)


def test_a_failed_run_does_not_stop_the_others(laboratory: Laboratory) -> None:
    """What could not be measured is named with its reason; the job starts anew for the rest."""
    laboratory.fail = lambda run: run.workers == 1
    (failure,) = laboratory.run()
    assert (laboratory.started, laboratory.ended) == ([2, 2], 2)
    assert "1 workers" in failure
    assert "SIGKILL" in failure
    assert len(Results(laboratory.folder, "fast").find({})) == 2


def test_steps_may_differ_with_the_number_of_workers(laboratory: Laboratory) -> None:
    """Each number of workers has its own number of steps, or the campaign is refused."""
    sets = "sets: [{{platform: fast.yaml, dnn: googlenet, batch_size: 4, workers: {}, steps: {}}}]"
    file = laboratory.folder / "campaign.yaml"
    file.write_text(sets.format("{1: 1, 2: 1}", "{1: 9, 2: 7}"))
    laboratory.run()
    assert laboratory.steps == [9, 7]
    file.write_text(sets.format("{1: 1, 2: 1}", "{1: 9}"))
    with pytest.raises(InputError, match="steps for 2 workers too"):
        laboratory.run()


def test_time_left_is_told(laboratory: Laboratory) -> None:
    """Each run says which of how many it is, and from the second on how long the rest takes."""
    laboratory.run()
    numbered = [line for line in laboratory.reports if line.startswith("[")]
    assert [line[:5] for line in numbered] == ["[1/3]", "[2/3]", "[3/3]"]
    assert "min left" not in numbered[0]
    assert all("min left" in line for line in numbered[1:])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sets: []", "sets"),
        ("sets: [{platform: fast.yaml, dnn: googlenet, batch_size: 4}]", "workers"),
        (
            "sets: [{platform: none.yaml, dnn: googlenet, batch_size: 4, workers: {1: 1}}]",
            "none.yaml",
        ),
    ],
)
def test_a_wrong_campaign_is_refused(laboratory: Laboratory, text: str, message: str) -> None:
    """The error names the file and what is wrong with it, before anything is measured."""
    (laboratory.folder / "campaign.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        laboratory.run()
    assert laboratory.measured == []
