"""Profiles that several tests use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asgd_model.profile import (
    DOWNLINK,
    SERVER,
    UPLINK,
    WORKER,
    Calibration,
    CommunicationCost,
    Metadata,
    Profile,
    load_profile,
)

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def small() -> Profile:
    """Two steps of a job with two variables, of 1 and 3 MB, on a link of 1 MB/s.

    The worker needs the second variable for the second half of its forward computation.
    """
    rows = (
        ("first", "VarHandleOp", SERVER, 0, []),
        ("second", "VarHandleOp", SERVER, 0, []),
        ("receive first", "RecvTensor", DOWNLINK, 1_000_000, [0]),
        ("receive second", "RecvTensor", DOWNLINK, 3_000_000, [1]),
        ("forward first", "Conv2D", WORKER, 0, [2]),
        ("forward second", "MatMul", WORKER, 0, [3, 4]),
        ("backward second", "MatMul", WORKER, 0, [5]),
        ("backward first", "Conv2D", WORKER, 0, [6]),
        ("send second", "RecvTensor", UPLINK, 3_000_000, [6]),
        ("send first", "RecvTensor", UPLINK, 1_000_000, [7]),
        ("update second", "ApplyGradientDescent", SERVER, 0, [1, 8]),
        ("update first", "ApplyGradientDescent", SERVER, 0, [0, 9]),
    )
    names, kinds, resources, sizes, dependencies = zip(*rows, strict=True)
    start = [0, 0, 0, 0, 1, 4, 4.5, 5.5, 5.5, 6, 8.5, 9.5]
    end = [0, 0, 1, 4, 1.5, 4.5, 5.5, 6, 8.5, 9.5, 8.6, 9.6]
    work = [0, 0, 0, 0, 0.5, 0.5, 1, 0.5, 0, 0, 0.1, 0.1]
    return Profile(
        names=names,
        kinds=kinds,
        resources=np.array(resources, dtype=np.int8),
        servers=np.where(np.array(resources) == WORKER, -1, 0).astype(np.int32),
        sizes=np.array(sizes, dtype=np.int64),
        dependencies=tuple(np.array(row, dtype=np.int32) for row in dependencies),
        work=np.outer([1.0, 1.2], work),
        start=np.array([start, start]),
        end=np.array([end, end]),
        metadata=Metadata(
            dnn="small",
            batch_size=4,
            link_rate=8e6,
            calibration=Calibration(
                worker_receive=CommunicationCost(per_byte=1e-8, per_tensor=0.001),
                worker_send=CommunicationCost(per_byte=2e-8, per_tensor=0.002),
                server_send=CommunicationCost(per_byte=3e-8, per_tensor=0.003),
                server_receive=CommunicationCost(per_byte=4e-8, per_tensor=0.004),
            ),
        ),
    )


@pytest.fixture(scope="session")
def alexnet_path() -> Path:
    """Ten traced steps of AlexNet that come with the project."""
    return DATA / "profiles" / "cpu-0.15-300mbit-reno" / "alexnet_b8.profile.json.gz"


@pytest.fixture(scope="session")
def alexnet(alexnet_path: Path) -> Profile:
    return load_profile(alexnet_path)
