"""The played cluster on a real machine: links, quotas, and that nothing of it stays behind.

All tests that need the machine for themselves are in this file, so that no two run at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from asgd_model.capture import load_frames
from asgd_model.measurements import load_measurements, load_steps
from asgd_model.profile import DOWNLINK, UPLINK, load_profile
from asgd_model.testbed.bulk import Flow, measure_flows
from asgd_model.testbed.cpu import find_controller, processes, remaining_groups
from asgd_model.testbed.emulation import Emulation
from asgd_model.testbed.errors import TestbedError
from asgd_model.testbed.machine import exclusive, remove_remains
from asgd_model.testbed.network import PREFIX, namespaces, run
from asgd_model.testbed.platform import Link
from asgd_model.testbed.sniffer import captured
from asgd_model.transport import transfers

from .machine import FAST, cluster_machine, training_machine  # noqa: F401

PAYLOAD = 1448 / 1514
"""Part of a full packet that is payload."""

pytestmark = pytest.mark.usefixtures("cluster_machine")


def remains() -> list[str]:
    """Whatever of a cluster is on the machine."""
    controller = find_controller()
    return [*namespaces(), *remaining_groups(controller), *map(str, processes(controller))]


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_links_have_their_rate_and_share_it_evenly(tmp_path: Path) -> None:
    """Opposite flows get a link's payload rate each; two that meet get half of it each.

    They do so whichever way the data go, and though one of them was there first.
    """
    rate = FAST.link.rate * PAYLOAD
    with Emulation(FAST, 2, 1, tmp_path) as cluster:
        opposite = [Flow("ps0", "worker0", 0.0, 1.0), Flow("worker0", "ps0", 0.0, 1.0)]
        both = measure_flows(cluster, opposite, 0.3, 1.0)
        down = [Flow("ps0", "worker0", 0.0, 2.0), Flow("ps0", "worker1", 0.3, 2.0)]
        up = [Flow("worker0", "ps0", 0.0, 2.0), Flow("worker1", "ps0", 0.3, 2.0)]
        shared = [measure_flows(cluster, flows, 0.5, 2.0) for flows in (down, up)]
    assert both == pytest.approx([rate, rate], rel=0.05)
    assert shared[0] == pytest.approx([rate / 2] * 2, rel=0.08)
    assert shared[1] == pytest.approx([rate / 2] * 2, rel=0.25)


def test_one_queue_for_all_is_unfair(tmp_path: Path) -> None:
    """With the sharing ``fifo`` the first flow out of a node keeps an advantage."""
    platform = FAST.model_copy(update={"link": Link(rate=200e6, sharing="fifo", burst=262_144)})
    flows = [Flow("ps0", "worker0", 0.0, 3.0), Flow("ps0", "worker1", 1.0, 3.0)]
    with Emulation(platform, 2, 1, tmp_path) as cluster:
        first, second = measure_flows(cluster, flows, 1.5, 3.0)
    assert first + second == pytest.approx(200e6 * PAYLOAD, rel=0.05)
    assert second < 0.85 * first


@pytest.mark.skipif(shutil.which("tcpdump") is None, reason="tcpdump is missing")
def test_all_packets_are_captured(tmp_path: Path) -> None:
    """What passes a node's interface is in the capture, whole and once."""
    path = tmp_path / "flow.pcap"
    with Emulation(FAST, 1, 1, tmp_path) as cluster:
        flows = [Flow("ps0", "worker0", 0.0, 0.5)]
        with captured(cluster.network, "worker0", 5000, path):
            (rate,) = measure_flows(cluster, flows, 0.1, 0.4)
    assert path.stat().st_size == pytest.approx(0.5 * rate / 8, rel=0.15)


