"""One call puts the predictions of all methods into one tidy table, the same each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from asgd_model.baselines import BASELINES
from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.measurements import load_measurements
from asgd_model.predict import METHODS, predict
from asgd_model.prediction import prediction
from asgd_model.profile import Profile

MEASURED = Path(__file__).parents[1] / "data" / "measurements" / "cpu-0.15-300mbit-reno.csv"
COLUMNS = [
    "method",
    "workers",
    "servers",
    "steps_per_s",
    "steps_per_s_low",
    "steps_per_s_high",
    "examples_per_s",
    "sees",
]
FITTED = {"optimus": "measured W in {1, 2, 4}", "ernest": "measured W in {1, 2, 4}"}


@pytest.fixture(scope="module")
def measured() -> pd.DataFrame:
    """The measured runs of AlexNet, on one server."""
    runs = load_measurements(MEASURED)
    return runs[runs["dnn"] == "alexnet"]


@pytest.fixture(scope="module")
def everything(alexnet: Profile, measured: pd.DataFrame) -> pd.DataFrame:
    """All methods for three sizes."""
    return predict(alexnet, [4, 1, 2], methods=METHODS, measured=measured, replications=4)


def test_methods() -> None:
    """The models of this package and every baseline."""
    assert METHODS[:3] == ("simulation", "queueing", "queueing_overlap")
    assert METHODS[3:] == BASELINES


def test_rows_and_columns(everything: pd.DataFrame) -> None:
    """Methods and sizes in the order given; first what all methods have, then what some add."""
    assert list(everything)[: len(COLUMNS)] == COLUMNS
    assert everything["method"].tolist() == list(np.repeat(METHODS, 3))
    assert everything["workers"].tolist() == [4, 1, 2] * len(METHODS)
    assert set(everything["servers"]) == {1}
    assert everything.index.tolist() == list(range(3 * len(METHODS)))
    extra = list(everything)[len(COLUMNS) :]
    assert extra == [
        "server_send",
        "server_receive",
        "server_cpu",
        "worker_cpu",
        "bound_low",
        "bound_high",
    ]


def test_values_are_plausible(everything: pd.DataFrame, alexnet: Profile) -> None:
    """Positive; inside their interval; examples are steps times batch; utilisations are shares."""
    assert (everything["steps_per_s"] > 0).all()
    examples = everything["steps_per_s"] * alexnet.metadata.batch_size
    assert everything["examples_per_s"].tolist() == pytest.approx(examples.tolist())
    known = everything.dropna(subset=["steps_per_s_low"])
    assert set(known["method"]) >= {"simulation"}
    assert (known["steps_per_s_low"] <= known["steps_per_s"]).all()
    assert (known["steps_per_s"] <= known["steps_per_s_high"]).all()
    busy = everything.loc[everything["method"] == "simulation", "server_send":"worker_cpu"]
    assert ((busy > 0) & (busy <= 1 + 1e-9)).all(axis=None)
    others = everything.loc[everything["method"] != "simulation", "server_send":"worker_cpu"]
    assert others.isna().all(axis=None)


def test_models_agree_with_what_was_measured_of_one_worker(
    everything: pd.DataFrame, measured: pd.DataFrame
) -> None:
    """One worker's throughput is where the models start from: within 5 %."""
    one = everything[everything["workers"] == 1].set_index("method")["steps_per_s"]
    (real,) = measured.loc[measured["workers"] == 1, "steps_per_s"]
    assert one["simulation"] == pytest.approx(real, rel=0.05)
    assert one["queueing_overlap"] == pytest.approx(one["simulation"], rel=0.01)


