"""What holds for any step graph on any cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from asgd_model.cluster import STREAM_ORDERS, Cluster, Node, Slowdown
from asgd_model.errors import InputError
from asgd_model.profile import (
    DOWNLINK,
    SERVER,
    UPLINK,
    WORKER,
    Calibration,
    CommunicationCost,
    Profile,
)
from asgd_model.simulator import simulate
from asgd_model.simulator.step_graph import MESSAGE_BYTES

from .jobs import MB, Job, node

STEPS = 3
moderate = settings(deadline=None, max_examples=60)

sizes = st.integers(MESSAGE_BYTES, 3 * MB)
works = st.just(0.0) | st.floats(0.02, 1.0)
rates = st.sampled_from([0.1 * MB, MB]) | st.floats(0.05 * MB, 5.0 * MB)
costs = st.builds(
    CommunicationCost,
    per_byte=st.sampled_from([0.0, 1e-7, 2e-6]),
    per_tensor=st.sampled_from([0.0, 0.05]),
)
calibrations = st.builds(
    Calibration,
    worker_send=costs,
    worker_receive=costs,
    server_send=costs,
    server_receive=costs,
    newcomer_share=st.sampled_from([1.0, 0.5]),
    share_spread=st.sampled_from([0.0, 1.0]),
    throttled_rate=st.sampled_from([1.0, 0.3]),
)
slowdowns = st.builds(Slowdown, factor=st.sampled_from([1.0, 0.5, 3.0]))
nodes = st.builds(
    node, cores=st.sampled_from([0.2, 1.0, 2.5]), down=rates, up=rates, threads=st.integers(1, 3)
)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Up to ten operations, each after any of those before it, on up to three servers."""
    job = Job()
    job.download(draw(sizes))
    for index in range(1, draw(st.integers(1, 10))):
        after = sorted(draw(st.sets(st.integers(0, index - 1), max_size=3)))
        server = draw(st.integers(0, 2))
        kind = draw(st.sampled_from([DOWNLINK, WORKER, UPLINK, SERVER]))
        if kind == DOWNLINK:
            job.download(draw(sizes), *after, server=server)
        elif kind == WORKER:
            job.compute(draw(works), *after)
        elif kind == UPLINK:
            job.upload(draw(sizes), *after, server=server)
        else:
            job.update(draw(works), *after, server=server)
    return job.profile()


@st.composite
def systems(
    draw: st.DrawFn, orders: Sequence[str] = STREAM_ORDERS, equal: bool = False
) -> tuple[Profile, Cluster]:
    """A profile with its servers and up to four workers, equal or not."""
    profile = draw(profiles())
    servers = profile.num_servers
    count = draw(st.integers(1, 4))
    kinds = st.builds(replace, nodes, slowdown=slowdowns)
    workers = [draw(kinds)] * count if equal else [draw(kinds) for _ in range(count)]
    return profile, Cluster(
        workers=tuple(workers),
        servers=tuple(draw(nodes) for _ in range(servers)),
        stream_order=draw(st.sampled_from(orders)),
        stream_window=draw(st.none() | st.integers(100_000, 2 * MB)),
        calibration=draw(calibrations),
    )


def demands(profile: Profile, cluster: Cluster) -> NDArray[np.float64]:
    """Use of every node's CPU, sending and receiving link by one step of each worker.

    Shape (workers, nodes, 3), in core seconds and bytes.
    """
    workers, costs = len(cluster.workers), cluster.calibration
    use = np.zeros((workers, workers + len(cluster.servers), 3))
    for op, kind in enumerate(profile.resources):
        server = workers + profile.servers[op]
        size = profile.sizes[op] + MESSAGE_BYTES
        for worker in range(workers):
            if kind == WORKER:
                use[worker, worker, 0] += (
                    profile.work[0, op] * cluster.workers[worker].slowdown.mean
                )
            elif kind == SERVER:
                use[worker, server, 0] += profile.work[0, op]
            else:
                ends = [
                    (server, costs.server_send, costs.server_receive),
                    (worker, costs.worker_send, costs.worker_receive),
                ]
                for place, (end, send, receive) in enumerate(ends):
                    sends = (kind == DOWNLINK) == (place == 0)
                    cost = send if sends else receive
                    use[worker, end, 1 if sends else 2] += size
                    use[worker, end, 0] += size * cost.per_byte + cost.per_tensor
    return use


