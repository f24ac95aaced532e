"""Simulations and predictions whose numbers are recorded.

``python tests/golden/cases.py`` prints them as JSON; with ``--record`` they are written to
``golden.json`` beside this file. What is compared is the end of every step and the use of every
resource, in digits that tell any two floats apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import asgd_model
from asgd_model.profile import Calibration, CommunicationCost, Profile

RECORDED = Path(__file__).with_name("golden.json")
PLATFORM = Path(__file__).parents[2] / "data" / "profiles" / "cpu-0.15-300mbit-reno"


def alexnet() -> Profile:
    return asgd_model.load_profile(PLATFORM / "alexnet_b8.profile.json.gz")


def googlenet() -> Profile:
    return asgd_model.load_profile(PLATFORM / "googlenet_b4.profile.json.gz")


def simulation(
    profile: Profile, workers: int, servers: int = 1, steps: int = 3, **cluster: Any
) -> list[float]:
    """Ends of all steps and use of all resources of one run."""
    result = asgd_model.simulate(
        profile,
        asgd_model.Cluster.like(profile, workers, servers, **cluster),
        steps=steps,
        warm_up=1,
        stop_at_first=False,
        seed=7,
    )
    return [*result.end.ravel().tolist(), *result.busy.ravel().tolist()]


def coupled(profile: Profile) -> Profile:
    """The profile with all effects that a calibration can have."""
    cost = CommunicationCost(per_byte=5e-9, per_tensor=2e-5)
    calibration = Calibration(
        worker_send=cost,
        worker_receive=cost,
        server_send=cost,
        server_receive=cost,
        tracing_overhead=0.05,
        share_spread=0.2,
        newcomer_share=0.8,
        throttled_rate=0.5,
    )
    return replace(
        profile, metadata=profile.metadata.model_copy(update={"calibration": calibration})
    )


def prediction(profile: Profile, *methods: str) -> list[float]:
    """Throughput of one to eight workers."""
    table = asgd_model.predict(profile, range(1, 9), methods=methods, replications=4, steps=4)
    return [float(value) for value in table["steps_per_s"]]


CASES: dict[str, Callable[[], list[float]]] = {
    "one worker": lambda: simulation(alexnet(), 1),
    "four workers": lambda: simulation(alexnet(), 4),
    "two servers": lambda: simulation(googlenet(), 3, 2),
    "random order": lambda: simulation(alexnet(), 3, stream_order="random", stream_window=65_536),
    "tac": lambda: simulation(alexnet(), 2, stream_order="tac"),
    "fifo, short of CPU": lambda: simulation(
        alexnet(), 4, stream_order="fifo", server_cores=0.05, stream_window=4_194_304
    ),
    "coupled": lambda: simulation(coupled(alexnet()), 4),
    "replications": lambda: prediction(alexnet(), "simulation"),
    "queueing": lambda: prediction(googlenet(), "queueing", "queueing_overlap"),
    "baselines": lambda: prediction(alexnet(), "cynthia", "lin2018", "paleo", "shi"),
}
SMALL = ("one worker", "four workers", "tac", "coupled")
"""Cases that take little time also without compilation."""


def main() -> None:
    """Print or record the numbers of some cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("cases", nargs="*", default=CASES)
    options = parser.parse_args()
    found = {name: CASES[name]() for name in options.cases}
    assert all(np.isfinite(numbers).all() for numbers in found.values())
    text = json.dumps(found, indent=1) + "\n"
    if options.record:
        RECORDED.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