def test_measurements_reach_the_methods_that_are_fitted(
    everything: pd.DataFrame, alexnet: Profile, measured: pd.DataFrame
) -> None:
    """What each method knew stands beside its prediction; the fitted ones need runs."""
    sees = everything.drop_duplicates("method").set_index("method")["sees"].to_dict()
    assert sees == {method: FITTED.get(method, "profile of one worker") for method in METHODS}
    doubled = measured.assign(steps_per_s=2 * measured["steps_per_s"])
    for method in FITTED:
        once = predict(alexnet, [3], methods=[method], measured=measured)["steps_per_s"][0]
        twice = predict(alexnet, [3], methods=[method], measured=doubled)["steps_per_s"][0]
        assert twice == pytest.approx(2 * once, rel=0.05)
        with pytest.raises(InputError, match=f"{method}: found no measurements; expected"):
            predict(alexnet, [3], methods=[method])


def test_same_seed_same_table(everything: pd.DataFrame, alexnet: Profile) -> None:
    """Another call gives the same numbers; another seed other ones, from the simulation alone."""
    methods = ("simulation", "queueing")
    first, again, other = (
        predict(alexnet, [4, 1, 2], methods=methods, replications=4, seed=seed)
        for seed in (0, 0, 1)
    )
    pd.testing.assert_frame_equal(first, again)
    expected = everything[everything["method"].isin(methods)].reset_index(drop=True)
    pd.testing.assert_frame_equal(first, expected)
    simulated = first["method"] == "simulation"
    assert (first["steps_per_s"] != other["steps_per_s"]).tolist() == simulated.tolist()


def test_predictions_do_not_depend_on_each_other(
    everything: pd.DataFrame, alexnet: Profile, measured: pd.DataFrame
) -> None:
    """A size predicted alone, and a method asked alone, have the numbers that they have in all."""
    columns = COLUMNS[1:]
    for method in METHODS:
        alone = predict(alexnet, [2], methods=[method], measured=measured, replications=4)
        rows = everything[(everything["method"] == method) & (everything["workers"] == 2)]
        pd.testing.assert_frame_equal(
            alone[columns], rows[columns].reset_index(drop=True), check_exact=True
        )


def test_servers(small: Profile) -> None:
    """Each number of servers with each number of workers; the profile's number by default."""
    table = predict(small, [1, 2], servers=[2, 1], methods=["queueing"])
    assert table[["workers", "servers"]].to_numpy().tolist() == [[1, 2], [2, 2], [1, 1], [2, 1]]
    assert predict(small, [3], servers=2, methods=["queueing"])["servers"].tolist() == [2]
    assert predict(small, [3], methods=["queueing"])["servers"].tolist() == [1]
    assert table["steps_per_s"][1] > table["steps_per_s"][3]


def test_numbers_may_come_from_anywhere(small: Profile) -> None:
    """A range, a generator, an array."""
    for workers in (range(1, 3), (count for count in (1, 2)), np.arange(1, 3)):
        assert predict(small, workers, methods=["queueing"])["workers"].tolist() == [1, 2]


