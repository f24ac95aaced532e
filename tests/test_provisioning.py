"""How many nodes: deadlines, budgets, the knee, control over time and sharing."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model import InputError
from asgd_model.provisioning import (
    DeadlineControl,
    Prices,
    allocation_over_time,
    cheapest_within_deadline,
    cost_of_training,
    fastest_within_budget,
    knee,
    share_workers,
)

PRICES = Prices(worker=1.0, server=2.0)


def saturating(most: int = 12, bottleneck: float = 0.2, servers: int = 1) -> pd.DataFrame:
    """A curve that grows linearly up to a bottleneck and bends on the way."""
    workers = np.arange(1, most + 1)
    steps_per_s = workers / (1 + bottleneck / servers * (workers - 1))
    return pd.DataFrame({"workers": workers, "servers": servers, "steps_per_s": steps_per_s})


def test_cost_by_hand() -> None:
    """Rent of all nodes for the time of the job, prices by the hour."""
    curve = pd.DataFrame({"workers": [3], "servers": [2], "steps_per_s": [0.5]})
    costs = cost_of_training(curve, 3600, PRICES)
    assert costs["seconds"].tolist() == [7200]
    assert costs["cost"].tolist() == [2 * (3 * 1.0 + 2 * 2.0)]
    assert "cost" not in curve.columns


@given(
    deadline=st.floats(100, 5000),
    worker=st.floats(0, 5),
    server=st.floats(0, 5),
)
def test_cheapest_within_deadline(deadline, worker, server) -> None:
    """No cluster of the curve is in time and cheaper; if none is in time, that is said."""
    curve = pd.concat([saturating(servers=count) for count in (1, 2)])
    prices = Prices(worker, server)
    costs = cost_of_training(curve, 1000, prices)
    in_time = costs[costs["seconds"] <= deadline]
    if in_time.empty:
        with pytest.raises(InputError, match="on the fastest cluster"):
            cheapest_within_deadline(curve, 1000, deadline, prices)
        return
    best = cheapest_within_deadline(curve, 1000, deadline, prices)
    assert len(best) == 1
    assert best["seconds"][0] <= deadline
    assert best["cost"][0] == in_time["cost"].min()


@given(budget=st.floats(0.1, 5))
def test_fastest_within_budget(budget) -> None:
    """No cluster of the curve is affordable and faster; if none is affordable, that is said."""
    curve = pd.concat([saturating(servers=count) for count in (1, 2)])
    costs = cost_of_training(curve, 1000, PRICES)
    affordable = costs[costs["cost"] <= budget]
    if affordable.empty:
        with pytest.raises(InputError, match="on the cheapest cluster"):
            fastest_within_budget(curve, 1000, budget, PRICES)
        return
    best = fastest_within_budget(curve, 1000, budget, PRICES)
    assert best["cost"][0] <= budget
    assert best["seconds"][0] == affordable["seconds"].min()


def test_equal_costs_take_the_smaller_cluster() -> None:
    """Free nodes are not a reason to take more of them."""
    curve = pd.DataFrame({"workers": [4, 2, 3], "servers": 1, "steps_per_s": [2.0, 2.0, 1.0]})
    free = Prices(worker=0.0, server=0.0)
    assert cheapest_within_deadline(curve, 10, 100, free)["workers"].tolist() == [2]
    assert fastest_within_budget(curve, 10, 1, free)["workers"].tolist() == [2]


@given(bottleneck=st.floats(0.01, 1))
def test_knee_of_a_saturating_curve(bottleneck) -> None:
    """X = W / (1 + b (W - 1)): X^2 / W is largest at W = (1 - b) / b, in closed form."""
    curve = saturating(most=150, bottleneck=bottleneck)
    found = knee(curve.sample(frac=1, random_state=1))["workers"].tolist()
    assert abs(found[0] - max(1, (1 - bottleneck) / bottleneck)) <= 1


def test_knee_for_each_number_of_servers() -> None:
    """More servers move the knee to more workers."""
    curve = pd.concat([saturating(most=40, servers=count) for count in (2, 1)])
    found = knee(curve)
    assert found["servers"].tolist() == [1, 2]
    assert found["workers"].tolist() == [4, 9]


@given(
    speed=st.floats(0.85, 1.3),
    deadline=st.floats(400, 3000),
    hysteresis=st.floats(0.1, 1),
    dead_zone=st.floats(0, 20),
)
@settings(deadline=None)
def test_control_meets_the_deadline(speed, deadline, hysteresis, dead_zone) -> None:
    """A model that is up to 15 % too optimistic is made up for by slack and control."""
    curve = saturating()
    real = speed * curve.set_index("workers")["steps_per_s"]
    control = DeadlineControl(curve, deadline, dead_zone=dead_zone, hysteresis=hysteresis)
    played = allocation_over_time(control, 1000, 10, lambda workers, time: real[workers])
    assert played["time"].iloc[-1] <= deadline
    done = (real.reindex(played["workers"][:-1]).to_numpy() * np.diff(played["time"])).sum()
    assert done == pytest.approx(1000)


def test_control_gives_back_workers() -> None:
    """A job that is faster than predicted ends with fewer workers than it began with."""
    curve = saturating()
    real = 2 * curve.set_index("workers")["steps_per_s"]
    control = DeadlineControl(curve, deadline=500)
    played = allocation_over_time(control, 1000, 10, lambda workers, time: real[workers])
    workers = played["workers"][:-1]
    assert workers.is_monotonic_decreasing
    assert workers.iloc[-1] < workers.iloc[0]
    assert played["time"].iloc[-1] <= 500


def test_control_reacts_to_a_slowdown() -> None:
    """Workers are added when the cluster becomes slower on the way than the slack allows for."""
    real = saturating().set_index("workers")["steps_per_s"]

    def throughput(workers: int, time: float) -> float:
        return real[workers] * (1.0 if time < 200 else 0.6)

    control = DeadlineControl(saturating(), deadline=600)
    played = allocation_over_time(control, 1000, 10, throughput)
    first = played["workers"].iloc[0]
    assert played["workers"].max() > first
    uncontrolled = 200 + (1000 - 200 * real[first]) / (0.6 * real[first])
    assert played["time"].iloc[-1] - 600 < (uncontrolled - 600) / 4


def test_control_guards() -> None:
    """Slack, dead zone and hysteresis, each on its own."""
    curve = pd.DataFrame({"workers": range(1, 11), "servers": 1, "steps_per_s": range(1, 11)})
    assert DeadlineControl(curve, 100, slack=1.0).workers(0, 400) == 4
    assert DeadlineControl(curve, 100, slack=1.5).workers(0, 400) == 6
    tolerant = DeadlineControl(curve, 100, slack=1.0, dead_zone=20, hysteresis=1.0)
    assert tolerant.workers(0, 400) == 5  # planned for 80 s
    assert tolerant.workers(10, 440, current=5) == 5  # would end at 98 s: late, but in the zone
    assert tolerant.workers(10, 460, current=5) == 7  # would end at 102 s
    slow = DeadlineControl(curve, 100, slack=1.0, hysteresis=0.5)
    assert slow.workers(0, 1000, current=4) == 7  # half of the way to 10
    assert slow.workers(0, 100, current=4) == 2  # half of the way to 1, rounded away from 4
    assert DeadlineControl(curve, 100).workers(99, 1000) == 10  # too late: all there is
    with pytest.raises(InputError, match="current: found 11; expected one of 1, 2"):
        slow.workers(0, 100, current=11)


curves = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6).map(
    lambda gains: np.cumsum([1.0, *sorted(gains, reverse=True)])
)


@given(shapes=st.lists(curves, min_size=1, max_size=3), extra=st.integers(0, 8))
@settings(deadline=None)
def test_sharing_is_optimal_for_concave_curves(shapes, extra) -> None:
    """Greedy sharing maximises the sum of speedups: compared with all divisions."""
    jobs = {f"job {index}": shape for index, shape in enumerate(shapes)}
    workers = len(jobs) + extra
    found = share_workers(
        {
            job: pd.DataFrame(
                {"workers": np.arange(1, len(shape) + 1), "servers": 1, "steps_per_s": 3 * shape}
            )
            for job, shape in jobs.items()
        },
        workers,
    )
    divisions = itertools.product(*(range(1, len(shape) + 1) for shape in shapes))
    best = max(
        sum(shape[count - 1] for shape, count in zip(shapes, division, strict=True))
        for division in divisions
        if sum(division) <= workers
    )
    assert found.index.tolist() == list(jobs)
    assert found["workers"].sum() <= workers
    assert found["speedup"].sum() == pytest.approx(best)
    np.testing.assert_allclose(found["steps_per_s"], 3 * found["speedup"])


def test_sharing_jumps_over_flat_parts() -> None:
    """Sizes that a curve lacks, or that bring nothing by themselves, do not end the search."""
    flat = pd.DataFrame({"workers": [1, 2, 4], "servers": 1, "steps_per_s": [1.0, 1.0, 4.0]})
    slow = pd.DataFrame({"workers": [1, 2], "servers": 1, "steps_per_s": [1.0, 1.5]})
    assert share_workers({"flat": flat, "slow": slow}, 5)["workers"].tolist() == [4, 1]
    assert share_workers({"flat": flat, "slow": slow}, 4)["workers"].tolist() == [1, 2]


def test_bad_input() -> None:
    """Errors name what is wrong and what would do."""
    curve = saturating()
    with pytest.raises(InputError, match="the column steps_per_s"):
        knee(curve.drop(columns="steps_per_s"))
    with pytest.raises(InputError, match=r"3 workers, 1 servers twice.*one method"):
        knee(pd.concat([curve, curve[2:3]]))
    with pytest.raises(InputError, match="steps_per_s: found nan; expected a positive number"):
        knee(curve.assign(steps_per_s=np.nan))
    with pytest.raises(InputError, match="at least one cluster"):
        knee(curve[:0])
    with pytest.raises(InputError, match="Prices: worker: found -1"):
        Prices(worker=-1, server=0)
    with pytest.raises(InputError, match="job: steps: found 0"):
        cost_of_training(curve, 0, PRICES)
    both = pd.concat([curve, saturating(servers=2)])
    with pytest.raises(InputError, match="found 1, 2 servers; expected one number of servers"):
        DeadlineControl(both, 100)
    for wrong in ({"slack": 0.9}, {"dead_zone": 100}, {"hysteresis": 0}):
        with pytest.raises(InputError, match=f"DeadlineControl: {next(iter(wrong))}"):
            DeadlineControl(curve, 100, **wrong)
    with pytest.raises(InputError, match="throughput of 1 workers: steps_per_s: found 0"):
        allocation_over_time(DeadlineControl(curve, 100), 10, 1, lambda workers, time: 0.0)
    with pytest.raises(InputError, match="found 1; expected at least 2 for all jobs"):
        share_workers({"one": curve, "two": curve}, 1)
    with pytest.raises(InputError, match="no jobs"):
        share_workers({}, 1)
