"""Execution traces are well-formed, and the same in structure for real and synthetic steps."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.files import write_json
from asgd_model.profile import Profile
from asgd_model.simulator import (
    SimulationResult,
    profile_trace,
    simulate,
    simulation_trace,
    synthetic_profile,
)

from .jobs import MB, Job, chain, cluster, node

Events = list[dict[str, Any]]


def recorded(profile: Profile, where: Cluster, steps: int = 2) -> SimulationResult:
    """A run of which every step is recorded, from its very start."""
    workers = len(where.workers)
    return simulate(
        profile,
        where,
        steps=steps,
        warm_up=0,
        starts=np.arange(workers) / 4,
        record=[(worker, step) for worker in range(workers) for step in range(steps)],
        stop_at_first=False,
    )


def slices(trace: dict[str, Any]) -> Events:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def names(trace: dict[str, Any], what: str) -> dict[int, str]:
    """Names of processes by `pid`, or of threads by `tid`."""
    key = {"process_name": "pid", "thread_name": "tid"}[what]
    chosen = [event for event in trace["traceEvents"] if event["name"] == what]
    return {event[key]: event["args"]["name"] for event in chosen}


def tracks(trace: dict[str, Any]) -> dict[tuple[str, str], Events]:
    """Slices by the names of their process and thread."""
    process, thread = names(trace, "process_name"), names(trace, "thread_name")
    found = defaultdict(list)
    for event in slices(trace):
        found[process[event["pid"]], thread[event["tid"]]].append(event)
    return dict(found)


@pytest.fixture(scope="module")
def both(alexnet: Profile) -> tuple[dict[str, Any], dict[str, Any]]:
    """The trace of a recorded step of AlexNet and of a simulation with three workers."""
    result = recorded(alexnet, Cluster.like(alexnet, 3))
    return profile_trace(alexnet), simulation_trace(alexnet, result)


def test_times_in_closed_form(tmp_path):
    """Download, computation, upload and update of one step, where they happen, in microseconds."""
    profile = chain(2 * MB, 0.5, MB, 0.25)
    path = tmp_path / "trace.json"
    write_json(path, simulation_trace(profile, recorded(profile, cluster(), steps=1)))
    shown = {
        track: [(event["name"], event["ts"], event["dur"]) for event in events]
        for track, events in tracks(json.loads(path.read_text())).items()
    }
    assert shown == {
        ("worker 0", "steps"): [("step 0", 0.0, 3.75e6)],
        ("worker 0", "CPU, thread 0"): [("op 1", 2.0e6, 0.5e6)],
        ("worker 0", "receive from server 0"): [("op 0", 0.0, 2.0e6)],
        ("worker 0", "send to server 0"): [("op 2", 2.5e6, 1.0e6)],
        ("server 0", "CPU, thread 0"): [("op 3", 3.5e6, 0.25e6)],
        ("server 0", "send to worker 0"): [("op 0", 0.0, 2.0e6)],
        ("server 0", "receive from worker 0"): [("op 2", 2.5e6, 1.0e6)],
    }


def test_a_connection_carries_one_transfer_at_a_time():
    """A transfer that waits for others is shown from when they are over; it was ready before."""
    job = Job()
    job.download(2 * MB)
    job.download(MB)
    job.compute(1.0, 1)
    trace = simulation_trace(job.profile(), recorded(job.profile(), cluster(), steps=1))
    received = tracks(trace)["worker 0", "receive from server 0"]
    assert [(event["ts"], event["dur"]) for event in received] == [(0.0, 2e6), (2e6, 1e6)]
    assert [event["args"]["ready_us"] for event in received] == [0.0, 0.0]
    assert [event["args"]["bytes"] for event in received] == job.profile().sizes[:2].tolist()


def test_computations_start_when_they_get_a_thread():
    """Three computations of 1 s on a worker with two threads and two cores."""
    job = Job()
    for _ in range(3):
        job.compute(1.0)
    where = cluster([node(cores=2.0, threads=2)])
    result = recorded(job.profile(), where, steps=1)
    assert result.op_start.tolist() == [[0.0, 0.0, 1.0]]
    shown = tracks(simulation_trace(job.profile(), result))
    busy = {thread: [event["ts"] for event in events] for (_, thread), events in shown.items()}
    assert busy == {"steps": [0.0], "CPU, thread 0": [0.0, 1e6], "CPU, thread 1": [0.0]}


def test_one_process_per_node(both):
    """Workers, then servers; each has a name and tracks of its own."""
    real, synthetic = both
    assert list(names(real, "process_name").values()) == ["worker 0", "server 0"]
    workers = [f"worker {index}" for index in range(3)]
    assert list(names(synthetic, "process_name").values()) == [*workers, "server 0"]
    for trace in both:
        owners = {(event["tid"], event["pid"]) for event in slices(trace)}
        assert len(owners) == len(names(trace, "thread_name"))


def test_slices_of_a_track_do_not_overlap(both):
    """Slices on one track follow each other or lie within each other, to the nanosecond."""
    for trace in both:
        for events in tracks(trace).values():
            ends: list[int] = []
            for event in events:
                start, end = (round(1000 * t) for t in (event["ts"], event["ts"] + event["dur"]))
                while ends and ends[-1] <= start:
                    ends.pop()
                assert not ends or end <= ends[-1]
                ends.append(end)


def test_operations_lie_within_their_step(both):
    """No operation of a worker reaches out of the worker's step that it belongs to."""
    for trace in both:
        spans = {
            (event["pid"] - 1, event["args"]["step"]): (event["ts"], event["ts"] + event["dur"])
            for event in slices(trace)
            if event["cat"] == "step"
        }
        for event in slices(trace):
            if event["cat"] != "step":
                first, last = spans[event["args"]["worker"], event["args"]["step"]]
                assert first - 1e-3 <= event["ts"]
                assert event["ts"] + event["dur"] <= last + 1e-3


