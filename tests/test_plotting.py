"""Figures show the numbers that they are given, say their units, and are the same each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection, QuadMesh
from matplotlib.colors import same_color, to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from asgd_model import plotting
from asgd_model.profile import RESOURCES, UPLINK, WORKER, Profile

NAN = float("nan")


@pytest.fixture
def ax() -> Axes:
    """Axes of a figure that pyplot does not know."""
    return Figure(figsize=(4, 3)).subplots()


@pytest.fixture(autouse=True)
def _no_figures_left() -> Iterator[None]:
    """Drawing on given axes opens no other figure."""
    assert plt.get_fignums() == []
    yield
    assert plt.get_fignums() == []


@pytest.fixture
def predictions() -> pd.DataFrame:
    """Two methods, the first with an interval and utilisations, the second with bounds."""
    return pd.DataFrame(
        {
            "method": ["simulation"] * 3 + ["queueing_overlap"] * 3,
            "workers": [1, 2, 3] * 2,
            "servers": 1,
            "steps_per_s": [1.0, 1.8, 2.2, 1.0, 1.7, 2.1],
            "steps_per_s_low": [0.9, 1.7, 2.0, NAN, NAN, NAN],
            "steps_per_s_high": [1.1, 1.9, 2.3, NAN, NAN, NAN],
            "server_send": [0.3, 0.6, 0.8, NAN, NAN, NAN],
            "server_receive": [0.3, 0.5, 0.7, NAN, NAN, NAN],
            "server_cpu": [0.1, 0.2, 0.3, NAN, NAN, NAN],
            "worker_cpu": [0.9, 0.8, 0.7, NAN, NAN, NAN],
            "bound_low": [NAN, NAN, NAN, 1.0, 1.2, 1.3],
            "bound_high": [NAN, NAN, NAN, 1.0, 2.0, 2.5],
        }
    )


@pytest.fixture
def measured() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "workers": [1, 2],
            "steps_per_s": [1.05, 1.75],
            "steps_per_s_low": [1.0, 1.5],
            "steps_per_s_high": [1.1, 2.0],
        }
    )


@pytest.fixture
def runs() -> pd.DataFrame:
    """As `accuracy.replay` returns them."""
    return pd.DataFrame(
        {
            "workers": [2, 2],
            "repeat": [1, 2],
            "measured": [1.0, 1.5],
            "replayed": [1.1, 1.4],
            "replayed_low": [1.0, 1.3],
            "replayed_high": [1.2, 1.6],
            "random": [1.25, 1.25],
            "random_low": [0.9, 0.9],
            "random_high": [1.6, 1.6],
        }
    )


@pytest.fixture
def steps() -> pd.DataFrame:
    """Two steps of each of two workers."""
    return pd.DataFrame(
        {"worker": [0, 0, 1, 1], "start": [0.0, 2.0, 1.0, 4.0], "end": [2.0, 5.0, 4.0, 6.0]}
    )


@pytest.fixture
def bins() -> pd.DataFrame:
    """Two resources in bins of 1 s and 2 s."""
    edges = pd.MultiIndex.from_tuples([(0.0, 1.0), (1.0, 3.0)], names=["begin", "end"])
    return pd.DataFrame({"worker 0 cpu": [0.0, 0.5], "server 0 send": [1.0, 0.25]}, index=edges)


@pytest.fixture
def sizes() -> pd.DataFrame:
    """Two numbers of servers, two of workers and two seeds."""
    index = pd.MultiIndex.from_product(
        [[1, 2], [4, 8], [0, 1]], names=["servers", "workers", "seed"]
    )
    rates = [1.0, 3.0, 4.0, 4.0, 2.0, 4.0, 6.0, 8.0]
    return pd.DataFrame({"steps_per_s": rates}, index=index).reset_index()


Draw = Callable[[Axes], Axes]


@pytest.fixture(
    params=[
        "throughput",
        "throughput, measured",
        "utilisation",
        "utilisation_over_time",
        "scaling",
        "timeline",
        "largest_operations",
        "largest_transfers",
        "replayed_runs",
        "step_times",
    ]
)
def draw(
    request: pytest.FixtureRequest,
    predictions: pd.DataFrame,
    measured: pd.DataFrame,
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    bins: pd.DataFrame,
    sizes: pd.DataFrame,
    small: Profile,
) -> Draw:
    """Each drawing function with something to draw; the axes are left to be given."""
    functions: dict[str, Draw] = {
        "throughput": lambda ax: plotting.throughput(predictions, ax=ax),
        "throughput, measured": lambda ax: plotting.throughput(predictions, measured, ax=ax),
        "utilisation": lambda ax: plotting.utilisation(predictions, ax=ax),
        "utilisation_over_time": lambda ax: plotting.utilisation_over_time(bins, ax=ax),
        "scaling": lambda ax: plotting.scaling(sizes, ax=ax),
        "timeline": lambda ax: plotting.timeline(small, 1, ax=ax),
        "largest_operations": lambda ax: plotting.largest_operations(small, 5, ax=ax),
        "largest_transfers": lambda ax: plotting.largest_transfers(small, 3, ax=ax),
        "replayed_runs": lambda ax: plotting.replayed_runs(runs, ax=ax),
        "step_times": lambda ax: plotting.step_times(steps, steps, ax=ax),
    }
    return functions[request.param]


def colours(ax: Axes) -> set[tuple[float, float, float]]:
    """Colours of all lines, bars and bands, without those of scales."""
    used = [line.get_color() for line in ax.lines if line.get_linestyle() != "None"]
    used += [line.get_markeredgecolor() for line in ax.lines if line.get_marker() != "None"]
    used += [bar.get_facecolor() for bar in ax.patches]
    bands = [band for band in ax.collections if not isinstance(band, QuadMesh)]
    used += [face for band in bands for face in band.get_facecolor()]
    return {to_rgb(colour) for colour in used}


def line(ax: Axes, label: str) -> Line2D:
    (found,) = (line for line in ax.lines if line.get_label() == label)
    return found


def test_draws_on_the_given_axes(draw: Draw, ax: Axes) -> None:
    """The same axes come back, with something on them and a label with a unit on each axis."""
    assert draw(ax) is ax
    assert ax.has_data()
    labels = [label for label in (ax.get_xlabel(), ax.get_ylabel()) if label]
    named = ("workers", "(s)", "(steps/s)", "(%)", "(ms of one core", "(MB)")
    assert labels
    assert all(any(unit in label for unit in named) for label in labels)
    if not ax.get_ylabel():
        assert all(tick.get_text() for tick in ax.get_yticklabels())


def test_makes_axes_if_none_are_given(
    monkeypatch: pytest.MonkeyPatch, draw: Draw, ax: Axes
) -> None:
    """A notebook's last line may draw without further ado."""
    made = draw(None)  # type: ignore[arg-type]
    assert made.has_data()
    assert [plt.figure(number) for number in plt.get_fignums()] == [made.figure]
    plt.close(made.figure)  # type: ignore[arg-type]


