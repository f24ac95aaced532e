"""How operations share links and CPUs, against a plain fluid simulation.

The reference computes all rates anew whenever an operation starts or ends, and knows nothing of
connections, threads or steps: each worker starts everything that it has at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from asgd_model.cluster import Cluster, Node
from asgd_model.profile import Calibration, CommunicationCost, Profile
from asgd_model.simulator.engine import LEAST_WEIGHT

from .jobs import MB, Job, first_step, node, per_byte

moderate = settings(deadline=None, max_examples=60)

rates = st.sampled_from([0.5 * MB, MB]) | st.floats(0.1 * MB, 3.0 * MB)
sizes = st.integers(MB // 10, 3 * MB)
works = st.floats(0.1, 2.0)
costs = st.builds(
    CommunicationCost,
    per_byte=st.sampled_from([0.0, 1e-7, 1e-6]),
    per_tensor=st.sampled_from([0.0, 0.05]),
)


def progressive_filling(
    use: NDArray[np.float64], capacity: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Max-min fair rates: all grow by their weights until a resource is full: its users stop.

    Bertsekas and Gallager, Data Networks, section 6.5.2. `use` is 1 where an activity needs a
    resource, shape (activities, resources).
    """
    rate, free = np.zeros(len(use)), capacity.astype(float)
    growing = use.any(axis=1)
    while growing.any():
        speed = weight[growing] @ use[growing]
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(speed > 0, free / speed, np.inf)
        rate[growing] += room.min() * weight[growing]
        free -= speed * room.min()
        full = (speed > 0) & (room <= room.min() * (1 + 1e-12))
        growing &= ~use[:, full].any(axis=1)
    return rate


