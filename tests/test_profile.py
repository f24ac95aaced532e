"""A profile survives being stored, and a file that is no profile is refused with a reason."""

from __future__ import annotations

import copy
import gzip
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model.errors import InputError
from asgd_model.profile import (
    DOWNLINK,
    RESOURCES,
    SERVER,
    UPLINK,
    WORKER,
    Calibration,
    CommunicationCost,
    Metadata,
    Profile,
    load_profile,
    save_profile,
)

ARRAYS = ("resources", "servers", "sizes", "work", "start", "end")


def assert_equal(found: Profile, expected: Profile) -> None:
    """All that is stored is the same, types included."""
    assert (found.names, found.kinds) == (expected.names, expected.kinds)
    for name in ARRAYS:
        left, right = getattr(found, name), getattr(expected, name)
        assert left.dtype == right.dtype, name
        np.testing.assert_array_equal(left, right, err_msg=name)
    assert [row.tolist() for row in found.dependencies] == [
        row.tolist() for row in expected.dependencies
    ]
    assert found.metadata == expected.metadata


def nanoseconds(low: int = 0, high: int = 10**13) -> st.SearchStrategy[float]:
    """Times that the format keeps exactly, in seconds."""
    return st.integers(low, high).map(lambda count: count / 1e9)


costs = st.builds(CommunicationCost, per_byte=st.floats(0, 1), per_tensor=st.floats(0, 1))
metadata = st.builds(
    Metadata,
    dnn=st.text(min_size=1),
    batch_size=st.integers(1, 2**63 - 1),
    parameters=st.none() | st.integers(1, 2**63 - 1),
    platform=st.none() | st.text(),
    link_rate=st.floats(0, exclude_min=True, allow_infinity=False),
    worker_cores=st.floats(1e-3, 1e3),
    worker_threads=st.integers(1, 1024),
    stream_window=st.none() | st.integers(1, 2**63 - 1),
    calibration=st.builds(
        Calibration, worker_send=costs, server_receive=costs, newcomer_share=st.floats(0.01, 1)
    ),
)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Any small profile: operations in no order, any graph without cycles, any times."""
    ops, steps = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    order = draw(st.permutations(range(ops)))
    dependencies: list[Any] = [None] * ops
    for position, op in enumerate(order):
        earlier = (
            st.lists(st.sampled_from(order[:position]), max_size=4) if position else st.just([])
        )
        dependencies[op] = np.array(draw(earlier), dtype=np.int32)
    resources = np.array(draw(st.lists(st.integers(0, 3), min_size=ops, max_size=ops)), np.int8)
    servers = np.array(draw(st.lists(st.integers(0, 4), min_size=ops, max_size=ops)), np.int32)
    sizes = st.lists(st.integers(0, 2**63 - 1), min_size=ops, max_size=ops)

    def table() -> np.ndarray:
        row = st.lists(nanoseconds(), min_size=ops, max_size=ops)
        return np.array(draw(st.lists(row, min_size=steps, max_size=steps)))

    first, second = table(), table()
    text = st.lists(st.text(max_size=8), min_size=ops, max_size=ops).map(tuple)
    return Profile(
        names=draw(text),
        kinds=draw(text),
        resources=resources,
        servers=np.where(resources == WORKER, -1, servers).astype(np.int32),
        sizes=np.array(draw(sizes), dtype=np.int64),
        dependencies=tuple(dependencies),
        work=table(),
        start=np.minimum(first, second),
        end=np.maximum(first, second),
        metadata=draw(metadata),
    )


@given(profile=profiles())
@settings(max_examples=60, deadline=None)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, profile: Profile) -> None:
    """Stored and loaded, plain or compressed, a profile is the same; the bytes too."""
    folder = tmp_path_factory.mktemp("profile")
    for name in ("a.profile.json", "a.profile.json.gz"):
        path = folder / name
        save_profile(profile, path)
        loaded = load_profile(path)
        assert_equal(loaded, profile)
        assert loaded.source == str(path)
        once = path.read_bytes()
        save_profile(loaded, path)
        assert path.read_bytes() == once


@given(profile=profiles())
@settings(max_examples=60, deadline=None)
def test_topological_order(profile: Profile) -> None:
    """Each operation once, after all that it depends on."""
    order = profile.topological_order.tolist()
    assert sorted(order) == list(range(profile.ops))
    place = {op: position for position, op in enumerate(order)}
    for op, dependencies in enumerate(profile.dependencies):
        assert all(place[dependency] < place[op] for dependency in dependencies.tolist())


def test_times_are_rounded_to_the_nanosecond(small: Profile, tmp_path: Path) -> None:
    """What traces do not resolve is not stored."""
    path = tmp_path / "a.json"
    save_profile(replace(small, work=np.full_like(small.work, 1 / 3)), path)
    assert load_profile(path).work[0, 0] == 0.333333333


def test_figures_of_a_profile(small: Profile) -> None:
    """Sums and means, worked out by hand."""
    assert (small.steps, small.ops, small.num_servers) == (2, 12, 1)
    assert small.step_times.tolist() == [9.6, 9.6]
    assert small.bytes_moved(DOWNLINK) == small.bytes_moved(UPLINK) == 4_000_000
    assert small.mean_work(WORKER) == pytest.approx(2.75)  # 2.5 and 3.0
    assert small.mean_work(SERVER) == pytest.approx(0.22)
    assert repr(small) == (
        "<Profile small, batch 4: 2 steps of 12 operations, 4.0 MB down, 4.0 MB up>"
    )


def test_summary(small: Profile) -> None:
    """One row per resource, also for one that is not used."""
    table = small.summary()
    assert table.index.tolist() == list(RESOURCES)
    assert table["operations"].tolist() == [2, 4, 2, 4]
    assert table["bytes"].tolist() == [4_000_000, 0, 4_000_000, 0]
    assert table["work_s"].tolist() == pytest.approx([0, 2.75, 0, 0.22])
    assert table["first_start_s"].tolist() == [0, 1, 5.5, 0]
    assert table["last_end_s"].tolist() == [4, 6, 9.5, 9.6]
    on_worker = replace(
        small,
        resources=np.full(12, WORKER, dtype=np.int8),
        servers=np.full(12, -1, dtype=np.int32),
    )
    unused = on_worker.summary().loc["uplink"]
    assert (unused["operations"], unused["bytes"], unused["work_s"]) == (0, 0, 0)
    assert math.isnan(unused["first_start_s"])
    assert math.isnan(unused["last_end_s"])


def test_overlap(small: Profile) -> None:
    """The worker computes from 1 to 1.5 and 4 to 6 s; transfers go to 4 and from 5.5 to 9.5 s."""
    table = small.overlap()
    assert table.shape == (2, 4)
    row = table.iloc[0]
    assert row["step_s"] == pytest.approx(9.6)
    assert row["transferring_s"] == pytest.approx(8.0)
    assert row["computing_s"] == pytest.approx(2.5)
    assert row["both_s"] == pytest.approx(1.0)


def test_recalibrated(small: Profile) -> None:
    """One value differs, checked like that of a file; everything else is the same."""
    changed = small.recalibrated(tracing_overhead=0.5)
    expected = small.metadata.calibration.model_copy(update={"tracing_overhead": 0.5})
    assert changed.metadata.calibration == expected
    assert_equal(replace(changed, metadata=small.metadata), small)
    for name, value in (("tracing_overhead", -1.0), ("newcomer_share", 2.0), ("unknown", 1.0)):
        with pytest.raises(InputError, match=rf"calibration: {name}: found {value}; expected"):
            small.recalibrated(**{name: value})


def test_to_frame(small: Profile) -> None:
    """The rows of one step by their start; a step that was not profiled is refused."""
    table = small.to_frame(1)
    assert table["start_s"].is_monotonic_increasing
    assert table["name"].tolist()[4:6] == ["forward first", "forward second"]
    row = table[table["name"] == "send second"].iloc[0]
    assert row["resource"] == "uplink"
    assert row["bytes"] == 3_000_000
    assert table["work_s"].sum() == pytest.approx(1.2 * 2.7)
    for step in (-1, 2):
        with pytest.raises(InputError, match=rf"step: found {step}; expected 0 to 1"):
            small.to_frame(step)


# --- bad input ------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def document(small: Profile, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A profile as it is stored."""
    path = tmp_path_factory.mktemp("profile") / "small.json"
    save_profile(small, path)
    stored: dict[str, Any] = json.loads(path.read_text())
    return stored