def test_colours_are_told_apart_by_all(draw: Draw, ax: Axes) -> None:
    """Colour-blind palette, and black, grey and white."""
    palette = {to_rgb(colour) for colour in sns.color_palette("colorblind")}
    assert colours(draw(ax)) <= palette | {to_rgb(name) for name in ("black", "grey", "white")}


def test_lines_are_told_apart_in_print(draw: Draw, ax: Axes) -> None:
    """No two predictions share both line style and marker."""
    lines = [line for line in draw(ax).lines if line.get_linestyle() not in ("None", ":")]
    labelled = [line for line in lines if not line.get_label().startswith("_")]  # type: ignore[union-attr]
    styles = [(line.get_linestyle(), line.get_marker()) for line in labelled]
    assert len(set(styles)) == len(styles)


# --- what is shown --------------------------------------------------------------------------


def test_throughput(predictions: pd.DataFrame, measured: pd.DataFrame, ax: Axes) -> None:
    """Lines for predictions, a band for an interval, dots for bounds, points for runs."""
    plotting.throughput(predictions, measured, ax)
    simulation = line(ax, "simulation")
    assert simulation.get_xydata().tolist() == [[1, 1.0], [2, 1.8], [3, 2.2]]  # type: ignore[union-attr]
    assert line(ax, "queueing, overlap-aware").get_ydata().tolist() == [1.0, 1.7, 2.1]  # type: ignore[union-attr]
    (band,) = (c for c in ax.collections if isinstance(c, FillBetweenPolyCollection))
    assert same_color(band.get_facecolor()[0][:3], simulation.get_color())
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].min() == 0.9
    assert corners[:, 1].max() == 2.3
    dotted = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert [line.get_ydata().tolist() for line in dotted] == [[1.0, 1.2, 1.3], [1.0, 2.0, 2.5]]  # type: ignore[union-attr]
    (points,) = (c for c in ax.containers if isinstance(c, ErrorbarContainer))
    assert points.lines[0].get_xydata().tolist() == [[1, 1.05], [2, 1.75]]
    (bars,) = points.lines[2]
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    np.testing.assert_allclose(ends, [[1.0, 1.1], [1.5, 2.0]])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("workers", "throughput (steps/s)")
    assert ax.get_ylim()[0] == 0.0
    shown = [text.get_text() for text in ax.get_legend().get_texts()]  # type: ignore[union-attr]
    assert set(shown) == {
        "simulation",
        "simulation: 95 % of runs",
        "queueing, overlap-aware",
        "asymptotic bounds",
        "measured, 95 % interval",
    }


