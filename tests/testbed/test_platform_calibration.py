"""What calibration makes of its measurements."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgd_model.profile import Calibration
from asgd_model.testbed.calibration import (
    Links,
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


EVEN = (95e6, 95e6, 95e6)


def links(shares: tuple[float, ...] = EVEN, newcomer: float = 1.0) -> Links:
    """Links whose flows to a server get these shares, and a later one from it this one."""
    return Links(
        rate=190e6,
        rate_both_ways=189e6,
        shares_down=EVEN,
        shares_up=shares,
        newcomers_down=(newcomer, newcomer),
        newcomers_up=(1.0, 1.0),
    )


def test_uneven_sharing_is_unfair() -> None:
    """Neither scattered shares, in either direction, nor an advantage of the first are fair."""
    assert links().fair
    assert links(shares=(100e6, 95e6, 90e6), newcomer=0.95).fair
    assert not links(shares=(190e6, 95e6, 20e6)).fair
    assert not links(newcomer=0.6).fair


def test_an_advantage_of_newcomers_is_none_of_the_first() -> None:
    """A later flow that happens to get more does not make a share above 1."""
    assert links(newcomer=1.1).newcomer_share == 1.0


def test_a_calibration_is_stored(tmp_path: Path) -> None:
    """It comes back as it was."""
    known = PlatformCalibration(
        platform=FAST,
        links=links(),
        transfers=tuple(transfers(1e-3, 1e-5, 1e-9)),
        calibration=Calibration(share_spread=0.05),
        machine=Machine("some CPU", 2, "6.1.0-x", 800.0),
        framework="TensorFlow 2.21.0",
        date="2026-12-01",
    )
    save_calibration(known, tmp_path / "desk.json")
    assert load_calibration(tmp_path / "desk.json") == known