def test_options_reach_the_cluster_and_the_simulation(small: Profile) -> None:
    """What is said about links and CPUs counts, for every method; one worker waits for nobody."""
    methods = ("simulation", "queueing")
    plain = predict(small, [1], methods=methods, replications=2)["steps_per_s"]
    for option in ({"bandwidth": 80e6}, {"worker_cores": 0.1}, {"server_cores": 0.1}):
        changed = predict(small, [1], methods=methods, replications=2, **option)["steps_per_s"]
        expected = 1 if "bandwidth" in option else -1
        assert np.sign(changed - plain).tolist() == [expected] * 2
    plain = predict(small, [2], methods=methods, replications=2)["steps_per_s"]
    for option in ({"stream_order": "random"}, {"stream_window": 100_000}, {"steps": 30}):
        changed = predict(small, [2], methods=methods, replications=2, **option)["steps_per_s"]
        assert (changed != plain).tolist() == [True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": []}, "predict: workers: found none; expected at least one"),
        ({"servers": []}, "predict: servers: found none; expected at least one"),
        ({"methods": []}, "predict: methods: found none; expected at least one"),
        ({"workers": [0]}, "Cluster: workers: found 0; expected an integer from 1 to 1000000"),
        ({"workers": [1, -2]}, "Cluster: workers: found -2; expected an integer from 1"),
        ({"workers": [1.5]}, "Cluster: workers: found 1.5; expected an integer from 1"),
        ({"workers": [True]}, "Cluster: workers: found True; expected an integer from 1"),
        ({"workers": [10**7]}, "Cluster: workers: found 10000000; expected an integer from 1 to"),
        ({"servers": 0}, "Cluster: servers: found 0; expected an integer from 1"),
        ({"servers": [1, 0]}, "Cluster: servers: found 0; expected an integer from 1"),
        ({"methods": ["magic"]}, "predict: methods: found magic; expected one of simulation, que"),
        ({"stream_order": "lifo"}, "Cluster: stream_order: found lifo; expected one of profile,"),
        ({"stream_window": 0}, "Cluster: stream_window: found 0; expected None or a number of by"),
        ({"bandwidth": 0}, "Node: uplink: found 0; expected a finite number above 0"),
        ({"bandwidth": -1.0}, "Node: uplink: found -1.0; expected a finite number above 0"),
        ({"bandwidth": float("nan")}, "Node: uplink: found nan; expected a finite number above"),
        ({"worker_cores": 0}, "Node: cores: found 0; expected a finite number above 0"),
        ({"server_cores": float("inf")}, "Node: cores: found inf; expected a finite number above"),
        ({"replications": 0}, "replicate: replications: found 0; expected an integer of at least"),
        ({"precision": 2}, "replicate: precision: found 2; expected a number between 0 and 1"),
        ({"seed": -1}, "replicate: seed: found -1; expected an integer of at least 0"),
        ({"seed": 0.5}, "replicate: seed: found 0.5; expected an integer of at least 0"),
        ({"steps": 0}, "simulate: steps: found 0; expected an integer of at least 1"),
        ({"warm_up": 20}, "simulate: warm_up: found 20; expected 0 to 19"),
        ({"warm_up": -1}, "simulate: warm_up: found -1; expected 0 to 19"),
    ],
)
def test_impossible_arguments(small: Profile, arguments: dict[str, Any], message: str) -> None:
    """The argument is named, what was given, and what would do."""
    with pytest.raises(InputError) as caught:
        predict(small, **{"workers": [1], **arguments})
    assert str(caught.value).startswith(message)


def test_profile_without_variables(small: Profile) -> None:
    """More servers need to know the variables; the error names the profile's file."""
    unknown = replace(small, kinds=("Op",) * small.ops, source="job.profile.json.gz")
    with pytest.raises(InputError, match=r"job\.profile\.json\.gz: ops\.kind: found no variables"):
        predict(unknown, [1], servers=2)


# --- the table of one method ------------------------------------------------------------------


@pytest.mark.parametrize("shape", [np.array, list, tuple])
def test_prediction(small: Profile, shape: Callable[[list[float]], Any]) -> None:
    """One row per cluster; an interval that no method gives is missing, not zero."""
    clusters = [Cluster.like(small, 2, 3), Cluster.like(small, 1)]
    table = prediction(clusters, shape([2.0, 1.0]), "nothing")
    assert list(table) == [name for name in COLUMNS if name not in ("method", "examples_per_s")]
    assert table["workers"].tolist() == [2, 1]
    assert table["servers"].tolist() == [3, 1]
    assert table["steps_per_s"].tolist() == [2.0, 1.0]
    assert table[["steps_per_s_low", "steps_per_s_high"]].isna().all(axis=None)
    assert table["sees"].tolist() == ["nothing"] * 2
    given = prediction(clusters, shape([2.0, 1.0]), "x", shape([1.5, 0.5]), shape([2.5, 1.5]))
    assert given["steps_per_s_low"].tolist() == [1.5, 0.5]
    assert given["steps_per_s_high"].tolist() == [2.5, 1.5]


def test_prediction_of_nothing() -> None:
    """No clusters: no rows, and numbers that can be computed with."""
    table = prediction([], [], "nothing")
    assert len(table) == 0
    assert table["steps_per_s"].dtype == np.float64
