"""Figures of frames show the numbers that they are given."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from asgd_model import plotting
from asgd_model.capture import COLUMNS, number_steps


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """No figure stays open."""
    yield
    plt.close("all")


@pytest.fixture
def frames() -> pd.DataFrame:
    """Two steps: in the first w comes before v, in the second v, in two frames, before w."""
    nan = np.nan
    rows: list[tuple[object, ...]] = []
    for begin, order in ((10.0, "wv"), (30.0, "vw")):
        first = int(begin)
        rows.append((begin, "up", 0, first + 1, "DATA", 60, nan, nan))
        for place, name in enumerate("vw"):
            stream = first + 3 + 2 * place
            rows.append((begin + 1 + place, "up", 0, stream, "DATA", 90, nan, name))
        time = begin + 3
        for name in order:
            stream = first + (3 if name == "v" else 5)
            for _ in range(2 if (name, begin) == ("v", 30.0) else 1):
                time += 1
                rows.append((time, "down", 0, stream, "DATA", 2**17, nan, name))
        rows.append((begin + 9, "down", 0, first + 1, "DATA", 6, nan, nan))
    return number_steps(pd.DataFrame(rows, columns=list(COLUMNS[1:])))


def bars(ax: Axes) -> list[tuple[float, float, float]]:
    """Row, begin and end of the bars that are drawn in colour."""
    found = []
    for patch in ax.patches:
        assert isinstance(patch, Rectangle)
        red, green, blue = to_rgb(patch.get_facecolor())
        if not red == green == blue:
            left = patch.get_x()
            row = patch.get_y() + patch.get_height() / 2
            found.append((row, left, left + patch.get_width()))
    return sorted(found)


def xy(line: Line2D) -> list[list[float]]:
    """Points of a line."""
    points: list[list[float]] = np.asarray(line.get_xydata()).tolist()
    return points


def test_streams(frames: pd.DataFrame) -> None:
    """Turns at their times, rows by the first table's order, and the bytes of both below."""
    second = frames[frames["step"] == 1].assign(step=0)
    axes = plotting.streams({"one": frames, "two": second})
    assert axes.shape == (3, 2)
    assert bars(axes[0, 0]) == [(0.0, 2.0, 4.0), (1.0, 4.0, 5.0)]
    assert bars(axes[1, 0]) == [(0.0, 5.0, 6.0), (1.0, 1.0, 5.0)]
    assert bars(axes[0, 1]) == []
    one, two = axes[2, 0].lines
    assert xy(one)[-1] == pytest.approx([5.0, 2 * 2**17 / 1e6])
    assert xy(two)[-1] == pytest.approx([6.0, 3 * 2**17 / 1e6])


def test_write_sizes(frames: pd.DataFrame) -> None:
    """Only the one full frame is a point, in MiB."""
    ax = plotting.write_sizes(frames, Figure().subplots())
    points = [xy(line) for line in ax.lines if line.get_linestyle() == "None"]
    assert points == [[[34.0, 0.125]], []]


def test_stream_orders(frames: pd.DataFrame) -> None:
    """Places count from 1; the second step is drawn against the first."""
    axes = plotting.stream_orders(frames)
    (requests,) = axes[0].lines
    assert sorted(xy(requests)) == [[1, 1], [1, 2], [2, 1], [2, 2]]
    (steps,) = axes[1].lines
    assert sorted(xy(steps)) == [[1, 2], [2, 1]]