def test_throughput_of_several_servers(predictions: pd.DataFrame, ax: Axes) -> None:
    """Each number of servers has a line of its own, which says so."""
    one = predictions[predictions["method"] == "simulation"]
    plotting.throughput(pd.concat([one, one.assign(servers=2, steps_per_s=9.0)]), ax=ax)
    labels = [str(line.get_label()) for line in ax.lines]
    assert len(labels) == 2
    assert "1" in labels[0]
    assert "2" in labels[1]
    assert ax.lines[1].get_ydata().tolist() == [9.0] * 3  # type: ignore[union-attr]


def test_unknown_methods_have_their_names(predictions: pd.DataFrame, ax: Axes) -> None:
    """A baseline's line is called what the baseline is called."""
    plotting.throughput(predictions.assign(method="cynthia"), ax=ax)
    assert line(ax, "cynthia")


def test_utilisation(predictions: pd.DataFrame, ax: Axes) -> None:
    """Shares as percentages, of the simulation only."""
    plotting.utilisation(predictions, ax)
    assert len(ax.lines) == 4
    assert line(ax, "server, sending link").get_ydata() == pytest.approx([30, 60, 80])
    assert line(ax, "workers, CPU").get_ydata() == pytest.approx([90, 80, 70])
    assert ax.get_ylabel() == "utilisation (%)"
    assert ax.get_ylim()[1] >= 100


def test_utilisation_over_time(bins: pd.DataFrame, ax: Axes) -> None:
    """A row per resource, the first one on top, in bins of their own length."""
    plotting.utilisation_over_time(bins, ax)
    (mesh,) = ax.collections
    assert isinstance(mesh, QuadMesh)
    assert mesh.get_array().tolist() == [[0.0, 50.0], [100.0, 25.0]]  # type: ignore[union-attr]
    assert mesh.get_coordinates()[0, :, 0].tolist() == [0.0, 1.0, 3.0]
    assert (mesh.norm.vmin, mesh.norm.vmax) == (0.0, 100.0)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["worker 0 cpu", "server 0 send"]
    assert ax.yaxis_inverted()
    assert ax.get_xlabel() == "time since the run began (s)"


def test_scaling(sizes: pd.DataFrame, ax: Axes) -> None:
    """Means over the seeds, bands from the lowest to the highest, both axes logarithmic."""
    plotting.scaling(sizes, ax)
    assert line(ax, "1 server").get_xydata().tolist() == [[4, 2.0], [8, 4.0]]  # type: ignore[union-attr]
    assert line(ax, "2 servers").get_ydata().tolist() == [3.0, 7.0]  # type: ignore[union-attr]
    corners = ax.collections[0].get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == (1.0, 4.0)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_timeline(small: Profile, ax: Axes) -> None:
    """One bar per operation that moves bytes or computes, as long as it took."""
    plotting.timeline(small, 0, ax)
    bars = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches]
    for op in range(small.ops):
        assert any(
            start == pytest.approx(small.start[0, op]) and end == pytest.approx(small.end[0, op])
            for start, end in bars
        )
    assert len(bars) == small.ops
    assert len(ax.get_yticks()) == len(RESOURCES)
    assert ax.get_xlabel() == "time since the step began (s)"
    assert ax.get_xlim()[0] == 0.0


def test_largest_operations(small: Profile, ax: Axes) -> None:
    """Longest first, in milliseconds, with the spread over the steps, coloured by resource."""
    plotting.largest_operations(small, 3, ax)
    assert ax.get_yticklabels()[0].get_text() == "backward second"
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == pytest.approx([1100, 550, 550])
    (errors,) = (c for c in ax.containers if isinstance(c, ErrorbarContainer))
    (bars,) = errors.lines[2]
    first = bars.get_segments()[0][:, 0].tolist()
    assert first == pytest.approx([1000, 1200])
    assert len({bar.get_facecolor() for bar in ax.patches}) == 1
    assert small.resources[6] == WORKER


