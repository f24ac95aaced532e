"""A sweep gives the same numbers wherever it runs, and loses none."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pandas as pd
import pytest

from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.profile import Profile
from asgd_model.simulator import simulate
from asgd_model.sweep import sweep

RUNS = {"workers": [1, 3], "servers": [1, 2], "policies": ["fifo", "tic"], "seeds": [0, 7]}
module = import_module("asgd_model.sweep")


@pytest.fixture(scope="module")
def table(small: Profile) -> pd.DataFrame:
    """A sweep of 32 runs on this machine."""
    return sweep({"a": small, "b": half(small)}, **RUNS, steps=10, bandwidth=4e6)


def half(profile: Profile) -> Profile:
    """A job of half the work."""
    return replace(profile, work=0.5 * profile.work)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- what is simulated ------------------------------------------------------------------------


def test_rows(table: pd.DataFrame, small: Profile) -> None:
    """Every combination once, in the order of the arguments, with finite results."""
    assert list(table) == [
        *("profile", "workers", "servers", "policy", "seed", "steps_per_s", "examples_per_s"),
        *("server_send", "server_receive", "server_cpu", "worker_cpu"),
    ]
    index = pd.MultiIndex.from_product([["a", "b"], *RUNS.values()])
    assert table.iloc[:, :5].to_records(index=False).tolist() == index.tolist()
    assert np.isfinite(table.iloc[:, 5:]).all(axis=None)
    assert (table["examples_per_s"] == 4 * table["steps_per_s"]).all()
    assert table["server_send"].between(0, 1 + 1e-9).all()
    several = table[table["workers"] == 3].groupby(["profile", "servers", "policy"])["steps_per_s"]
    assert (several.nunique() == 2).all()  # seeds differ


def test_a_row_is_a_run(table: pd.DataFrame, small: Profile) -> None:
    """Each row is what one simulation of its cluster finds."""
    rows = table.query("profile == 'a' and workers == 3 and servers == 2 and policy == 'tic'")
    row = rows[rows["seed"] == 7].iloc[0]
    nodes = Cluster.like(small, 3, 2, stream_order="tic", bandwidth=4e6)
    run = simulate(small, nodes, steps=10, seed=np.random.SeedSequence((7, 3, 2)))
    assert row["steps_per_s"] == run.steps_per_s
    assert row["server_receive"] == run.utilisation()["receive"].iloc[3:].max()
    assert row["worker_cpu"] == pytest.approx(run.utilisation()["cpu"].iloc[:3].mean())


def test_rows_do_not_depend_on_each_other(table: pd.DataFrame, small: Profile) -> None:
    """A part of a sweep has the numbers that it has in the whole."""
    part = sweep(
        {"b": half(small)}, [3], servers=[1], seeds=[7], policies=["tic"], steps=10, bandwidth=4e6
    )
    rows = table.query("profile == 'b' and workers == 3 and servers == 1 and policy == 'tic'")
    pd.testing.assert_frame_equal(part, rows[1:].reset_index(drop=True), check_exact=True)


def test_defaults(small: Profile) -> None:
    """The profiled servers and order, one seed."""
    row = sweep({"job": small}, [2]).iloc[0]
    assert row[["servers", "policy", "seed"]].tolist() == [1, "profile", 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": []}, "sweep: workers: found none; expected at least one"),
        ({"profiles": {}}, "sweep: profiles: found none; expected at least one"),
        ({"servers": []}, "sweep: servers: found none; expected at least one"),
        ({"policies": []}, "sweep: policies: found none; expected at least one"),
        ({"seeds": []}, "sweep: seeds: found none; expected at least one"),
        ({"seeds": [-1]}, "sweep: seeds: found -1; expected an integer of at least 0"),
        ({"seeds": [0.5]}, "sweep: seeds: found 0.5; expected an integer of at least 0"),
        ({"workers": [1, 0]}, "Cluster: workers: found 0; expected an integer from 1"),
        ({"policies": ["lifo"]}, "Cluster: stream_order: found lifo; expected one of profile"),
        ({"steps": 0}, "simulate: steps: found 0; expected an integer of at least 1"),
        ({"bandwidth": -1}, "Node: uplink: found -1; expected a finite number above 0"),
    ],
)
def test_impossible_arguments(small: Profile, arguments: dict[str, Any], message: str) -> None:
    """What cannot be simulated is named."""
    with pytest.raises(InputError) as caught:
        sweep(**{"profiles": {"job": small}, "workers": [1], **arguments})
    assert str(caught.value).startswith(message)


# --- what is kept ----------------------------------------------------------------------------


def test_results_are_kept(small: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second sweep reads what the first one found; a larger one simulates the rest only."""
    simulated: list[int] = []
    original = module._simulate

    def counted(profile: Profile, run: Any, **arguments: Any) -> dict[str, float]:
        simulated.append(run.seed)
        return original(profile, run, **arguments)

    monkeypatch.setattr(module, "_simulate", counted)
    first = sweep({"job": small}, [1, 2], seeds=[0, 1], folder=tmp_path / "new")
    kept = files(tmp_path / "new")
    assert (sorted(simulated), len(kept)) == ([0, 0, 1, 1], 4)
    again = sweep({"job": small}, [1, 2], seeds=[0, 1], folder=tmp_path / "new")
    pd.testing.assert_frame_equal(again, first, check_exact=True)
    larger = sweep({"job": small}, [1, 2], seeds=[0, 1, 2], folder=tmp_path / "new")
    assert sorted(simulated) == [0, 0, 1, 1, 2, 2]
    same = larger[larger["seed"] < 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(same, first, check_exact=True)
    assert files(tmp_path / "new").items() >= kept.items()


@pytest.mark.parametrize(
    "changed", [{"steps": 21}, {"warm_up": 1}, {"bandwidth": 9e6}, {"servers": [2]}, {"work": 2.0}]
)
def test_results_of_something_else_do_not_count(
    small: Profile, tmp_path: Path, changed: dict[str, Any]
) -> None:
    """Other arguments or another profile of the same name: another file."""
    sweep({"job": small}, [1], folder=tmp_path)
    kept = files(tmp_path)
    other = dict(changed)
    profile = replace(small, work=other.pop("work", 1.0) * small.work)
    again = sweep({"job": profile}, [1], folder=tmp_path, **other)
    assert len(files(tmp_path)) == 2
    assert files(tmp_path).items() > kept.items()
    pd.testing.assert_frame_equal(again, sweep({"job": profile}, [1], **other), check_exact=True)


def test_an_interrupted_sweep_goes_on(
    small: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had ended before the interrupt is kept, and nothing more is started after it."""
    original, done = module._simulate, []

    def interrupted(profile: Profile, run: Any, **arguments: Any) -> dict[str, float]:
        if run.seed == 2:
            raise KeyboardInterrupt
        if run.seed > 2:
            time.sleep(0.02)
        done.append(run.seed)
        return original(profile, run, **arguments)

    monkeypatch.setattr(module, "_simulate", interrupted)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        sweep({"job": small}, [1], seeds=range(200), folder=tmp_path)
    assert done[:2] == [0, 1]
    assert len(done) < 199
    monkeypatch.setattr(module, "_simulate", original)
    kept = files(tmp_path)
    whole = sweep({"job": small}, [1], seeds=range(5), folder=tmp_path)
    assert files(tmp_path).items() >= kept.items()
    pd.testing.assert_frame_equal(whole, sweep({"job": small}, [1], seeds=range(5)))


# --- on a cluster ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client() -> Iterator[distributed.Client]:
    """A Dask cluster of two processes on this machine; one that dies is started again."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
        ) as nodes,
        distributed.Client(nodes) as connected,
    ):
        yield connected


