"""Reading RunMetadata: the recorded samples, small hand-built traces, damaged input."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.config_pb2 import RunMetadata

from asgd_model.errors import InputError
from asgd_model.profile import (
    DOWNLINK,
    RESOURCES,
    SERVER,
    UPLINK,
    WORKER,
    Calibration,
    CommunicationCost,
    Profile,
)
from asgd_model.recovery import busy_periods
from asgd_model.tensorflow_trace import read_run_metadata

from .hand_built_traces import (
    BEGIN,
    CPU,
    add_node,
    add_row,
    add_transfer,
    add_transfer_row,
    metadata,
    ps,
    read,
    training_step,
    without_graphs,
)

RAW = Path(__file__).parents[1] / "data" / "raw" / "cpu-0.15-300mbit"
CORES = {"worker_cores": 0.15, "server_cores": 0.5}
PARAMETERS = {"googlenet": 6_998_552, "alexnet": 50_303_912}


def without_rows(message: RunMetadata, wanted: Callable[[Any], bool]) -> RunMetadata:
    """The message without the rows for which `wanted` holds."""
    copy = RunMetadata()
    copy.CopyFrom(message)
    for device in copy.step_stats.dev_stats:
        kept = [stats for stats in device.node_stats if not wanted(stats)]
        del device.node_stats[:]
        device.node_stats.extend(kept)
    return copy


def predecessors(profile: Profile, name: str) -> set[str]:
    return {profile.names[op] for op in profile.dependencies[profile.names.index(name)]}


@pytest.fixture(scope="module", params=["googlenet", "alexnet"])
def sample(request: pytest.FixtureRequest) -> tuple[str, Profile]:
    dnn = request.param
    paths = sorted((RAW / dnn).glob("run_metadata_*.pb.gz"))
    return dnn, read_run_metadata(paths, metadata(dnn=dnn, **CORES))


class TestSamples:
    def test_sizes_and_counts(self, sample: tuple[str, Profile]) -> None:
        """Each parameter goes down and its gradient up once, four bytes each."""
        dnn, profile = sample
        parameter_bytes = 4 * PARAMETERS[dnn]
        learning_rate = 4
        assert profile.bytes_moved(DOWNLINK) == parameter_bytes
        assert profile.bytes_moved(UPLINK) == parameter_bytes + learning_rate
        counts = dict(zip(*np.unique(profile.resources, return_counts=True), strict=True))
        assert [counts[resource] for resource in range(len(RESOURCES))] == {
            "googlenet": [173, 713, 117, 406],
            "alexnet": [21, 80, 17, 54],
        }[dnn]
        assert profile.steps == {"googlenet": 20, "alexnet": 10}[dnn]
        assert profile.num_servers == 1

    def test_order_is_topological(self, sample: tuple[str, Profile]) -> None:
        _, profile = sample
        for op, sources in enumerate(profile.dependencies):
            assert (sources < op).all()

    def test_recorded_times_obey_the_graph(self, sample: tuple[str, Profile]) -> None:
        """A wrongly joined edge would show as an operation that starts before its input ends."""
        _, profile = sample
        for op, sources in enumerate(profile.dependencies):
            assert (profile.end[:, sources].max(axis=1, initial=0.0) <= profile.start[:, op]).all()

    def test_work_fits_into_the_cores(self, sample: tuple[str, Profile]) -> None:
        """No operation had more than the node's cores, nor had all of them together."""
        _, profile = sample
        for resource, cores in ((WORKER, 0.15), (SERVER, 0.5)):
            own = profile.resources == resource
            start, end, work = profile.start[:, own], profile.end[:, own], profile.work[:, own]
            assert (work >= 0).all()
            assert (work <= cores * (end - start) + 1e-12).all()
            for step in range(profile.steps):
                period_start, period_end, _ = busy_periods(
                    start[step], end[step], np.ones_like(start[step])
                )
                active = (period_end - period_start).sum()
                assert work[step].sum() == pytest.approx(cores * active, rel=1e-9)
        assert (profile.work[:, np.isin(profile.resources, (DOWNLINK, UPLINK))] == 0).all()

    def test_values_of_single_rows(self) -> None:
        """Values read off a text dump of the first AlexNet step."""
        paths = [RAW / "alexnet" / "run_metadata_03.pb.gz"]
        profile = read_run_metadata(paths, metadata(**CORES))
        weights = profile.names.index("edge_59_MatMul/ReadVariableOp")
        assert profile.sizes[weights] == 104_857_600
        assert profile.start[0, weights] == pytest.approx(0.0099, abs=1e-4)
        assert profile.end[0, weights] - profile.start[0, weights] == pytest.approx(5.820189)
        assert profile.kinds[weights] == "RecvTensor"
        assert predecessors(profile, profile.names[weights]) == {"MatMul/ReadVariableOp"}
        assert predecessors(profile, "MatMul/ReadVariableOp") == {"f6/w"}
        assert predecessors(profile, "Relu_5") == {
            "Reshape",
            "edge_59_MatMul/ReadVariableOp",
            "edge_60_BiasAdd_5/ReadVariableOp",
        }
        assert predecessors(
            profile, "GradientDescent/update_f6/w/ResourceApplyGradientDescent"
        ) == {
            "f6/w",
            "edge_73_GradientDescent/learning_rate",
            "edge_127_gradients/MatMul_grad/tuple/control_dependency_1",
        }
        alone = profile.names.index("gradients/BiasAdd_grad/BiasAddGrad")
        assert profile.work[0, alone] == pytest.approx(0.15 * 0.0357, abs=0.15 * 5e-5)

    @pytest.mark.parametrize(("number", "lacking"), [("07", 117), ("15", 1), ("22", 2)])
    def test_lost_transfers(
        self, number: str, lacking: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Three recorded steps lack transfers; they lie between producer and consumers."""
        paths = [RAW / "googlenet" / f"run_metadata_{name}.pb.gz" for name in ("03", number)]
        with caplog.at_level(logging.WARNING):
            profile = read_run_metadata(paths, metadata(**CORES))
        assert [record.getMessage() for record in caplog.records] == [
            f"{paths[1]}: filled in {lacking} transfers and 0 operations that have no row"
        ]
        for op in np.flatnonzero(profile.resources == UPLINK):
            consumers = [i for i, row in enumerate(profile.dependencies) if op in row]
            assert (profile.start[:, consumers].min(axis=1) >= profile.end[:, op]).all()
            sources = profile.dependencies[op]
            assert (profile.end[:, sources].max(axis=1) <= profile.start[:, op]).all()

    def test_graph_does_not_depend_on_the_file_order(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The graphs may be in any of the files, and reading is deterministic."""
        paths = sorted((RAW / "alexnet").glob("*.pb.gz"))[:3]
        forward = read_run_metadata(paths, metadata(**CORES))
        backward = read_run_metadata(paths[::-1], metadata(**CORES))
        assert forward.names == backward.names
        for one, other in zip(forward.dependencies, backward.dependencies, strict=True):
            np.testing.assert_array_equal(one, other)
        for table in ("start", "end", "work"):
            np.testing.assert_array_equal(
                getattr(forward, table), getattr(backward, table)[::-1], err_msg=table
            )
        assert not caplog.records


class TestHandBuilt:
    def test_training_step(self, tmp_path: Path) -> None:
        """Send and receive nodes become one transfer; everything else is kept as recorded."""
        profile = read(tmp_path, training_step(), worker_cores=0.5, server_cores=0.25)
        assert profile.names == ("read0", "weight0", "gradient0", "update0", "apply0")
        assert profile.kinds == (
            "ReadVariableOp",
            "RecvTensor",
            "MatMul",
            "RecvTensor",
            "ResourceApplyGradientDescent",
        )
        assert profile.resources.tolist() == [SERVER, DOWNLINK, WORKER, UPLINK, SERVER]
        assert profile.servers.tolist() == [0, 0, -1, 0, 0]
        assert profile.sizes.tolist() == [0, 1000, 0, 1000, 0]
        assert [row.tolist() for row in profile.dependencies] == [[], [0], [1], [2], [3]]
        np.testing.assert_allclose(profile.start[0], [0, 0.001, 0.020, 0.030, 0.040])
        np.testing.assert_allclose(profile.end[0], [0.001, 0.011, 0.030, 0.040, 0.044])
        np.testing.assert_allclose(profile.work[0], [0.00025, 0, 0.005, 0, 0.001])

    def test_two_servers(self, tmp_path: Path) -> None:
        """Transfers carry their server; servers do not share a CPU, the worker's gradients do."""
        profile = read(tmp_path, training_step(2))
        assert profile.num_servers == 2
        for k in range(2):
            of = {name: profile.names.index(f"{name}{k}") for name in ("weight", "update", "apply")}
            assert [profile.servers[op] for op in of.values()] == [k, k, k]
            assert profile.sizes[of["weight"]] == 1000 * (k + 1)
            assert profile.work[0, of["apply"]] == pytest.approx(0.004)
            assert profile.work[0, profile.names.index(f"gradient{k}")] == pytest.approx(0.005)

    def test_graphs_of_another_file(self, tmp_path: Path) -> None:
        step = training_step()
        profile = read(tmp_path, without_graphs(step), step)
        assert profile.steps == 2
        np.testing.assert_array_equal(profile.work[0], profile.work[1])

    def test_nanoseconds_are_preferred(self, tmp_path: Path) -> None:
        step = training_step()
        stats = step.step_stats.dev_stats[2].node_stats[0]
        assert stats.node_name == "gradient0"
        stats.all_start_nanos = (BEGIN + 20_000) * 1000 + 123
        stats.all_end_rel_nanos = 10_000_456
        profile = read(tmp_path, step)
        op = profile.names.index("gradient0")
        assert profile.start[0, op] == pytest.approx(0.020000123, abs=1e-12)
        assert profile.end[0, op] == pytest.approx(0.030000579, abs=1e-12)

    def test_control_edges_and_outputs(self, tmp_path: Path) -> None:
        """``^name`` and ``name:1`` are dependencies; a signal is a transfer of 0 bytes."""
        step = training_step()
        add_node(step, ps(), "signal", "Const", "^read0")
        add_transfer(step, ps(), CPU, "go", "signal")
        add_node(step, CPU, "late", "Shape", "gradient0:1", "^go/recv")
        add_row(step, ps(), "signal", 1_000, 1_000)
        add_transfer_row(step, ps(), CPU, "go", 1_000, 2_000, 0)
        add_row(step, CPU, "late", 30_000, 30_010)
        profile = read(tmp_path, step)
        assert predecessors(profile, "late") == {"gradient0", "go"}
        assert predecessors(profile, "go") == {"signal"}
        assert predecessors(profile, "signal") == {"read0"}
        go = profile.names.index("go")
        assert (profile.resources[go], profile.sizes[go]) == (DOWNLINK, 0)

    def test_what_is_not_an_operation_passes_dependencies_on(self, tmp_path: Path) -> None:
        """A node that never ran, a pair within the worker, rows of `_Recv`, ends of the graph."""
        other = CPU.replace("CPU:0", "CPU:1")
        step = training_step()
        add_node(step, CPU, "skipped", "Switch", "gradient0")
        add_transfer(step, CPU, other, "copy", "skipped")
        add_node(step, other, "last", "MatMul", "copy/recv", "^_SOURCE")
        add_node(step, other, "_SOURCE", "NoOp")
        add_row(step, other, "_SOURCE", -5_000, -5_000)
        add_row(step, other, "copy/recv", 30_000, 31_000)
        add_row(step, other, "last", 31_000, 32_000)
        profile = read(tmp_path, step)
        assert not {"skipped", "copy", "copy/recv", "_SOURCE"} & set(profile.names)
        assert predecessors(profile, "last") == {"gradient0"}
        assert profile.start[0, profile.names.index("read0")] == pytest.approx(0.005)

    def test_signal_between_servers_orders_their_operations(self, tmp_path: Path) -> None:
        step = training_step(2)
        add_transfer(step, ps(0), ps(1), "done", "apply0")
        add_node(step, ps(1), "group", "NoOp", "^done/recv", "^apply1")
        add_transfer_row(step, ps(0), ps(1), "done", 44_000, 45_000, 0)
        add_row(step, ps(1), "group", 45_000, 45_000)
        profile = read(tmp_path, step)
        assert "done" not in profile.names
        assert predecessors(profile, "group") == {"apply0", "apply1"}

    def test_fetch_of_the_client_has_one_end(self, tmp_path: Path) -> None:
        step = training_step()
        fetch = add_node(step, CPU, "fetch", "_Send", "gradient0")
        fetch.attr["client_terminated"].b = True
        assert read(tmp_path, step).ops == 5

    def test_same_name_on_two_devices(self, tmp_path: Path) -> None:
        """Names are unique within a partition only."""
        step = training_step()
        add_node(step, ps(), "gradient0", "NoOp", "^apply0")
        add_row(step, ps(), "gradient0", 44_000, 44_500)
        profile = read(tmp_path, step)
        rows = [op for op, name in enumerate(profile.names) if name == "gradient0"]
        assert profile.resources[rows].tolist() == [WORKER, SERVER]

    def test_step_without_transfer_rows(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A transfer runs from the end of its producer to the start of its consumers."""
        step = training_step()
        bare = without_rows(step, lambda stats: stats.node_name == "RecvTensor")
        profile = read(tmp_path, bare, step)
        transfers = profile.sizes > 0
        np.testing.assert_allclose(profile.start[0, transfers], [0.001, 0.030])
        np.testing.assert_allclose(profile.end[0, transfers], [0.020, 0.040])
        assert "step_0.pb: filled in 2 transfers and 0 operations" in caplog.text

    def test_step_without_an_operation(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its work is the mean of the other steps, its time what its neighbours leave."""
        step, slow = training_step(), training_step()
        slow.step_stats.dev_stats[-1].node_stats[0].all_end_rel_micros = 8_000
        bare = without_rows(step, lambda stats: stats.node_name == "apply0")
        profile = read(tmp_path, step, slow, bare)
        op = profile.names.index("apply0")
        np.testing.assert_allclose(profile.work[:, op], [0.004, 0.008, 0.006])
        assert profile.start[2, op] == profile.end[2, op] == pytest.approx(0.040)
        assert "step_2.pb: filled in 0 transfers and 1 operations" in caplog.text

    def test_filled_in_operation_takes_no_cpu(self, tmp_path: Path) -> None:
        """When it ran is not known, so it does not lower the share of what was recorded."""
        step = training_step()
        add_node(step, ps(), "other", "NoOp")
        add_row(step, ps(), "other", 42_000, 46_000)
        add_node(step, ps(), "group", "NoOp", "^apply0")
        add_row(step, ps(), "group", 50_000, 50_000)
        bare = without_rows(step, lambda stats: stats.node_name == "apply0")
        profile = read(tmp_path, step, bare)
        assert profile.end[1, profile.names.index("apply0")] == pytest.approx(0.050)
        np.testing.assert_allclose(profile.work[:, profile.names.index("other")], [0.003, 0.004])

    def test_communication_takes_cpu_from_computation(self, tmp_path: Path) -> None:
        """On the worker receiving is downlink and sending uplink; on the server the reverse."""
        step = training_step()
        add_node(step, CPU, "early", "RandomUniform")
        add_row(step, CPU, "early", 0, 21_000)
        add_node(step, ps(), "other", "NoOp")
        add_row(step, ps(), "other", 1_000, 35_000)
        costs = Calibration(
            worker_receive=CommunicationCost(per_byte=2e-6, per_tensor=1e-3),
            server_send=CommunicationCost(per_byte=5e-6),
            server_receive=CommunicationCost(per_tensor=8e-3),
        )
        profile = read(tmp_path, step, calibration=costs, worker_cores=0.5, server_cores=1.0)
        worker = profile.names.index("early")
        # 1000 bytes and a tensor cost 3 ms over the 10 ms of the downlink: 0.3 of 0.5 cores.
        # The last millisecond is shared with the gradient.
        expected = 0.5 * 0.010 + (0.5 - 0.3) * 0.010 + 0.25 * 0.001
        assert profile.work[0, worker] == pytest.approx(expected)
        server = profile.names.index("other")
        # Sending takes 0.5 core for 10 ms, receiving 0.8 core for the 5 ms before its end.
        expected = 0.5 * 0.010 + 1.0 * 0.019 + 0.2 * 0.005
        assert profile.work[0, server] == pytest.approx(expected)

    def test_communication_of_two_servers(self, tmp_path: Path) -> None:
        """A server pays for its own transfers, the worker for those of all servers."""
        step = training_step(2)
        for device, name in ((ps(0), "other"), (CPU, "early")):
            add_node(step, device, name, "NoOp")
            add_row(step, device, name, 1_000, 11_000)
        cost = CommunicationCost(per_tensor=4e-3)
        costs = Calibration(worker_receive=cost, server_send=cost)
        profile = read(tmp_path, step, calibration=costs)
        assert profile.work[0, profile.names.index("other")] == pytest.approx(0.006)
        assert profile.work[0, profile.names.index("early")] == pytest.approx(0.002)


def edit_negative_duration(step: RunMetadata) -> None:
    step.step_stats.dev_stats[2].node_stats[0].all_end_rel_micros = -1


def edit_negative_size(step: RunMetadata) -> None:
    add_transfer(step, ps(), CPU, "odd", "read0")
    add_transfer_row(step, ps(), CPU, "odd", 0, 1, -4)


def edit_unknown_device(step: RunMetadata) -> None:
    add_node(step, "/job:evaluator/replica:0/task:0/device:CPU:0", "metric", "Mean")


def edit_no_device(step: RunMetadata) -> None:
    add_node(step, "", "unplaced", "Mean")


def edit_second_worker(step: RunMetadata) -> None:
    add_node(step, CPU.replace("task:0", "task:1"), "foreign", "Mean")


def edit_row_of_unknown_device(step: RunMetadata) -> None:
    add_row(step, "/job:worker/replica:0/task:0/device:CPU:1", "gradient0", 0, 1)


def edit_unknown_row(step: RunMetadata) -> None:
    add_row(step, CPU, "mystery", 0, 1)


def edit_unlabelled_transfer(step: RunMetadata) -> None:
    add_row(step, CPU, "RecvTensor", 0, 1).timeline_label = "weights"


def edit_second_row(step: RunMetadata) -> None:
    add_row(step, CPU, "gradient0", 50_000, 51_000)


def edit_second_node(step: RunMetadata) -> None:
    add_node(step, CPU, "gradient0", "MatMul")


def edit_second_send(step: RunMetadata) -> None:
    add_transfer(step, ps(), CPU, "weight0", "read0")


def edit_unknown_input(step: RunMetadata) -> None:
    add_node(step, CPU, "next", "MatMul", "nowhere:0")


def edit_send_alone(step: RunMetadata) -> None:
    node = add_node(step, CPU, "lost/send", "_Send", "gradient0")
    node.attr["tensor_name"].s = b"lost"


def edit_receive_alone(step: RunMetadata) -> None:
    node = add_node(step, CPU, "lost/recv", "_Recv")
    node.attr["tensor_name"].s = b"lost"


def edit_unrecorded_transfer(step: RunMetadata) -> None:
    add_transfer(step, ps(), CPU, "silent", "read0")


def edit_data_between_servers(step: RunMetadata) -> None:
    add_node(step, ps(1), "copy", "Identity", "moved/recv")
    add_transfer(step, ps(0), ps(1), "moved", "read0")
    add_transfer_row(step, ps(0), ps(1), "moved", 0, 1, 12)
    add_row(step, ps(1), "copy", 1, 1)


def edit_cycle(step: RunMetadata) -> None:
    add_node(step, CPU, "ping", "Merge", "pong")
    add_node(step, CPU, "pong", "NextIteration", "ping")


def edit_servers_only(step: RunMetadata) -> None:
    del step.partition_graphs[:]
    add_node(step, ps(), "read0", "ReadVariableOp")


class TestRefused:
    @pytest.mark.parametrize(
        ("edit", "field", "found", "expected"),
        [
            (edit_negative_duration, "gradient0", "a duration of -1000 ns", "at least 0"),
            (edit_negative_size, "odd", "-4 bytes", "0 to 2**63 - 1"),
            (edit_unknown_device, "device", "/job:evaluator", "job ps, worker"),
            (edit_no_device, "device", "''", "job ps, worker"),
            (edit_second_worker, "device", "task:0, /job:worker", "the step of one worker"),
            (edit_servers_only, "device", "no worker", "the step of one worker"),
            (edit_row_of_unknown_device, "gradient0", "device:CPU:1", "partition graphs"),
            (edit_unknown_row, "mystery", "a row of", "a node of the partition graphs"),
            (edit_unlabelled_transfer, "timeline_label", "'weights'", "TENSOR from DEVICE"),
            (edit_second_row, "gradient0", "a second row", "loops are not supported"),
            (edit_second_node, "gradient0", "a second node", "one node"),
            (edit_second_send, "weight0/send", "a second node", "one node"),
            (edit_unknown_input, "next", "the input nowhere:0", "the same partition graph"),
            (edit_send_alone, "lost", "a _Send alone", "its _Recv"),
            (edit_receive_alone, "lost", "a _Recv alone", "its _Send"),
            (edit_unrecorded_transfer, "silent", "a transfer without rows", "RecvTensor row"),
            (edit_data_between_servers, "moved", "12 bytes from", "no data between servers"),
            (edit_cycle, None, "the cycle", "without cycles"),
        ],
    )
    def test_unusable_trace(
        self,
        tmp_path: Path,
        edit: Callable[[RunMetadata], None],
        field: str | None,
        found: str,
        expected: str,
    ) -> None:
        """Each error names the file, the node, what was found and what was expected."""
        step = training_step()
        edit(step)
        with pytest.raises(InputError) as caught:
            read(tmp_path, step)
        error = caught.value
        assert error.where == str(tmp_path / "step_0.pb")
        assert error.field == field
        assert found in str(error.found)
        assert expected in error.expected

    def test_cycle_is_shown_in_its_direction(self, tmp_path: Path) -> None:
        step = training_step()
        add_node(step, CPU, "a", "Merge", "c")
        add_node(step, CPU, "b", "Identity", "a")
        add_node(step, CPU, "c", "NextIteration", "b")
        with pytest.raises(InputError) as caught:
            read(tmp_path, step)
        shown = re.findall(r"\b[abc]\b", str(caught.value.found).removeprefix("the cycle"))
        assert "".join(shown) in ("abca", "bcab", "cabc")

    def test_second_send_of_a_tensor(self, tmp_path: Path) -> None:
        step = training_step()
        twin = add_node(step, ps(), "twin", "_Send", "read0")
        original = step.partition_graphs[0].node[1]
        assert original.op == "_Send"
        for name, value in original.attr.items():
            twin.attr[name].CopyFrom(value)
        with pytest.raises(InputError, match=r"weight0: found a second _Send; expected one _Send"):
            read(tmp_path, step)

    def test_size_differs_between_steps(self, tmp_path: Path) -> None:
        """A profile has one size for each transfer; traces of two jobs are not mixed."""
        step, other = training_step(), training_step()
        transfer = other.step_stats.dev_stats[1].node_stats[0].output[0]
        transfer.tensor_description.allocation_description.requested_bytes = 999
        with pytest.raises(
            InputError, match=r"step_1\.pb: weight0: found 999 bytes; expected 1000"
        ):
            read(tmp_path, step, other)

    def test_step_lacks_a_device(self, tmp_path: Path) -> None:
        step = training_step()
        bare = without_rows(step, lambda stats: stats.node_name in ("read0", "apply0"))
        with pytest.raises(InputError, match=r"step_1\.pb: /job:ps.*found no rows"):
            read(tmp_path, step, bare)

    def test_no_partition_graphs(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"step_0\.pb: found no partition graphs"):
            read(tmp_path, without_graphs(training_step()))

    def test_no_files(self) -> None:
        with pytest.raises(InputError, match="found no files"):
            read_run_metadata([], metadata())

    @pytest.mark.parametrize(
        ("content", "found"),
        [
            (b"", "an empty file"),
            (b"step,seconds\n1,0.5\n", "not a complete RunMetadata"),
            (training_step().SerializeToString()[:-3], "not a complete RunMetadata"),
            (RunMetadata(partition_graphs=[]).SerializeToString() + b"\x12\x00", "no step"),
            (b"\x1f\x8b\x08\x00", "damaged gzip"),
        ],
        ids=["empty", "text", "truncated", "no step_stats", "truncated gzip"],
    )
    def test_unreadable_file(self, tmp_path: Path, content: bytes, found: str) -> None:
        path = tmp_path / "run_metadata.pb"
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_run_metadata([path], metadata())
        assert caught.value.where == str(path)
        assert found in str(caught.value.found)

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="nothing there"):
            read_run_metadata([tmp_path / "none.pb"], metadata())

    @settings(
        max_examples=300,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(data=st.data())
    def test_damaged_bytes(self, tmp_path: Path, data: st.DataObject) -> None:
        """Whatever a file holds, it gives a valid profile or an `InputError`."""
        content = bytearray(training_step(2).SerializeToString())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path = tmp_path / "damaged.pb"
        path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
        try:
            where = read_run_metadata([path], metadata()).source
        except InputError as error:
            where = error.where
        assert where == str(path)


def test_needs_no_tensorflow() -> None:
    """Reading uses TensorBoard's protobufs, and even those only when called."""
    script = (
        "import sys, asgd_model.tensorflow_trace as trace\n"
        "assert 'tensorboard' not in sys.modules\n"
        "from asgd_model.profile import Metadata\n"
        "trace.read_run_metadata([sys.argv[1]], Metadata(dnn='a', batch_size=1, link_rate=1))\n"
        "assert 'tensorboard' in sys.modules and 'tensorflow' not in sys.modules\n"
    )
    path = RAW / "alexnet" / "run_metadata_03.pb.gz"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
