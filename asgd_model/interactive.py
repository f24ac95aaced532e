"""A figure to play with: the throughput of a job against workers, bandwidth, servers and batch.

In a notebook there are sliders if ipywidgets is installed; without it there is the same figure
for one choice.
"""

from __future__ import annotations

import math
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from asgd_model.errors import InputError
from asgd_model.predict import METHODS, predict
from asgd_model.profile import Profile

if TYPE_CHECKING:
    import pandas as pd

_MOST_SERVERS = 8
_LARGEST_BATCH = 8
"""Largest batch of the slider, in batches of the profile."""


def what_if(
    profile: Profile,
    most_workers: int = 16,
    *,
    bandwidth: float | None = None,
    servers: int | None = None,
    batch_size: int | None = None,
    other_batch: Profile | None = None,
    method: str = "queueing",
) -> pd.DataFrame:
    """Throughput of a job as it was profiled and as it would be after some changes.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    most_workers : int
        Predictions are for 1 to as many workers.
    bandwidth : float, optional
        Payload rate of every link in bit/s; the profile's by default.
    servers : int, optional
        Parameter servers; as many as the profiled job had by default.
    batch_size : int, optional
        Examples per step of each worker; the profile's by default. What is assumed of another
        one is said at `Profile.with_batch_size`.
    other_batch : Profile, optional
        The same job profiled with another batch size.
    method : str
        One of `asgd_model.METHODS`.

    Returns
    -------
    DataFrame
        As from `asgd_model.predict`, with a column `case`: "as profiled" and, if anything
        differs, what does.

    Raises
    ------
    InputError
        If `most_workers` is below 1, or as `predict` and `Profile.with_batch_size`.
    """
    import pandas as pd

    if most_workers < 1:
        raise InputError("what_if", most_workers, "at least 1", field="most_workers")
    if method not in METHODS:
        raise InputError("what_if", method, f"one of {', '.join(METHODS)}", field="method")
    changes = []
    changed = profile
    if bandwidth is not None and bandwidth != profile.metadata.link_rate:
        changes.append(f"{bandwidth / 1e6:,.0f} Mbit/s")
    if servers is not None and servers != profile.num_servers:
        changes.append(f"{servers} server{'s' if servers > 1 else ''}")
    if batch_size is not None and batch_size != profile.metadata.batch_size:
        changes.append(f"batch {batch_size}")
        changed = profile.with_batch_size(batch_size, other_batch)
    workers = range(1, most_workers + 1)
    curves = [predict(profile, workers, methods=[method]).assign(case="as profiled")]
    if changes:
        curve = predict(changed, workers, methods=[method], servers=servers, bandwidth=bandwidth)
        curves.append(curve.assign(case=", ".join(changes)))
    return pd.concat(curves, ignore_index=True)


def throughput(
    profile: Profile,
    *,
    workers: int = 4,
    bandwidth: float | None = None,
    servers: int | None = None,
    batch_size: int | None = None,
    most_workers: int = 16,
    other_batch: Profile | None = None,
    method: str = "queueing",
    widgets: bool | None = None,
) -> None:
    """Show the throughput of a job, with sliders for what may change.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    workers, bandwidth, servers, batch_size
        Where the sliders begin, and what the figure shows without sliders; the profile's by
        default.
    most_workers, other_batch, method
        As for `what_if`.
    widgets : bool, optional
        Whether to show sliders; by default where ipywidgets is installed. What a notebook stores
        of sliders is different each time, that of the figure alone is not.

    Raises
    ------
    InputError
        If `workers` is not from 1 to `most_workers`; sliders are wanted without ipywidgets; or
        as `what_if`.
    """
    from asgd_model.plotting import what_if as draw_what_if

    if not 1 <= workers <= most_workers:
        raise InputError("throughput", workers, f"1 to {most_workers}", field="workers")
    installed = find_spec("ipywidgets") is not None
    if widgets and not installed:
        raise InputError("throughput", "no ipywidgets", "ipywidgets installed", field="widgets")
    rate = profile.metadata.link_rate if bandwidth is None else bandwidth
    count = profile.num_servers if servers is None else servers
    batch = profile.metadata.batch_size if batch_size is None else batch_size

    @cache  # the slider of workers needs no new prediction
    def curves(bandwidth: float, servers: int, batch_size: int) -> pd.DataFrame:
        return what_if(
            profile,
            most_workers,
            bandwidth=bandwidth,
            servers=servers,
            batch_size=batch_size,
            other_batch=other_batch,
            method=method,
        )

    def show(workers: int, bandwidth: float, servers: int, batch_size: int) -> None:
        from IPython.display import display
        from matplotlib import pyplot as plt

        axes = draw_what_if(curves(bandwidth, servers, batch_size), workers)
        display(axes.figure)
        plt.close()  # shown already

    if not (installed if widgets is None else widgets):
        show(workers, rate, count, batch)
        return
    import ipywidgets
    from IPython.display import display

    def slider(value: int, most: int, label: str) -> ipywidgets.IntSlider:
        return ipywidgets.IntSlider(
            value, min=1, max=max(value, most), description=label, continuous_update=False
        )

    display(
        ipywidgets.interactive(
            show,
            workers=slider(workers, most_workers, "workers"),
            bandwidth=ipywidgets.FloatLogSlider(
                rate,
                min=math.log10(rate) - 1.0,
                max=math.log10(rate) + 2.0,
                step=0.05,
                description="bit/s",
                readout_format=".3s",
                continuous_update=False,
            ),
            servers=slider(count, _MOST_SERVERS, "servers"),
            batch_size=slider(batch, _LARGEST_BATCH * profile.metadata.batch_size, "batch"),
        )
    )