def refusal(path: Path, content: bytes) -> str:
    """The message with which a file is refused, without the path that it begins with."""
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_profile(path)
    assert caught.value.where == str(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found an empty file; expected content"),
        (b"not a profile\n", "found Expecting value at line 1, column 1; expected a JSON document"),
        (gzip.compress(b"[1, 2]")[:-9], r"found damaged gzip data \(.*\); expected a complete"),
        (b'{"format": "\xe9"}', "found a byte that is not UTF-8 at 12; expected JSON text"),
        (b"[1, 2]", 'format: found no object; expected "asgd_model profile"'),
        (b"{}", 'format: found no format; expected "asgd_model profile"'),
        (b'{"format": "other"}', 'format: found other; expected "asgd_model profile"'),
        (b'{"format": "asgd_model profile"}', "version: found no version; expected version 1"),
    ],
    ids=["empty", "text", "truncated", "latin-1", "list", "object", "other", "header only"],
)
def test_files_that_are_no_profiles(tmp_path: Path, content: bytes, message: str) -> None:
    """The file is named, what it is, and what a profile would have been."""
    assert re.match(message, refusal(tmp_path / "a.profile.json.gz", content))


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change that sets the entry at a path of keys and indices."""

    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


def drop(*path: str | int) -> Callable[[dict[str, Any]], None]:
    """A change that removes the entry at a path of keys and indices."""

    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return change


HUGE = 10**400

CHANGES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "newer version": (put("version", value=2), "version: found 2; expected version 1"),
    "version as text": (put("version", value="1"), "version: found 1; expected version 1"),
    "version true": (put("version", value=True), "version: found True; expected version 1"),
    "unknown field": (put("extra", value=1), "top level: found ['extra']; expected only ['format'"),
    "no metadata": (drop("metadata"), "metadata: found None; expected"),
    "unknown metadata": (
        put("metadata", "gpu", value="x"),
        "metadata.gpu: found x; expected Extra inputs are not permitted",
    ),
    "unknown calibration": (
        put("metadata", "calibration", "worker_send", "per_packet", value=1.0),
        "metadata.calibration.worker_send.per_packet: found 1.0; expected Extra",
    ),
    "missing metadata": (drop("metadata", "dnn"), "metadata.dnn: found nothing; expected a value"),
    "no name": (put("metadata", "dnn", value=""), "metadata.dnn: found ; expected String should"),
    "bandwidth 0": (
        put("metadata", "link_rate", value=0),
        "metadata.link_rate: found 0; expected greater than 0",
    ),
    "negative bandwidth": (
        put("metadata", "link_rate", value=-1.5),
        "metadata.link_rate: found -1.5; expected greater than 0",
    ),
    "bandwidth true": (
        put("metadata", "link_rate", value=True),
        "metadata.link_rate: found True; expected a valid number",
    ),
    "bandwidth as text": (
        put("metadata", "link_rate", value="1e9"),
        "metadata.link_rate: found 1e9; expected a valid number",
    ),
    "huge bandwidth": (
        put("metadata", "link_rate", value=HUGE),
        "metadata.link_rate: found 1000",
    ),
    "batch true": (
        put("metadata", "batch_size", value=True),
        "metadata.batch_size: found True; expected a valid integer",
    ),
    "no examples": (
        put("metadata", "batch_size", value=0),
        "metadata.batch_size: found 0; expected greater than or equal to 1",
    ),
    "huge batch": (
        put("metadata", "batch_size", value=HUGE),
        "metadata.batch_size: found 1000",
    ),
    "half a thread": (
        put("metadata", "worker_threads", value=0.5),
        "metadata.worker_threads: found 0.5; expected a valid integer",
    ),
    "window 0": (
        put("metadata", "stream_window", value=0),
        "metadata.stream_window: found 0; expected greater than 0",
    ),
    "negative cost": (
        put("metadata", "calibration", "server_send", "per_byte", value=-1e-9),
        "metadata.calibration.server_send.per_byte: found -1e-09; expected greater than or equal",
    ),
    "no ops": (drop("ops"), "ops: found NoneType; expected the columns name, kind, resource,"),
    "ops as list": (put("ops", value=[]), "ops: found list; expected the columns name, kind"),
    "missing column": (
        drop("ops", "bytes"),
        "ops: found ['dependencies', 'kind', 'name', 'resource', 'server']; expected the columns",
    ),
    "unknown column": (put("ops", "cost", value=[]), "ops: found ['bytes', 'cost', 'dependencies'"),
    "missing times": (
        drop("steps", "end"),
        "steps: found ['start', 'work']; expected the columns work, start, end",
    ),
    "column as object": (
        put("ops", "kind", value={}),
        "ops.kind: found dict; expected a list",
    ),
    "short column": (
        drop("ops", "kind", 3),
        "ops.kind: found 11 values; expected 12, one for each",
    ),
    "short bytes": (drop("ops", "bytes", 3), "ops.bytes: found 11 values; expected 12, one for"),
    "short resources": (drop("ops", "resource", 0), "ops.resource: found 11 values; expected 12,"),
    "short dependencies": (
        drop("ops", "dependencies", 0),
        "ops.dependencies: found 11 values; expected 12",
    ),
    "name as number": (put("ops", "name", 2, value=7), "ops.name[2]: found 7; expected a string"),
    "unknown resource": (
        put("ops", "resource", 2, value="disk"),
        "ops.resource[2]: found disk; expected one of downlink, worker, uplink, server",
    ),
    "resource as list": (
        put("ops", "resource", 2, value=["worker"]),
        "ops.resource[2]: found ['worker']; expected one of downlink",
    ),
    "negative bytes": (put("ops", "bytes", 2, value=-1), "ops.bytes[2]: found -1; expected bytes"),
    "bytes true": (put("ops", "bytes", 2, value=True), "ops.bytes[2]: found True; expected an int"),
    "half bytes": (put("ops", "bytes", 2, value=1.5), "ops.bytes[2]: found 1.5; expected an integ"),
    "huge bytes": (
        put("ops", "bytes", 2, value=2**63),
        f"ops.bytes[2]: found {2**63}; expected an integer of 64 bits",
    ),
    "huge server": (
        put("ops", "server", 2, value=2**31),
        f"ops.server[2]: found {2**31}; expected an integer of 32 bits",
    ),
    "worker's server": (
        put("ops", "server", 4, value=0),
        "ops.server[4]: found 0; expected -1 for the worker's operations",
    ),
    "negative server": (
        put("ops", "server", 2, value=-1),
        "ops.server[2]: found -1; expected -1 for the worker's operations, the server's index",
    ),
    "dependency as number": (
        put("ops", "dependencies", 2, value=0),
        "ops.dependencies[2]: found int; expected a list of integers",
    ),
    "dependency true": (
        put("ops", "dependencies", 2, value=[True]),
        "ops.dependencies[2][0]: found True; expected an integer of 32 bits",
    ),
    "dependency out of range": (
        put("ops", "dependencies", 2, value=[0, 12]),
        "ops.dependencies[2]: found [0, 12]; expected indices from 0 to 11",
    ),
    "negative dependency": (
        put("ops", "dependencies", 2, value=[-1]),
        "ops.dependencies[2]: found [-1]; expected indices from 0 to 11",
    ),
    "cycle": (
        put("ops", "dependencies", 4, value=[7]),
        "ops.dependencies: found a cycle through ops [4, 5, 6, 7, 8]; expected a graph without",
    ),
    "own dependency": (
        put("ops", "dependencies", 11, value=[11]),
        "ops.dependencies: found a cycle through ops [11]; expected a graph without cycles",
    ),
    "no steps": (
        lambda document: [document["steps"].update({name: []}) for name in document["steps"]],
        "steps.work: found no steps; expected at least one profiled step",
    ),
    "fewer starts": (
        drop("steps", "start", 0),
        "steps.start: found (1, 12); expected shape (2, 12)",
    ),
    "short step": (
        drop("steps", "end", 1, 0),
        "steps.end[1]: found 11 values; expected 12 values",
    ),
    "step as number": (
        put("steps", "work", 1, value=1.0),
        "steps.work[1]: found float; expected 12 values",
    ),
    "time as text": (
        put("steps", "work", 1, 5, value="1"),
        "steps.work[1][5]: found 1; expected a number of seconds",
    ),
    "time true": (
        put("steps", "work", 1, 5, value=True),
        "steps.work[1][5]: found True; expected a number of seconds",
    ),
    "no time": (
        put("steps", "work", 1, 5, value=None),
        "steps.work[1][5]: found None; expected a number of seconds",
    ),
    "huge time": (
        put("steps", "work", 1, 5, value=HUGE),
        "steps.work: found an integer too large; expected seconds",
    ),
    "negative work": (
        put("steps", "work", 1, 5, value=-0.25),
        "steps.work[1][5]: found -0.25; expected seconds >= 0",
    ),
    "negative start": (
        put("steps", "start", 0, 2, value=-1.0),
        "steps.start[0][2]: found -1.0; expected seconds >= 0",
    ),
    "end before start": (
        put("steps", "end", 1, 8, value=5.25),
        "steps.end[1][8]: found 5.25; expected an end not before its start",
    ),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_changed_profiles(
    tmp_path: Path,
    document: dict[str, Any],
    change: Callable[[dict[str, Any]], None],
    message: str,
) -> None:
    """One wrong value is found and named: file, field, what is there, what should be."""
    changed = copy.deepcopy(document)
    change(changed)
    found = refusal(tmp_path / "a.profile.json", json.dumps(changed).encode())
    assert found.startswith(message)
    assert "; expected " in found


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("NaN", "found NaN; expected finite numbers"),
        ("Infinity", "found Infinity; expected finite numbers"),
        ("1e999", "steps.work[1][5]: found inf; expected seconds >= 0"),
    ],
)
def test_numbers_that_are_not_finite(
    tmp_path: Path, document: dict[str, Any], number: str, message: str
) -> None:
    """Neither what JSON does not know nor what a float cannot hold."""
    changed = copy.deepcopy(document)
    changed["steps"]["work"][1][5] = "here"
    content = json.dumps(changed).replace('"here"', number).encode()
    assert refusal(tmp_path / "a.profile.json", content) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": (), "kinds": ()}, "ops: found no operations; expected at least one"),
        ({"kinds": ("a",)}, "ops.kind: found 1 values; expected 12, one for each"),
        ({"work": np.zeros(12)}, "steps.work: found no steps; expected at least one profiled"),
        ({"work": np.zeros((0, 12))}, "steps.work: found no steps; expected at least one profiled"),
        ({"start": np.zeros((2, 11))}, "steps.start: found (2, 11); expected shape (2, 12)"),
        ({"work": np.full((2, 12), np.nan)}, "steps.work[0][0]: found nan; expected seconds"),
        ({"end": np.full((2, 12), np.inf)}, "steps.end[0][0]: found inf; expected seconds"),
    ],
)
def test_profiles_made_in_memory_are_checked(
    small: Profile, change: dict[str, Any], message: str
) -> None:
    """A profile that is no file is checked as well; `source` says where it is from."""
    with pytest.raises(InputError) as caught:
        replace(small, **change, source="my job")
    assert str(caught.value).startswith(f"my job: {message}")


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "worker", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_change_gets_past_the_checks(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any], data: st.DataObject
) -> None:
    """Whatever stands anywhere in the file, it is a profile or an `InputError`, nothing else."""
    changed = copy.deepcopy(document)
    holder: Any = changed
    key: Any = data.draw(st.sampled_from(sorted(holder)))
    while isinstance(holder[key], dict | list) and holder[key] and data.draw(st.integers(0, 4)):
        holder = holder[key]
        keys = sorted(holder) if isinstance(holder, dict) else range(len(holder))
        key = data.draw(st.sampled_from(keys))
    holder[key] = data.draw(anything)
    path = tmp_path_factory.mktemp("fuzz") / "a.json"
    path.write_text(json.dumps(changed).replace("Infinity", "1e999"))
    try:
        profile = load_profile(path)
    except InputError as error:
        message = str(error)
    else:
        message = ""
        assert np.isfinite(profile.work).all()
        assert (profile.end >= profile.start).all()
        assert len(profile.topological_order) == profile.ops
    assert message == "" or message.startswith(f"{path}: ")
