"""Traced steps of TensorFlow, in either of the formats that they are kept in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from asgd_model.chrome_timeline import (
    is_chrome_timeline,
    read_chrome_timeline,
)
from asgd_model.errors import InputError
from asgd_model.files import read_bytes
from asgd_model.profile import Metadata, Profile
from asgd_model.tensorflow_trace import read_run_metadata


def read_traces(
    paths: Sequence[str | os.PathLike[str]],
    metadata: Metadata,
    sizes: Mapping[str, int] | None = None,
) -> Profile:
    """Make a profile from RunMetadata or from Chrome timelines, told apart by their content.

    Parameters
    ----------
    paths : sequence of path-like
        One file for each traced step, all in the same format, plain or gzip.
    metadata : Metadata
        Network, platform and calibration.
    sizes : mapping of str to int, optional
        For timelines without sizes, see `read_chrome_timeline`.

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        If formats are mixed, sizes are given for RunMetadata, which have them, or as
        `read_run_metadata` and `read_chrome_timeline`.
    """
    timelines = [is_chrome_timeline(read_bytes(path)) for path in paths]
    for path, timeline in zip(paths, timelines, strict=True):
        if timeline != timelines[0]:
            names = ("RunMetadata", "a Chrome timeline")
            raise InputError(os.fspath(path), names[timeline], f"{names[not timeline]} as before")
    if any(timelines):
        return read_chrome_timeline(paths, metadata, sizes)
    if sizes:
        raise InputError("sizes", f"{len(sizes)} sizes", "none: RunMetadata have them")
    return read_run_metadata(paths, metadata)
