"""Synchronous SGD: who waits for whom, and what becomes of gradients that come too late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgd_model.cluster import LATE, Cluster, Node, Slowdown, Synchronous
from asgd_model.errors import InputError
from asgd_model.predict import predict
from asgd_model.profile import Profile
from asgd_model.simulator import SimulationResult, simulate, synthetic_profile

from .jobs import MB, Job, chain, cluster, node
from .test_invariants import STEPS, capacities, demands, moderate, run_all, systems

COMPUTE = Job()
COMPUTE.compute(1.0)
ONE_SECOND = COMPUTE.profile()


def synchronous(
    workers: int | Sequence[Node], backups: int = 0, late: Any = "finish", **options: Any
) -> Cluster:
    return replace(cluster(workers, **options), synchronous=Synchronous(backups, late))


def slower(*factors: float) -> list[Node]:
    """A worker for each factor."""
    return [replace(node(), slowdown=Slowdown(factor=factor)) for factor in factors]


def run(profile: Profile, on: Cluster, steps: int = 6, **options: Any) -> SimulationResult:
    """A run in which all workers begin at 0 s."""
    workers = len(on.workers)
    return simulate(profile, on, **{"steps": steps, "starts": np.zeros(workers), **options})


def test_the_slowest_worker_sets_the_pace():
    """Without backup workers a step takes as long as the slowest worker's."""
    result = run(ONE_SECOND, synchronous(slower(1.0, 2.0, 3.0)))
    assert result.updates == pytest.approx(3.0 * np.arange(1, 7))
    assert result.start == pytest.approx(np.tile(3.0 * np.arange(6), (3, 1)))
    assert result.end - result.start == pytest.approx(np.array([[1.0], [2.0], [3.0]]) + np.zeros(6))
    assert result.steps_per_s == pytest.approx(3 / 3.0)
    assert result.window == pytest.approx((6.0, 18.0))
    assert not result.dropped.any()


def test_all_transfer_at_the_same_time():
    """Workers that begin together share the links all the way: 2 s down, 0.5 s, 2 s up."""
    result = run(chain(MB, 0.5, MB), synchronous(2))
    assert np.diff(result.updates) == pytest.approx(np.full(5, 4.5))
    assert result.steps_per_s == pytest.approx(2 / 4.5)


def test_the_server_counts():
    """A gradient is there when it is applied; the server applies them one after the other."""
    result = run(chain(MB, 0.5, MB, 0.25), synchronous(2))
    assert np.diff(result.updates) == pytest.approx(np.full(5, 5.0))


def test_one_worker_waits_for_nobody():
    """With a single worker synchronous and asynchronous SGD are the same."""
    profile = chain(MB, [0.5, 1.5], MB, 0.25)
    waiting, free = (run(profile, on) for on in (synchronous(1), cluster(1)))
    np.testing.assert_array_equal(waiting.end, free.end)
    assert waiting.updates == pytest.approx(free.end[0])


@pytest.mark.parametrize("late", LATE)
def test_backup_workers(late: str):
    """The last of three workers is never waited for, and all it does is in vain."""
    result = run(ONE_SECOND, synchronous(slower(1.0, 2.0, 10.0), 1, late), steps=12, warm_up=0)
    assert result.updates == pytest.approx(2.0 * np.arange(1, 13))
    assert result.steps_per_s == pytest.approx(2 / 2.0)
    assert not result.dropped[:2].any()
    ended = ~np.isnan(result.end[2])
    np.testing.assert_array_equal(result.dropped[2], ended)
    assert result.step_times.max() == pytest.approx(2.0)
    if late == "finish":
        assert result.end[2, ended] == pytest.approx([10.0, 20.0])
    else:
        assert result.end[2] == pytest.approx(result.updates)


def test_a_late_worker_joins_the_present_step():
    """It begins behind the others, and is in time once one of them is slower.

    Two workers of three make an update, at 1 and 2 s. The third one's first step takes 2.5 s. It
    then begins the step that the others began at 2 s and ends it at 3.5 s: too late if both of
    them take 1 s, in time if one of them takes longer.
    """
    job = Job()
    job.compute([1.0, 2.5])
    profile = job.profile()
    drawn = [[0, 0], [0, 0], [1, 0]]
    fast = set()
    for seed in range(1000):
        result = run(profile, synchronous(3, 1), steps=4, warm_up=0, seed=seed)
        if result.drawn[:, :2].tolist() == drawn:
            assert result.start[2, :2] == pytest.approx([0.0, 2.5])
            both = result.drawn[:2, 2].max() == 0
            assert result.dropped[2, :2].tolist() == [True, both]
            fast.add(both)
    assert fast == {False, True}


