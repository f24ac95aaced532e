"""Steps of one and several workers: dependencies, starts, ends and what is recorded."""

from __future__ import annotations

import numpy as np
import pytest

from asgd_model.errors import InputError
from asgd_model.simulator import simulate

from .jobs import MB, Job, chain, cluster, first_step, node


def test_one_worker_without_overlap():
    """Operations that depend on each other take the sum of their times."""
    profile = chain(download=2 * MB, work=0.5, upload=MB, update=0.25)
    ends = first_step(profile, cluster())
    assert ends == pytest.approx(np.array([[2.0, 2.5, 3.5, 3.75]]))
    result = simulate(profile, cluster(), steps=7, warm_up=2)
    assert result.steps_per_s == pytest.approx(1 / 3.75)
    assert result.examples_per_s == pytest.approx(2 / 3.75)
    assert result.step_times == pytest.approx(np.full(5, 3.75))


def test_transfers_overlap_with_computation():
    """A layer computes once its own parameters are there, while the next ones arrive.

    Layer 1 computes 1-2.5 s, layer 2 follows although its parameters arrive at 2 s; the gradient
    of layer 2 leaves at 3 s, while layer 1's is still being computed until 4 s.
    """
    job = Job()
    first, second = job.download(MB), job.download(MB)
    forward = job.compute(0.5, job.compute(1.5, first), second)
    backward = job.compute(1.0, forward)
    job.upload(2 * MB, forward)
    job.upload(MB, backward)
    ends = first_step(job.profile(), cluster())
    assert ends == pytest.approx(np.array([[1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0]]))


def test_parameters_are_requested_late():
    """Downloads wait for the request; what does not depend on them starts with the step."""
    job = Job()
    job.download(MB)
    job.compute(0.5)
    ends = first_step(job.profile(request_delay=0.2), cluster())
    assert ends == pytest.approx(np.array([[1.2, 0.5]]))


def test_a_download_can_wait_for_more_than_the_request():
    """A download that depends on an update starts after both."""
    job = Job()
    job.download(MB, job.update(0.7))
    assert first_step(job.profile(0.2), cluster())[0, 1] == pytest.approx(1.7)
    assert first_step(job.profile(0.9), cluster())[0, 1] == pytest.approx(1.9)


def test_operations_without_work_take_no_time():
    """Chains of operations without work end within the instant, across nodes."""
    job = Job()
    last = job.compute(1.0)
    for _ in range(3):
        last = job.update(0.0, job.compute(0.0, last))
    assert first_step(job.profile(), cluster()) == pytest.approx(np.ones((1, 7)))


def test_steps_repeat_profiled_steps():
    """Each step takes the work of one profiled step, each of them equally likely.

    The count of the long ones among 400 lies within 5 standard deviations of half.
    """
    job = Job()
    job.compute([1.0, 3.0])
    job.compute([3.0, 1.0])
    result = simulate(
        job.profile(),
        cluster([node(cores=2.0, threads=2)] * 2),
        steps=200,
        warm_up=0,
        record=[(w, s) for w in range(2) for s in range(200)],
        stop_at_first=False,
    )
    spent = result.op_end - result.op_start
    assert set(map(tuple, spent.round(9))) == {(1.0, 3.0), (3.0, 1.0)}
    assert abs((spent[:, 0] > 2).sum() - 200) < 5 * np.sqrt(400 / 4)


def test_given_starts():
    """Workers begin when told to, and their next step begins where the last one ended."""
    starts = [0.3, 7.0, 0.0]
    result = simulate(chain(MB, 0.5, MB), cluster(3), steps=4, starts=starts, stop_at_first=False)
    assert result.start[:, 0] == pytest.approx(starts)
    np.testing.assert_array_equal(result.start[:, 1:], result.end[:, :-1])


def test_random_starts():
    """By default workers begin within the length of a profiled step, and not together."""
    profile = chain(MB, 1.0, MB)
    result = simulate(profile, cluster(200), steps=1, warm_up=0)
    offsets = result.start[:, 0]
    assert 0 <= offsets.min() < 0.1
    assert 2.9 < offsets.max() <= 3.0
    assert offsets.mean() == pytest.approx(1.5, abs=5 * 3 / np.sqrt(12 * 200))


def test_the_run_stops_with_the_first_worker():
    """By default the run ends when the first worker is done; the others' steps are NaN."""
    workers = [node(cores=1.0), node(cores=0.45)]
    job = Job()
    job.compute(1.0)
    result = simulate(job.profile(), cluster(workers), steps=10, warm_up=0, starts=[0, 0])
    assert (~np.isnan(result.end)).sum(axis=1).tolist() == [10, 4]
    assert np.nanmax(result.end) == pytest.approx(10.0)
    frame = result.to_frame()
    assert frame.groupby("worker").size().to_dict() == {0: 10, 1: 4}
    assert result.steps_per_s == pytest.approx(1.45)


