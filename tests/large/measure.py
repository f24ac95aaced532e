"""Run one large case and print what it took as JSON: ``python measure.py CASE``."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import asgd_model
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, Metadata, Profile
from asgd_model.simulator import SimulationResult

PLATFORM = Path(__file__).parents[2] / "data" / "profiles" / "cpu-0.15-300mbit-reno"


def layers(count: int) -> Profile:
    """A network of so many equal layers: download, forward, backward, upload, update."""
    forward = np.arange(count)
    columns: dict[str, list[int]] = {"resources": [], "sizes": []}
    dependencies: list[list[int]] = []
    # Blocks of `count` operations: variables, downloads, forward, backward, uploads, updates.
    kinds = ("VarHandleOp", "RecvTensor", "Conv2D", "Conv2DBackprop", "RecvTensor", "Apply")
    resources = (SERVER, DOWNLINK, WORKER, WORKER, UPLINK, SERVER)
    for block, used in enumerate(resources):
        columns["resources"] += [used] * count
        columns["sizes"] += [4000 if used in (DOWNLINK, UPLINK) else 0] * count
        for layer in forward.tolist():
            before = [(block - 1) * count + layer] if block else []
            if block == 2 and layer > 0:
                before.append(2 * count + layer - 1)
            if block == 3:
                before = [2 * count + count - 1] if layer == count - 1 else [3 * count + layer + 1]
            dependencies.append(before)
    ops = 6 * count
    work = np.where(np.isin(columns["resources"], (WORKER, SERVER)), 1e-4, 0.0)[np.newaxis]
    start = np.linspace(0.0, 1.0, ops)[np.newaxis]
    return Profile(
        names=tuple(f"op {index}" for index in range(ops)),
        kinds=tuple(kind for kind in kinds for _ in range(count)),
        resources=np.array(columns["resources"], dtype=np.int8),
        servers=np.where(np.array(columns["resources"]) == WORKER, -1, 0).astype(np.int32),
        sizes=np.array(columns["sizes"], dtype=np.int64),
        dependencies=tuple(np.array(row, dtype=np.int32) for row in dependencies),
        work=work,
        start=start,
        end=start + 1e-4,
        metadata=Metadata(dnn="layers", batch_size=1, link_rate=1e9),
    )


def simulated(profile: Profile, workers: int, servers: int, steps: int) -> SimulationResult:
    cluster = asgd_model.Cluster.like(profile, workers, servers, stream_order="fifo")
    return asgd_model.simulate(profile, cluster, steps=steps, warm_up=1)


def events() -> SimulationResult:
    """A hundred million events."""
    profile = asgd_model.load_profile(PLATFORM / "alexnet_b8.profile.json.gz")
    return simulated(profile, 16, 1, 80_000)


def workers() -> SimulationResult:
    """4,096 workers and 64 servers."""
    profile = asgd_model.load_profile(PLATFORM / "googlenet_b4.profile.json.gz")
    return simulated(profile, 4096, 64, 2)


def operations() -> SimulationResult:
    """A profile of 100,000 operations: stored, loaded, placed on 8 servers and simulated."""
    made = layers(100_000 // 6 + 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.profile.json.gz"
        asgd_model.save_profile(made, path)
        loaded = asgd_model.load_profile(path)
    assert loaded.ops >= 100_000
    return simulated(loaded, 8, 8, 3)


CASES: dict[str, Callable[[], SimulationResult]] = {
    "events": events,
    "workers": workers,
    "operations": operations,
}


def main() -> None:
    """Run the case that the command line names."""
    simulated(layers(2), 2, 1, 2)  # compiles
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.monotonic()
    result = CASES[sys.argv[1]]()
    found = {
        "seconds": round(time.monotonic() - begin, 1),
        "megabytes": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3),
        "events": result.events,
        "steps_per_s": result.steps_per_s,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
