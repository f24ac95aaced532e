"""Captures are reduced to the frames that were in them; tables are read as they were written."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from asgd_model.capture import COLUMNS, load_frames, number_steps, reduce_capture, save_frames
from asgd_model.errors import InputError

WORKER, SERVER = "10.0.0.2", "10.0.0.1"

with_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is missing")


def frame(kind: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, 0, stream) + payload


def capture(*segments: tuple[float, str, bytes]) -> bytes:
    """A pcap file of TCP segments, (time, sender, payload), between the worker and port 2222."""
    content = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 101)
    sent = {WORKER: 1, SERVER: 1}
    for time, sender, payload in segments:
        receiver = SERVER if sender == WORKER else WORKER
        ports = (40_000, 2222) if sender == WORKER else (2222, 40_000)
        tcp = struct.pack(
            ">HHIIBBHHH", *ports, sent[sender], sent[receiver], 5 << 4, 0x18, 65_535, 0, 0
        )
        sent[sender] += len(payload)
        addresses = [bytes(map(int, node.split("."))) for node in (sender, receiver)]
        length = 20 + len(tcp) + len(payload)
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, length, 0, 0, 64, 6, 0, *addresses)
        seconds, microseconds = divmod(round(time * 1e6), 1_000_000)
        content += struct.pack("<IIII", seconds, microseconds, length, length)
        content += ip + tcp + payload
    return content


@pytest.fixture
def packets(tmp_path: Path) -> Path:
    """A parameter that is asked for and comes in three packets, the last with other frames."""
    key = b"/job:ps/task:0/device:CPU:0;0011223344556677;/job:worker/task:0/device:CPU:0;"
    request = frame(1, 7, b"\x82\x84") + frame(0, 7, b"\0\0\0\0\x60" + key + b"edge_4_w/read;0:0")
    settings = struct.pack(">HIHIHI", 4, 4_194_304, 6, 16_384, 5, 8_388_608)
    response = frame(0, 7, bytes(3000)) + frame(8, 0, struct.pack(">I", 70_000))
    response += frame(8, 9, struct.pack(">I", 5_000)) + frame(4, 0, settings)
    path = tmp_path / "step.pcap"
    parts = response[:1400], response[1400:2800], response[2800:]
    answer = [(5.1 + 0.1 * i, SERVER, part) for i, part in enumerate(parts)]
    path.write_bytes(capture((5.0, WORKER, request), *answer))
    return path


@with_tshark
def test_reduce_capture(packets: Path) -> None:
    """Each frame with the time of its last byte, settings by name, the tensor by the request."""
    frames = reduce_capture(packets, WORKER)
    name = "edge_4_w/read"
    expected = [
        (0, 0.0, "up", 0, 7, "HEADERS", 2, np.nan, name),
        (0, 0.0, "up", 0, 7, "DATA", 99, np.nan, name),
        (0, 0.3, "down", 0, 7, "DATA", 3000, np.nan, name),
        (0, 0.3, "down", 0, 0, "WINDOW_UPDATE", 4, 70_000.0, np.nan),
        (0, 0.3, "down", 0, 9, "WINDOW_UPDATE", 4, 5_000.0, np.nan),
        (0, 0.3, "down", 0, 0, "SETTINGS", 18, np.nan, np.nan),
        (0, 0.3, "down", 0, 0, "INITIAL_WINDOW_SIZE", 0, 4_194_304.0, np.nan),
        (0, 0.3, "down", 0, 0, "MAX_FRAME_SIZE", 0, 8_388_608.0, np.nan),
    ]
    pd.testing.assert_frame_equal(
        frames, pd.DataFrame(expected, columns=list(COLUMNS)), check_dtype=False
    )


@with_tshark
def test_captures_that_cannot_be_reduced(tmp_path: Path) -> None:
    """No file, no capture, nothing in it: the error names the file."""
    path = tmp_path / "no.pcap"
    with pytest.raises(InputError, match=r"no\.pcap: found nothing there"):
        reduce_capture(path, WORKER)
    path.write_bytes(b"this is no packet capture at all")
    with pytest.raises(InputError, match=r"no\.pcap: .*expected a packet capture"):
        reduce_capture(path, WORKER)
    path.write_bytes(capture())
    with pytest.raises(InputError, match="no HTTP/2 frames"):
        reduce_capture(path, WORKER)


def test_without_tshark(packets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what is missing."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="no command tshark"):
        reduce_capture(packets, WORKER)


def numbered(*calls: tuple[float, float, int]) -> list[int]:
    """Steps of calls (begin, end, bytes of the response), one stream each."""
    rows = []
    for index, (begin, end, size) in enumerate(calls):
        stream = 2 * index + 1
        rows.append((begin, "up", 0, stream, "DATA", 10, np.nan, None))
        rows.append((end, "down", 0, stream, "DATA", size, np.nan, None))
        rows.append((end, "up", 0, 0, "WINDOW_UPDATE", 4, 9.0, None))
    frames = number_steps(pd.DataFrame(rows, columns=list(COLUMNS[1:])))
    whole = frames[frames["stream"] == 0]["step"].tolist()
    assert whole == frames[frames["direction"] == "down"]["step"].tolist()
    return whole


def test_steps() -> None:
    """A step lasts as long as any of its streams is open; small calls in between are none."""
    calls = [(0, 10, 5), (1, 4, 1000), (6, 9, 1000), (11, 12, 5), (13, 20, 5), (14, 18, 2000)]
    assert numbered(*calls) == [0, 0, 0, -1, 1, 1]


@pytest.fixture
def frames() -> pd.DataFrame:
    """Two frames, one of them with a value and one with a name."""
    rows = [
        (0, 0.0, "up", 0, 1, "DATA", 10, np.nan, "a/b:0"),
        (0, 0.5, "down", 0, 0, "WINDOW_UPDATE", 4, 65_536.0, np.nan),
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


@pytest.mark.parametrize("name", ["f.csv", "f.csv.gz"])
def test_tables_are_read_as_written(frames: pd.DataFrame, tmp_path: Path, name: str) -> None:
    """Plain or compressed, the same table, and the same bytes for the same table."""
    path = tmp_path / name
    save_frames(frames, path)
    first = path.read_bytes()
    pd.testing.assert_frame_equal(load_frames(path), frames, check_dtype=False)
    save_frames(load_frames(path), path)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(columns="type"), "type"),
        (lambda table: table.assign(direction="left"), "direction, row 2: found left"),
        (lambda table: table.assign(type="PONG"), "type, row 2: found PONG"),
        (lambda table: table.assign(bytes=[10, -1]), "bytes, row 3: found -1"),
        (lambda table: table.assign(time=["now", 1]), "time, row 2: found now"),
        (lambda table: table[::-1], "time, row 3: found 0.0; expected times in ascending order"),
    ],
)
def test_tables_that_are_refused(
    frames: pd.DataFrame,
    tmp_path: Path,
    change: Callable[[pd.DataFrame], pd.DataFrame],
    message: str,
) -> None:
    """The error names the column, the row and the value."""
    path = tmp_path / "f.csv"
    change(frames).to_csv(path, index=False)
    with pytest.raises(InputError, match=message):
        load_frames(path)


def test_no_table(tmp_path: Path) -> None:
    """What is no table at all is refused by name."""
    path = tmp_path / "f.csv"
    path.write_text("\n")
    with pytest.raises(InputError, match="a CSV table"):
        load_frames(path)
