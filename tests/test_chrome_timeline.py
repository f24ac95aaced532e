"""Reading Chrome timelines: one that TensorFlow wrote, small ones built by hand, damaged ones.

``data/alexnet_timeline.json.gz`` is what TensorFlow 2.21's
``Timeline(step_stats).generate_chrome_trace_format(show_memory=True)`` made of
``run_metadata_03.pb.gz`` of AlexNet among the project's raw data.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.config_pb2 import RunMetadata

import asgd_model
from asgd_model import chrome_timeline
from asgd_model.chrome_timeline import is_chrome_timeline, read_chrome_timeline
from asgd_model.errors import InputError
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, Profile
from asgd_model.step_labels import parse_label
from asgd_model.tensorflow_trace import read_run_metadata
from asgd_model.traces import read_traces

from .hand_built_traces import CPU, add_row, label, labelled_step, metadata, ps

TIMELINE = Path(__file__).parent / "data" / "alexnet_timeline.json.gz"
RUN_METADATA = Path(__file__).parents[1] / "data/raw/cpu-0.15-300mbit/alexnet/run_metadata_03.pb.gz"
GPU = "/job:worker/replica:0/task:0/device:GPU:0"

Edit = Callable[[list[Any]], object]


def events(message: RunMetadata, memory: bool = True) -> list[Any]:
    """The events of a timeline, two processes for each device as TensorFlow numbers them."""
    made: list[Any] = []
    for index, device in enumerate(message.step_stats.dev_stats):
        compute, tensors = 2 * index + 1, 2 * index + 2
        for pid, what in ((compute, "Compute"), (tensors, "Tensors")):
            arguments = {"name": f"{device.device} {what}"}
            made.append({"ph": "M", "name": "process_name", "pid": pid, "args": arguments})
        for lane, stats in enumerate(device.node_stats):
            start, duration = stats.all_start_micros, stats.all_end_rel_micros
            row = {"cat": "Op", "pid": compute, "tid": lane, "ts": start, "dur": duration}
            transfer = stats.node_name == "RecvTensor"
            kind, inputs = parse_label(stats.timeline_label)
            arguments = {"name": stats.node_name, "op": "RecvTensor" if transfer else kind}
            arguments |= {f"input{place}": text for place, text in enumerate(inputs or ())}
            made.append({"ph": "X", "name": arguments["op"], "args": arguments, **row})
            if memory and transfer:
                (output,) = stats.output
                snapshot = {"tensor_description": str(output.tensor_description)}
                where = {"pid": tensors, "tid": lane, "ts": start + duration - 1}
                made.append(
                    {
                        "ph": "O",
                        "cat": "Tensor",
                        "name": "RecvTensor",
                        "id": 0,
                        "args": {"snapshot": snapshot},
                        **where,
                    }
                )
    return made


def write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def read(tmp_path: Path, rows: list[Any], sizes: dict[str, int] | None = None) -> Profile:
    path = write(tmp_path / "timeline.json", {"traceEvents": rows})
    return read_chrome_timeline([path], metadata(), sizes)


def predecessors(profile: Profile, name: str) -> set[str]:
    return {profile.names[op] for op in profile.dependencies[profile.names.index(name)]}


@pytest.fixture(scope="module")
def recorded() -> Profile:
    return read_run_metadata([RUN_METADATA], metadata(worker_cores=0.15, server_cores=0.5))


@pytest.fixture(scope="module")
def timeline() -> Profile:
    return read_chrome_timeline([TIMELINE], metadata(worker_cores=0.15, server_cores=0.5))


class TestWrittenByTensorFlow:
    def test_operations_are_those_of_the_run_metadata(
        self, timeline: Profile, recorded: Profile
    ) -> None:
        """Computations keep kind, resource, times and work, to the microsecond of the format."""
        known = {
            (name, resource): op
            for op, (name, resource) in enumerate(
                zip(recorded.names, recorded.resources.tolist(), strict=True)
            )
        }
        computations = np.flatnonzero(np.isin(timeline.resources, (WORKER, SERVER)))
        assert len(computations) == np.isin(recorded.resources, (WORKER, SERVER)).sum()
        for op in computations:
            twin = known[timeline.names[op], int(timeline.resources[op])]
            assert timeline.kinds[op] == recorded.kinds[twin]
            assert timeline.start[0, op] == pytest.approx(recorded.start[0, twin], abs=2e-6)
            assert timeline.end[0, op] == pytest.approx(recorded.end[0, twin], abs=3e-6)
            assert timeline.work[0, op] == pytest.approx(recorded.work[0, twin], abs=2e-6)

    def test_transfers_are_those_of_the_run_metadata(
        self, timeline: Profile, recorded: Profile
    ) -> None:
        """Each tensor that a RunMetadata names is found again, with bytes and maker."""

        def transfers(profile: Profile, suffix: str) -> list[tuple[int, str, int]]:
            chosen = np.flatnonzero(np.isin(profile.resources, (DOWNLINK, UPLINK)))
            return sorted(
                (
                    int(profile.resources[op]),
                    re.sub(suffix, "", profile.names[op]),
                    int(profile.sizes[op]),
                )
                for op in chosen
            )

        assert transfers(timeline, r"_S\d+$") == transfers(recorded, r"^edge_\d+_")

    def test_rows_of_transfers_of_one_size_may_be_swapped_only(
        self, timeline: Profile, recorded: Profile
    ) -> None:
        """The rows are all used, each for a tensor of its size, before what waits for it."""

        def rows(profile: Profile) -> list[tuple[int, int, float, float]]:
            chosen = np.isin(profile.resources, (DOWNLINK, UPLINK))
            columns = (profile.resources, profile.sizes, profile.start[0], profile.end[0])
            return sorted(
                (int(resource), int(size), float(start), float(end))
                for resource, size, start, end in zip(
                    *(column[chosen] for column in columns), strict=True
                )
            )

        np.testing.assert_allclose(rows(timeline), rows(recorded), rtol=0, atol=2e-6)
        for op, sources in enumerate(timeline.dependencies):
            assert (timeline.end[0, sources] <= timeline.start[0, op] + 2e-6).all()

    def test_sizes_from_elsewhere(self, tmp_path: Path, timeline: Profile) -> None:
        """Without memory, the sizes of the makers give the same bytes in both directions."""
        document = json.loads(gzip.decompress(TIMELINE.read_bytes()))
        bare = [event for event in document["traceEvents"] if event["ph"] in "MXst"]
        with pytest.raises(InputError, match="no sizes of 33 transferred tensors") as caught:
            read(tmp_path, bare)
        assert "show_memory=True" in caught.value.expected
        sizes = {
            re.sub(r"_S\d+$", "", name): int(size)
            for name, size, resource in zip(
                timeline.names, timeline.sizes, timeline.resources, strict=True
            )
            if resource in (DOWNLINK, UPLINK) and size > 0
        }
        profile = read(tmp_path, bare, sizes)
        for direction in (DOWNLINK, UPLINK):
            assert profile.bytes_moved(direction) == timeline.bytes_moved(direction)

    def test_is_fit_to_predict_from(self, timeline: Profile) -> None:
        """The queueing model takes the profile as it is."""
        curve = asgd_model.predict(timeline, [1, 4], methods=["queueing"])
        assert (curve["steps_per_s"] > 0).all()


class TestHandBuilt:
    def test_equals_its_run_metadata(self, tmp_path: Path) -> None:
        """The same step in both formats is the same profile."""
        path = tmp_path / "step.pb"
        path.write_bytes(labelled_step().SerializeToString())
        expected = read_run_metadata([path], metadata())
        profile = read(tmp_path, events(labelled_step()))
        assert profile.names == expected.names
        assert profile.kinds == expected.kinds
        for column in ("resources", "servers", "sizes", "start", "end", "work"):
            np.testing.assert_array_equal(
                getattr(profile, column), getattr(expected, column), err_msg=column
            )
        for found, sources in zip(profile.dependencies, expected.dependencies, strict=True):
            np.testing.assert_array_equal(found, sources)

    def test_data_flow_makes_no_difference(self, tmp_path: Path) -> None:
        """Flow events repeat what the inputs say, as far as operations are in different lanes."""
        rows = events(labelled_step())
        flow = [
            {"ph": phase, "cat": "DataFlow", "name": "read", "id": 0, "pid": 1, "tid": 0, "ts": 1}
            for phase in "st"
        ]
        assert read(tmp_path, rows + flow).names == read(tmp_path, rows).names

    def test_several_steps(self, tmp_path: Path) -> None:
        document = {"traceEvents": events(labelled_step())}
        paths = [write(tmp_path / name, document) for name in ("one", "two")]
        assert read_chrome_timeline(paths, metadata()).steps == 2

    def test_kernels_of_a_gpu(self, tmp_path: Path) -> None:
        """Their rows have the operation's name once more, but no inputs, and are not doubles."""
        step = labelled_step()
        add_row(step, GPU, "norm", 30_000, 30_010)
        label(step, GPU, "norm", "Conv2D(gradient/_20)")
        for start in (31_000, 33_000):
            add_row(step, "/device:GPU:0/stream:all", "norm", start, start + 1_000)
        add_row(step, "/device:GPU:0/memcpy", "MEMCPYDtoH", 32_000, 33_000)
        profile = read(tmp_path, events(step))
        op = profile.names.index("norm")
        assert (profile.start[0, op], profile.end[0, op]) == pytest.approx((0.030, 0.034))
        assert predecessors(profile, "norm") == {"gradient"}

    def test_duplicate_with_undefined_inputs(self, tmp_path: Path) -> None:
        """An "unknown" row beside the operation's own is left out."""
        rows = events(labelled_step())
        own = next(row for row in rows if row["ph"] == "X" and row["args"]["name"] == "gradient")
        undefined = {"name": "gradient", "op": "unknown"}
        rows.append({**own, "name": "unknown", "ts": own["ts"] + 5, "args": undefined})
        profile = read(tmp_path, rows)
        assert profile.names.count("gradient") == 1
        assert profile.kinds[profile.names.index("gradient")] == "MatMul"

    def test_clock_offset(self, tmp_path: Path) -> None:
        """What holds for the clocks of RunMetadata holds here."""
        step = labelled_step()
        for device in step.step_stats.dev_stats:
            for stats in device.node_stats if device.device == ps() else ():
                stats.all_start_micros += 2_000_000
        profile = read(tmp_path, events(step))
        assert profile.step_times == pytest.approx([0.044])