def capacities(cluster: Cluster) -> NDArray[np.float64]:
    """Cores, bytes/s sent and received of every node, shape (nodes, 3)."""
    nodes = [*cluster.workers, *cluster.servers]
    return np.array([[n.cores, n.uplink / 8, n.downlink / 8] for n in nodes])


def times_alone(profile: Profile, cluster: Cluster, worker: int) -> NDArray[np.float64]:
    """Seconds of each operation with the whole cluster to itself, shape (ops,)."""
    times = np.zeros(profile.ops)
    costs, this = cluster.calibration, cluster.workers[worker]
    turns = cluster.stream_window if cluster.stream_order != "shared" else None
    window = turns or np.inf
    for op, kind in enumerate(profile.resources):
        server = cluster.servers[profile.servers[op]]
        if kind in (WORKER, SERVER):
            end = this if kind == WORKER else server
            times[op] = profile.work[0, op] * end.slowdown.mean / min(1.0, end.cores)
            continue
        if kind == DOWNLINK:
            sender, receiver, cost = server, this, (costs.server_send, costs.worker_receive)
        else:
            sender, receiver, cost = this, server, (costs.worker_send, costs.server_receive)
        size = profile.sizes[op] + MESSAGE_BYTES
        for turn, tensors in ((min(size, window), 1), (size - min(size, window), 0)):
            times[op] += max(
                turn * 8 / min(sender.uplink, receiver.downlink),
                (turn * cost[0].per_byte + tensors * cost[0].per_tensor) / sender.cores,
                (turn * cost[1].per_byte + tensors * cost[1].per_tensor) / receiver.cores,
            )
    return times


def longest_path(profile: Profile, times: NDArray[np.float64]) -> float:
    """Seconds of a step in which nothing waits for anything but its dependencies."""
    end = np.zeros(profile.ops)
    for op in profile.topological_order:
        end[op] = times[op] + end[profile.dependencies[op]].max(initial=0.0)
    return float(end.max())


def recalibrated(cluster: Cluster, **values: float) -> Cluster:
    return replace(cluster, calibration=cluster.calibration.model_copy(update=values))


def run_all(profile: Profile, cluster: Cluster, **arguments):
    """All workers run `STEPS` steps to the end; every operation's times are kept."""
    workers = len(cluster.workers)
    return simulate(
        profile,
        cluster,
        **{
            "steps": STEPS,
            "warm_up": 0,
            "starts": np.zeros(workers),
            "record": [(worker, step) for worker in range(workers) for step in range(STEPS)],
            "stop_at_first": False,
            **arguments,
        },
    )


@moderate
@given(systems())
def test_bytes_and_work_are_conserved(system):
    """Every link carries exactly the bytes of the steps, every CPU does exactly their work."""
    profile, cluster = system
    result = run_all(profile, cluster)
    np.testing.assert_allclose(
        result.used, STEPS * demands(profile, cluster).sum(axis=0), rtol=1e-8
    )


@moderate
@given(systems(), st.integers(0, 2), st.booleans())
def test_no_resource_is_over_capacity(system, warm_up, stop_at_first):
    """Utilisation is from 0 to 1 in every bin of time, and in the window if there is one."""
    profile, cluster = system
    bins = np.linspace(0.0, 20.0, 50)
    result = run_all(profile, cluster, warm_up=warm_up, stop_at_first=stop_at_first, bins=bins)
    measured = [result.utilisation_over_time().to_numpy().ravel()]
    with contextlib.suppress(InputError):  # a slow worker may still warm up when the first is done
        measured.append(result.busy.ravel())
    busy = np.concatenate(measured)
    assert busy.max(initial=0.0) <= 1 + 1e-8
    assert busy.min(initial=0.0) >= -1e-8


@moderate
@given(systems(orders=("fifo", "random", "shared")))
def test_dependencies_are_respected(system):
    """No operation starts before those it depends on have ended, or outruns its resources.

    A step ends with its last operation.
    """
    profile, cluster = system
    result = run_all(profile, cluster)
    shape = (len(cluster.workers), STEPS, profile.ops)
    start, end = result.op_start.reshape(shape), result.op_end.reshape(shape)
    for op, dependencies in enumerate(profile.dependencies):
        for dependency in dependencies:
            assert (start[:, :, op] >= end[:, :, dependency]).all()
    for worker in range(len(cluster.workers)):
        least = times_alone(profile, cluster, worker)
        assert (end[worker] - start[worker] >= least * (1 - 1e-8) - 1e-9).all()
    assert (start >= result.start[:, :, None]).all()
    np.testing.assert_array_equal(end.max(axis=2), result.end)


