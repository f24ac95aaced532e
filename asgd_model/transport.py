"""How the tensors of a worker's step share its connections, from frames.

All functions take a table of frames (`asgd_model.capture`), captured or simulated, and return
tables. A *transfer* is a stream whose response carries a tensor, a *turn* a run of its frames that
no other transfer of the same connection interrupts. What they look for is how gRPC writes
(`src/core/ext/transport/chttp2/transport` of its sources: ``writing.cc``, ``flow_control.cc``,
``write_size_policy.cc``):

- Streams with something to send wait in one queue per connection, first come, first served. A
  stream whose turn it is sends all that its window permits, in frames of at most the *write size*,
  then goes to the end of the queue; if the window is used up, not before it is opened again.
- The write size starts at 128 KiB and grows by half after two full writes that took less than
  100 ms each, up to 16 MiB.
- The window of a stream is what the receiver announced for all streams, and what it opened for
  this one since; a connection has a window of its own for all streams together. They start at
  64 KiB and grow with the receiver's estimate of what a round trip lets through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from asgd_model.capture import COLUMNS
from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.profile import DOWNLINK, UPLINK, Profile

if TYPE_CHECKING:
    import pandas as pd

    from asgd_model.simulator import SimulationResult

DIRECTIONS = ("down", "up")

_LINE = ["step", "direction", "connection"]
_STREAM = [*_LINE, "stream"]


def transfers(frames: pd.DataFrame) -> pd.DataFrame:
    """The tensors that were moved: when each was asked for, began and ended.

    Calls that move no tensor are left out: those without a name. Where no stream has one, those
    whose response is no larger than their request, and the one that ends its step, by which the
    worker tells the server to run its part of the graph.

    Parameters
    ----------
    frames : DataFrame
        A table of frames.

    Returns
    -------
    DataFrame
        A row per transfer of a step, in the order of requests: `step`, `direction` of the tensor,
        `connection`, `stream`, `tensor`, `bytes`, `requested`, `begun`, `ended` (seconds; begun
        when the frame before its first one on the connection was there, or the headers of the
        response, or when it was asked for), `frames` and `turns`.
    """
    data = _content(frames)
    runs = _turns(data)
    table = data.groupby(_STREAM, sort=False).agg(
        tensor=("tensor", "first"),
        bytes=("bytes", "sum"),
        requested=("requested", "first"),
        ended=("time", "max"),
        frames=("bytes", "size"),
    )
    begun = runs.groupby(_STREAM, sort=False).agg(begun=("begun", "min"), turns=("begun", "size"))
    table = table.join(begun).reset_index()
    columns = [*_STREAM, "tensor", "bytes", "requested", "begun", "ended", "frames", "turns"]
    order = ["step", "direction", "requested", "connection", "stream"]
    return table.sort_values(order, ignore_index=True)[columns]


def summary(frames: pd.DataFrame) -> pd.DataFrame:
    """What was moved in each step.

    Parameters
    ----------
    frames : DataFrame
        A table of frames.

    Returns
    -------
    DataFrame
        A row per step and direction: `step`, `direction`, `transfers`, `bytes`, `cuts`, and in
        seconds since the step's first frame `first_request`, `last_request`, `begun` (the first
        transfer) and `ended` (the last one).
    """
    table = transfers(frames)
    origin = table["step"].map(_begin_of_step(frames))
    times = ["requested", "begun", "ended"]
    table[times] = table[times].sub(origin, axis=0)
    table["cuts"] = table["turns"] - 1
    return (
        table.groupby(["step", "direction"])
        .agg(
            transfers=("bytes", "size"),
            bytes=("bytes", "sum"),
            cuts=("cuts", "sum"),
            first_request=("requested", "min"),
            last_request=("requested", "max"),
            begun=("begun", "min"),
            ended=("ended", "max"),
        )
        .reset_index()
    )


def turns(frames: pd.DataFrame) -> pd.DataFrame:
    """The turns that transfers took on their connection.

    Parameters
    ----------
    frames : DataFrame
        A table of frames.

    Returns
    -------
    DataFrame
        A row per turn in order of time: `step`, `direction`, `connection`, `stream`, `tensor`,
        `begun`, `ended` (seconds), `bytes`, `frames`, `sent` (bytes of the transfer up to the end
        of the turn), `cut` (whether more was to be sent when the next stream got its turn), and
        what flow control had not yet allowed again when the turn began of what was sent by its
        end, in bytes: `of_stream`, of the stream, and `of_connection`, of all its connection's
        streams since the capture began. A stream that its own window cut has the announced
        window in the first, one that the connection's window cut has that in the second. Both
        are missing if the table has no window updates.
    """
    table = _turns(_content(frames))
    total = table.groupby(_STREAM)["bytes"].transform("sum")
    table["sent"] = table.groupby(_STREAM)["bytes"].cumsum()
    table["cut"] = table["sent"] < total
    table["of_stream"] = table["sent"] - _opened(frames, table, table["stream"])
    table["of_connection"] = _carried(frames, table) - _opened(frames, table, 0)
    columns = [*_STREAM, "tensor", "begun", "ended", "bytes", "frames", "sent", "cut"]
    return table[[*columns, "of_stream", "of_connection"]]


def returns(frames: pd.DataFrame) -> pd.DataFrame:
    """Who goes next after a transfer was cut, until it comes back.

    Parameters
    ----------
    frames : DataFrame
        A table of frames.

    Returns
    -------
    DataFrame
        A row per cut, in order of time: `step`, `direction`, `connection`, `stream`, `tensor`,
        `sent` (bytes), `away` (seconds until the next turn), `others` (transfers that had a turn
        in between), `bytes_between`, and `most_turns`, the most that any of them had. In a queue,
        first come, first served, that is 1.
    """
    import pandas as pd

    rows = []
    for _, own in turns(frames).groupby(_LINE, sort=False):
        position = own.groupby("stream").cumcount()
        for index in own.index[own["cut"]]:
            cut = own.loc[index]
            same = own["stream"] == cut["stream"]
            back = own[same & (position == position[index] + 1)].iloc[0]
            between = own.loc[index : back.name].iloc[1:-1]
            rows.append(
                {
                    **cut[[*_STREAM, "tensor", "sent"]],
                    "away": back["begun"] - cut["ended"],
                    "others": between["stream"].nunique(),
                    "bytes_between": between["bytes"].sum(),
                    "most_turns": between["stream"].value_counts().max(),
                }
            )
    columns = [*_STREAM, "tensor", "sent", "away", "others", "bytes_between", "most_turns"]
    return pd.DataFrame(rows, columns=columns)


def write_sizes(frames: pd.DataFrame) -> pd.DataFrame:
    """Sizes of frames that were followed by another one of the same turn: what a write may hold.

    Parameters
    ----------
    frames : DataFrame
        A table of frames.

    Returns
    -------
    DataFrame
        A row per such frame in order of time: `step`, `time`, `direction`, `connection`, `bytes`.
    """
    data = _content(frames)
    by_connection = data.groupby(_LINE)
    full = data["stream"] == by_connection["stream"].shift(-1)
    columns = ["step", "time", "direction", "connection", "bytes"]
    return data.loc[full, columns].sort_values("time", ignore_index=True)


def windows(frames: pd.DataFrame) -> pd.DataFrame:
    """Announced windows and limits of frames over time.

    Parameters
    ----------
    frames : DataFrame
        A table of frames.

    Returns
    -------
    DataFrame
        A row per announcement: `time`, `direction` of the data that it is for, `connection`,
        `setting` (``INITIAL_WINDOW_SIZE`` or ``MAX_FRAME_SIZE``) and `bytes`.
    """
    settings = frames[frames["type"].isin(["INITIAL_WINDOW_SIZE", "MAX_FRAME_SIZE"])]
    opposite = settings["direction"].map(dict(zip(DIRECTIONS, DIRECTIONS[::-1], strict=True)))
    table = settings.assign(direction=opposite, setting=settings["type"], bytes=settings["value"])
    columns = ["time", "direction", "connection", "setting", "bytes"]
    return table[columns].reset_index(drop=True)


def order_agreement(frames: pd.DataFrame) -> pd.DataFrame:
    """How far orders of a step's transfers agree with each other and with those of other steps.

    Transfers of different steps are the same if their tensors have the same name or, where no
    stream has one, if no other tensor of these steps has that many bytes.

    Parameters
    ----------
    frames : DataFrame
        A table of frames.

    Returns
    -------
    DataFrame
        A row per direction and pair of orders that have two transfers or more in common:
        `direction`, `order` (``requested``, ``begun`` or
        ``ended``), `step`, `other_order`, `other_step`, `transfers` (how many are compared) and
        `tau`, Kendall's rank correlation: 1 for the same order, -1 for the reverse, 0 on average
        for orders that have nothing to do with each other.
    """
    import pandas as pd
    from scipy.stats import kendalltau

    rows = []
    for direction, own in _identified(frames).groupby("direction", sort=False):
        numbers = own["step"].unique().tolist()
        steps = {step: own[own["step"] == step].set_index("key") for step in numbers}
        pairs = [(step, "requested", step, "begun") for step in steps]
        pairs += [(step, "begun", step, "ended") for step in steps]
        pairs += [
            (step, order, other, order)
            for order in ("requested", "begun")
            for step in steps
            for other in steps
            if step < other
        ]
        for step, order, other, other_order in pairs:
            common = steps[step].index.intersection(steps[other].index)
            if len(common) < 2:
                continue
            first, second = steps[step].loc[common, order], steps[other].loc[common, other_order]
            rows.append(
                {
                    "direction": direction,
                    "order": order,
                    "step": step,
                    "other_order": other_order,
                    "other_step": other,
                    "transfers": len(common),
                    "tau": kendalltau(first.rank(), second.rank()).statistic,
                }
            )
    return pd.DataFrame(rows)


def paired_orders(frames: pd.DataFrame) -> pd.DataFrame:
    """Places of each step's transfers in the orders of requests, on the wire, and in another step.

    Parameters
    ----------
    frames : DataFrame
        A table of frames.

    Returns
    -------
    DataFrame
        A row per transfer, those of a step in the order in which they began: `step`, `direction`,
        `tensor`, `bytes`, and its places, from 0, among those of its step and direction:
        `requested`, `begun`, and `first_step`, its place in the order of the first step of the
        table; missing for this step itself and for transfers that cannot be told apart (see
        `order_agreement`).
    """
    import pandas as pd

    tables = []
    for _, own in transfers(frames).groupby("direction", sort=False):
        place = own.groupby("step")[["requested", "begun"]].rank(method="first") - 1
        tables.append(own[["step", "direction", "stream", "tensor", "bytes"]].join(place))
    table = pd.concat(tables)
    known = _identified(frames).set_index(["step", "direction", "stream"])["key"]
    table = table.join(known, on=["step", "direction", "stream"])
    first = table[(table["step"] == table["step"].min()) & table["key"].notna()]
    first = first.set_index(["direction", "key"])["begun"].rename("first_step")
    table = table.join(first, on=["direction", "key"])
    table.loc[table["step"] == table["step"].min(), "first_step"] = np.nan
    columns = ["step", "direction", "tensor", "bytes", "requested", "begun", "first_step"]
    return table.sort_values(["direction", "step", "begun"], ignore_index=True)[columns]


def simulated_frames(profile: Profile, result: SimulationResult, worker: int = 0) -> pd.DataFrame:
    """The transfers of a worker's simulated steps as a table of frames.

    A tensor is asked for when the simulation's transfer is ready, and is one frame, which is
    there when it is complete. Times count from the start of the first recorded step.

    Parameters
    ----------
    profile : Profile
        What was simulated.
    result : SimulationResult
        Of a run with `record`.
    worker : int
        The worker whose steps are taken.

    Returns
    -------
    DataFrame
        A table of frames; tensors without content are left out. The connections of server s are
        2 s for parameters and 2 s + 1 for gradients.

    Raises
    ------
    InputError
        If no step of the worker was recorded.
    """
    import pandas as pd

    rows = [row for row, (recorded, _) in enumerate(result.recorded) if recorded == worker]
    if not rows:
        raise InputError("result", f"no step of worker {worker}", "a step", field="recorded")
    moved = np.flatnonzero(np.isin(profile.resources, (DOWNLINK, UPLINK)) & (profile.sizes > 0))
    down = profile.resources[moved] == DOWNLINK
    origin = result.start[worker, result.recorded[rows[0]][1]]
    tables = []
    for step, row in enumerate(rows):
        transfer = {
            "step": step,
            "connection": 2 * result.placement[moved] + ~down,
            "stream": 2 * (step * len(moved) + np.arange(len(moved))) + 1,
            "value": np.nan,
            "tensor": np.array(profile.names, dtype=object)[moved],
        }
        for kind, times, size, towards_worker in (
            ("HEADERS", result.op_start[row, moved], 0, ~down),
            ("DATA", result.op_end[row, moved], profile.sizes[moved], down),
        ):
            direction = np.where(towards_worker, *DIRECTIONS)
            frame = {"time": times - origin, "direction": direction, "type": kind, "bytes": size}
            tables.append(pd.DataFrame(transfer | frame))
    frames = pd.concat(tables).dropna(subset="time")
    # Requests before what they ask for.
    order = ["time", "type"]
    frames = frames.sort_values(order, ascending=[True, False], kind="stable", ignore_index=True)
    return frames[list(COLUMNS)]


def bytes_over_time(frames: pd.DataFrame) -> pd.DataFrame:
    """Bytes of tensors that had been moved, counted from the start of their step.

    Parameters
    ----------
    frames : DataFrame
        A table of frames.

    Returns
    -------
    DataFrame
        Two rows per frame of a transfer, when it began and when it was there, in order of time:
        `step`, `direction`, `time` (seconds since the step's first frame in either direction)
        and `moved`, the bytes until then. Frames follow each other on straight lines.
    """
    import pandas as pd

    data = _content(frames).sort_values("time", kind="stable")
    moved = data.groupby(["step", "direction"])["bytes"].cumsum()
    began = data.assign(time=data["begun"], moved=moved - data["bytes"])
    ended = data.assign(moved=moved)
    points = pd.concat([began, ended]).sort_index(kind="stable")
    points["time"] -= points["step"].map(_begin_of_step(frames))
    points = points.sort_values(["step", "direction", "moved"], kind="stable", ignore_index=True)
    return points[["step", "direction", "time", "moved"]]


def transports(
    profile: Profile, workers: Sequence[int], sizes: Sequence[int]
) -> dict[str, list[Cluster]]:
    """Clusters that differ in how the streams of a connection share it.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    workers : sequence of int
        Numbers of workers.
    sizes : sequence of int
        Fixed windows in bytes.

    Returns
    -------
    dict
        For `asgd_model.compare`, by what is done with streams: ``as recorded`` (the order of the
        profile, and its window), ``whole`` (no flow control: each tensor leaves whole, first
        come, first served), a fixed window of each size, and ``random`` (whole, in random order).
    """
    recorded = [Cluster.like(profile, size) for size in workers]

    def each(order: str, window: int | None) -> list[Cluster]:
        return [replace(c, stream_order=order, stream_window=window) for c in recorded]

    fixed = {f"window of {size / 2**20:g} MiB": each("fifo", size) for size in sizes}
    return {
        "as recorded": recorded,
        "whole": each("fifo", None),
        **fixed,
        "random": each("random", None),
    }


def _identified(frames: pd.DataFrame) -> pd.DataFrame:
    """Transfers that can be told apart in every step, with what tells them apart as `key`."""
    table = transfers(frames)
    table["key"] = table["tensor"] if table["tensor"].notna().any() else table["bytes"]
    return table[~table.duplicated(["step", "direction", "key"], keep=False)]


def _content(frames: pd.DataFrame) -> pd.DataFrame:
    """The frames that carry tensors, connection by connection.

    They have the time `requested` at which their tensor was asked for, and `begun`: when the
    frame before was there, or the response's headers, which are sent at once with the first
    frame, or the request, whatever was last.
    """
    known = frames[(frames["step"] >= 0) & (frames["stream"] > 0)]
    call = known[known["type"].isin(["HEADERS", "DATA"])]
    stream = ["connection", "stream"]
    first = call.groupby(stream, sort=False).agg(
        asked=("direction", "first"), requested=("time", "first"), tensor=("tensor", "first")
    )
    call = call.drop(columns="tensor").join(first, on=stream)
    response = call["direction"] != call["asked"]
    if first["tensor"].notna().any():
        carries = call["tensor"].notna()
    else:
        size = call["bytes"].where(response, -call["bytes"])
        carries = size.groupby([call[name] for name in stream]).transform("sum") > 0
        ended = call.groupby(stream)["time"].transform("max")
        carries &= ended < call.groupby("step")["time"].transform("max")
    headers = call[response & (call["type"] == "HEADERS")]
    answered = headers.groupby(stream)["time"].first().rename("answered")
    data = call[response & carries & (call["type"] == "DATA") & (call["bytes"] > 0)]
    data = data.join(answered, on=stream).sort_values([*_LINE, "time"], kind="stable")
    before = data.groupby(_LINE)["time"].shift()
    begun = np.fmax(np.fmax(before, data["answered"]), data["requested"])
    data["begun"] = np.minimum(begun, data["time"])
    return data.drop(columns=["asked", "answered", "type", "value"])


def _turns(data: pd.DataFrame) -> pd.DataFrame:
    """Turns of the frames that `_content` gives."""
    changed = (data[_STREAM] != data[_STREAM].shift()).any(axis=1)
    runs = data.groupby(changed.cumsum().rename("turn")).agg(
        **{name: (name, "first") for name in (*_STREAM, "tensor", "begun")},
        ended=("time", "last"),
        bytes=("bytes", "sum"),
        frames=("bytes", "size"),
    )
    return runs.sort_values("begun", kind="stable", ignore_index=True)


def _opened(
    frames: pd.DataFrame, runs: pd.DataFrame, stream: pd.Series[int] | int
) -> pd.Series[float]:
    """Bytes by which a stream, or the connection (0), was opened before each turn began."""
    import pandas as pd

    updates = frames[frames["type"] == "WINDOW_UPDATE"]
    if updates.empty:
        return pd.Series(np.nan, index=runs.index)
    own = ["connection", "stream"]
    wanted = runs.assign(stream=stream).reset_index()[["index", *own, "direction", "begun"]]
    pairs = wanted.merge(updates, on=own)
    receiver = pairs["direction_x"] != pairs["direction_y"]
    before = pairs[receiver & (pairs["time"] <= pairs["begun"])]
    return before.groupby("index")["value"].sum().reindex(runs.index, fill_value=0.0)


def _carried(frames: pd.DataFrame, runs: pd.DataFrame) -> pd.Series[float]:
    """Bytes that each turn's connection had carried in its direction by the end of the turn."""
    data = frames[frames["type"] == "DATA"]
    line = ["direction", "connection"]
    carried = data.assign(carried=data.groupby(line)["bytes"].cumsum())
    # Several frames may be there at once; those of the turn are the last ones that count.
    last = carried.groupby([*line, "stream", "time"])["carried"].last()
    ends = runs.set_index([*line, "stream", "ended"]).index
    return last.reindex(ends).set_axis(runs.index).astype(float)


def _begin_of_step(frames: pd.DataFrame) -> pd.Series[float]:
    return frames[frames["step"] >= 0].groupby("step")["time"].min()
