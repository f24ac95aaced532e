"""The simulator against the same model in SimPy, and what an event costs with many workers.

Numba compiles outside the timed parts (it caches on disk); `test_compile_time` reports how long.
"""

from __future__ import annotations

import gc
import heapq
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import simpy
from scipy import stats

from asgd_model.cluster import Cluster, Node
from asgd_model.profile import (
    DOWNLINK,
    SERVER,
    UPLINK,
    WORKER,
    Calibration,
    Profile,
    load_profile,
)
from asgd_model.simulator.simulation import Simulation
from asgd_model.simulator.step_graph import compile_step_graph

PLATFORM = Path(__file__).parents[2] / "data" / "profiles" / "cpu-0.15-300mbit-reno"
GOOGLENET = PLATFORM / "googlenet_b4.profile.json.gz"

Stations = Mapping[int, Callable[[float], Iterator[simpy.Event]]]
"""What serves the operations of one worker, by the kind of resource."""


def googlenet() -> Profile:
    return load_profile(GOOGLENET)


def uncoupled(profile: Profile, workers: int) -> Cluster:
    """A cluster on which communication takes no CPU time: links and CPUs are shared apart."""
    cluster = Cluster.like(profile, workers, stream_order="fifo", stream_window=256 * 1024)
    return replace(cluster, calibration=Calibration())


class Run(NamedTuple):
    """Ends of each worker's steps (s), throughput (steps/s), and the number of events.

    Events are the ends of transmissions and computations, the starts of steps, and the requests
    for parameters: what both simulators have in common.
    """

    ends: list[np.ndarray]
    steps_per_s: float
    events: int


class SharedResource:
    """A capacity that all users share evenly, each up to a limit.

    Users are served the same amount in the same time, so each one ends when the amount served
    since the beginning reaches what it was then plus the user's work: a heap of those values
    suffices.
    """

    def __init__(self, env: simpy.Environment, capacity: float, limit: float) -> None:
        self.env, self.capacity, self.limit = env, capacity, limit
        self.users: list[tuple[float, int, simpy.Event]] = []
        self.served = self.since = 0.0
        self.uses = 0
        self.timeout: simpy.Event | None = None

    def use(self, work: float) -> simpy.Event:
        """Start to use the resource; the event happens when the work is done."""
        self._serve()
        self.uses += 1
        done = self.env.event()
        heapq.heappush(self.users, (self.served + work, self.uses, done))
        self._wait_for_next()
        return done

    @property
    def rate(self) -> float:
        return min(self.limit, self.capacity / len(self.users))

    def _serve(self) -> None:
        if self.users:
            self.served += self.rate * (self.env.now - self.since)
        self.since = self.env.now

    def _wait_for_next(self) -> None:
        if self.users:
            delay = max((self.users[0][0] - self.served) / self.rate, 0.0)
            self.timeout = self.env.timeout(delay)
            self.timeout.callbacks.append(self._end)
        else:
            self.timeout = None

    def _end(self, timeout: simpy.Event) -> None:
        if timeout is self.timeout:  # nobody has come since
            self._serve()
            heapq.heappop(self.users)[2].succeed()
            self._wait_for_next()


class Connection:
    """Streams between two nodes in one direction: one at a time, in turns of a window."""

    def __init__(self, env: simpy.Environment, link: SharedResource, window: float) -> None:
        self.env, self.link, self.window = env, link, window
        self.streams = simpy.Store(env)
        env.process(self._send())

    def transfer(self, size: float) -> Iterator[simpy.Event]:
        done = self.env.event()
        self.streams.put((size, done))
        yield done

    def _send(self) -> Generator[simpy.Event, tuple[float, simpy.Event], None]:
        while True:
            left, done = yield self.streams.get()
            turn = min(left, self.window)
            yield self.link.use(turn)
            if left > turn:
                self.streams.put((left - turn, done))
            else:
                done.succeed()


class Processor:
    """The CPU of a node: operations take turns for the threads, which share the cores."""

    def __init__(self, env: simpy.Environment, node: Node) -> None:
        self.threads = simpy.Resource(env, capacity=node.threads)
        self.cores = SharedResource(env, node.cores, limit=1.0)

    def compute(self, work: float) -> Iterator[simpy.Event]:
        with self.threads.request() as thread:
            yield thread
            yield self.cores.use(work)


