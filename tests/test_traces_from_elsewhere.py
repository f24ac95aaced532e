"""RunMetadata as others record it: without graphs, with GPUs, with clocks that differ."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.step_stats_pb2 import DeviceStepStats

from asgd_model.errors import InputError
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, Profile
from asgd_model.tensorflow_trace import read_run_metadata

from .hand_built_traces import (
    BEGIN,
    CPU,
    add_node,
    add_row,
    add_transfer,
    add_transfer_row,
    label,
    labelled_step,
    metadata,
    ps,
    read,
    training_step,
    without_graphs,
)

RAW = Path(__file__).parents[1] / "data" / "raw" / "cpu-0.15-300mbit"
GPU = "/job:worker/replica:0/task:0/device:GPU:0"


def predecessors(profile: Profile, name: str) -> set[str]:
    return {profile.names[op] for op in profile.dependencies[profile.names.index(name)]}


def interval(profile: Profile, name: str, step: int = 0) -> tuple[float, float]:
    """Start and end of an operation in milliseconds."""
    op = profile.names.index(name)
    return 1e3 * profile.start[step, op], 1e3 * profile.end[step, op]


def work(profile: Profile, name: str, step: int = 0) -> float:
    """Work of an operation in milliseconds."""
    return float(1e3 * profile.work[step, profile.names.index(name)])


def moved_clock(message: RunMetadata, job: str, seconds: float) -> RunMetadata:
    """The message with the rows of a job's devices on a clock that is ahead."""
    copy = RunMetadata()
    copy.CopyFrom(message)
    for device in copy.step_stats.dev_stats:
        if device.device.startswith(f"/job:{job}/"):
            for stats in device.node_stats:
                stats.all_start_micros += round(1e6 * seconds)
    return copy


