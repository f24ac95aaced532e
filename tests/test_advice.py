"""Advice: what limits a job, and that each upgrade acts on what it should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from asgd_model import InputError
from asgd_model.advice import advise, limits
from asgd_model.cluster import STREAM_ORDERS
from asgd_model.predict import predict
from asgd_model.profile import Profile

FEW = {"replications": 3, "steps": 8}


def gains(table: pd.DataFrame) -> pd.Series:
    return table.set_index("change")["gain"]


def test_link_limits(small: Profile) -> None:
    """On slow links twice the rate, or a batch twice as large, doubles it; cores bring nothing."""
    gain = gains(advise(small, 12, bandwidth=4e6, worker_cores=100.0, replications=5))
    assert set(gain.index[:2]) == {"twice the bandwidth", "twice the batch size"}
    assert gain["twice the batch size"] == pytest.approx(1.0, abs=0.05)
    assert gain["twice the bandwidth"] == pytest.approx(1.0, abs=0.25)
    assert gain["twice the workers' cores"] == pytest.approx(0.0, abs=0.01)
    assert 0.0 < gain["one more server"] < gain["twice the bandwidth"]  # it takes 1 of 4 MB


def test_workers_limit(small: Profile) -> None:
    """With slow workers their cores double the throughput, and bandwidth brings next to nothing."""
    table = advise(small, 2, bandwidth=8e9, worker_cores=0.01, **FEW)
    gain = gains(table)
    assert table["change"][0] == "twice the workers' cores"
    assert gain["twice the workers' cores"] == pytest.approx(1.0, abs=0.05)
    assert abs(gain["twice the bandwidth"]) < 0.01
    assert abs(gain["twice the batch size"]) < 0.05


def test_common_seeds(small: Profile) -> None:
    """A change that changes nothing gains exactly nothing, whatever the replications' spread."""
    table = advise(small, 2, worker_cores=8.0, other_profiles={"the same": small}, **FEW)
    rows = table.set_index("change")
    for change in ("the same", "twice the workers' cores"):  # the step has one thread only
        assert rows.loc[change, ["gain", "margin"]].tolist() == pytest.approx([0.0, 0.0], abs=1e-9)
    assert rows["now"].nunique() == 1


def test_other_profiles_count_examples(small: Profile) -> None:
    """Twice the batch in the same step is twice the throughput."""
    larger = replace(
        small,
        metadata=small.metadata.model_copy(update={"batch_size": 2 * small.metadata.batch_size}),
    )
    gain = gains(advise(small, 2, other_profiles={"larger": larger}, **FEW))
    assert gain["larger"] == pytest.approx(1.0)


def test_table(small: Profile) -> None:
    """One row for each change, the best first, and no other order than the present one left out."""
    table = advise(small, 2, stream_order="fifo", **FEW)
    assert list(table) == ["change", "now", "then", "gain", "margin"]
    assert table["gain"].is_monotonic_decreasing
    orders = {f"transmission order {order}" for order in set(STREAM_ORDERS) - {"fifo", "shared"}}
    assert orders == {change for change in table["change"] if "order" in change}
    now = predict(small, [2], methods=["simulation"], stream_order="fifo", **FEW)
    assert table["now"][0] == pytest.approx(now["examples_per_s"][0])
    single = advise(small, 2, replications=1, steps=8)
    assert single["margin"].isna().all()


def test_limits(small: Profile) -> None:
    """The largest share is the limit, and phases have what the busiest resource leaves."""
    curve = predict(small, [1, 8], methods=["queueing", "simulation"], **FEW)
    table = limits(curve)
    assert table.index.tolist() == [(1, 1), (8, 1)]
    resources = table.drop(columns=["phases", "limit"])
    assert table["phases"].to_numpy() == pytest.approx(1.0 - resources.max(axis=1).to_numpy())
    shares = table.drop(columns="limit")
    for row, limit in zip(shares.index, table["limit"], strict=True):
        assert shares.loc[row, limit] == np.max(shares.loc[row])
    assert "link" in table["limit"].iloc[1]


def test_limits_need_a_simulation(small: Profile) -> None:
    """Other methods do not say how busy each resource is."""
    with pytest.raises(InputError, match="simulation"):
        limits(predict(small, [1], methods=["queueing"]))