class SimPySimulation:
    """A job on a cluster, for one server and workers whose links are no slower than the server's.

    Only the server's links limit then.
    """

    def __init__(self, profile: Profile, cluster: Cluster) -> None:
        self.profile, self.cluster = profile, cluster
        self.graph = compile_step_graph(profile, cluster)

    def run(self, starts: np.ndarray, steps: int, warm_up: int, seed: int) -> Run:
        env = simpy.Environment()
        (server,) = self.cluster.servers
        window = self.cluster.stream_window or np.inf
        downlink = SharedResource(env, server.uplink / 8, np.inf)
        uplink = SharedResource(env, server.downlink / 8, np.inf)
        server_cpu = Processor(env, server)
        cpus = [Processor(env, node) for node in self.cluster.workers]
        rows = np.random.default_rng(seed).integers(self.profile.steps, size=(len(cpus), steps))
        ends: list[list[float]] = [[] for _ in cpus]
        finished = []
        for worker, cpu in enumerate(cpus):
            stations = {
                DOWNLINK: Connection(env, downlink, window).transfer,
                WORKER: cpu.compute,
                UPLINK: Connection(env, uplink, window).transfer,
                SERVER: server_cpu.compute,
            }
            steps_of_worker = self._work(env, stations, starts[worker], rows[worker], ends[worker])
            finished.append(env.process(steps_of_worker))
        env.run(env.any_of(finished))
        first = max(times[warm_up - 1] for times in ends)
        ended = sum(time > first for times in ends for time in times)
        shared = (downlink, uplink, *(cpu.cores for cpu in (server_cpu, *cpus)))
        begun = sum(min(len(times) + 1, steps) for times in ends)
        return Run(
            [np.array(times) for times in ends],
            ended / (env.now - first),
            sum(resource.uses for resource in shared) + 2 * begun,
        )

    def _work(
        self,
        env: simpy.Environment,
        stations: Stations,
        start: float,
        rows: np.ndarray,
        ends: list[float],
    ) -> Iterator[simpy.Event]:
        """One worker: step after step."""
        yield env.timeout(start)
        for row in rows:
            request = env.timeout(self.graph.request_delay[row])
            done = [env.event() for _ in range(self.profile.ops)]
            for op, dependencies in enumerate(self.profile.dependencies):
                needed = [done[dependency] for dependency in dependencies]
                if self.graph.resources[op] == DOWNLINK:
                    needed.append(request)
                serve = stations[self.graph.resources[op]]
                env.process(self._operation(serve, self.graph.work[row, op], needed, done[op]))
            yield from done
            ends.append(env.now)

    def _operation(
        self,
        serve: Callable[[float], Iterator[simpy.Event]],
        work: float,
        needed: list[simpy.Event],
        done: simpy.Event,
    ) -> Iterator[simpy.Event]:
        yield from needed
        if work > 0.0:
            yield from serve(work)
        done.succeed()


def our_run(simulation: Simulation, starts: np.ndarray, steps: int, warm_up: int, seed: int) -> Run:
    result = simulation.run(starts=starts, steps=steps, warm_up=warm_up, seed=seed)
    ends = [worker[~np.isnan(worker)] for worker in result.end]
    return Run(ends, result.steps_per_s, result.events)


def random_starts(profile: Profile, workers: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.0, profile.step_times.mean(), workers)


def test_simpy_model_is_the_same(benchmark):
    """With equal steps and starts every step ends at the same time in both simulators.

    Three workers: with more, events coincide that either may handle first.
    """
    profile = googlenet()
    profile = replace(profile, work=profile.work[:1], start=profile.start[:1], end=profile.end[:1])
    cluster, starts = uncoupled(profile, 3), random_starts(profile, 3, seed=5)
    theirs = benchmark.pedantic(SimPySimulation(profile, cluster).run, (starts, 4, 1, 0))
    ours = our_run(Simulation(profile, cluster), starts, 4, 1, 0)
    for their_ends, our_ends in zip(theirs.ends, ours.ends, strict=True):
        np.testing.assert_allclose(their_ends, our_ends, rtol=1e-9)
    assert theirs.steps_per_s == pytest.approx(ours.steps_per_s)
    assert theirs.events == pytest.approx(ours.events, rel=1e-3)


