"""A campaign whose measurements are invented: ``python laboratory.py FOLDER``.

Takes the place of the machine as the tests of campaigns do; each run takes some milliseconds and
gives the same numbers whenever it is done.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd

from asgd_model.profile import Profile, load_profile
from asgd_model.testbed import campaign
from asgd_model.testbed.machine import Machine
from asgd_model.testbed.platform import Platform
from asgd_model.testbed.run import Configuration, Measurement

SECONDS = 0.02
MACHINE = Machine("some CPU", 2, "6.1.0-x", 800.0)


class Job:
    """Takes the place of the processes of a job."""

    def __init__(self, platform: Platform, job: Configuration, *_: object) -> None:
        self.platform = platform

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure(self, run: Configuration) -> Measurement:
        time.sleep(SECONDS)
        rate = run.workers / (1.0 + 0.1 * run.repeat)
        columns = {"steps_per_s": rate, "steps_per_s_low": rate, "steps_per_s_high": rate}
        row = {
            **run.key(self.platform),
            **columns,
            "examples_per_s": rate * run.batch_size,
            "foreign_load": 0.0,
            **MACHINE.as_columns(),
        }
        steps = pd.DataFrame(
            {"worker": range(run.workers), "step": 0, "start": 0.0, "end": 1.0, "traced": False}
        )
        return Measurement(row, steps)


def main(folder: Path) -> None:
    """Run the campaign in a folder."""
    profile = load_profile(folder / "given.json")

    def measure_profile(*_: Any) -> tuple[Profile, Measurement]:
        time.sleep(SECONDS)
        return profile, Measurement({"foreign_load": 0.0}, pd.DataFrame())

    vars(campaign).update(
        this_machine=lambda: MACHINE,
        foreign_load=lambda: 0.0,
        calibrated=lambda *_: None,
        RunningJob=Job,
        measure_profile=measure_profile,
    )
    if failures := campaign.run_campaign(folder / "campaign.yaml", folder, print):
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
