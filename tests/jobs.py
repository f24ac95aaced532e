"""Jobs whose steps are known in closed form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, Metadata, Profile

MB = 1_000_000
RATE = 8.0 * MB


def job(
    sizes: Sequence[int], computation: float = 1.0, update: float = 0.0, steps: int = 2
) -> Profile:
    """All tensors are received; then each layer computes, sends its gradient and is updated."""
    count = len(sizes)
    resources = [DOWNLINK] * count + [WORKER] * count + [UPLINK] * count + [SERVER] * count
    waits: list[list[int]] = [[] for _ in range(count)]
    waits += [[layer, count + layer - 1] if layer else list(range(count)) for layer in range(count)]
    waits += [[count + layer] for layer in range(count)]
    waits += [[2 * count + layer] for layer in range(count)]
    work = np.repeat([0.0, computation / count, 0.0, update / count], count)
    duration = work + 8.0 * np.array([*sizes, *[0] * count, *sizes, *[0] * count]) / RATE
    end = np.cumsum(duration)
    return Profile(
        names=tuple(map(str, range(4 * count))),
        kinds=("Op",) * 4 * count,
        resources=np.array(resources, dtype=np.int8),
        servers=np.where(np.array(resources) == WORKER, -1, 0).astype(np.int32),
        sizes=np.array([*sizes, *[0] * count, *sizes, *[0] * count], dtype=np.int64),
        dependencies=tuple(np.array(row, dtype=np.int32) for row in waits),
        work=np.tile(work, (steps, 1)),
        start=np.tile(end - duration, (steps, 1)),
        end=np.tile(end, (steps, 1)),
        metadata=Metadata(dnn="job", batch_size=1, link_rate=RATE),
    )