def test_arrows_lead_from_sender_to_receiver(both):
    """Each transfer has one start and one end, on slices of the same operation at two nodes."""
    for trace in both:
        process, thread = names(trace, "process_name"), names(trace, "thread_name")
        arrows = defaultdict(dict)
        for event, flow in pairwise(trace["traceEvents"]):
            if flow["ph"] in "sf":
                assert flow["ph"] not in arrows[flow["id"]]
                assert (event["pid"], event["tid"], event["ts"]) == (
                    flow["pid"],
                    flow["tid"],
                    flow["ts"],
                )
                arrows[flow["id"]][flow["ph"]] = event
        transfers = sum(event["cat"] in ("downlink", "uplink") for event in slices(trace))
        assert 2 * len(arrows) == transfers > 0
        for arrow in arrows.values():
            sent, received = arrow["s"], arrow["f"]
            assert sent["name"] == received["name"]
            assert sent["args"] == received["args"]
            assert thread[sent["tid"]] == f"send to {process[received['pid']]}"
            assert thread[received["tid"]] == f"receive from {process[sent['pid']]}"


def test_real_and_synthetic_steps_have_the_same_structure(both):
    """The same operations on the same kinds of tracks, with the same bytes, in every step."""

    def operations(trace: dict[str, Any], worker: int, step: int) -> Counter[tuple[Any, ...]]:
        return Counter(
            (event["name"], event["cat"], event["args"]["kind"], event["args"].get("bytes"))
            for event in slices(trace)
            if event["cat"] != "step"
            and (event["args"]["worker"], event["args"]["step"]) == (worker, step)
        )

    real, synthetic = both
    expected = operations(real, 0, 0)
    for worker in range(3):
        for step in range(2):
            assert operations(synthetic, worker, step) == expected
    kept = [{tuple(event["args"]) for event in slices(trace)} for trace in both]
    assert kept[0] == kept[1]


def test_several_servers():
    """A worker has a track per server and direction, each server one per worker."""
    job = Job()
    job.download(MB)
    job.download(MB, server=1)
    job.update(1.0, job.upload(MB, job.compute(1.0, 0, 1), server=1), server=1)
    trace = simulation_trace(job.profile(), recorded(job.profile(), cluster(2, 2)))
    assert {thread for process, thread in tracks(trace) if process == "worker 1"} == {
        "steps",
        "CPU, thread 0",
        "receive from server 0",
        "receive from server 1",
        "send to server 1",
    }
    assert {thread for process, thread in tracks(trace) if process == "server 0"} == {
        "send to worker 0",
        "send to worker 1",
    }


def test_a_synthetic_step_is_a_profile(alexnet: Profile):
    """The recorded steps can be simulated in turn, and give what they came from.

    Alone on the cluster that it was measured on, a worker is as fast from its synthetic steps,
    with the recorded order in them, as from the real ones.
    """
    alone = Cluster.like(alexnet)
    result = recorded(alexnet, alone, steps=10)
    synthetic = synthetic_profile(alexnet, result)
    assert synthetic.steps == 10
    assert synthetic.step_times == pytest.approx(result.end[0] - result.start[0])
    assert synthetic.start.min() == pytest.approx(0.0, abs=1e-9)
    assert synthetic.summary()["bytes"].equals(alexnet.summary()["bytes"])
    again = simulate(synthetic, alone, steps=40)
    assert again.steps_per_s == pytest.approx(result.steps_per_s, rel=0.05)


def test_steps_that_did_not_end_are_left_out():
    """The run ends with its first worker; the other one is then within its second step."""
    profile = chain(MB, 1.0, MB)
    result = simulate(
        profile,
        cluster([node(), node(cores=0.2)]),
        steps=3,
        warm_up=0,
        starts=[0.0, 0.0],
        record=[(1, 0), (1, 1), (1, 2)],
    )
    assert synthetic_profile(profile, result).steps == 1
    steps = [event["name"] for event in slices(simulation_trace(profile, result))]
    assert steps.count("step 0") == 1
    assert steps.count("step 1") == 0


def test_nothing_to_show():
    """A run that was not recorded, or of another profile, has no trace; nor has a missing step."""
    profile = chain(MB, 1.0, MB)
    with pytest.raises(InputError, match="recorded: found none; expected a step that ended"):
        simulation_trace(profile, simulate(profile, cluster()))
    other = Job()
    other.download(MB)
    with pytest.raises(InputError, match="found 4 operations"):
        synthetic_profile(other.profile(), recorded(profile, cluster()))
    with pytest.raises(InputError, match="step: found 1; expected 0 to 0"):
        profile_trace(profile, 1)
