"""What calibration makes of its measurements."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgd_model.profile import Calibration
from asgd_model.testbed.calibration import (
    PlatformCalibration,
    TransferCost,
    communication_cost,
    load_calibration,
    save_calibration,
)
from asgd_model.testbed.machine import Machine

from .machine import FAST

DESIGNS = ((1, 4), (200, 4), (200, 65_536), (8, 1 << 21), (2, 1 << 23))


def transfers(step: float, per_tensor: float, per_byte: float) -> list[TransferCost]:
    """Steps that cost the worker exactly this, in both directions twice as much up."""
    return [
        TransferCost(
            direction=direction,
            tensors=tensors,
            bytes_each=size,
            steps=10,
            seconds=1.0,
            server=1.0,
            worker=factor * (step + per_tensor * tensors + per_byte * tensors * size),
        )
        for direction, factor in (("down", 1.0), ("up", 2.0))
        for tensors, size in DESIGNS
    ]


@given(
    step=st.floats(1e-4, 1e-2), per_tensor=st.floats(1e-6, 1e-3), per_byte=st.floats(1e-10, 1e-8)
)
def test_costs_are_recovered(step: float, per_tensor: float, per_byte: float) -> None:
    """Costs that explain the steps exactly are found, each direction by itself."""
    steps = transfers(step, per_tensor, per_byte)
    down = communication_cost(steps, "down", "worker")
    assert down.per_tensor == pytest.approx(per_tensor, rel=1e-3)
    assert down.per_byte == pytest.approx(per_byte, rel=1e-3)
    up = communication_cost(steps, "up", "worker")
    assert up.per_byte == pytest.approx(2.0 * per_byte, rel=1e-3)


def test_costs_are_never_negative() -> None:
    """Steps that cost the same whatever they move have no cost per byte or tensor."""
    cost = communication_cost(transfers(1e-3, 0.0, 0.0), "down", "server")
    assert cost.per_byte == pytest.approx(0.0, abs=1e-15)
    assert cost.per_tensor == pytest.approx(0.0, abs=1e-9)


def calibration(**found: Any) -> PlatformCalibration:
    return PlatformCalibration(
        platform=FAST,
        link_rate=190e6,
        link_rate_both_ways=189e6,
        shares_down=(95e6, 95e6),
        shares_up=(95e6, 95e6),
        newcomers_down=(1.0,),
        newcomers_up=(1.0,),
        transfers=tuple(transfers(1e-3, 1e-5, 1e-9)),
        calibration=Calibration(**found),
        machine=Machine("some CPU", 2, "6.1.0-x", 800.0),
        framework="TensorFlow 2.21.0",
        date="2026-12-01",
    )


@pytest.mark.parametrize(
    ("found", "fair"),
    [
        ({"share_spread": 0.05, "newcomer_share": 0.95}, True),
        ({"share_spread": 0.9, "newcomer_share": 1.0}, False),
        ({"share_spread": 0.05, "newcomer_share": 0.6}, False),
    ],
)
def test_uneven_sharing_is_unfair(found: dict[str, float], fair: bool) -> None:
    """Neither scattered shares nor an advantage of the first flow are fair."""
    assert calibration(**found).fair is fair


def test_a_calibration_is_stored(tmp_path: Any) -> None:
    """It comes back as it was."""
    known = calibration(share_spread=0.05)
    save_calibration(known, tmp_path / "desk.json")
    assert load_calibration(tmp_path / "desk.json") == known