def test_same_numbers_on_a_cluster(
    client: distributed.Client, table: pd.DataFrame, small: Profile, tmp_path: Path
) -> None:
    """Every number is the same to the last bit, and so are the files."""
    jobs = {"a": small, "b": half(small)}
    arguments: dict[str, Any] = {**RUNS, "steps": 10, "bandwidth": 4e6}
    there = sweep(jobs, **arguments, client=client, folder=tmp_path / "there")
    pd.testing.assert_frame_equal(there, table, check_exact=True)
    sweep(jobs, **arguments, folder=tmp_path / "here")
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_errors_come_back_from_a_cluster(client: distributed.Client, small: Profile) -> None:
    """A run that is impossible is reported as it would be on this machine."""
    with pytest.raises(InputError, match=r"simulate: warm_up: found 9; expected 0 to 4"):
        sweep({"job": small}, [1], steps=5, warm_up=9, client=client)


def test_a_worker_is_killed(client: distributed.Client, small: Profile, tmp_path: Path) -> None:
    """A process that dies during the sweep takes no run with it: all come out, and the same."""
    arguments: dict[str, Any] = {"workers": [4], "seeds": range(10), "steps": 4000}
    processes = client.run(os.getpid)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(sweep, {"job": small}, **arguments, client=client, folder=tmp_path)
        while not any(tmp_path.glob("*.json")):
            assert not running.done()
            time.sleep(0.01)
        victim = next(address for address, runs in client.processing().items() if runs)
        os.kill(processes[victim], signal.SIGKILL)
        assert len(files(tmp_path)) < 10
        there = running.result()
    client.wait_for_workers(2)
    assert processes[victim] not in client.run(os.getpid).values()
    pd.testing.assert_frame_equal(there, sweep({"job": small}, **arguments), check_exact=True)
    assert len(files(tmp_path)) == 10
