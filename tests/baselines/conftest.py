"""Profiles of small networks, built by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, Metadata, Profile

LINK_RATE = 8e6
"""bit/s of every link: 1 MB/s."""


class GraphBuilder:
    """Collects operations; each call returns the index of the new one."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int, float, list[int]]] = []

    def add(self, name: str, resource: int, *after: int, size: int = 0, work: float = 0.0) -> int:
        self.rows.append((name, resource, size, work, list(after)))
        return len(self.rows) - 1

    def profile(self, **metadata: object) -> Profile:
        """The profile of one step in which operations run one after the other."""
        names, resources, sizes, work, dependencies = zip(*self.rows, strict=True)
        known = Metadata(
            **{"dnn": "small", "batch_size": 2, "link_rate": LINK_RATE, **metadata}  # type: ignore[arg-type]
        )
        seconds = 8 * np.array(sizes) / known.link_rate + np.array(work) / known.worker_cores
        end = np.cumsum(seconds)
        return Profile(
            names=names,
            kinds=names,
            resources=np.array(resources, dtype=np.int8),
            servers=np.where(np.array(resources) == WORKER, -1, 0).astype(np.int32),
            sizes=np.array(sizes, dtype=np.int64),
            dependencies=tuple(np.array(row, dtype=np.int32) for row in dependencies),
            work=np.array([work], dtype=np.float64),
            start=(end - seconds)[None, :],
            end=end[None, :],
            metadata=known,
        )


@pytest.fixture(scope="session")
def graph() -> Callable[[], GraphBuilder]:
    return GraphBuilder


@pytest.fixture(scope="session")
def chain() -> Callable[..., Profile]:
    """Makes the profile of a network whose layers follow each other, with one tensor each."""

    def make(
        sizes: Sequence[int],
        forward: Sequence[float],
        backward: Sequence[float],
        update: float = 0.0,
        **metadata: object,
    ) -> Profile:
        builder = GraphBuilder()
        reads = [builder.add(f"read{index}", SERVER) for index in range(len(sizes))]
        arrivals = [
            builder.add(f"parameter{index}", DOWNLINK, read, size=size)
            for index, (read, size) in enumerate(zip(reads, sizes, strict=True))
        ]
        last = builder.add("input", WORKER)
        for index, work in enumerate(forward):
            last = builder.add(f"forward{index}", WORKER, last, arrivals[index], work=work)
        last = builder.add("loss", WORKER, last)
        for index in reversed(range(len(sizes))):
            last = builder.add(f"backward{index}", WORKER, last, work=backward[index])
            sent = builder.add(f"gradient{index}", UPLINK, last, size=sizes[index])
            builder.add(f"update{index}", SERVER, sent, work=update / len(sizes))
        return builder.profile(**metadata)

    return make