def test_late_gradients_cost_the_server_nothing_more():
    """The server applies what is in time; it receives all, but drops what is late."""
    job = Job()
    job.update(0.25, job.upload(MB // 10, job.compute(1.0)))
    result = run(job.profile(), synchronous(slower(1.0, 5.0), 1), steps=12, warm_up=0)
    late = result.end[1, ~np.isnan(result.end[1])]
    assert late == pytest.approx(5.1 * np.arange(1, len(late) + 1), rel=0.02)
    cpu, _, received = result.used[2]
    assert cpu == pytest.approx(12 * 0.25)
    assert received == pytest.approx(0.1 * MB * (12 + len(late)), rel=0.02)


def test_abandoned_transfers_leave_the_link():
    """All begin each step together, and share the links anew.

    A worker with a tenth of the link takes that much from the other one, step after step.
    """
    nodes = [node(), node(down=MB / 10)]
    result = run(chain(MB, 0.5, MB), synchronous(nodes, 1, "abandon"))
    assert np.diff(result.updates) == pytest.approx(np.full(5, 1 / 0.9 + 1.5))
    assert result.start[1] == pytest.approx(result.start[0])


@pytest.mark.parametrize(("late", "second"), [("finish", 5.0), ("abandon", 4.0)])
def test_abandoned_updates_leave_the_server(late: str, second: float):
    """A server that works one update after the other drops those that nobody wants any more.

    Three workers send at 1 s, the first update ends at 2 s. If late workers go on, the server
    still works off the two others that it has begun or queued, until 4 s.
    """
    job = Job()
    job.update(1.0, job.compute(1.0))
    result = run(job.profile(), synchronous(3, 2, late), steps=3, warm_up=0)
    assert result.updates[:2] == pytest.approx([2.0, second])


def exponential(seed: int) -> Profile:
    """Many steps of exponential computation, of mean 1 s."""
    job = Job()
    quantiles = (np.arange(5000) + 0.5) / 5000
    job.compute(np.random.default_rng(seed).permutation(-np.log1p(-quantiles)))
    return job.profile()


@pytest.mark.parametrize("backups", [0, 1, 3])
def test_order_statistic(backups: int):
    """With exponential computation an update takes as long as the (W - b)-th of W to end.

    Its mean is the sum of 1 / (W - i) for i from 0 to W - b - 1 (David and Nagaraja, Order
    Statistics, section 2.5); 5 standard errors of the mean are allowed.
    """
    workers = 5
    on = synchronous(workers, backups, "abandon")
    result = run(exponential(backups), on, steps=3000, warm_up=1)
    times = np.diff(result.updates)
    expected = sum(1 / (workers - index) for index in range(workers - backups))
    assert times.mean() == pytest.approx(expected, abs=5 * times.std() / np.sqrt(len(times)))
    assert result.steps_per_s == pytest.approx((workers - backups) / times.mean())


def test_late_workers_hold_up():
    """Two workers, one of them a backup that finishes what it does.

    After an update, one worker begins anew and the other one is late. If the first ends first,
    that is the next update; if the late one does, both are in time, and the next end of either
    is. By the exponential distribution's lack of memory an update takes 1/2 + 1/2 * 1/2 s.
    """
    result = run(exponential(7), synchronous(2, 1), steps=4000, warm_up=1)
    times = np.diff(result.updates)
    assert times.mean() == pytest.approx(0.75, abs=5 * times.std() / np.sqrt(len(times)))
    ended = ~np.isnan(result.end)
    assert result.dropped[ended].mean() == pytest.approx(1 / 3, abs=0.03)  # 0.5 per update


@moderate
@given(systems(equal=False), st.data())
def test_updates_take_what_they_need(system, data):
    """Each update takes W - b gradients, begun after the last one; all else is dropped."""
    profile, on = system
    workers = len(on.workers)
    barrier = Synchronous(data.draw(st.integers(0, workers - 1)), data.draw(st.sampled_from(LATE)))
    result = run_all(profile, replace(on, synchronous=barrier), stop_at_first=True)
    assert (np.diff(result.updates) >= 0).all()
    ended = ~np.isnan(result.end) & ~result.dropped
    update = np.searchsorted(result.updates, result.end[ended])
    counts = np.bincount(update, minlength=len(result.updates))
    longer = np.append(True, np.diff(result.updates) > 0)  # else one cannot tell them apart
    assert (counts[longer] >= workers - barrier.backups).all()
    assert counts.sum() == len(result.updates) * (workers - barrier.backups)
    since = np.append(0.0, result.updates)[update]
    assert (result.start[ended] >= since - 1e-9).all()
    assert (result.used <= capacities(on) * result.updates[-1] * (1 + 1e-8)).all()


@moderate
@given(systems(), st.integers(0, 2**32))
def test_all_begin_together(system, seed):
    """Without backup workers nothing is lost, and each step begins with the last one's update."""
    profile, on = system
    on = replace(on, synchronous=Synchronous())
    first, second = (run_all(profile, on, seed=seed) for _ in range(2))
    np.testing.assert_array_equal(first.end, second.end)
    np.testing.assert_array_equal(first.updates, first.end.max(axis=0))
    np.testing.assert_array_equal(
        first.start[:, 1:], np.broadcast_to(first.updates[:-1], (len(on.workers), STEPS - 1))
    )
    np.testing.assert_allclose(first.used, STEPS * demands(profile, on).sum(axis=0), rtol=1e-8)


@moderate
@given(systems(), st.data())
def test_no_more_is_done_than_asked_for(system, data):
    """Abandoned steps use at most what they would have used; all workers do as many steps."""
    profile, on = system
    backups = data.draw(st.integers(0, len(on.workers) - 1))
    on = replace(on, synchronous=Synchronous(backups, "abandon"))
    result = run_all(profile, on)
    assert not np.isnan(result.end).any()
    assert result.dropped.sum() == STEPS * backups
    assert (result.used <= STEPS * demands(profile, on).sum(axis=0) * (1 + 1e-8) + 1e-6).all()


@moderate
@given(systems(equal=True), st.data())
def test_finishing_workers_end_all_their_steps(system, data):
    """A run to the end comes to its end, though too few workers may be left for a full update."""
    profile, on = system
    backups = data.draw(st.integers(0, len(on.workers) - 1))
    on = replace(on, synchronous=Synchronous(backups, "finish"))
    result = run_all(profile, on)
    assert not np.isnan(result.end).any()


def test_abandoned_steps_have_no_trace():
    """What was not done cannot be shown; a late step that was finished can."""
    record = [(0, 0), (1, 0)]
    for late, shown in (("abandon", 1), ("finish", 2)):
        on = synchronous(slower(1.0, 3.0), 1, late)
        result = run(chain(MB, 0.5, MB, 0.1), on, warm_up=0, record=record)
        assert result.dropped[1, 0]
        assert synthetic_profile(chain(MB, 0.5, MB, 0.1), result).steps == shown


def test_nothing_is_stale():
    """A synchronous update misses no other."""
    result = run(ONE_SECOND, synchronous(slower(1.0, 2.0)))
    assert result.staleness().tolist() == [0] * len(result.step_times)


def test_window_needs_an_update():
    """A warm-up that leaves no update to measure is refused."""
    result = run(ONE_SECOND, synchronous(2), steps=1, warm_up=0)
    assert result.steps_per_s == pytest.approx(2.0)
    slow = run(ONE_SECOND, synchronous(slower(1.0, 50.0), 1), steps=6, warm_up=1)
    with pytest.raises(InputError, match=r"simulate: warm_up: found 1; expected fewer"):
        slow.steps_per_s  # noqa: B018


def test_reaches_the_prediction(small):
    """`predict` takes the switch; methods that know no barriers refuse it."""
    options: dict[str, Any] = {"methods": ["simulation"], "replications": 2}
    free = predict(small, [4], **options)
    waiting = predict(small, [4], synchronous=Synchronous(), **options)
    fewer = predict(small, [4], synchronous=Synchronous(backups=3, late="abandon"), **options)
    assert (waiting["steps_per_s"] < free["steps_per_s"]).all()
    assert (fewer["steps_per_s"] < waiting["steps_per_s"]).all()
    with pytest.raises(InputError, match=r"predict: methods: found queueing; expected simulation"):
        predict(small, [4], methods=["queueing"], synchronous=Synchronous())


@pytest.mark.parametrize("backups", [-1, 0.5, True, None, "1"])
def test_impossible_backups(backups: Any):
    """Backup workers are counted from 0."""
    with pytest.raises(InputError, match=f"Synchronous: backups: found {backups}; expected an int"):
        Synchronous(backups)


def test_impossible_barriers():
    """A worker at least must count, and what late ones do must be known."""
    with pytest.raises(InputError, match=r"Synchronous: late: found skip; expected one of finish"):
        Synchronous(late="skip")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"Cluster: synchronous: found 2; expected fewer backups"):
        synchronous(2, 2)
    with pytest.raises(InputError, match=r"Cluster: synchronous: found True; expected None or Syn"):
        replace(cluster(2), synchronous=True)