@moderate
@given(systems(orders=("fifo", "random", "shared")))
def test_asymptotic_bounds(system):
    """Throughput is at most what the bottleneck and the longest path allow.

    Denning and Buzen 1978, with the longest path of the step graph in the place of the sum of
    demands, since operations of a step may overlap.
    """
    profile, cluster = system
    result = run_all(profile, cluster)
    work = STEPS * demands(profile, cluster).sum(axis=0)
    assert result.end.max() >= (work / capacities(cluster)).max() * (1 - 1e-8)
    for worker in range(len(cluster.workers)):
        least = longest_path(profile, times_alone(profile, cluster, worker))
        step_times = result.end[worker] - result.start[worker]
        assert step_times.min() >= least * (1 - 1e-8)


@moderate
@given(systems(orders=("fifo", "random", "shared")))
def test_something_always_proceeds(system):
    """Work is never left waiting for nothing: a run ends no later than one operation at a time.

    Where a resource holds operations back, their rates over those that they have alone sum up
    to at least 1.
    """
    profile, cluster = system
    cluster = recalibrated(cluster, throttled_rate=1.0)
    result = run_all(profile, cluster)
    alone = sum(
        times_alone(profile, cluster, worker).sum() for worker in range(len(cluster.workers))
    )
    assert result.end.max() <= STEPS * alone * (1 + 1e-8)


@moderate
@given(systems(), st.integers(0, 2**32))
def test_same_seed_same_result(system, seed):
    """A run depends on its arguments only."""
    profile, cluster = system
    first, second = (run_all(profile, cluster, starts=None, seed=seed) for _ in range(2))
    for field in ("start", "end", "used", "op_start", "op_end"):
        np.testing.assert_array_equal(getattr(first, field), getattr(second, field))
    assert first.events == second.events


@moderate
@given(systems(orders=("fifo", "shared"), equal=True), st.integers(0, 2**32))
def test_workers_are_interchangeable(system, seed):
    """Permuting the starts of equal workers permutes their steps and changes nothing else."""
    profile, cluster = system
    cluster = recalibrated(cluster, share_spread=0.0)
    workers = len(cluster.workers)
    rng = np.random.default_rng(seed)
    starts, order = rng.uniform(0.0, 1.0, workers), rng.permutation(workers)
    first = run_all(profile, cluster, starts=starts)
    second = run_all(profile, cluster, starts=starts[order])
    np.testing.assert_allclose(second.end, first.end[order], rtol=1e-7)
    np.testing.assert_allclose(second.used[:workers], first.used[:workers][order], rtol=1e-7)


@moderate
@given(systems(), st.floats(0.0, 1.0))
def test_time_scales(system, start):
    """With all work doubled and all rates halved everything takes twice as long."""
    profile, cluster = system

    def slower(n: Node) -> Node:
        return replace(n, uplink=n.uplink / 2, downlink=n.downlink / 2)

    def dearer(cost: CommunicationCost) -> CommunicationCost:
        return CommunicationCost(per_byte=2 * cost.per_byte, per_tensor=2 * cost.per_tensor)

    costs = cluster.calibration
    slow = replace(
        cluster,
        workers=tuple(map(slower, cluster.workers)),
        servers=tuple(map(slower, cluster.servers)),
        calibration=costs.model_copy(
            update={
                end: dearer(getattr(costs, end))
                for end in ("worker_send", "worker_receive", "server_send", "server_receive")
            }
        ),
    )
    long = replace(profile, work=2 * profile.work, start=2 * profile.start, end=2 * profile.end)
    starts = start * np.arange(len(cluster.workers))
    first = run_all(profile, cluster, starts=starts)
    second = run_all(long, slow, starts=2 * starts)
    np.testing.assert_allclose(second.op_end, 2 * first.op_end, rtol=1e-7)
    np.testing.assert_allclose(second.used, first.used * [2.0, 1.0, 1.0], rtol=1e-7)