def test_largest_transfers(small: Profile, ax: Axes) -> None:
    """Most bytes first, in MB; both directions, told apart by colour."""
    plotting.largest_transfers(small, 4, ax)
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["receive second", "send second", "receive first", "send first"]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([3, 3, 1, 1])
    down, up, *_ = (bar.get_facecolor() for bar in ax.patches)
    assert not same_color(down, up)
    assert small.resources[8] == UPLINK


@pytest.mark.parametrize("function", [plotting.largest_operations, plotting.largest_transfers])
def test_fewer_operations_than_asked_for(
    small: Profile, ax: Axes, function: Callable[..., Axes]
) -> None:
    """A short step is shown completely."""
    assert len(function(small, 100, ax).patches) <= small.ops


def test_long_names_are_shortened(alexnet: Profile, ax: Axes) -> None:
    """The end of a name tells it from others; the beginning is left out."""
    plotting.largest_transfers(alexnet, 30, ax)
    shown = [text.get_text() for text in ax.get_yticklabels()]
    assert max(map(len, shown)) <= 51
    assert any(name.startswith("...") for name in shown)
    assert len(set(shown)) == len(shown)


def test_replayed_runs(runs: pd.DataFrame, ax: Axes) -> None:
    """Per run what was measured and both simulations with their intervals."""
    plotting.replayed_runs(runs, ax)
    assert line(ax, "measured").get_ydata().tolist() == [1.0, 1.5]  # type: ignore[union-attr]
    random, replayed = (c for c in ax.containers if isinstance(c, ErrorbarContainer))
    assert random.lines[0].get_ydata().tolist() == [1.25, 1.25]
    assert replayed.lines[0].get_ydata().tolist() == [1.1, 1.4]
    (bars,) = replayed.lines[2]
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    np.testing.assert_allclose(ends, [[1.0, 1.2], [1.3, 1.6]])
    assert [text.get_text() for text in ax.get_xticklabels()] == ["2\nrun 1", "2\nrun 2"]


def test_step_times(steps: pd.DataFrame, ax: Axes) -> None:
    """Points for measured steps, a line for simulated ones, a colour for each worker."""
    plotting.step_times(steps, steps.assign(end=steps["end"] + 1), ax)
    points, simulated = line(ax, "worker 1, measured"), line(ax, "worker 1, simulated")
    assert points.get_xydata().tolist() == [[1, 3], [4, 2]]  # type: ignore[union-attr]
    assert simulated.get_xydata().tolist() == [[1, 4], [4, 3]]  # type: ignore[union-attr]
    assert same_color(points.get_color(), simulated.get_color())
    assert not same_color(points.get_color(), line(ax, "worker 0, measured").get_color())


# --- files ----------------------------------------------------------------------------------


def test_save(draw: Draw, ax: Axes, predictions: pd.DataFrame, tmp_path: Path) -> None:
    """PNG, SVG and CSV of the same stem; the same figure drawn again gives the same bytes."""
    for folder, axes in (("first", ax), ("again", Figure(figsize=(4, 3)).subplots())):
        figure = draw(axes).figure
        plotting.save(figure, predictions, tmp_path / folder / "a.b")  # type: ignore[arg-type]
    first = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    assert sorted(first) == ["a.b.csv", "a.b.png", "a.b.svg"]
    assert first["a.b.png"].startswith(b"\x89PNG\r\n")
    assert ElementTree.fromstring(first["a.b.svg"]).tag == "{http://www.w3.org/2000/svg}svg"
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == first


def test_saved_table(tmp_path: Path, ax: Axes) -> None:
    """What a figure shows, with six digits; nothing about when and with what it was made."""
    table = pd.DataFrame({"name": ["a", "b"], "value": [1 / 3, NAN], "count": [10**9, 2]})
    plotting.save(ax.figure, table, tmp_path / "figure")  # type: ignore[arg-type]
    text = (tmp_path / "figure.csv").read_bytes()
    assert text == b"name,value,count\na,0.333333,1000000000\nb,,2\n"
    image = (tmp_path / "figure.svg").read_text()
    assert "<dc:date>" not in image
    assert "Matplotlib" not in image.split("<style", 1)[1]
    assert b"Software" not in (tmp_path / "figure.png").read_bytes()
