"""The order of the streams in a connection, and the window that cuts them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from asgd_model.simulator import simulate

from .jobs import MB, Job, cluster, first_step, node, per_byte, per_tensor


def downloads(*sizes: int) -> Job:
    """A job that asks for tensors of the given sizes at once."""
    job = Job()
    for size in sizes:
        job.download(size)
    return job


def test_whole_tensors_in_the_order_of_requests():
    """Without a window each tensor is sent whole, first come, first served."""
    ends = first_step(downloads(3 * MB, MB, 2 * MB).profile(), cluster())
    assert ends == pytest.approx(np.array([[3.0, 4.0, 6.0]]))


def test_a_window_makes_streams_take_turns():
    """Streams that have more to send than the window queue again behind the others.

    Turns of 1 s: A, B, C, A, C, A and half a second for the rest of A.
    """
    ends = first_step(downloads(3_500_000, MB, 2 * MB).profile(), cluster(window=MB))
    assert ends == pytest.approx(np.array([[6.5, 2.0, 5.0]]))


def test_a_stream_that_comes_later_waits_for_one_turn():
    """A window bounds how long a small tensor waits behind a large one."""
    job = downloads(4 * MB)
    job.upload(1000, job.compute(0.5))
    job.download(MB, 1)
    cut = first_step(job.profile(), cluster(window=MB))
    whole = first_step(job.profile(), cluster())
    assert cut[0, [0, 3]] == pytest.approx([5.0, 2.0])
    assert whole[0, [0, 3]] == pytest.approx([4.0, 5.0])


def test_streams_that_share():
    """All at once: each gets a third of the connection, then half of it, then all.

    The smallest ends after 3 * 1 MB, the next one after 2 * 1 MB more.
    """
    job = downloads(3 * MB, MB, 2 * MB)
    for window in (None, 1000):  # without effect
        ends = first_step(job.profile(), cluster(order="shared", window=window))
        assert ends == pytest.approx(np.array([[6.0, 3.0, 5.0]]))


def test_a_stream_joins_those_that_share():
    """One that comes later has its share at once.

    4 MB from the beginning, 1 MB from 1 s on; from then to 3 s both get half of the connection.
    """
    job = downloads(4 * MB)
    job.download(MB, job.compute(1.0))
    ends = first_step(job.profile(), cluster(order="shared"))
    assert ends == pytest.approx(np.array([[5.0, 1.0, 3.0]]))


def test_uploads_share_too():
    """Sharing is a matter of the connection, in both directions."""
    job = Job()
    for size in (2 * MB, MB):
        job.upload(size)
    assert first_step(job.profile(), cluster(order="shared")) == pytest.approx(
        np.array([[3.0, 2.0]])
    )


def test_sharing_is_the_limit_of_small_windows():
    """Taking turns byte by byte is sharing, whatever comes when, and whatever it costs."""
    job = downloads(700_000, 1_100_000, 300_000)
    late = job.compute(0.6)
    job.download(500_000, late)
    job.download(90_000, job.compute(0.7, late))
    job.upload(400_000, late)
    job.upload(100_000, late)
    for server in (node(), node(cores=0.5)):
        turns, share = (
            first_step(
                job.profile(), cluster([node()], [server], worker_send=per_byte(3e-7), **how)
            )
            for how in ({"window": 500}, {"order": "shared"})
        )
        assert share == pytest.approx(turns, rel=2e-3)


def test_the_cost_per_tensor_of_streams_that_share():
    """Each pays its cost in full, spread over its bytes.

    1 and 3 MB at once, 0.9 s of half a core per tensor: 2 MB take 2 * (0.9 / 1 + 0.9 / 3) / 2 / 0.5
    = 2.4 s, the other 2 MB 0.9 / 3 * 2 / 0.5 = 1.2 s, less than the link takes.
    """
    half = cluster([node(cores=0.5)], worker_receive=per_tensor(0.9), order="shared")
    ends = first_step(downloads(MB, 3 * MB).profile(), half)
    assert ends == pytest.approx(np.array([[2.4, 4.4]]))


def test_connections_have_queues_of_their_own():
    """Streams of different workers, directions and servers do not wait for each other."""
    job = downloads(MB, MB)
    job.upload(MB)
    job.download(MB, server=1)
    ends = first_step(job.profile(), cluster(1, 2))
    # Server 1 has half of the worker's link; both connections end their first tensor at 2 s.
    assert ends == pytest.approx(np.array([[2.0, 3.0, 1.0, 2.0]]))


def test_recorded_order():
    """`profile` serves downloads in the order in which they completed in the trace.

    Each one is served with the bytes that the connection carried since the one before, so that
    at the recorded rate the recorded times come out.
    """
    recorded = downloads(2 * MB, MB, 3 * MB).profile()
    recorded = replace(recorded, end=np.array([[6.0, 1.5, 4.0]]))
    ends = first_step(recorded, cluster(order="profile"))
    assert ends == pytest.approx(np.array([[6.0, 1.5, 4.0]]), rel=1e-3)


def test_random_order():
    """`random` gives every order of streams the same chance, the first one included.

    600 steps, six orders: the count of each lies within 5 standard deviations of 100.
    """
    steps = 600
    result = simulate(
        downloads(MB, MB, MB).profile(),
        cluster(order="random"),
        steps=steps,
        record=[(0, step) for step in range(steps)],
    )
    orders = Counter(map(tuple, np.argsort(result.op_end, axis=1)))
    assert set(orders) == set(permutations(range(3)))
    assert all(abs(count - 100) < 5 * np.sqrt(100 * 5 / 6) for count in orders.values())


def test_orders_differ_in_time_but_not_in_work():
    """The order decides when each tensor arrives, not when the last one does."""
    job = downloads(3 * MB, MB, 2 * MB)
    for order in ("fifo", "random", "profile"):
        assert first_step(job.profile(), cluster(order=order)).max() == pytest.approx(6.0)


def test_cost_per_tensor():
    """A tensor takes the CPU for its fixed cost, however small it is.

    With half a core, 0.1 s per tensor are 0.2 s of time, hidden behind the link when the tensor
    takes longer than that.
    """
    small = cluster(server_send=per_tensor(0.05), worker_receive=per_tensor(0.2))
    ends = first_step(downloads(1000, 1000, MB).profile(), small)
    assert ends == pytest.approx(np.array([[0.2, 0.4, 1.4]]))


def test_cost_per_tensor_is_paid_once():
    """Cut into turns, a tensor pays the cost of a tensor in its first turn only."""
    ends = first_step(
        downloads(2 * MB).profile(), cluster(window=MB, worker_receive=per_tensor(1.5))
    )
    assert ends == pytest.approx(np.array([[2.5]]))