class TestWithoutGraphs:
    @pytest.mark.parametrize("suffix", ["/_", "_S"])
    def test_labels_give_the_graph(self, tmp_path: Path, suffix: str) -> None:
        """In both ways in which TensorFlow names the ends of transfers."""
        profile = read(tmp_path, labelled_step(suffix))
        down, up = f"read{suffix}5", f"gradient{suffix}7"
        assert predecessors(profile, down) == {"read"}
        assert predecessors(profile, "gradient") == {down, f"read{suffix}3"}
        assert predecessors(profile, "apply") == {"weight", up}
        assert (profile.bytes_moved(DOWNLINK), profile.bytes_moved(UPLINK)) == (4000, 4000)
        assert interval(profile, down) == pytest.approx((1, 11))
        assert interval(profile, up) == pytest.approx((30, 40))
        kinds = dict(zip(profile.names, profile.kinds, strict=True))
        assert (kinds["gradient"], kinds[up]) == ("MatMul", "RecvTensor")

    def test_signal_is_told_from_data(self, tmp_path: Path) -> None:
        """Both leave from the same operation; the one without bytes waits for its constant."""
        profile = read(tmp_path, labelled_step())
        assert predecessors(profile, "read/_3") == {"read/_2"}
        assert predecessors(profile, "read/_2") == {"read/ctrl/_0"}
        assert predecessors(profile, "read/ctrl/_0") == {"read"}
        assert profile.sizes[profile.names.index("read/_2")] == 0
        assert interval(profile, "read/_2") == pytest.approx((1, 12))

    @pytest.mark.parametrize("dnn", ["alexnet", "googlenet"])
    def test_recorded_steps(self, tmp_path: Path, dnn: str) -> None:
        """Real steps give the same operations, bytes, times and work with and without graphs.

        Labels lack what constants wait for and what optimisers added to the graph: nothing is
        waited for that the graph does not have, and transfers wait for exactly the same.
        """
        recorded = sorted((RAW / dnn).glob("*.pb.gz"))[:2]
        known = metadata(worker_cores=0.15, server_cores=0.5)
        expected = read_run_metadata(recorded, known)
        # The first file only has graphs.
        found = read_run_metadata([recorded[1]], known)
        whole = read_run_metadata(recorded[::-1], known)

        def by_row(profile: Profile) -> dict[tuple[float, float, int, int], int]:
            rows = zip(
                profile.start[0].round(9),
                profile.end[0].round(9),
                profile.sizes.tolist(),
                profile.resources.tolist(),
                strict=True,
            )
            return {row: op for op, row in enumerate(rows)}

        ours, theirs = by_row(found), by_row(whole)
        assert ours.keys() == theirs.keys()
        assert expected.ops == found.ops == len(ours)
        assert whole.names == expected.names
        same = {ours[row]: theirs[row] for row in ours}
        for op, twin in same.items():
            assert found.work[0, op] == whole.work[0, twin]
            assert found.kinds[op] == whole.kinds[twin]
            sources = {same[source] for source in found.dependencies[op].tolist()}
            expected_sources = set(whole.dependencies[twin].tolist())
            assert sources <= expected_sources, found.names[op]
            if found.kinds[op] == "RecvTensor":
                assert sources == expected_sources, found.names[op]

    def test_inputs_that_nobody_makes(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What a client feeds has no row; it is there from the beginning."""
        step = labelled_step()
        label(step, CPU, "gradient", "MatMul(read/_5, _arg_images_0_1/_9, ^read/_3)")
        profile = read(tmp_path, step)
        assert predecessors(profile, "gradient") == {"read/_5", "read/_3"}
        assert "1 inputs that no recorded operation makes" in caplog.text

    def test_several_servers(self, tmp_path: Path) -> None:
        """A transfer belongs to the server whose operation makes the tensor."""
        step = labelled_step()
        add_row(step, ps(1), "bias", 0, 2_000)
        label(step, ps(1), "bias", "ReadVariableOp(handle)")
        add_row(step, ps(1), "handle", 0, 0)
        label(step, ps(1), "handle", "VarHandleOp()")
        add_transfer_row(step, ps(1), CPU, "edge_5_bias", 2_000, 9_000, 16)
        label(step, CPU, "gradient", "MatMul(read/_5, bias/_11, ^read/_3)")
        profile = read(tmp_path, step)
        op = profile.names.index("bias/_11")
        assert (profile.servers[op], profile.sizes[op]) == (1, 16)

    def test_operations_of_a_step_differ(self, tmp_path: Path) -> None:
        """Two sessions that number their nodes differently are not one job."""
        other = labelled_step()
        label(other, CPU, "gradient", "MatMul(read/_5)")
        with pytest.raises(InputError, match=r"step_1\.pb: gradient: found .*as in an earlier"):
            read(tmp_path, labelled_step(), other)

    def test_neither_graphs_nor_labels(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no partition graphs, and no inputs") as caught:
            read(tmp_path, without_graphs(training_step()))
        assert "output_partition_graphs=True" in caught.value.expected

    def test_transfer_without_row(self, tmp_path: Path) -> None:
        """With less than full tracing nobody knows when tensors came, nor their sizes."""
        step = labelled_step()
        for device in step.step_stats.dev_stats:
            kept = [stats for stats in device.node_stats if stats.node_name != "RecvTensor"]
            del device.node_stats[:]
            device.node_stats.extend(kept)
        with pytest.raises(InputError, match="a transfer without rows") as caught:
            read(tmp_path, step)
        assert "FULL_TRACE" in caught.value.expected


class TestClocks:
    @pytest.mark.parametrize("seconds", [-3600.0, -0.02, 0.02, 7.5])
    def test_offset_between_hosts(
        self, tmp_path: Path, seconds: float, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Round trips of equal length in both directions give the offset back exactly."""
        expected = read(tmp_path, training_step())
        profile = read(tmp_path, moved_clock(training_step(), "ps", seconds))
        np.testing.assert_allclose(profile.start, expected.start, atol=1e-9)
        np.testing.assert_allclose(profile.end, expected.end, atol=1e-9)
        np.testing.assert_allclose(profile.work, expected.work, atol=1e-9)
        assert f"clock of server 0 moved by {-seconds:+.6f} s" in caplog.text

    def test_small_offset_is_not_seen(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As long as nothing arrives before it was sent, clocks are taken to agree."""
        profile = read(tmp_path, moved_clock(training_step(), "ps", 0.009))
        assert interval(profile, "apply0") == pytest.approx((48, 52))
        assert not caplog.records

    def test_each_server_has_its_own_clock(self, tmp_path: Path) -> None:
        step = training_step(2)
        for device in step.step_stats.dev_stats:
            for stats in device.node_stats if device.device == ps(1) else ():
                stats.all_start_micros -= 5_000_000
        profile = read(tmp_path, step)
        assert interval(profile, "apply0") == pytest.approx((40, 44))
        assert interval(profile, "apply1") == pytest.approx((40, 44))

    def test_contradiction(self, tmp_path: Path) -> None:
        """Rows of two different steps in one file fit no offset."""
        step = training_step()
        for device in step.step_stats.dev_stats:
            for stats in device.node_stats:
                if stats.node_name == "apply0" or "update0" in stats.timeline_label:
                    stats.all_start_micros -= 60_000
        with pytest.raises(InputError, match=r"contradict each other by 0\.04") as caught:
            read(tmp_path, step)
        assert "NTP" in caught.value.expected


def gpu_step(stream: str = f"{GPU}/stream:all", clock: int = 0) -> RunMetadata:
    """Two operations on the worker's GPU: forward and, with two kernels, gradient.

    Times in ms: weights there at 10, launches at 11 and 11.02, kernels of forward 11.1 to 15,
    of gradient 15 to 22 and 22.1 to 23, uplink 23 to 33. `clock` is what the GPU's clock is
    ahead, in microseconds.
    """
    step = RunMetadata()
    add_node(step, ps(), "read", "ReadVariableOp")
    add_transfer(step, ps(), GPU, "weights", "read")
    add_node(step, GPU, "forward", "Conv2D", "weights/recv")
    add_node(step, GPU, "gradient", "Conv2DBackpropFilter", "weights/recv")
    add_transfer(step, GPU, ps(), "update", "gradient")
    add_node(step, ps(), "apply", "ApplyGradientDescent", "update/recv")
    add_row(step, ps(), "read", 0, 1_000)
    add_transfer_row(step, ps(), GPU, "weights", 1_000, 10_000, 400)
    add_row(step, GPU, "forward", 11_000, 11_020)
    add_row(step, GPU, "gradient", 11_020, 11_040)
    for name, start, end in (
        ("forward:Conv2D", 11_100, 15_000),
        ("gradient:Conv2DBackpropFilter", 15_000, 22_000),
        ("gradient:Conv2DBackpropFilter", 22_100, 23_000),
    ):
        add_row(step, stream, name, start + clock, end + clock)
    add_transfer_row(step, GPU, ps(), "update", 23_000, 33_000, 400)
    add_row(step, ps(), "apply", 33_000, 34_000)
    return step


def expect_gpu_step(profile: Profile) -> None:
    assert interval(profile, "forward") == pytest.approx((11, 15))
    assert interval(profile, "gradient") == pytest.approx((15, 23))
    assert (work(profile, "forward"), work(profile, "gradient")) == pytest.approx((4, 8))


class TestGpu:
    @pytest.mark.parametrize(
        "stream",
        [
            f"{GPU}/stream:all",
            "/device:GPU:0/stream:all",
            "/gpu:0/stream:13",
            "/job:localhost/replica:0/task:0/device:GPU:0/stream:23Compute",
        ],
    )
    def test_operations_take_the_time_of_their_kernels(self, tmp_path: Path, stream: str) -> None:
        """From launch, or the end of the kernel before, to the last kernel; no CPU is shared."""
        profile = read(tmp_path, gpu_step(stream), worker_cores=0.5)
        expect_gpu_step(profile)
        assert profile.resources[profile.names.index("forward")] == WORKER

    def test_stream_is_a_queue(self, tmp_path: Path) -> None:
        """Operations that depend on the same run one after the other on the GPU."""
        profile = read(tmp_path, gpu_step())
        assert predecessors(profile, "forward") == {"weights"}
        assert predecessors(profile, "gradient") == {"weights", "forward"}

    def test_streams_and_copies_beside_the_sum_of_streams(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """``stream:all`` has every kernel once more; copies belong to no operation."""
        step = gpu_step()
        add_row(step, f"{GPU}/stream:13", "forward:Conv2D", 11_100, 15_000)
        add_row(step, f"{GPU}/stream:14", "edge_5_weights:MEMCPYHtoD", 9_000, 10_000)
        add_row(step, f"{GPU}/stream:all", "edge_5_weights:MEMCPYHtoD", 9_000, 10_000)
        add_row(step, f"{GPU}/memcpy", "edge_5_weights:MEMCPYHtoD", 9_000, 10_000)
        expect_gpu_step(read(tmp_path, step))
        assert "1 of 4 rows of GPU streams belong to no operation" in caplog.text

    def test_name_in_the_annotation(self, tmp_path: Path) -> None:
        """Some versions name the kernel in the row and the operation in its label."""
        step = gpu_step()
        for device in step.step_stats.dev_stats:
            if device.device.endswith("/stream:all"):
                for stats in device.node_stats:
                    stats.timeline_label = f"regs:32 block:256@@{stats.node_name}#id=3#"
                    stats.node_name = "volta_scudnn_128x64_nn"
        expect_gpu_step(read(tmp_path, step))

    @pytest.mark.parametrize("clock", [-BEGIN, -2_000, 40_000_000])
    def test_clock_of_the_gpu(self, tmp_path: Path, clock: int) -> None:
        """Time since the GPU's start, or an offset: the fastest launch is taken for instant."""
        profile = read(tmp_path, gpu_step(clock=clock))
        # The first kernel began 80 us or more after its launch, which cannot be known.
        assert work(profile, "forward") + work(profile, "gradient") == pytest.approx(11.9)
        assert interval(profile, "gradient")[1] == pytest.approx(22.9)

    def test_only_software_was_traced(self, tmp_path: Path) -> None:
        """Without kernels there is only the time of the launches, which is no use."""
        step = gpu_step()
        kept: list[DeviceStepStats] = [
            device for device in step.step_stats.dev_stats if "/stream:" not in device.device
        ]
        bare = RunMetadata(partition_graphs=step.partition_graphs)
        bare.step_stats.dev_stats.extend(kept)
        with pytest.raises(InputError, match="2 operations of a GPU, but no rows") as caught:
            read(tmp_path, bare)
        assert caught.value.field == GPU
        assert "FULL_TRACE" in caught.value.expected
        assert "CUPTI" in caught.value.expected

    def test_step_that_lost_kernels(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """The launch is not taken for the work, which is that of the other steps."""
        lossy = gpu_step()
        for device in lossy.step_stats.dev_stats:
            if device.device.endswith("/stream:all"):
                kept = [stats for stats in device.node_stats if "gradient" not in stats.node_name]
                del device.node_stats[:]
                device.node_stats.extend(kept)
        profile = read(tmp_path, gpu_step(), lossy)
        assert work(profile, "gradient", step=1) == pytest.approx(8)
        assert "filled in 0 transfers and 1 operations" in caplog.text

    def test_operation_without_kernel_is_of_the_cpu(self, tmp_path: Path) -> None:
        """What only the host does for the GPU's part of the graph shares the CPU."""
        step = gpu_step()
        add_node(step, GPU, "shape", "Shape", "weights/recv")
        add_row(step, GPU, "shape", 12_000, 14_000)
        profile = read(tmp_path, step, worker_cores=0.5)
        assert work(profile, "shape") == pytest.approx(1)
        expect_gpu_step(profile)


class TestDuplicates:
    def test_repeated_row(self, tmp_path: Path) -> None:
        """The same row twice is one execution."""
        step = training_step()
        add_row(step, CPU, "gradient0", 20_000, 30_000)
        assert work(read(tmp_path, step), "gradient0") == pytest.approx(10)

    def test_row_with_undefined_inputs(self, tmp_path: Path) -> None:
        """Beside a row with a label, one of another time without a label is not an execution."""
        for first in (True, False):
            step = RunMetadata()
            if first:
                add_row(step, CPU, "gradient", 25_000, 26_000)
            step.MergeFrom(labelled_step())
            if not first:
                add_row(step, CPU, "gradient", 25_000, 26_000)
            profile = read(tmp_path, step)
            assert interval(profile, "gradient") == pytest.approx((20, 30))
            assert predecessors(profile, "gradient") == {"read/_5", "read/_3"}


@pytest.mark.parametrize("labelled", [False, True])
def test_several_workers_in_one_file(tmp_path: Path, labelled: bool) -> None:
    """In-graph replication steps all workers at once; the error says what to record instead."""
    step = labelled_step() if labelled else training_step()
    other = CPU.replace("task:0", "task:1")
    if not labelled:
        add_node(step, other, "loss", "Mean")
    add_row(step, other, "loss", 30_000, 31_000)
    label(step, other, "loss", "Mean(read/_5)")
    with pytest.raises(InputError, match=r"task:0, /job:worker.*task:1") as caught:
        read(tmp_path, step)
    assert "a session per worker" in caught.value.expected


def test_only_streams(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that holds nothing but what the GPU did is refused."""
    step = RunMetadata()
    step.partition_graphs.extend(training_step().partition_graphs)
    add_row(step, f"{GPU}/stream:all", "forward:Conv2D", 0, 1)
    with caplog.at_level(logging.ERROR), pytest.raises(InputError, match="no rows of a host"):
        read(tmp_path, step)


def test_resources_of_a_labelled_step(tmp_path: Path) -> None:
    """Operations are the worker's or a server's by their device."""
    profile = read(tmp_path, labelled_step())
    resources = dict(zip(profile.names, profile.resources.tolist(), strict=True))
    assert (resources["gradient"], resources["apply"]) == (WORKER, SERVER)
    assert (resources["read/_5"], resources["gradient/_7"]) == (DOWNLINK, UPLINK)
