"""What all baselines have in common, and what holds for any prediction."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model import Cluster, InputError, Profile
from asgd_model.baselines import BASELINES, baseline

FITTED = ("optimus", "ernest")
FROM_PROFILE = tuple(name for name in BASELINES if name not in FITTED)
ASYNCHRONOUS = ("lin2018", "cynthia", "yan")
COLUMNS = ["workers", "servers", "steps_per_s", "steps_per_s_low", "steps_per_s_high", "sees"]
VGG_11 = 4 * 132_863_336


@pytest.fixture(scope="session")
def profile(chain) -> Profile:
    """A network of three layers with the size of VGG-11, so that Paleo knows it."""
    sizes = [VGG_11 // 4, VGG_11 // 4, VGG_11 // 2]
    work = [0.5, 2.0, 1.5], [1.0, 4.0, 3.0]
    return chain(sizes, *work, update=0.4, dnn="vgg-11", link_rate=4e9, server_cores=2.0)


def measured(sizes=(1, 2, 4), servers: int = 1) -> pd.DataFrame:
    """Three repeats of runs that take 0.1 + 0.02 W seconds per step of each worker."""
    workers = np.repeat(sizes, 3)
    scatter = np.tile([0.99, 1.0, 1.01], len(sizes))
    steps_per_s = scatter * workers / (0.1 + 0.02 * workers)
    return pd.DataFrame(
        {"workers": workers, "parameter_servers": servers, "steps_per_s": steps_per_s}
    )


@pytest.mark.parametrize("name", BASELINES)
def test_columns(name: str, profile: Profile) -> None:
    """One row per cluster in the order given, with the columns that `predict` puts together."""
    clusters = [Cluster.like(profile, workers) for workers in (1, 8, 3)]
    found = baseline(name)(profile, clusters, measured())
    assert list(found.columns) == COLUMNS
    assert found["workers"].tolist() == [1, 8, 3]
    assert found["servers"].tolist() == [1, 1, 1]
    assert (found["steps_per_s"] > 0).all()
    if name in FITTED:
        assert (found["sees"] == "measured W in {1, 2, 4}").all()
        assert (found["steps_per_s_low"] <= found["steps_per_s"]).all()
        assert (found["steps_per_s_high"] >= found["steps_per_s"]).all()
    else:
        assert (found["sees"] == "profile of one worker").all()
        assert found[["steps_per_s_low", "steps_per_s_high"]].isna().all(axis=None)


@pytest.mark.parametrize("name", BASELINES)
def test_no_clusters(name: str, profile: Profile) -> None:
    """Nothing to predict is an empty table, not an error."""
    found = baseline(name)(profile, [], measured())
    assert list(found.columns) == COLUMNS
    assert len(found) == 0


@pytest.mark.parametrize("name", FROM_PROFILE)
def test_measurements_are_not_looked_at(name: str, profile: Profile) -> None:
    """A method that claims to see one worker only does so."""
    clusters = [Cluster.like(profile, 4)]
    with_runs = baseline(name)(profile, clusters, measured())
    pd.testing.assert_frame_equal(with_runs, baseline(name)(profile, clusters))


@pytest.mark.parametrize("name", FITTED)
def test_larger_runs_are_not_looked_at(name: str, profile: Profile) -> None:
    """A fitted method sees the sizes that it names and no others."""
    clusters = [Cluster.like(profile, 8)]
    more = measured((1, 2, 4, 8))
    more.loc[more["workers"] == 8, "steps_per_s"] *= 10
    pd.testing.assert_frame_equal(
        baseline(name)(profile, clusters, more), baseline(name)(profile, clusters, measured())
    )


def test_unknown_name() -> None:
    """The error lists the baselines."""
    with pytest.raises(InputError, match=r"lin2019.*lin2018, cynthia"):
        baseline("lin2019")


def test_import_is_light() -> None:
    """Naming the baselines loads none of them."""
    code = (
        "import sys, asgd_model.baselines; print('pandas' in sys.modules, 'scipy' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


networks = st.fixed_dictionaries(
    {
        "work": st.lists(st.floats(0.01, 10), min_size=2, max_size=6),
        "update": st.floats(0, 1),
        "bandwidth": st.floats(1e8, 1e11),
        "cores": st.floats(0.1, 4),
        "servers": st.integers(1, 3),
    }
)


def _cluster(chain, name: str, case: dict) -> tuple[Profile, Cluster]:
    layers = len(case["work"]) // 2
    sizes = [VGG_11 // layers] * layers
    work = case["work"][:layers], case["work"][layers : 2 * layers]
    made = chain(sizes, *work, update=case["update"], dnn="vgg-11", link_rate=1e9)
    cluster = Cluster.like(
        made, servers=case["servers"], bandwidth=case["bandwidth"], server_cores=case["cores"]
    )
    return made, cluster


@pytest.mark.parametrize("name", FROM_PROFILE)
@given(case=networks, workers=st.integers(2, 40))
@settings(max_examples=30, deadline=None)
def test_bounds(chain, name: str, case: dict, workers: int) -> None:
    """W workers make at most W times the steps of one, and a further one does no harm.

    Asynchronous models keep the servers below their capacity.
    """
    profile, cluster = _cluster(chain, name, case)
    clusters = [cluster.with_workers(count) for count in (1, workers, workers + 1)]
    one, some, more = baseline(name)(profile, clusters)["steps_per_s"]
    assert 0 < some < np.inf
    assert some <= workers * one * (1 + 1e-9)
    assert more >= some * (1 - 1e-9)
    if name in ASYNCHRONOUS:
        link = case["servers"] * case["bandwidth"] / (8 * profile.bytes_moved(0))
        assert more <= link * (1 + 1e-9)
        cores = case["servers"] * min(case["cores"], 1)
        assert more * profile.mean_work(3) <= cores * (1 + 1e-9)


@pytest.mark.parametrize("name", FROM_PROFILE)
@given(case=networks, workers=st.integers(1, 40), factor=st.floats(1, 10))
@settings(max_examples=30, deadline=None)
def test_faster_links_do_no_harm(chain, name: str, case: dict, workers: int, factor) -> None:
    """Throughput grows with bandwidth."""
    profile, cluster = _cluster(chain, name, case)
    faster = Cluster.like(
        profile,
        servers=case["servers"],
        bandwidth=factor * case["bandwidth"],
        server_cores=case["cores"],
    )
    clusters = [each.with_workers(workers) for each in (cluster, faster)]
    slow, fast = baseline(name)(profile, clusters)["steps_per_s"]
    assert fast >= slow * (1 - 1e-9)


@pytest.mark.parametrize("name", FROM_PROFILE)
def test_unequal_workers(name: str, profile: Profile) -> None:
    """A worker with a slower CPU or link lowers the throughput; the order does not matter."""
    equal = Cluster.like(profile, 3)
    for change in ({"cores": 0.25}, {"uplink": 2e8}, {"downlink": 2e8}):
        node = equal.workers[0]
        slow = replace(node, **change)
        first = replace(equal, workers=(slow, node, node))
        last = replace(equal, workers=(node, node, slow))
        found = baseline(name)(profile, [equal, first, last])["steps_per_s"]
        assert found[1] < found[0]
        assert found[2] == pytest.approx(found[1])
