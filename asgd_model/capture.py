"""The HTTP/2 frames on one worker's connections: a packet capture as a table.

TensorFlow moves tensors by gRPC: a call is a stream of an HTTP/2 connection (RFC 9113). Whoever
wants a tensor sends a request, and the response carries it. So parameters travel on the
connections that a worker opens to the servers, and gradients on those that servers open to it.

A table of frames has one row per frame, in order of time:

========== ======================================================================================
step       number of the worker's step that the frame belongs to, -1 for none
time       seconds since the first frame of the capture; a frame is there with its last byte
direction  ``down`` to the worker, ``up`` from it
connection number of the TCP connection
stream     number of the stream; 0 for the whole connection
type       ``DATA``, ``HEADERS``, ``WINDOW_UPDATE``, ...; a setting is a row by its own name:
           ``INITIAL_WINDOW_SIZE``, ``MAX_FRAME_SIZE``
bytes      length of the frame's payload
value      bytes by which a window is opened, or that a setting allows; else missing
tensor     name of the tensor that the stream carries, as in profiles, where it is known
========== ======================================================================================

Only reducing a capture needs ``tshark``; the table is read without.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from asgd_model.errors import InputError
from asgd_model.files import read_bytes, write_bytes

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "step",
    "time",
    "direction",
    "connection",
    "stream",
    "type",
    "bytes",
    "value",
    "tensor",
)

FRAMES = (
    "DATA",
    "HEADERS",
    "PRIORITY",
    "RST_STREAM",
    "SETTINGS",
    "PUSH_PROMISE",
    "PING",
    "GOAWAY",
    "WINDOW_UPDATE",
    "CONTINUATION",
)
"""Types of frames by their number (RFC 9113, section 6)."""

SETTINGS = {4: "INITIAL_WINDOW_SIZE", 5: "MAX_FRAME_SIZE"}
"""Settings that a table keeps, by their number (RFC 9113, section 6.5.2)."""

_SETTING_BYTES = 6
_STEP_BYTES = 0.5
"""A step carries at least this part of the bytes of the largest one."""

_FIELDS = (
    "frame.time_epoch",
    "ip.dst",
    "tcp.stream",
    "http2.type",
    "http2.streamid",
    "http2.length",
    "http2.window_update.window_size_increment",
    "http2.settings.id",
    "http2.settings.initial_window_size",
    "http2.settings.max_frame_size",
)
_NAMED = ("tcp.stream", "http2.type", "http2.streamid", "http2.length", "http2.data.data")
_KEY = re.compile(rb";(edge_[^;]+);\d+:\d+")
"""The tensor's name within the key that a request sends (TensorFlow's rendezvous key)."""


def reduce_capture(path: str | os.PathLike[str], worker: str, port: int = 2222) -> pd.DataFrame:
    """Reduce a packet capture of one worker to its table of frames.

    Parameters
    ----------
    path : path-like
        A file of ``tcpdump`` with whole packets. It must begin while the connections are idle:
        a frame cannot be found from within another.
    worker : str
        IPv4 address of the worker.
    port : int
        TCP port of all nodes.

    Returns
    -------
    DataFrame
        The table that the module describes.

    Raises
    ------
    InputError
        If ``tshark`` is missing or cannot read the capture, or there is no frame in it.
    """
    import pandas as pd

    rows = [row for line in _tshark(path, port, "http2", _FIELDS) for row in _frames(line, worker)]
    if not rows:
        raise InputError(os.fspath(path), "no HTTP/2 frames", f"a capture of TCP port {port}")
    frames = pd.DataFrame(
        rows, columns=["time", "direction", "connection", "stream", "type", "bytes", "value"]
    )
    frames["time"] = (frames["time"] - frames["time"].iloc[0]).round(6)
    names = _tensors(path, port)
    keys = zip(frames["connection"], frames["stream"], strict=True)
    frames["tensor"] = pd.Series([names.get(key, np.nan) for key in keys], dtype=object)
    return number_steps(frames)


def number_steps(frames: pd.DataFrame) -> pd.DataFrame:
    """Find the worker's steps in a table of frames.

    During a step at least one stream is open: the call that tells a server to run its part of
    the graph lasts as long as the step. Periods in which no stream is open separate steps, and
    those that carry little are none.

    Parameters
    ----------
    frames : DataFrame
        All columns of a table of frames but `step`.

    Returns
    -------
    DataFrame
        The table with its column `step`.
    """
    import pandas as pd

    opened = frames[frames["stream"] > 0]
    streams = opened.groupby(["connection", "stream"]).agg(
        first=("time", "min"), last=("time", "max"), bytes=("bytes", "sum")
    )
    streams = streams.sort_values("first", kind="stable")
    idle = streams["first"] > streams["last"].cummax().shift(fill_value=-np.inf)
    period = idle.cumsum().rename("period")
    carried = streams.groupby(period)["bytes"].sum()
    steps = carried.index[carried >= _STEP_BYTES * carried.max()]
    keys = pd.MultiIndex.from_frame(frames[["connection", "stream"]])
    of_frame = period.reindex(keys).to_numpy()
    step = np.full(len(frames), -1, dtype=np.int64)
    for number, name in enumerate(steps):
        own = streams[period == name]
        during = frames["time"].between(own["first"].min(), own["last"].max())
        step[(of_frame == name) | ((frames["stream"] == 0) & during)] = number
    return frames.assign(step=step)[list(COLUMNS)]


def load_frames(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a table of frames.

    Parameters
    ----------
    path : path-like
        CSV file, plain or gzip, with the columns that the module describes.

    Raises
    ------
    InputError
        If the file is not such a table, naming column, row and value.
    """
    import pandas as pd

    where = os.fspath(path)
    try:
        frames = pd.read_csv(io.BytesIO(read_bytes(path)), dtype={"tensor": object})
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise InputError(where, str(error).strip(), "a CSV table") from error
    for column in COLUMNS:
        if column not in frames:
            expected = f"the columns {', '.join(COLUMNS)}"
            raise InputError(where, ", ".join(map(str, frames.columns)), expected, column)
    for column, least in {"step": -1, "time": 0, "connection": 0, "stream": 0, "bytes": 0}.items():
        values = pd.to_numeric(frames[column], errors="coerce")
        _require(where, frames, column, values >= least, f"a number of at least {least}")
    later = pd.to_numeric(frames["time"]).diff().fillna(0.0) >= 0.0
    _require(where, frames, "time", later, "times in ascending order")
    _require(where, frames, "direction", frames["direction"].isin(["down", "up"]), "down or up")
    known = frames["type"].isin([*FRAMES, *SETTINGS.values()])
    _require(where, frames, "type", known, f"one of {', '.join((*FRAMES, *SETTINGS.values()))}")
    return frames[list(COLUMNS)]


