"""What is left out is left out, and what it did to the errors is stated correctly."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from asgd_model import plotting
from asgd_model.ablation import PARTS, WHOLE, ablate, contributions, without_overlap
from asgd_model.accuracy import compare_all, predict_all, summarize
from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.measurements import load_all_measurements
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, CommunicationCost, Profile
from asgd_model.simulator import SimulationResult, simulate

DATA = Path(__file__).parents[1] / "data"
RENO = "cpu-0.15-300mbit-reno"


def run(profile: Profile, cluster: Cluster, **options: Any) -> SimulationResult:
    return simulate(profile, cluster, **{"steps": 3, "warm_up": 1, "starts": [0.0], **options})


def without(part: str, profile: Profile, cluster: Cluster | None = None) -> SimulationResult:
    """A run of one worker with a part of the model left out."""
    changed = PARTS[part]
    cluster = cluster or Cluster.like(profile)
    return run(changed.profile(profile), changed.cluster(cluster))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with the measured runs of AlexNet on one platform, and its profile."""
    target = tmp_path / "data"
    profiles = target / "profiles" / RENO
    profiles.mkdir(parents=True)
    (target / "measurements").mkdir()
    shutil.copy(DATA / "profiles" / RENO / "alexnet_b8.profile.json.gz", profiles)
    runs = pd.read_csv(DATA / "measurements" / f"{RENO}.csv")
    runs = runs[(runs["dnn"] == "alexnet") & (runs["workers"] <= 2)]
    runs.to_csv(target / "measurements" / f"{RENO}.csv", index=False)
    shutil.copy(DATA / "measurements" / f"{RENO}.steps.csv.gz", target / "measurements")
    return target


# --- the parts ------------------------------------------------------------------------------


def test_without_overlap_a_step_is_the_sum_of_its_phases(small: Profile) -> None:
    """4 s of download, 2.5 s of computation, 4 s of upload, the last update: all in sequence."""
    plain = replace(small, work=small.work[:1], start=small.start[:1], end=small.end[:1])
    plain = plain.recalibrated(
        **{
            f"{node}_{way}": CommunicationCost()
            for node in ("worker", "server")
            for way in ("send", "receive")
        }
    )
    cluster = Cluster.like(plain, stream_order="fifo")
    whole = run(plain, cluster).step_times[0]
    separate = run(without_overlap(plain), cluster).step_times[0]
    assert separate == pytest.approx(4.0 + 2.5 + 4.0 + 0.1, rel=1e-3)
    assert whole < separate - 0.5


def test_without_overlap_the_phases_are_apart(alexnet: Profile) -> None:
    """In a real step no computation starts before the parameters are there; work stays the same."""
    profile = without_overlap(alexnet)
    assert profile.ops == alexnet.ops + 2
    np.testing.assert_array_equal(profile.work.sum(axis=1), alexnet.work.sum(axis=1))
    result = run(profile, Cluster.like(profile), record=[(0, 1)])
    start, end = result.op_start[0], result.op_end[0]
    content = profile.sizes > 0
    worker = (profile.resources == WORKER) & (profile.work[result.drawn[0, 1]] > 1e-3)
    down = (profile.resources == DOWNLINK) & content
    up = (profile.resources == UPLINK) & content
    assert end[down].max() <= start[worker].min()
    assert end[worker].max() <= start[up].min()


def test_orders_of_streams(small: Profile) -> None:
    """Each way of sending streams is what it says."""
    cluster = Cluster.like(small, stream_window=1000)
    order, control, turns = (
        PARTS[part].cluster(cluster)
        for part in ("recorded order", "flow control", "turns of streams")
    )
    assert order == replace(cluster, stream_order="fifo")
    assert control == replace(cluster, stream_order="fifo", stream_window=None)
    assert turns == replace(cluster, stream_order="shared")


def test_communication_without_cost(small: Profile) -> None:
    """The CPUs do the operations and nothing else."""
    result = without("cost of communication", small)
    busy = result.busy[:, 0] * (result.end[0, -1] - result.end[0, 0])
    drawn = result.drawn[0, 1:]
    for node, resource in ((0, WORKER), (1, SERVER)):
        work = small.work[drawn][:, small.resources == resource].sum()
        assert busy[node] == pytest.approx(work)


def test_no_updates(small: Profile) -> None:
    """The servers spend on communication only, which is as before."""
    free = PARTS["cost of communication"]
    cluster = free.cluster(Cluster.like(small))
    assert without("updates", small, cluster).busy[1, 0] == 0.0
    assert run(small, cluster).busy[1, 0] > 0.0


def test_no_thread_limit(small: Profile) -> None:
    """Two computations that are ready run at the same time, on as many cores."""
    parallel = list(small.dependencies)
    parallel[5] = np.array([3], dtype=np.int32)  # forward second no longer waits for the first
    parallel[4] = np.array([3], dtype=np.int32)
    profile = replace(small, dependencies=tuple(parallel))
    cluster = Cluster.like(profile, worker_cores=2.0)
    limited, free = run(profile, cluster), without("threads", profile, cluster)
    assert free.step_times.mean() < limited.step_times.mean() - 0.4


def test_every_step_is_the_mean_one(small: Profile) -> None:
    """Steps no longer differ."""
    whole = run(small, Cluster.like(small), steps=12, seed=1).step_times
    mean = run(PARTS["variability"].profile(small), Cluster.like(small), steps=12).step_times
    assert whole.std() > 0.05
    assert mean == pytest.approx(np.full(len(mean), mean[0]))
    assert whole.min() < mean[0] < whole.max()