def bottleneck_fair(
    use: NDArray[np.float64], limit: NDArray[np.float64], capacity: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Rates at which each activity is at its limit or has a bottleneck.

    A bottleneck is full and gives no other activity more of it (Bonald and Roberts, Multi-resource
    fairness: objectives, algorithms and performance, SIGMETRICS 2015). `use` is what an activity
    takes of each resource per unit of its rate, shape (activities, resources).
    """
    level = np.full(len(capacity), np.inf)
    for _ in range(1000):
        before = level.copy()
        for resource in range(len(capacity)):
            users = np.flatnonzero(use[:, resource] > 0)
            others = np.delete(np.arange(len(capacity)), resource)
            with np.errstate(divide="ignore"):
                allowed = np.minimum(
                    limit[users], (level[others] / use[np.ix_(users, others)]).min(axis=1)
                )
            wanted = np.sort(allowed * use[users, resource])
            left = capacity[resource] - np.concatenate([[0.0], np.cumsum(wanted)])
            level[resource] = np.inf
            for satisfied in range(len(users)):
                share = left[satisfied] / (len(users) - satisfied)
                if wanted[satisfied] > share * (1 + 1e-12):
                    level[resource] = share
                    break
        if np.allclose(level, before, rtol=1e-13, atol=0.0):
            break
    else:
        raise AssertionError("the reference does not settle")
    with np.errstate(divide="ignore"):
        return np.minimum(limit, (level / use).min(axis=1))


def fluid_ends(
    start: NDArray[np.float64], work: NDArray[np.float64], rates_of: Callable[..., NDArray]
) -> NDArray[np.float64]:
    """When activities end that begin at `start` and run at the rates of those present."""
    now, left, end = 0.0, work.astype(float), np.full(len(work), np.nan)
    while np.isnan(end).any():
        present = np.flatnonzero((start <= now) & np.isnan(end))
        rate = rates_of(present)
        finish = now + (left[present] / rate).min(initial=np.inf)
        until = min(finish, start[start > now].min(initial=np.inf))
        left[present] -= rate * (until - now)
        now = until
        if now == finish:
            end[present[left[present] <= 1e-9 * work[present]]] = now
    return end


class Traffic(NamedTuple):
    """Workers that each exchange one tensor with every server, in both directions at once.

    Activities are numbered by worker, then direction, then server; with computations, a worker's
    own and one on each server follow.
    """

    profile: Profile
    cluster: Cluster
    starts: NDArray[np.float64]  # (workers,)
    work: NDArray[np.float64]  # (ops,)
    use: NDArray[np.float64]  # (workers * ops, resources): per unit of rate
    limit: NDArray[np.float64]  # (workers * ops,)
    capacity: NDArray[np.float64]  # (resources,)


def make_traffic(
    workers: Sequence[Node],
    servers: Sequence[Node],
    sizes: Sequence[int],
    works: Sequence[float],
    starts: Sequence[float],
    costs: Sequence[CommunicationCost],
) -> Traffic:
    """Lay the traffic out for the simulator and for the reference.

    `sizes` of the downloads, then the uploads; `works` of the worker, then the servers, or none;
    `costs` of the worker for sending and receiving, then of the server.
    """
    job = Job()
    count, nodes = len(servers), [*workers, *servers]
    for server in range(count):
        job.download(sizes[server], server=server)
    for server in range(count):
        job.upload(sizes[count + server], server=server)
    if works:
        job.compute(works[0])
        for server in range(count):
            job.update(works[1 + server], server=server)
    use = np.zeros((len(workers), 2 * count + len(works), len(nodes), 3))
    for worker in range(len(workers)):
        for server in range(count):
            place = len(workers) + server
            for op, size, sender, receiver, send, receive in (
                (server, sizes[server], place, worker, costs[2], costs[1]),
                (count + server, sizes[count + server], worker, place, costs[0], costs[3]),
            ):
                use[worker, op, sender] += [send.per_byte + send.per_tensor / size, 1, 0]
                use[worker, op, receiver] += [receive.per_byte + receive.per_tensor / size, 0, 1]
        for op in range(len(works)):
            use[worker, 2 * count + op, worker if op == 0 else len(workers) + op - 1, 0] = 1
    computations = np.arange(2 * count + len(works)) >= 2 * count
    return Traffic(
        profile=job.profile(),
        cluster=Cluster(
            workers=tuple(workers),
            servers=tuple(servers),
            stream_order="fifo",
            calibration=Calibration(
                **dict(
                    zip(
                        ("worker_send", "worker_receive", "server_send", "server_receive"),
                        costs,
                        strict=True,
                    )
                )
            ),
        ),
        starts=np.array(starts),
        work=np.array([*sizes, *works], dtype=float),
        use=use.reshape(len(workers) * use.shape[1], -1),
        limit=np.tile(np.where(computations, 1.0, np.inf), len(workers)),
        capacity=np.array([[n.cores, n.uplink / 8, n.downlink / 8] for n in nodes]).ravel(),
    )


@st.composite
def traffics(
    draw: st.DrawFn, costs: st.SearchStrategy, computations: bool, most_workers: int = 4
) -> Traffic:
    """Up to so many workers and three servers, all different.

    Starts are multiples of a time that no ratio of a size and a rate comes near.
    """
    nodes = st.builds(node, cores=st.floats(0.1, 3.0), down=rates, up=rates, threads=st.just(4))
    workers, servers = draw(st.integers(1, most_workers)), draw(st.integers(1, 3))
    starts = st.integers(0, 2000).map(lambda number: 1e-3 / np.pi * number)

    def several(strategy: st.SearchStrategy, number: int) -> list:
        return draw(st.lists(strategy, min_size=number, max_size=number))

    return make_traffic(
        several(nodes, workers),
        several(nodes, servers),
        several(sizes, 2 * servers),
        several(works, 1 + servers) if computations else [],
        several(starts, workers),
        draw(costs),
    )


def assert_same_ends(traffic: Traffic, rates_of: Callable[..., NDArray]) -> None:
    ops, workers = len(traffic.work), len(traffic.starts)
    expected = fluid_ends(
        np.repeat(traffic.starts, ops), np.tile(traffic.work, workers), rates_of
    ).reshape(workers, ops)
    ends = first_step(traffic.profile, traffic.cluster, traffic.starts)
    np.testing.assert_allclose(ends, expected, rtol=1e-6)


@moderate
@given(
    traffics(
        st.sampled_from([0.0, 1e-7, 1e-6]).map(lambda seconds: [per_byte(seconds)] * 4),
        computations=False,
    )
)
def test_transfers_are_max_min_fair(traffic):
    """Connections share links, and CPUs at an equal cost per byte, as progressive filling does."""
    cost = traffic.use[:, ::3].max(initial=0.0)
    capacity = traffic.capacity.copy()
    capacity[::3] = capacity[::3] / cost if cost > 0 else np.inf

    def filled(present: NDArray[np.int64]) -> NDArray[np.float64]:
        return progressive_filling(traffic.use[present] > 0, capacity, np.ones(len(present)))

    assert_same_ends(traffic, filled)


@moderate
@given(
    traffics(st.just([CommunicationCost()] * 4), computations=False, most_workers=12),
    st.floats(0.2, 1.0),
)
def test_weighted_shares_are_max_min_fair(traffic, newcomer_share):
    """The engine, which touches few of a link's users at an event, fills as if it touched all.

    A connection that starts to send has its share of the highest weight at its server's link.
    """
    ops, servers = len(traffic.work), len(traffic.cluster.servers)
    links = traffic.capacity.copy()
    links[::3] = np.inf
    weight: dict[int, float] = {}

    def filled(present: NDArray[np.int64]) -> NDArray[np.float64]:
        new = [activity for activity in present.tolist() if activity not in weight]
        for activity in sorted(
            new, key=lambda activity: (traffic.starts[activity // ops], activity)
        ):
            weights = [
                weight[other]
                for other in present.tolist()
                if other in weight and other % ops == activity % ops
            ]
            joins = activity % ops < servers and len(weights) > 0
            weight[activity] = max(newcomer_share * max(weights), LEAST_WEIGHT) if joins else 1.0
        weights = np.array([weight[activity] for activity in present])
        return progressive_filling(traffic.use[present] > 0, links, weights)

    calibration = Calibration(newcomer_share=newcomer_share)
    cluster = replace(traffic.cluster, calibration=calibration)
    assert_same_ends(traffic._replace(cluster=cluster), filled)


@moderate
@given(traffics(st.lists(costs, min_size=4, max_size=4), computations=True))
def test_transfers_and_computations_share_bottlenecks_evenly(traffic):
    """With unequal costs and computations on the same CPUs, each one has a bottleneck."""

    def fair(present: NDArray[np.int64]) -> NDArray[np.float64]:
        return bottleneck_fair(traffic.use[present], traffic.limit[present], traffic.capacity)

    assert_same_ends(traffic, fair)
