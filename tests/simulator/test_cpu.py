"""Computations on shared CPUs, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from asgd_model.simulator import simulate

from .jobs import MB, Job, chain, cluster, first_step, node, per_byte


@pytest.mark.parametrize(
    ("cores", "threads", "expected"),
    [
        (1.0, 1, [1.0, 2.0, 3.0]),  # one after the other
        (1.0, 2, [2.0, 2.0, 3.0]),  # two at half speed, then one alone
        (1.0, 3, [3.0, 3.0, 3.0]),  # all at a third
        (2.0, 2, [1.0, 1.0, 2.0]),  # two at full speed
        (2.0, 3, [1.5, 1.5, 1.5]),
        (8.0, 3, [1.0, 1.0, 1.0]),  # no operation uses more than one core
        (8.0, 1, [1.0, 2.0, 3.0]),
        (0.5, 1, [2.0, 4.0, 6.0]),
    ],
)
def test_threads_share_the_cores(cores, threads, expected):
    """As many computations run as there are threads, each on one core at most."""
    job = Job()
    for _ in range(3):
        job.compute(1.0)
    ends = first_step(job.profile(), cluster([node(cores=cores, threads=threads)]))
    assert ends == pytest.approx(np.array([expected]))


def test_computations_start_in_the_order_in_which_they_are_ready():
    """A free thread takes what has waited longest, not what comes first in the graph."""
    job = Job()
    job.compute(1.0, 2)
    job.compute(1.0)
    job.download(MB // 2)
    job.compute(1.0)
    ends = first_step(job.profile(), cluster())
    assert ends == pytest.approx(np.array([[3.0, 1.0, 0.5, 2.0]]))


def test_workers_have_their_own_cpu():
    """Computations of different workers do not disturb each other; slow CPUs take longer."""
    job = Job()
    job.compute(1.0)
    workers = [node(), node(cores=0.5), node(cores=0.25), node(cores=4.0)]
    ends = first_step(job.profile(), cluster(workers))
    assert ends[:, 0] == pytest.approx([1.0, 2.0, 4.0, 1.0])


def test_workers_share_the_cpu_of_a_server():
    """Updates of all workers queue for the server's threads and share its cores."""
    job = Job()
    job.update(1.0, server=1)
    one, two = node(cores=2.0, threads=1), node(cores=2.0, threads=3)
    starts = [0.0, 0.1, 0.2]
    assert first_step(job.profile(), cluster(3, [node(), one]), starts)[:, 0] == pytest.approx(
        [1.0, 2.0, 3.0]
    )
    # 0.1 s alone, 0.1 s of two with a core each, then three with 2/3 of a core until the first
    # ends; the others are again on a core each.
    first = 0.2 + 0.8 * 3 / 2
    second = first + (0.9 - 0.8)
    third = second + (1.0 - 0.9)
    assert first_step(job.profile(), cluster(3, [node(), two]), starts)[:, 0] == pytest.approx(
        [first, second, third]
    )


def test_communication_competes_with_computation():
    """A transfer and a computation get equal parts of a CPU that is short.

    The transfer would take 0.8 cores and gets 0.5: 0.625 MB/s. It ends at 1.6 s, when the
    computation has 0.2 s left.
    """
    job = Job()
    job.download(MB)
    job.compute(1.0)
    both = cluster(worker_receive=per_byte(0.8e-6))
    assert first_step(job.profile(), both) == pytest.approx(np.array([[1.6, 1.8]]))


def test_cheap_communication_leaves_the_rest_to_computation():
    """A transfer that needs less than its share of the CPU keeps the link's full rate."""
    job = Job()
    job.download(MB)
    job.compute(0.9)
    both = cluster(worker_receive=per_byte(0.2e-6))
    assert first_step(job.profile(), both) == pytest.approx(np.array([[1.0, 1.1]]))


def test_communication_does_not_take_threads():
    """Threads limit computations only: a download proceeds while the only thread computes."""
    job = Job()
    job.compute(2.0)
    job.download(MB)
    ends = first_step(job.profile(), cluster([node(cores=2.0)], worker_receive=per_byte(0.5e-6)))
    assert ends == pytest.approx(np.array([[2.0, 1.0]]))


def test_work_counts_what_communication_costs():
    """Utilisation of a CPU contains the cost per byte: 0.3 + 0.2 + 0.1 s of 2.3 s."""
    costs = {"worker_receive": per_byte(0.2e-6), "worker_send": per_byte(0.1e-6)}
    result = simulate(
        chain(download=MB, work=0.3, upload=MB), cluster(**costs), steps=2, warm_up=0, starts=[0]
    )
    assert result.utilisation().loc["worker 0", "cpu"] == pytest.approx(0.6 / 2.3)


def test_tracing_overhead_is_taken_off():
    """Computations of untraced runs are shorter than the traced ones by the overhead."""
    profile = chain(download=1000, work=1.1, upload=1000)
    ends = first_step(profile, cluster(tracing_overhead=0.1))
    assert ends[0, 1] - ends[0, 0] == pytest.approx(1.0)