def test_calibration_that_is_left_out(small: Profile) -> None:
    """Each part resets its own values and no others."""
    known = Cluster.like(
        small.recalibrated(
            share_spread=0.3, newcomer_share=0.5, throttled_rate=0.7, tracing_overhead=0.1
        )
    )

    def changed(part: str) -> set[str]:
        before = known.calibration.model_dump()
        after = PARTS[part].cluster(known).calibration.model_dump()
        return {name for name in before if before[name] != after[name]}

    assert changed("unequal shares") == {"share_spread", "newcomer_share"}
    assert changed("throttling") == {"throttled_rate"}
    assert changed("overhead of tracing") == {"tracing_overhead"}
    neutral = Cluster.like(small).calibration
    for part in ("unequal shares", "throttling", "overhead of tracing"):
        calibration = PARTS[part].cluster(known).calibration
        for name in changed(part):
            assert getattr(calibration, name) == getattr(neutral, name)


def test_every_part_says_what_is_assumed_without_it() -> None:
    """The notebook shows it."""
    assert all(part.instead and not part.instead.endswith(".") for part in PARTS.values())


# --- the errors -----------------------------------------------------------------------------


def test_ablate(data: Path) -> None:
    """Every run meets every variant; the whole model's predictions are those of `predict`."""
    options: dict[str, Any] = {"replications": 2}
    table = ablate(data, ["overlap", "updates"], **options)
    assert list(dict.fromkeys(table["method"])) == [WHOLE, "without overlap", "without updates"]
    curves = predict_all(data, methods=["simulation"], **options)
    plain = compare_all(curves, load_all_measurements(data))
    whole = table[table["method"] == WHOLE]
    assert list(table.columns) == list(plain.columns)
    pd.testing.assert_frame_equal(
        whole.drop(columns="method"), plain.drop(columns="method"), check_dtype=False
    )
    assert len(table) == 3 * len(plain)
    assert not table["fitted"].any()
    slow = table[table["method"] == "without overlap"].set_index(["workers", "repeat"])
    fast = whole.set_index(["workers", "repeat"])
    assert (slow["predicted"] < fast["predicted"]).all()
    assert summarize(table).index.tolist() == [WHOLE, "without overlap", "without updates"]


def test_unknown_parts(data: Path) -> None:
    """A misspelt part is no experiment without anything."""
    with pytest.raises(InputError, match=r"ablate: parts: found overlaps; expected one of overlap"):
        ablate(data, ["overlaps"])


def test_nothing_to_ablate(tmp_path: Path) -> None:
    """A folder without measurements is refused."""
    with pytest.raises(InputError, match="found none; expected files measurements"):
        ablate(tmp_path)


@pytest.fixture
def table() -> pd.DataFrame:
    """Two runs on each of two platforms and one of a single worker, which does not count."""
    runs = pd.DataFrame(
        {
            "platform": ["a", "a", "a", "b", "b"],
            "dnn": "d",
            "batch_size": 8,
            "workers": [1, 2, 4, 2, 4],
            "servers": 1,
            "repeat": 1,
            "measured": [1.0, 2.0, 4.0, 1.0, 2.0],
        }
    )
    variants = {
        WHOLE: [9.0, 2.2, 4.4, 1.0, 1.8],
        "without x": [9.0, 2.4, 3.2, 1.0, 2.0],
    }
    tables = [runs.assign(method=name, predicted=value) for name, value in variants.items()]
    table = pd.concat(tables, ignore_index=True)
    return table.assign(error=table["predicted"] / table["measured"] - 1.0)


def test_contributions(table: pd.DataFrame) -> None:
    """Errors with and without, the difference, and how much the prediction depends on the part."""
    result = contributions(table).set_index("variant")
    assert result["runs"].tolist() == [4, 4]
    assert result["mean_abs_error"].tolist() == pytest.approx([0.3 / 4, 0.4 / 4])
    assert result["max_abs_error"].tolist() == pytest.approx([0.1, 0.2])
    assert result["mean_error"].tolist() == pytest.approx([0.1 / 4, 0.0])
    assert result["contribution"].tolist() == pytest.approx([0.0, 0.1 / 4])
    changes = [2.4 / 2.2 - 1, 1 - 3.2 / 4.4, 0.0, 2.0 / 1.8 - 1]
    assert result["changed"].tolist() == pytest.approx([0.0, np.mean(changes)])


def test_contributions_by_platform(table: pd.DataFrame) -> None:
    """Each platform is compared to its own whole model."""
    result = contributions(table, by=["platform"]).set_index(["platform", "variant"])
    assert result["contribution"]["a"].tolist() == pytest.approx([0.0, 0.1])
    assert result["contribution"]["b"].tolist() == pytest.approx([0.0, -0.05])
    assert result["runs"].tolist() == [2] * 4


def test_figure(table: pd.DataFrame) -> None:
    """A bar for each variant but the whole model, as long as its mean error; a dot for each run."""
    ax = plotting.ablation(table, ax=Figure().subplots())
    (bar,) = ax.patches
    assert bar.get_width() == pytest.approx(100 * 0.4 / 4)
    dots, line = ax.lines
    assert sorted(dots.get_xdata()) == pytest.approx([0.0, 0.0, 20.0, 20.0])
    assert line.get_xdata() == pytest.approx([7.5, 7.5])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["without x"]
