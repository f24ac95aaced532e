"""Several jobs on the same hosts, with and without priorities of their transfers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgd_model.cluster import Cluster, Synchronous
from asgd_model.errors import InputError
from asgd_model.profile import Profile
from asgd_model.queueing.asgd import network
from asgd_model.simulator import Job as Training
from asgd_model.simulator import SimulationResult, simulate, simulate_jobs

from .jobs import MB, Job, chain, cluster, first_step, node, per_byte
from .test_invariants import STEPS, capacities, demands, moderate, nodes, systems


def on(workers: Sequence[str], servers: Sequence[str], **options: Any) -> Cluster:
    """Nodes of one core and 1 MB/s on the given hosts."""
    return cluster(len(workers), len(servers), **options).on_hosts(workers, servers)


def download(size: int) -> Profile:
    job = Job()
    job.download(size)
    return job.profile()


def together(jobs: Mapping[str, tuple[Profile, Cluster]], **options: Any) -> dict[str, Any]:
    """Seconds at which each worker of each job ends each step; all begin at 0 s."""
    trainings = {
        name: Training(profile, where, steps=1, starts=np.zeros(len(where.workers)))
        for name, (profile, where) in jobs.items()
    }
    results = simulate_jobs(trainings, **{"warm_up": 0, **options})
    return {name: result.end for name, result in results.items()}


TWO = {
    "first": (download(2 * MB), on(["a"], ["server"])),
    "second": (download(2 * MB), on(["b"], ["server"])),
}
"""Two jobs with workers of their own, whose servers are on one host."""


def test_jobs_on_hosts_of_their_own():
    """They do not notice each other: the results are those of each one alone."""
    profiles = [chain(MB, 0.3, MB, 0.1), chain(2 * MB, 0.4, MB)]
    clusters = [cluster(2, window=300_000), cluster([node(cores=0.5)] * 3, order="shared")]
    starts = [[0.0, 0.7], [0.1, 0.5, 2.0]]
    trainings = [
        Training(profile, where, steps, begin, record=[(1, 2), (0, 1)])
        for profile, where, steps, begin in zip(profiles, clusters, [4, 6], starts, strict=True)
    ]
    results = simulate_jobs(dict(zip("ab", trainings, strict=True)))
    assert list(results) == ["a", "b"]
    for job, result in zip(trainings, results.values(), strict=True):
        alone = simulate(
            job.profile,
            job.cluster,
            steps=job.steps,
            starts=job.starts,
            record=job.record,
            stop_at_first=False,
        )
        assert result.placement.tolist() == alone.placement.tolist()
        assert result.steps_per_s == pytest.approx(alone.steps_per_s)
        for field in ("start", "end", "op_start", "op_end"):
            np.testing.assert_allclose(getattr(result, field), getattr(alone, field), rtol=1e-12)


def test_one_job_is_a_simulation():
    """`simulate_jobs` of one job is `simulate`, to the last bit."""
    profile = chain(MB, [0.2, 0.9, 0.4], MB, 0.1)
    job = Training(profile, cluster(3, order="random"), steps=6)
    (several,) = simulate_jobs({"only": job}, stop_at_first=True, seed=3).values()
    one = simulate(profile, job.cluster, steps=6, seed=3)
    for field in ("start", "end", "busy", "drawn"):
        np.testing.assert_array_equal(getattr(several, field), getattr(one, field))


def test_servers_of_two_jobs_share_a_link():
    """Both downloads get half of the host's link."""
    ends = together(TWO)
    assert ends["first"] == pytest.approx(np.array([[4.0]]))
    assert ends["second"] == pytest.approx(np.array([[4.0]]))


def test_workers_of_two_jobs_share_a_core():
    """Two processes on one core: 1 s and 3 s of computation take 2 and 4 s."""
    profiles = {}
    for name, work in (("short", 1.0), ("long", 3.0)):
        job = Job()
        job.compute(work)
        profiles[name] = (job.profile(), on(["host"], ["server"]))
    ends = together(profiles)
    assert ends["short"] == pytest.approx(np.array([[2.0]]))
    assert ends["long"] == pytest.approx(np.array([[4.0]]))