def test_faster_than_simpy(benchmark, capsys):
    """Events per second of both in turns, with the same throughput to within the interval.

    In CPU time, since other processes may run. Neither collects garbage meanwhile, which would
    take SimPy half as long again.
    """
    profile, workers, replications = googlenet(), 8, 4
    cluster = uncoupled(profile, workers)
    theirs, ours = SimPySimulation(profile, cluster), Simulation(profile, cluster)
    simulators = {"SimPy": theirs.run, "ours": partial(our_run, ours)}
    throughput: dict[str, list[float]] = {name: [] for name in simulators}
    rate: dict[str, list[float]] = {name: [] for name in simulators}

    def in_turns() -> None:
        for seed in range(replications):
            for name, simulate_run in simulators.items():
                gc.collect()
                begin = time.process_time()
                run = simulate_run(random_starts(profile, workers, seed), 16, 2, seed)
                rate[name].append(run.events / (time.process_time() - begin))
                throughput[name].append(run.steps_per_s)

    our_run(ours, random_starts(profile, workers, 0), 2, 1, 0)
    gc.disable()
    benchmark.pedantic(in_turns)
    gc.enable()
    ratio = max(rate["ours"]) / max(rate["SimPy"])
    means = {name: np.mean(values) for name, values in throughput.items()}
    interval = stats.ttest_ind(*throughput.values(), equal_var=False).confidence_interval(0.95)
    benchmark.extra_info.update(ratio=ratio, **{name: max(best) for name, best in rate.items()})
    with capsys.disabled():
        print(
            f"\n{workers} workers: ours {max(rate['ours']) / 1e6:.2f} million events/s, "
            f"SimPy {max(rate['SimPy']) / 1e6:.4f} million, ratio {ratio:.0f}; "
            f"throughput {means['ours']:.3f} and {means['SimPy']:.3f} steps/s, "
            f"difference {interval.low:.3f} to {interval.high:.3f}"
        )
    assert interval.low < 0 < interval.high
    assert interval.high - interval.low < 0.2 * means["ours"]
    assert ratio > 200


@pytest.mark.parametrize("coupled", [False, True], ids=["links and CPUs apart", "coupled"])
def test_cost_per_event(benchmark, capsys, coupled):
    """CPU time per event from 1 to 1,024 workers, which start within the length of one step."""
    profile = googlenet()
    cost = {}

    def measure() -> None:
        for workers in (1, 4, 16, 64, 256, 1024):
            cluster = Cluster.like(profile, workers) if coupled else uncoupled(profile, workers)
            simulation = Simulation(profile, cluster)
            steps = max(1, 256 // workers)
            begin = time.process_time()
            result = simulation.run(steps=steps, warm_up=0, stop_at_first=False)
            cost[workers] = (time.process_time() - begin) / result.events

    Simulation(profile, uncoupled(profile, 1)).run(steps=1, warm_up=0)
    benchmark.pedantic(measure)
    growth = cost[1024] / cost[1]
    benchmark.extra_info.update(growth=growth, **{str(w): c for w, c in cost.items()})
    with capsys.disabled():
        shown = ", ".join(f"{w}: {c * 1e6:.2f}" for w, c in cost.items())
        print(f"\nmicroseconds per event by workers: {shown}; growth {growth:.1f}")
    assert growth < 2


def test_memory(benchmark, capsys):
    """Peak memory of a process that simulates 1 and 1,024 workers, and that it grows linearly."""
    code = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from asgd_model.cluster import Cluster\n"
        "from asgd_model.profile import load_profile\n"
        "from asgd_model.simulator import simulate\n"
        "profile = load_profile(sys.argv[1])\n"
        "cluster = Cluster.like(profile, int(sys.argv[2]))\n"
        "simulate(profile, cluster, steps=1, warm_up=0)\n"
        "status = Path('/proc/self/status').read_text()\n"
        "print(1024 * int(re.search(r'VmHWM:\\s*(\\d+) kB', status)[1]))"
    )

    def peak(workers: int) -> int:
        command = [sys.executable, "-c", code, str(GOOGLENET), str(workers)]
        return int(subprocess.check_output(command, text=True))

    peak(1)  # compiles, if nothing is cached
    used = {1: peak(1), 512: peak(512), 1024: benchmark.pedantic(peak, (1024,))}
    with capsys.disabled():
        shown = ", ".join(f"{workers}: {size / 1e6:.0f}" for workers, size in used.items())
        print(f"\npeak memory in MB by workers: {shown}")
    assert used[1024] - used[1] < 2.5 * (used[512] - used[1])
    assert used[1024] < 1e9


def test_compile_time(benchmark, tmp_path, capsys):
    """First run in a new process without and with Numba's cache on disk."""
    code = (
        "import sys, time\n"
        "from asgd_model.cluster import Cluster\n"
        "from asgd_model.profile import load_profile\n"
        "from asgd_model.simulator import simulate\n"
        "profile = load_profile(sys.argv[1])\n"
        "begin = time.perf_counter()\n"
        "simulate(profile, Cluster.like(profile), steps=1, warm_up=0)\n"
        "print(time.perf_counter() - begin)"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def first_run() -> float:
        command = [sys.executable, "-c", code, str(GOOGLENET)]
        return float(subprocess.check_output(command, env=environment, text=True))

    times = [first_run(), benchmark.pedantic(first_run)]
    with capsys.disabled():
        print(f"\nfirst run: {times[0]:.1f} s with compilation, {times[1]:.1f} s from the cache")
    assert times[1] < times[0]