def test_the_run_stops_with_the_last_worker():
    """Without `stop_at_first` all workers end their steps; throughput counts to the first's end."""
    workers = [node(cores=1.0), node(cores=0.45)]
    job = Job()
    job.compute(1.0)
    result = simulate(
        job.profile(), cluster(workers), steps=10, warm_up=0, starts=[0, 0], stop_at_first=False
    )
    assert result.end[:, -1] == pytest.approx([10.0, 10 / 0.45])
    assert result.window == pytest.approx((0.0, 10.0))
    assert result.steps_per_s == pytest.approx(1.45)


def test_throughput_counts_after_the_warm_up():
    """The window opens when every worker has ended its warm-up steps."""
    workers = [node(cores=1.0), node(cores=0.45)]
    job = Job()
    job.compute(1.0)
    result = simulate(job.profile(), cluster(workers), steps=10, warm_up=2, starts=[0, 0])
    assert result.window == pytest.approx((2 / 0.45, 10.0))
    assert result.steps_per_s == pytest.approx(1.45)
    assert result.utilisation()["cpu"].tolist() == pytest.approx([1.0, 1.0, 0.0])


@pytest.mark.parametrize("stop_at_first", [True, False])
@pytest.mark.parametrize(("warm_up", "window"), [(0, (2.0, 16.0)), (1, (6.0, 16.0))])
def test_utilisation_and_throughput_have_the_same_window(stop_at_first, warm_up, window):
    """From when all work to when the first one is done, however the run begins and ends.

    Steps of 3 s of download, on a server's link that is never short, and 1 s of computation: from
    2 s to 16 s the first worker computes for 4 s, the second, which begins at 2 s, for 3 s.
    """
    profile = chain(3 * MB, 1.0, 160)
    result = simulate(
        profile,
        cluster(2, [node(down=10 * MB)]),
        steps=4,
        warm_up=warm_up,
        starts=[0.0, 2.0],
        stop_at_first=stop_at_first,
    )
    assert result.window == pytest.approx(window, rel=1e-3)
    busy = result.utilisation().loc[["worker 0", "worker 1"], "cpu"] * (window[1] - window[0])
    assert busy.tolist() == pytest.approx([4 - warm_up, 3 - warm_up], rel=1e-3)


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_steps_that_end_together_at_the_end_of_the_run_count(workers):
    """Workers in lockstep all end their last steps: none is cut off because another was first."""
    together = np.zeros(workers)
    result = simulate(chain(MB, 0.5, MB), cluster(workers), steps=5, starts=together)
    assert not np.isnan(result.end).any()
    assert result.steps_per_s == pytest.approx(3 * workers / (result.end[0, 4] - result.end[0, 1]))


def test_a_run_without_a_window():
    """A worker that is still warming up when the run ends: no throughput, no utilisation."""
    job = Job()
    job.compute(1.0)
    result = simulate(job.profile(), cluster([node(), node(cores=0.1)]), steps=5, starts=[0, 0])
    for attribute in ("window", "steps_per_s", "busy"):
        with pytest.raises(InputError, match="measurement_window: warm_up: found 2 steps"):
            getattr(result, attribute)
    assert result.used[:, 0] == pytest.approx([5.0, 0.5, 0.0])


def test_recorded_steps():
    """Rows of the recorded times follow `record`, in seconds since the run began."""
    profile = chain(MB, 0.5, MB, 0.25)
    result = simulate(profile, cluster(), steps=3, starts=[10.0], record=[(0, 2), (0, 0)])
    expected = 10.0 + np.array([1.0, 1.5, 2.5, 2.75])
    assert result.op_end == pytest.approx(np.array([expected + 5.5, expected]))
    assert result.op_start[:, 0] == pytest.approx([15.5, 10.0])


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("steps", {"steps": 0}),
        ("steps", {"steps": 2.5}),
        ("warm_up", {"steps": 3, "warm_up": 3}),
        ("warm_up", {"warm_up": -1}),
        ("record", {"record": [(2, 0)]}),
        ("record", {"record": [(0, 20)]}),
        ("starts", {"starts": [0.0]}),
        ("starts", {"starts": [0.0, -1.0]}),
        ("starts", {"starts": [0.0, np.nan]}),
    ],
)
def test_bad_arguments(field, arguments):
    """Arguments that make no sense are refused by name."""
    with pytest.raises(InputError, match=field):
        simulate(chain(MB, 1.0, MB), cluster(2), **arguments)