def test_quotas_hold_and_are_counted(tmp_path: Path) -> None:
    """A node's CPU time is its quota under load, the counter says so, and it can be lifted."""
    endless = "asgd_model.testbed.flow", "receive", "5000"
    with Emulation(FAST, 1, 1, tmp_path) as cluster:
        cluster.enforce_quotas()
        process = cluster.spawn("worker0", *endless)
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            cluster._groups["worker0"].add(busy.pid)
            used = cluster._groups["worker0"].seconds
            time.sleep(1.0)
            limited = cluster._groups["worker0"].seconds - used
            cluster.enforce_quotas(False)
            used = cluster._groups["worker0"].seconds
            time.sleep(0.5)
            free = (cluster._groups["worker0"].seconds - used) / 0.5
        finally:
            busy.kill()
            busy.wait()
        assert process.poll() is None
    assert limited == pytest.approx(FAST.worker.cores, rel=0.15)
    assert free > 1.5 * FAST.worker.cores


def test_nothing_stays_after_an_error(tmp_path: Path) -> None:
    """An error within the cluster leaves no process, namespace or control group behind."""

    def fail() -> None:
        with Emulation(FAST, 2, 2, tmp_path) as cluster:
            nodes.append(cluster.spawn("ps1", "asgd_model.testbed.flow", "receive", "5000"))
            assert len(namespaces()) == 5
            raise RuntimeError("deliberate")

    nodes: list[subprocess.Popen[bytes]] = []
    with pytest.raises(RuntimeError, match="deliberate"):
        fail()
    assert remains() == []
    assert nodes[0].poll() is not None


def test_nothing_stays_when_the_network_cannot_be_made(tmp_path: Path) -> None:
    """A link that the kernel refuses names the command, and nothing of the cluster is left."""
    link = Link(rate=200e6, congestion_control="nosuch")
    platform = FAST.model_copy(update={"link": link})
    with pytest.raises(TestbedError, match="nosuch"), Emulation(platform, 1, 1, tmp_path):
        pass
    assert remains() == []


def test_two_clusters_at_once_are_refused(tmp_path: Path) -> None:
    """A second run would disturb the first, and removing remains would end it."""
    with Emulation(FAST, 1, 1, tmp_path):
        before = remains()
        with pytest.raises(TestbedError, match="another run"), Emulation(FAST, 1, 1, tmp_path):
            pass
        assert remains() == before