def test_transfers_within_a_host():
    """A worker beside its server receives at the cost of the CPU alone, and leaves the link free.

    1 MB costs 0.1 s to send and 0.3 s to receive, on one core: 0.4 s.
    """
    here = on(["host"], ["host"], server_send=per_byte(1e-7), worker_receive=per_byte(3e-7))
    assert first_step(download(MB), here) == pytest.approx(np.array([[0.4]]))
    result = simulate(download(MB), here, steps=3, warm_up=0, starts=[0.0])
    assert result.busy == pytest.approx(np.array([[1.0, 0.0, 0.0]] * 2))
    assert first_step(download(MB), on(["host"], ["host"]))[0, 0] < 1e-3


def test_a_host_serves_its_own_and_others():
    """The worker beside the server is done at once, the other one has the link for itself."""
    ends = first_step(download(MB), on(["host", "other"], ["host"]))
    assert ends[:, 0] == pytest.approx([0.0, 1.0], abs=1e-3)


def test_one_priority_each():
    """By strict priority the first job is done in half of the time, and the second no later.

    TensorLights' point: without priorities both take as long as the slower one.
    """
    ends = together(TWO, priorities="one")
    assert ends["first"] == pytest.approx(np.array([[2.0]]))
    assert ends["second"] == pytest.approx(np.array([[4.0]]))


def test_priorities_rotate():
    """Each second the other job has the link: 1 MB, 1 MB, 0.9 MB, and the rest."""
    two = {**TWO, "first": (download(1_900_000), TWO["first"][1])}
    ends = together(two, priorities="rr", rotation=1.0)
    assert ends["first"] == pytest.approx(np.array([[2.9]]))
    assert ends["second"] == pytest.approx(np.array([[3.9]]))


def test_three_priorities_rotate():
    """In turns of half a second: first, second, third, first, ...

    The third has its second turn from 2.5 s on and is done at 2.9 s. Of the others the first is
    next in its turns: after 2.9, from 3 to 3.5 and from 4 to 4.4 s, when it is done.
    """
    three = {**TWO, "third": (download(900_000), on(["c"], ["server"]))}
    ends = together(three, priorities="rr", rotation=0.5)
    assert ends["third"] == pytest.approx(np.array([[2.9]]))
    assert ends["first"] == pytest.approx(np.array([[4.4]]))
    assert ends["second"] == pytest.approx(np.array([[4.9]]))


def test_lower_priorities_get_what_is_left():
    """A job of high priority that cannot use the link leaves the rest to the others."""
    slow = replace(node(down=MB / 4), host="a")
    first = (download(MB), replace(TWO["first"][1], workers=(slow,)))
    ends = together({"first": first, "second": TWO["second"]}, priorities="one")
    assert ends["first"] == pytest.approx(np.array([[4.0]]))
    assert ends["second"] == pytest.approx(np.array([[2 / 0.75]]))


def test_priorities_hold_where_hosts_send():
    """Two jobs that send to the same host from different ones share its link evenly."""
    jobs = {name: (download(MB), on(["host"], [name])) for name in ("first", "second")}
    ends = together(jobs, priorities="one")
    assert ends["first"] == pytest.approx(np.array([[2.0]]))
    assert ends["second"] == pytest.approx(np.array([[2.0]]))


def test_within_a_job_transfers_share():
    """Priorities are between jobs: two workers of one job have half of the link each."""
    jobs = {
        "first": (download(MB), on(["a", "b"], ["server"])),
        "second": (download(MB), on(["c"], ["server"])),
    }
    ends = together(jobs, priorities="one")
    assert ends["first"] == pytest.approx(np.array([[2.0], [2.0]]))
    assert ends["second"] == pytest.approx(np.array([[3.0]]))