def save_frames(frames: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a table of frames, all or nothing; as gzip if the name ends in ``.gz``."""
    buffer = io.BytesIO()
    compression = {"method": "gzip", "mtime": 0} if Path(path).suffix == ".gz" else None
    table = frames.assign(value=frames["value"].astype("Int64"))[list(COLUMNS)]
    table.to_csv(buffer, index=False, lineterminator="\n", compression=compression)
    write_bytes(path, buffer.getvalue())


def _require(
    where: str, frames: pd.DataFrame, column: str, right: pd.Series[bool], expected: str
) -> None:
    """Refuse the table if a cell of the column is not right."""
    wrong = np.flatnonzero(~right.to_numpy(dtype=bool))
    if len(wrong):
        row = int(wrong[0])
        raise InputError(where, frames[column].iloc[row], expected, f"{column}, row {row + 2}")


def _tshark(
    path: str | os.PathLike[str], port: int, shown: str, fields: tuple[str, ...]
) -> Iterator[list[list[str]]]:
    """Values of these fields in each packet of a capture that a filter shows."""
    if shutil.which("tshark") is None:
        raise InputError("reduce_capture", "no command tshark", "Wireshark's tshark on the path")
    where = os.fspath(path)
    if not Path(path).is_file():
        raise InputError(where, "nothing there", "a packet capture")
    options = ["-o", "tcp.reassemble_out_of_order:TRUE", "--disable-protocol", "grpc"]
    command = ["tshark", "-n", "-r", where, "-d", f"tcp.port=={port},http2", *options, "-Y", shown]
    command += ["-T", "fields", "-E", "aggregator=,", *(f"-e{field}" for field in fields)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            values = line.decode().rstrip("\n").split("\t")
            yield [value.split(",") if value else [] for value in values]
        errors = process.stderr.read().decode().strip().splitlines()
    if process.returncode != 0:
        raise InputError(where, errors[-1] if errors else "tshark failed", "a packet capture")


def _frames(packet: list[list[str]], worker: str) -> Iterator[tuple[object, ...]]:
    """The frames that end in one packet."""
    (time,), receiver, (connection, *_), types, streams, lengths, increments, ids, *values = packet
    opened = iter(increments)
    settings = iter(ids)
    allowed = {4: iter(values[0]), 5: iter(values[1])}
    direction = "down" if receiver[0] == worker else "up"
    for kind, stream, length in zip(types, streams, lengths, strict=True):
        common = (float(time), direction, int(connection), int(stream))
        frame = FRAMES[int(kind)] if int(kind) < len(FRAMES) else None
        if frame is None:
            continue  # an extension, which carries nothing
        value = float(next(opened)) if frame == "WINDOW_UPDATE" else np.nan
        yield (*common, frame, int(length), value)
        if frame == "SETTINGS":
            for _ in range(int(length) // _SETTING_BYTES):
                setting = int(next(settings))
                if setting in SETTINGS:
                    yield (*common, SETTINGS[setting], 0, float(next(allowed[setting])))


def _tensors(path: str | os.PathLike[str], port: int) -> dict[tuple[int, int], str]:
    """Names of the tensors that requests ask for, by connection and stream."""
    names = {}
    for packet in _tshark(path, port, 'http2.data.data contains ";edge_"', _NAMED):
        (connection, *_), types, streams, lengths, contents = packet
        content = iter(contents)
        for kind, stream, length in zip(types, streams, lengths, strict=True):
            if int(kind) == FRAMES.index("DATA") and int(length) > 0:
                key = _KEY.search(bytes.fromhex(next(content, "")))
                if key is not None:
                    names[int(connection), int(stream)] = key.group(1).decode()
    return names
