"""Transfers on shared links, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from asgd_model.simulator import simulate

from .jobs import MB, Job, chain, cluster, first_step, node, per_byte


def test_two_workers_share_a_link_equally():
    """Workers that start together both get half of the server's link, in each direction."""
    profile = chain(download=MB, work=0.5, upload=2 * MB)
    ends = first_step(profile, cluster(2))
    assert ends == pytest.approx(np.array([[2.0, 2.5, 6.5, 6.5]] * 2))


def test_a_later_worker_takes_half_of_what_is_left():
    """Shares change when a connection joins and when one leaves, and only then.

    Alone for 0.4 s, the first one then needs 1.2 s for the rest at half the rate; by then the
    second has 0.4 MB to go, at the full rate again.
    """
    ends = first_step(chain(download=MB, work=0.0, upload=1000), cluster(2), starts=[0.0, 0.4])
    assert ends[:, 0] == pytest.approx([1.6, 2.0])


def test_directions_are_independent():
    """Links are full duplex: an upload does not slow another worker's download."""
    profile = chain(download=MB, work=0.0, upload=MB)
    result = simulate(
        profile, cluster(2), steps=5, warm_up=0, starts=[0.0, 1.0], stop_at_first=False
    )
    assert result.end - result.start == pytest.approx(np.full((2, 5), 2.0))
    server = result.utilisation().loc["server 0"]
    assert server["send"] == pytest.approx(1.0)
    assert server["receive"] == pytest.approx(1.0)


def test_a_slow_worker_leaves_the_rest_of_the_link():
    """Shares are max-min fair: what a worker's own link cannot take goes to the others."""
    workers = [node(down=0.2 * MB), node(), node()]
    ends = first_step(chain(download=MB, work=0.0, upload=1000), cluster(workers))
    assert ends[:, 0] == pytest.approx([5.0, 2.5, 2.5])


def test_two_servers_fill_a_worker_link():
    """A worker's link is shared by its servers' connections, and by nothing else."""
    job = Job()
    job.download(MB, server=0)
    job.download(3 * MB, server=1)
    assert first_step(job.profile(), cluster(1, 2)) == pytest.approx(np.array([[2.0, 4.0]]))
    wide = cluster([node(down=2 * MB)], 2)
    assert first_step(job.profile(), wide) == pytest.approx(np.array([[1.0, 3.0]]))


def test_each_server_has_its_own_link():
    """Two workers that use different servers at the same time do not disturb each other."""
    job = Job()
    job.download(MB, job.download(MB, server=0), server=1)
    ends = first_step(job.profile(), cluster(2, 2), starts=[0.0, 1.0])
    assert ends == pytest.approx(np.array([[1.0, 2.0], [2.0, 3.0]]))


def test_newcomers_get_the_smaller_share():
    """`Calibration.newcomer_share`: of a busy link a newcomer gets 1/2 of the first one's share.

    The first sends 0.4 MB alone and 0.6 MB at 2/3 of the link: until 1.3 s. The second has sent
    0.3 MB until then and takes 0.7 s for the rest.
    """
    profile = chain(download=MB, work=0.0, upload=1000)
    ends = first_step(profile, cluster(2, newcomer_share=0.5), starts=[0.0, 0.4])
    assert ends[:, 0] == pytest.approx([1.3, 2.0])


def test_shares_of_three_newcomers():
    """Each newcomer gets half of the highest share present: 1/2, 1/4 and 1/4."""
    profile = chain(download=MB, work=0.0, upload=1000)
    ends = first_step(profile, cluster(3, newcomer_share=0.5), starts=[0.0, 1e-9, 2e-9])
    assert ends[:, 0] == pytest.approx([2.0, 3.0, 3.0])


def test_newcomers_share_evenly_on_the_way_up():
    """Uploads meet in the network, not in one sender's queue: nobody is there first."""
    profile = chain(download=1000, work=0.0, upload=MB)
    ends = first_step(profile, cluster(2, newcomer_share=0.5), starts=[0.0, 0.4])
    first = 0.4 + 2 * 0.6
    assert ends[:, -1] == pytest.approx([first, 2.0], rel=0.01)