def field(phase: str, *path: str, value: Any) -> Edit:
    """An edit that sets a field of the first event of a phase."""

    def edit(rows: list[Any]) -> None:
        place = next(row for row in rows if row["ph"] == phase)
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return edit


def without(phase: str, key: str) -> Edit:
    return lambda rows: next(row for row in rows if row["ph"] == phase).pop(key)


class TestRefused:
    @pytest.mark.parametrize(
        ("edit", "place", "expected"),
        [
            (field("X", "pid", value="1"), "pid", "an integer"),
            (field("X", "ts", value=True), "ts", "microseconds"),
            (field("X", "ts", value=1e300), "ts", "microseconds"),
            (field("X", "dur", value=-5), None, "a duration of at least 0"),
            (without("X", "dur"), "dur", "microseconds"),
            (field("X", "args", value=[1]), "args", "an object"),
            (field("X", "args", "name", value=3), "args.name", "a text"),
            (field("X", "args", "op", value=None), "args.op", "a text"),
            (field("M", "args", value={}), "args.name", "a text"),
            (field("M", "pid", value=1.5), "pid", "an integer"),
            (field("O", "args", value={"snapshot": 1}), "args.snapshot", "an object"),
            (field("O", "tid", value=None), "tid", "an integer"),
            (lambda rows: rows.insert(0, 7), "traceEvents[0]", "an event"),
            (lambda rows: rows.clear(), None, "tensorflow.python.client.timeline"),
        ],
    )
    def test_damaged_event(
        self, tmp_path: Path, edit: Edit, place: str | None, expected: str
    ) -> None:
        """The error names the file, the event and its field."""
        rows = events(labelled_step())
        edit(rows)
        with pytest.raises(InputError) as caught:
            read(tmp_path, rows)
        assert caught.value.where == str(tmp_path / "timeline.json")
        if place is not None:
            assert str(caught.value.field).endswith(place)
        assert expected in caught.value.expected

    @pytest.mark.parametrize(
        "document",
        [[], {}, {"traceEvents": {}}, {"traceEvents": [{"ph": "X", "pid": 1, "name": "Conv2D"}]}],
    )
    def test_other_json(self, tmp_path: Path, document: Any) -> None:
        """JSON of another kind, such as other profilers write, is refused with what is needed."""
        path = write(tmp_path / "other.json", document)
        with pytest.raises(InputError) as caught:
            read_chrome_timeline([path], metadata())
        assert "tensorflow.python.client.timeline" in caught.value.expected

    def test_operations_without_inputs(self, tmp_path: Path) -> None:
        """Without inputs there is no step graph."""
        rows = [
            {**row, "args": {"name": row["args"]["name"], "op": "unknown"}}
            if row["ph"] == "X"
            else row
            for row in events(labelled_step())
        ]
        with pytest.raises(InputError, match="no operation with inputs"):
            read(tmp_path, rows)

    def test_no_files(self) -> None:
        with pytest.raises(InputError, match="no files"):
            read_chrome_timeline([], metadata())

    def test_bounds(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Events, bytes after decompression and nesting have a limit."""
        rows = events(labelled_step())
        monkeypatch.setattr(chrome_timeline, "MAX_EVENTS", len(rows) - 1)
        with pytest.raises(InputError, match=rf"{len(rows)} events; expected at most"):
            read(tmp_path, rows)
        nested = tmp_path / "nested.json"
        nested.write_text('{"traceEvents": ' + "[" * 200_000)
        with pytest.raises(InputError, match="nested"):
            read_chrome_timeline([nested], metadata())
        monkeypatch.setattr(chrome_timeline, "MAX_TIMELINE_BYTES", 1000)
        large = tmp_path / "large.json.gz"
        large.write_bytes(gzip.compress(json.dumps({"traceEvents": rows}).encode()))
        with pytest.raises(InputError, match="more than 1000 bytes"):
            read_chrome_timeline([large], metadata())

    @settings(
        max_examples=50,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(data=st.data())
    def test_whatever_a_field_holds(self, tmp_path: Path, data: st.DataObject) -> None:
        """Any value in any field gives a profile or an `InputError`."""
        rows = events(labelled_step())
        place: Any = rows[data.draw(st.integers(0, len(rows) - 1))]
        key = data.draw(st.sampled_from(sorted(place)))
        if isinstance(place[key], dict) and data.draw(st.booleans()):
            place = place[key]
            key = data.draw(st.sampled_from(sorted(place)))
        place[key] = data.draw(
            st.none()
            | st.booleans()
            | st.integers(-(2**70), 2**70)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.sampled_from([CPU, ps(), "read/_2", "gradient", "RecvTensor", ""])
            | st.text(max_size=8)
            | st.lists(st.none(), max_size=2)
        )
        try:
            where = read(tmp_path, rows).source
        except InputError as error:
            where = error.where
        assert where == str(tmp_path / "timeline.json")


class TestEitherFormat:
    def test_told_apart_by_content(self, tmp_path: Path) -> None:
        """Names say nothing, and both may be compressed."""
        for content in (
            labelled_step().SerializeToString(),
            json.dumps({"traceEvents": events(labelled_step())}, indent=1).encode(),
        ):
            for stored in (content, gzip.compress(content)):
                path = tmp_path / "trace"
                path.write_bytes(stored)
                assert read_traces([path], metadata()).ops == 9

    def test_protobuf_that_begins_like_text(self) -> None:
        """A protobuf of 123 bytes begins with a line feed and a brace."""
        message = RunMetadata()
        message.step_stats.dev_stats.add(device="d" * 119)
        content = message.SerializeToString()
        assert content[:2] == b"\n{"
        assert not is_chrome_timeline(content)

    def test_mixed(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="found RunMetadata; expected a Chrome timeline"):
            read_traces([TIMELINE, RUN_METADATA], metadata())

    def test_sizes_of_run_metadata(self) -> None:
        with pytest.raises(InputError, match="RunMetadata have them"):
            read_traces([RUN_METADATA], metadata(), {"read": 4})

    def test_no_files(self) -> None:
        with pytest.raises(InputError, match="no files"):
            read_traces([], metadata())
