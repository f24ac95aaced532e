"""Figures that compare methods, clusters and allocations show what their tables say."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest

from asgd_model import plotting
from asgd_model.accuracy import compare
from asgd_model.provisioning import Prices, cost_of_training


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    """No window, and no figure left open."""
    with mpl.rc_context({"backend": "agg"}):
        yield
    plt.close("all")


@pytest.fixture
def measured() -> pd.DataFrame:
    rates = pd.Series([1.0, 2.0, 3.0])
    return pd.DataFrame(
        {
            "workers": [1, 2, 8],
            "parameter_servers": 1,
            "repeat": 1,
            "steps_per_s": rates,
            "steps_per_s_low": 0.9 * rates,
            "steps_per_s_high": 1.1 * rates,
        }
    )


@pytest.fixture
def predictions() -> pd.DataFrame:
    """Two methods of which one was fitted; 40 % too fast for eight workers."""
    curve = pd.DataFrame(
        {
            "workers": [1, 2, 8],
            "servers": 1,
            "steps_per_s": [1.0, 2.0, 4.2],
            "steps_per_s_low": float("nan"),
            "steps_per_s_high": float("nan"),
        }
    )
    return pd.concat([curve.assign(method=name) for name in ("simulation", "ernest")])


def test_each_method(predictions: pd.DataFrame, measured: pd.DataFrame) -> None:
    """A panel per method with its curve; runs that it was fitted to are filled."""
    figure = plotting.each_method(compare(predictions, measured), predictions, measured)
    panels = [ax for ax in figure.axes if ax.get_title()]
    assert [ax.get_title() for ax in panels] == ["simulation", "ernest"]
    points = {}
    for ax in panels:
        curve = ax.lines[0]
        assert list(curve.get_ydata()) == [1.0, 2.0, 4.2]
        points[ax.get_title()] = {
            line.get_markerfacecolor(): list(line.get_xdata())
            for line in ax.lines
            if line.get_marker() == "o"
        }
    assert points["simulation"] == {"white": [1, 2, 8], "black": []}
    assert points["ernest"] == {"white": [8], "black": [1, 2]}


def test_errors(predictions: pd.DataFrame, measured: pd.DataFrame) -> None:
    """A row per run of several workers; brackets where the method was fitted to the size."""
    comparison = compare(predictions, measured).assign(platform="p", dnn="d", batch_size=4)
    ax = plotting.errors(comparison)
    texts = [text.get_text() for text in ax.texts]
    assert texts == ["+0", "(+0)", "+40", "+40"]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "p  d, 2 workers, run 1",
        "p  d, 8 workers, run 1",
    ]


def test_cost_against_time() -> None:
    """A line per number of servers, and the number of workers beside each point."""
    curve = pd.DataFrame({"workers": [2, 1, 1], "servers": [1, 1, 2], "steps_per_s": [2.0, 1, 1]})
    ax = plotting.cost_against_time(cost_of_training(curve, 3600, Prices(1.0, 1.0)))
    assert [line.get_label() for line in ax.lines] == ["1 server", "2 servers"]
    assert ax.lines[0].get_xdata().tolist() == [1.0, 0.5]  # type: ignore[union-attr]
    assert ax.lines[0].get_ydata().tolist() == [2.0, 1.5]  # type: ignore[union-attr]
    assert [text.get_text() for text in ax.texts] == ["1", "2", "1"]


def test_allocation() -> None:
    """Workers hold from one decision to the next; the deadline is a line of its own."""
    play = pd.DataFrame(
        {"case": "as predicted", "time": [0.0, 3600.0, 7200.0], "workers": [4, 2, 0]}
    )
    ax = plotting.allocation(play, deadline=9000.0)
    assert ax.lines[0].get_drawstyle() == "steps-post"
    assert ax.lines[0].get_xdata().tolist() == [0.0, 1.0, 2.0]  # type: ignore[union-attr]
    assert list(ax.lines[1].get_xdata()) == [2.5, 2.5]


def test_advice() -> None:
    """A bar per change, the first on top, as percentages."""
    table = pd.DataFrame({"change": ["faster", "slower"], "gain": [0.5, -0.1], "margin": 0.02})
    ax = plotting.advice(table)
    assert [bar.get_width() for bar in ax.patches] == [50.0, -10.0]  # type: ignore[attr-defined]
    assert ax.yaxis_inverted()