def test_remains_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    """What a run left that was killed goes, what belongs to others stays."""
    script = (
        "import sys, time; from pathlib import Path\n"
        "from asgd_model.testbed.emulation import Emulation\n"
        "from asgd_model.testbed.platform import load_platform\n"
        "with Emulation(load_platform(sys.argv[1]), 1, 1, Path(sys.argv[2])) as cluster:\n"
        "    cluster.spawn('ps0', 'asgd_model.testbed.flow', 'receive', '5000')\n"
        "    print('up', flush=True); time.sleep(60)\n"
    )
    platform = tmp_path / "fast.json"
    platform.write_text(FAST.model_dump_json())
    run("ip", "netns", "add", "other-than-asgd")
    try:
        command = [sys.executable, "-c", script, str(platform), str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as killed:
            assert killed.stdout is not None
            assert killed.stdout.readline() == b"up\n"
            killed.kill()
        assert len(namespaces()) == 3
        with exclusive():
            removed = remove_remains()
        assert f"namespace {PREFIX}worker0" in removed
        assert remains() == []
        assert "other-than-asgd" in run("ip", "netns", "list")
    finally:
        run("ip", "netns", "delete", "other-than-asgd")


def start_run(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start ``asgd-model testbed run`` and wait until its nodes' processes are there."""
    platform = folder / "fast.yaml"
    platform.write_text(FAST.model_dump_json())
    command = [sys.executable, "-m", "asgd_model", "testbed", "run", "--platform", str(platform)]
    command += ["--dnn", "googlenet", "--batch-size", "1", "--out", str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    controller = find_controller()
    wait_until(lambda: len(processes(controller)) >= 2 or process.poll() is not None)
    return process


@pytest.mark.usefixtures("training_machine")
@pytest.mark.parametrize(
    ("number", "status", "message"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_signals_end_a_run(
    tmp_path: Path, number: signal.Signals, status: int, message: str
) -> None:
    """An interrupt or SIGTERM, even twice, ends a run at once with a message and no remains."""
    process = start_run(tmp_path)
    process.send_signal(number)
    time.sleep(0.05)
    if process.poll() is None:
        process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == status
    assert message in errors
    assert "Traceback" not in errors
    assert remains() == []


@pytest.mark.usefixtures("training_machine")
def test_a_killed_worker_ends_a_run(tmp_path: Path) -> None:
    """If a node is killed, as by the kernel when memory is short, the run ends and says so."""
    process = start_run(tmp_path)
    group = find_controller().folders("asgd-testbed/worker0")[0]
    os.kill(int((group / "cgroup.procs").read_text().split()[0]), signal.SIGKILL)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "worker0 was ended by SIGKILL" in errors
    assert "Traceback" not in errors
    assert remains() == []


@pytest.mark.slow
@pytest.mark.usefixtures("training_machine")
def test_a_job_is_measured(tmp_path: Path) -> None:
    """Two workers' steps are recorded, and a step moves all parameters once each way."""
    process = start_run(tmp_path, "--workers", "2", "--steps", "4", "--warm-up", "1")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    runs = load_measurements(tmp_path / "measurements" / "fast.csv")
    steps = load_steps(tmp_path / "measurements" / "fast.steps.csv.gz")
    row = runs.iloc[0]
    assert f"steps_per_s: {row.steps_per_s}" in output
    assert len(steps) >= 6
    assert steps.groupby("worker").start.min().min() == 0.0
    size = 4 * 6_998_552
    assert row.server_sent_bit_s / row.steps_per_s / 8 == pytest.approx(size, rel=0.35)
    assert row.server_received_bit_s / row.steps_per_s / 8 == pytest.approx(size, rel=0.35)
    assert row.worker_cores <= FAST.worker.cores * 1.05


@pytest.mark.slow
@pytest.mark.usefixtures("training_machine")
def test_a_job_is_profiled(tmp_path: Path) -> None:
    """A profile holds the traced steps, all bytes, and what calibration found."""
    process = start_run(tmp_path, "--profile", "--steps", "3")
    _, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    profile = load_profile(tmp_path / "profiles" / "fast" / "googlenet_b1.profile.json.gz")
    assert profile.steps == 3
    assert profile.bytes_moved(DOWNLINK) == pytest.approx(4 * 6_998_552, abs=64)
    assert profile.bytes_moved(UPLINK) == pytest.approx(4 * 6_998_552, abs=64)
    known = profile.metadata
    assert known.parameters == 6_998_552
    assert known.link_rate == pytest.approx(FAST.link.rate * PAYLOAD, rel=0.02)
    costs = known.calibration
    for cost in (costs.worker_send, costs.worker_receive, costs.server_send, costs.server_receive):
        assert 1e-10 < cost.per_byte < 2e-8
        assert 1e-6 < cost.per_tensor < 1e-3
    assert np.all(profile.step_times > 0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("training_machine")
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is missing")
def test_a_job_is_captured(tmp_path: Path) -> None:
    """Every step of the first worker moves each variable once each way, by the name of its edge."""
    process = start_run(tmp_path, "--workers", "2", "--steps", "2", "--warm-up", "1", "--capture")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert remains() == []
    assert not (tmp_path / "measurements").exists()
    frames = load_frames(tmp_path / "raw" / "fast" / "googlenet_b1_w2.frames.csv.gz")
    moved = transfers(frames)
    assert moved["tensor"].str.startswith("edge_").all()
    steps = moved.groupby(["step", "direction"])
    assert steps["bytes"].sum().to_numpy() == pytest.approx([4 * 6_998_552] * 4, rel=2e-3)
    assert not moved.duplicated(["step", "tensor"]).any()