def test_a_throttled_worker_reaches_a_part_of_its_link():
    """`Calibration.throttled_rate`: half of the rate while it computes, all of it afterwards.

    An upload of 1 MB on 1 MB/s begins together with a computation of 1 s on half a core.
    """
    job = Job()
    job.upload(MB)
    job.compute(0.5)
    ends = first_step(job.profile(), cluster([node(cores=0.5)], throttled_rate=0.5))
    assert ends[0] == pytest.approx([1.5, 1.0])


def test_a_throttled_worker_loses_its_place():
    """A worker whose CPU becomes short while it downloads is a newcomer from then on.

    Worker 0 receives 1 MB, 0.5 MB of it alone and the rest at 2/3 of the link. Its computation
    begins, and it goes on at 1/3. So does worker 1 as soon as it has its first 1 MB.
    """
    job = Job()
    job.compute(4.0, job.download(MB))
    job.download(2 * MB)
    ends = first_step(
        job.profile(),
        cluster([node(cores=0.5), node(cores=0.5)], newcomer_share=0.5),
        starts=[0.0, 0.5],
    )
    assert ends[:, 0] == pytest.approx([1.25, 2.375])
    assert ends[:, 2] == pytest.approx([4.8125, 6.0])


def test_newcomers_stay_comparable_on_a_link_that_is_never_idle():
    """Shares are relative to those present, however many connections came before.

    Eight workers keep the link busy through some thousand arrivals; halving the share at each
    of them would leave nothing of it.
    """
    work = np.random.default_rng(0).exponential(0.2, 100)
    result = simulate(
        chain(download=MB, work=work, upload=1000), cluster(8, newcomer_share=0.5), steps=500
    )
    assert result.utilisation().loc["server 0", "send"] == pytest.approx(1.0)
    assert result.steps_per_s == pytest.approx(1.0, rel=0.01)


def test_spread_of_shares():
    """`Calibration.share_spread` is the deviation of the logarithm of each connection's weight.

    The ratio of two shares is that of two weights, so it spreads sqrt(2) as much. Of two
    connections that start together the faster one shows its share by the time at which it ends;
    the other one ends last in any case. The standard deviation of n normal values has a standard
    error of sigma / sqrt(2 n).
    """
    spread, runs = 0.4, 400
    profile = chain(download=MB, work=0.0, upload=1000)
    ratios = []
    for seed in range(runs):
        result = simulate(
            profile,
            cluster(2, share_spread=spread),
            steps=1,
            warm_up=0,
            starts=[0.0, 0.0],
            record=[(0, 0), (1, 0)],
            stop_at_first=False,
            seed=seed,
        )
        ends = result.op_end[:, 0]
        assert ends.max() == pytest.approx(2.0)
        share = 1.0 / ends.min()
        ratios.append(np.log(share / (1 - share)) * (1 if ends[0] < ends[1] else -1))
    expected = np.sqrt(2.0) * spread
    assert np.std(ratios) == pytest.approx(expected, abs=4 * expected / np.sqrt(2 * runs))
    assert np.mean(ratios) == pytest.approx(0.0, abs=4 * expected / np.sqrt(runs))


@pytest.mark.parametrize("end", ["worker_receive", "server_send"])
def test_a_cpu_can_limit_a_transfer(end):
    """The CPU at either end limits a transfer to its cores over the cost per byte."""
    slow, fast = node(cores=0.4), node(cores=100)
    nodes = [slow], [fast]
    workers, servers = nodes if end == "worker_receive" else nodes[::-1]
    profile = chain(download=MB, work=0.0, upload=1000)
    limited = cluster(workers, servers, **{end: per_byte(1e-6)})
    assert first_step(profile, limited)[0, 0] == pytest.approx(1 / 0.4)
    unlimited = cluster(workers, servers, **{end: per_byte(0.1e-6)})
    assert first_step(profile, unlimited)[0, 0] == pytest.approx(1.0)


def test_a_server_cpu_is_shared_by_its_transfers():
    """A server with a slow CPU saturates below its link, whatever the number of workers."""
    profile = chain(download=MB, work=0.0, upload=1000)
    slow = cluster(4, [node(cores=0.25)], server_send=per_byte(1e-6))
    ends = first_step(profile, slow)
    assert ends[:, 0] == pytest.approx(np.full(4, 16.0))
