"""What frames tell of streams, on tables made by hand, on a capture, and on simulated steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from asgd_model import transport
from asgd_model.capture import COLUMNS, load_frames, number_steps
from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.profile import DOWNLINK, UPLINK, Profile
from asgd_model.simulator import simulate

DATA = Path(__file__).parents[1] / "data"

Row = tuple[float, str, int, int, str, int, float, str | None]


def table(*rows: Row) -> pd.DataFrame:
    """A table of frames with its steps."""
    return number_steps(pd.DataFrame(rows, columns=list(COLUMNS[1:])))


@pytest.fixture
def frames() -> pd.DataFrame:
    """One step: x of 1,000 bytes is cut after 600 and after 300, y and z pass meanwhile.

    The gradient g is asked for at the start and sent at 8 s.
    """
    nan = np.nan
    return table(
        (0.0, "up", 0, 1, "DATA", 60, nan, None),  # the call that lasts as long as the step
        (0.5, "down", 1, 1, "DATA", 90, nan, "g"),
        (1.0, "up", 0, 3, "DATA", 90, nan, "x"),
        (1.1, "up", 0, 5, "DATA", 90, nan, "y"),
        (1.2, "up", 0, 7, "DATA", 90, nan, "z"),
        (1.5, "down", 0, 3, "HEADERS", 20, nan, "x"),
        (2.0, "down", 0, 3, "DATA", 400, nan, "x"),
        (2.5, "down", 0, 3, "DATA", 200, nan, "x"),
        (2.6, "up", 0, 3, "WINDOW_UPDATE", 4, 300.0, "x"),
        (2.6, "up", 0, 0, "WINDOW_UPDATE", 4, 9_000.0, None),
        (3.0, "down", 0, 5, "DATA", 500, nan, "y"),
        (3.5, "down", 0, 3, "DATA", 300, nan, "x"),
        (3.6, "up", 0, 3, "WINDOW_UPDATE", 4, 500.0, "x"),
        (4.0, "down", 0, 7, "DATA", 500, nan, "z"),
        (4.1, "down", 0, 3, "DATA", 100, nan, "x"),
        (8.5, "up", 1, 1, "HEADERS", 20, nan, "g"),
        (9.0, "up", 1, 1, "DATA", 2_000, nan, "g"),
        (9.5, "down", 0, 1, "DATA", 6, nan, None),
    )


@pytest.fixture(scope="module")
def sample() -> pd.DataFrame:
    """Five captured steps of GoogLeNet, of frames that carry data only."""
    return load_frames(DATA / "raw" / "cpu-0.4-400mbit-bbr" / "googlenet_b2_w1.frames.csv.gz")


def test_transfers(frames: pd.DataFrame) -> None:
    """Each tensor with its request, begin and end; the call that moves none is left out."""
    found = transport.transfers(frames).set_index("tensor")
    assert found.index.tolist() == ["x", "y", "z", "g"]
    assert found["bytes"].to_dict() == {"x": 1000, "y": 500, "z": 500, "g": 2000}
    assert found["requested"].to_dict() == {"x": 1.0, "y": 1.1, "z": 1.2, "g": 0.5}
    assert found["begun"].to_dict() == {"x": 1.5, "y": 2.5, "z": 3.5, "g": 8.5}
    assert found["ended"].to_dict() == {"x": 4.1, "y": 3.0, "z": 4.0, "g": 9.0}
    assert found["turns"].to_dict() == {"x": 3, "y": 1, "z": 1, "g": 1}
    assert found["direction"].to_dict() == {"x": "down", "y": "down", "z": "down", "g": "up"}


def test_summary(frames: pd.DataFrame) -> None:
    """One row per direction, in seconds since the step began."""
    shifted = frames.assign(time=frames["time"] + 7.0)
    down, up = transport.summary(shifted).to_dict("records")
    times = "first_request", "last_request", "begun", "ended"
    assert [down[name] for name in ("transfers", "bytes", "cuts")] == [3, 2000, 2]
    assert [down[name] for name in times] == pytest.approx([1.0, 1.2, 1.5, 4.1])
    assert [up[name] for name in ("transfers", "bytes", "cuts")] == [1, 2000, 0]
    assert [up[name] for name in times] == pytest.approx([0.5, 0.5, 8.5, 9.0])


def test_turns(frames: pd.DataFrame) -> None:
    """Frames of a stream that follow each other are one turn; windows are opened before it begins.

    The window of x is 600 bytes, that of its connection is opened by 9,000 during its first turn
    and its second one.
    """
    found = transport.turns(frames)
    assert found["tensor"].tolist() == ["x", "y", "x", "z", "x", "g"]
    assert found["bytes"].tolist() == [600, 500, 300, 500, 100, 2000]
    assert found["sent"].tolist() == [600, 500, 900, 500, 1000, 2000]
    assert found["cut"].tolist() == [True, False, True, False, False, False]
    assert found["of_stream"].tolist() == [600, 500, 600, 500, 200, 2000]
    assert found["of_connection"].tolist() == [
        600,
        1100,
        1400 - 9000,
        1900 - 9000,
        2000 - 9000,
        2000,
    ]


def test_who_goes_next(frames: pd.DataFrame) -> None:
    """After each cut one other transfer has a turn, once."""
    found = transport.returns(frames)
    assert found["tensor"].tolist() == ["x", "x"]
    assert found["sent"].tolist() == [600, 900]
    assert found["away"].tolist() == pytest.approx([0.5, 0.5])
    assert found["others"].tolist() == [1, 1]
    assert found["most_turns"].tolist() == [1, 1]
    assert found["bytes_between"].tolist() == [500, 500]


def test_nobody_is_cut() -> None:
    """Without a cut there is nobody to come back; the columns are there all the same."""
    frames = table(
        (0.0, "up", 0, 1, "DATA", 9, np.nan, "x"), (1.0, "down", 0, 1, "DATA", 9, np.nan, "x")
    )
    found = transport.returns(frames)
    assert len(found) == 0
    assert "away" in found


def test_full_frames(frames: pd.DataFrame) -> None:
    """Only a frame that another one of its turn follows was as large as it could be."""
    assert transport.write_sizes(frames)[["time", "bytes"]].to_numpy().tolist() == [[2.0, 400.0]]


def test_bytes_over_time(frames: pd.DataFrame) -> None:
    """Bytes add up along the frames, and stand still in between."""
    found = transport.bytes_over_time(frames)
    down = found[found["direction"] == "down"]
    assert np.interp([1.5, 2.0, 2.25, 4.1], down["time"], down["moved"]) == pytest.approx(
        [0, 400, 500, 2000]
    )
    up = found[found["direction"] == "up"]
    assert up[["time", "moved"]].to_numpy().tolist() == [[8.5, 0], [9.0, 2000]]


def test_windows() -> None:
    """An announcement is about the data that come the other way."""
    frames = table(
        (0.0, "up", 0, 1, "DATA", 10, np.nan, None),
        (0.0, "up", 0, 0, "SETTINGS", 6, np.nan, None),
        (0.0, "up", 0, 0, "INITIAL_WINDOW_SIZE", 0, 65_535.0, None),
    )
    found = transport.windows(frames)
    assert found[["direction", "bytes"]].to_numpy().tolist() == [["down", 65_535.0]]


def steps_in_orders(*orders: str) -> pd.DataFrame:
    """A step for each order in which parameters are sent, all asked for as a, b, c, d."""
    rows: list[Row] = []
    for step, order in enumerate(orders):
        begin = 100.0 * step
        streams = {name: 20 * step + 2 * i + 1 for i, name in enumerate("abcd")}
        rows.append((begin, "up", 0, 20 * step + 19, "DATA", 60, np.nan, None))
        for i, (name, stream) in enumerate(streams.items()):
            rows.append((begin + 0.1 * (i + 1), "up", 0, stream, "DATA", 9, np.nan, name))
        for i, name in enumerate(order):
            rows.append((begin + 1 + i, "down", 0, streams[name], "DATA", 99, np.nan, name))
        rows.append((begin + 9, "down", 0, 20 * step + 19, "DATA", 6, np.nan, None))
    return table(*rows)


def test_order_agreement() -> None:
    """1 for the same order, -1 for the reverse; each step is compared with each later one."""
    found = transport.order_agreement(steps_in_orders("abcd", "abcd", "dcba"))
    tau = found.set_index(["order", "step", "other_order", "other_step"])["tau"]
    assert tau["requested", 0, "begun", 0] == pytest.approx(1.0)
    assert tau["requested", 2, "begun", 2] == pytest.approx(-1.0)
    assert tau["begun", 0, "begun", 1] == pytest.approx(1.0)
    assert tau["begun", 1, "begun", 2] == pytest.approx(-1.0)
    assert tau["requested", 0, "requested", 2] == pytest.approx(1.0)
    assert (found["transfers"] == 4).all()


def test_paired_orders() -> None:
    """Places count from 0; the first step is not compared with itself."""
    found = transport.paired_orders(steps_in_orders("abcd", "badc"))
    second = found[found["step"] == 1]
    assert second["tensor"].tolist() == ["b", "a", "d", "c"]
    assert second["begun"].tolist() == [0, 1, 2, 3]
    assert second["requested"].tolist() == [1, 0, 3, 2]
    assert second["first_step"].tolist() == [1, 0, 3, 2]
    assert found.loc[found["step"] == 0, "first_step"].isna().all()


def test_tensors_without_names_are_told_apart_by_their_bytes() -> None:
    """Two of the same size cannot be, and are not compared between steps."""
    frames = steps_in_orders("abcd", "badc")
    size = frames["tensor"].map({"a": 100, "b": 200, "c": 300, "d": 300})
    parameter = (frames["direction"] == "down") & size.notna()
    unnamed = frames.assign(bytes=size.where(parameter, frames["bytes"]), tensor=np.nan)
    assert len(transport.transfers(unnamed)) == 8
    found = transport.order_agreement(unnamed)
    assert (found["transfers"] == 2).all()
    begun = found[(found["order"] == "begun") & (found["other_order"] == "begun")]
    assert begun["tau"].tolist() == pytest.approx([-1.0])


def test_captured_steps(sample: pd.DataFrame) -> None:
    """What the captured steps of GoogLeNet show.

    Only in the first step windows were small enough to cut streams, and those that were cut came
    back when each other one had had a turn. The writes grew by half at a time. Parameters came
    roughly as they were asked for; gradients as they were computed, every time alike.
    """
    moved = transport.transfers(sample)
    assert moved.groupby(["step", "direction"]).size().tolist() == [106] * 10
    turns = transport.turns(sample)
    assert set(turns.loc[turns["cut"], "step"]) == {0}
    assert turns[["of_stream", "of_connection"]].isna().all(axis=None)
    assert (transport.returns(sample)["most_turns"] == 1).all()
    rungs = 2**17 * 1.5 ** np.arange(10)
    writes = transport.write_sizes(sample)["bytes"].unique()
    assert np.isin(writes, rungs.astype(int)).all()
    tau = transport.order_agreement(sample)
    within = tau[(tau["order"] == "requested") & (tau["other_order"] == "begun")]
    assert (within.loc[within["direction"] == "down", "tau"] > 0.5).all()
    assert (within.loc[within["direction"] == "up", "tau"].abs() < 0.4).all()
    between = tau[(tau["order"] == "begun") & (tau["other_order"] == "begun")]
    assert (between.loc[between["direction"] == "up", "tau"] > 0.95).all()
    assert between.loc[between["direction"] == "down", "tau"].mean() < 0.6


def test_cuts_of_large_tensors() -> None:
    """Most turns of AlexNet's large tensors ended where the connection's or a stream's window did.

    For some the window was opened between the sender's decision and the arrival of the data.
    """
    turns = transport.turns(load_frames(DATA / "raw" / "network" / "alexnet_b8_w1.frames.csv.gz"))
    cuts = turns[turns["cut"] & (turns["direction"] == "down")]
    assert len(cuts) > 10
    by_connection = cuts["of_connection"] == 2**24
    by_stream = cuts["of_stream"].isin([2**24, 2**25])
    assert by_connection.sum() > by_stream.sum() > 0
    assert (by_connection | by_stream).mean() > 0.7


def test_simulated_frames(small: Profile) -> None:
    """A simulated step moves what the profile says, when the simulation says."""
    result = simulate(
        small, Cluster.like(small, 2), steps=3, warm_up=0, record=[(1, 0), (0, 1), (1, 1)], seed=1
    )
    frames = transport.simulated_frames(small, result, worker=1)
    moved = transport.transfers(frames)
    assert moved["step"].unique().tolist() == [0, 1]
    for direction, resource in (("down", DOWNLINK), ("up", UPLINK)):
        for step, row in ((0, 0), (1, 2)):
            own = moved[(moved["step"] == step) & (moved["direction"] == direction)]
            own = own.set_index("tensor")
            ops = np.flatnonzero(small.resources == resource)
            names = [small.names[op] for op in ops]
            assert own.loc[names, "bytes"].tolist() == small.sizes[ops].tolist()
            origin = result.start[1, 0]
            ended = own.loc[names, "ended"].to_numpy()
            assert ended == pytest.approx(result.op_end[row, ops] - origin)
            requested = own.loc[names, "requested"].to_numpy()
            assert requested == pytest.approx(result.op_start[row, ops] - origin)
    assert (moved["begun"] <= moved["ended"]).all()


def test_simulated_frames_need_a_recorded_step(small: Profile) -> None:
    """The error says what is missing."""
    result = simulate(small, Cluster.like(small), steps=3, record=[(0, 0)])
    with pytest.raises(InputError, match="no step of worker 1"):
        transport.simulated_frames(small, result, worker=1)


def test_transports(small: Profile) -> None:
    """Variants differ in order and window only."""
    found = transport.transports(small, [1, 3], [2**20])
    assert [len(c.workers) for c in found["whole"]] == [1, 3]
    assert found["whole"][0].stream_window is None
    assert found["window of 1 MiB"][1].stream_window == 2**20
    assert found["random"][0].stream_order == "random"
    assert all(c.calibration == small.metadata.calibration for v in found.values() for c in v)