def test_each_job_has_its_own_rules():
    """Order of streams, window, costs and barriers are those of the job's cluster."""
    job = Job()
    for size in (2 * MB, MB):
        job.download(size)
    jobs = {
        "whole": (job.profile(), on(["a"], ["s"])),
        "shared": (job.profile(), on(["b"], ["t"], order="shared")),
        "window": (job.profile(), on(["c"], ["u"], window=MB // 2)),
        "dear": (job.profile(), on(["d"], ["v"], server_send=per_byte(2e-6))),
    }
    record = [(0, 0)]
    trainings = {
        name: Training(*where, steps=1, starts=[0.0], record=record) for name, where in jobs.items()
    }
    ends = {
        name: result.op_end[0].tolist()
        for name, result in simulate_jobs(trainings, warm_up=0).items()
    }
    assert ends["whole"] == pytest.approx([2.0, 3.0])
    assert ends["shared"] == pytest.approx([3.0, 2.0])
    assert ends["window"] == pytest.approx([3.0, 2.0])
    assert ends["dear"] == pytest.approx([4.0, 6.0])


def test_a_synchronous_job_beside_an_asynchronous_one():
    """Each job's workers wait for each other, or not."""
    job = Job()
    job.compute(1.0)
    workers = [replace(node(cores=cores), host=host) for cores, host in ((1.0, "a"), (0.25, "b"))]
    where = replace(cluster(workers), servers=(replace(node(), host="s"),))
    jobs = {
        "free": Training(job.profile(), cluster(workers[:1]), steps=3, starts=[0.0]),
        "waiting": Training(
            job.profile(), replace(where, synchronous=Synchronous()), steps=3, starts=[0.0, 0.0]
        ),
    }
    results = simulate_jobs(jobs, warm_up=0)
    # On host a two processes share one core; then one of them waits for host b until 4 s.
    assert results["free"].updates is None
    assert results["free"].end == pytest.approx(np.array([[2.0, 3.0, 4.0]]))
    assert results["waiting"].updates == pytest.approx([4.0, 8.0, 12.0])


def test_a_job_that_has_ended_leaves():
    """Its share goes to the others, unless the run ends with it.

    1.5 MB with half of the link until 3 s; by then the other job has 0.5 of its 2 MB left.
    """
    jobs = {
        "short": Training(download(1_500_000), TWO["first"][1], steps=1, starts=[0.0]),
        "long": Training(*TWO["second"], steps=2, starts=[0.0]),
    }
    results = simulate_jobs(jobs, warm_up=0)
    assert results["short"].end == pytest.approx(np.array([[3.0]]))
    assert results["long"].end == pytest.approx(np.array([[3.5, 5.5]]))
    stopped = simulate_jobs(jobs, warm_up=0, stop_at_first=True)
    assert stopped["short"].end == pytest.approx(np.array([[3.0]]))
    assert np.isnan(stopped["long"].end).all()


def test_utilisation_is_that_of_the_host():
    """A node's utilisation contains what the other jobs do on its host."""
    jobs = {name: Training(*job, steps=1, starts=[0.0]) for name, job in TWO.items()}
    results = simulate_jobs(jobs, warm_up=0)
    for result in results.values():
        assert result.busy[1] == pytest.approx([0.0, 1.0, 0.0])
        assert result.busy[0] == pytest.approx([0.0, 0.0, 0.5])


@st.composite
def shared_systems(draw: st.DrawFn) -> tuple[dict[str, Training], dict[str, Any]]:
    """Up to three jobs on up to four hosts, and all that may be said about their priorities."""
    hosts = {f"host {number}": draw(nodes) for number in range(draw(st.integers(2, 4)))}
    names = st.sampled_from(sorted(hosts))
    jobs = {}
    for number in range(draw(st.integers(1, 3))):
        profile, where = draw(systems())
        placed = {}
        for kind in ("workers", "servers"):
            placed[kind] = tuple(
                replace(hosts[name], host=name, threads=task.threads, slowdown=task.slowdown)
                for task in getattr(where, kind)
                for name in [draw(names)]
            )
        starts = [draw(st.floats(0.0, 3.0)) for _ in where.workers]
        jobs[f"job {number}"] = Training(profile, replace(where, **placed), STEPS, starts)
    options = {
        "priorities": draw(st.sampled_from(["none", "one", "rr"])),
        "rotation": draw(st.floats(0.2, 5.0)),
    }
    return jobs, options


def use_of_hosts(jobs: Mapping[str, Training]) -> dict[str, np.ndarray]:
    """Core seconds and bytes that all steps of all jobs ask of each host."""
    total: dict[str, np.ndarray] = {}
    for job in jobs.values():
        cluster, use = job.cluster, demands(job.profile, job.cluster)
        tasks = [*cluster.workers, *cluster.servers]
        for worker, by_node in enumerate(use):
            local = [task.host == cluster.workers[worker].host for task in tasks]
            for index, task in enumerate(tasks):
                # What stays within a host crosses none of its links.
                links = by_node[index, 1:].copy()
                if index >= len(cluster.workers) and local[index]:
                    links[:] = 0.0
                elif index == worker:
                    servers = range(len(cluster.workers), len(tasks))
                    away = sum(by_node[s, 2:0:-1] for s in servers if not local[s])
                    links[:] = away
                sums = total.setdefault(str(task.host), np.zeros(3))
                sums += STEPS * np.array([by_node[index, 0], *links])
    return total


@moderate
@given(shared_systems())
def test_bytes_and_work_are_conserved(system):
    """Every host carries the bytes and does the work of all jobs, and never more at a time."""
    jobs, options = system
    results = simulate_jobs(jobs, warm_up=0, **options)
    length = max(result.end.max() for result in results.values())
    expected = use_of_hosts(jobs)
    for name, job in jobs.items():
        used = results[name].used
        assert (used <= capacities(job.cluster) * length * (1 + 1e-8)).all()
        for row, task in zip(used, [*job.cluster.workers, *job.cluster.servers], strict=True):
            np.testing.assert_allclose(row, expected[str(task.host)], rtol=1e-7, atol=1e-6)


@moderate
@given(shared_systems(), st.integers(0, 2**32))
def test_same_seed_same_result(system, seed):
    """A run depends on its arguments only."""
    jobs, options = system
    first, second = (simulate_jobs(jobs, warm_up=0, seed=seed, **options) for _ in range(2))
    for name in jobs:
        np.testing.assert_array_equal(first[name].end, second[name].end)
        np.testing.assert_array_equal(first[name].used, second[name].used)


@moderate
@given(shared_systems())
def test_jobs_are_interchangeable(system):
    """Without priorities and randomness the order in which jobs are named does not matter."""
    jobs, _ = system
    plain = {
        name: replace(
            job,
            cluster=replace(
                job.cluster,
                stream_order="fifo",
                calibration=job.cluster.calibration.model_copy(
                    update={"share_spread": 0.0, "newcomer_share": 1.0}
                ),
            ),
        )
        for name, job in jobs.items()
    }
    first = simulate_jobs(plain, warm_up=0)
    second = simulate_jobs(dict(reversed(plain.items())), warm_up=0)
    for name in jobs:
        np.testing.assert_allclose(first[name].end, second[name].end, rtol=1e-6)


def check(message: str, jobs: Mapping[str, Training], **options: Any) -> None:
    with pytest.raises(InputError, match=message):
        simulate_jobs(jobs, **options)


def test_impossible_jobs():
    """What does not fit together is refused by name."""
    one = Training(*TWO["first"])
    check("simulate_jobs: jobs: found none", {})
    check(
        "simulate_jobs: priorities: found two; expected one of none", {"a": one}, priorities="two"
    )
    for rotation in (0.0, -1.0, float("nan"), float("inf")):
        check(f"rotation: found {rotation}; expected a finite", {"a": one}, rotation=rotation)
    many = {str(number): one for number in range(40)}
    check("jobs: found 40; expected at most 32 jobs with pri", many, priorities="one")
    faster = replace(one.cluster, workers=(replace(node(cores=2.0), host="a"),))
    other = Training(one.profile, faster)
    check("host a: cores: found .*; expected .* as on all its nodes", {"a": one, "b": other})
    check("simulate: steps: found 0", {"a": replace(one, steps=0)})
    check("simulate: warm_up: found 2; expected 0 to 0", {"a": one, "b": replace(one, steps=1)})
    check("simulate: starts: found", {"a": replace(one, starts=[1.0, 2.0])})
    check("simulate: record: found", {"a": replace(one, record=[(1, 0)])})


def test_queueing_does_not_know_hosts():
    """The queueing model would count a host's link once for each node."""
    with pytest.raises(InputError, match="network: cluster: found shared hosts"):
        network(download(MB), on(["a", "a"], ["s"]))
    assert network(download(MB), on(["a", "b"], ["s"])).population.sum() == 2


def test_results_are_those_of_simulations():
    """Each job's result has all that a simulation's has."""
    jobs = {name: Training(*job, steps=4, starts=[0.0]) for name, job in TWO.items()}
    for result in simulate_jobs(jobs).values():
        assert isinstance(result, SimulationResult)
        assert result.steps_per_s == pytest.approx(0.25)
        assert result.utilisation().index.tolist() == ["worker 0", "server 0"]
        assert len(result.to_frame()) == 4
