"""Every figure's drawing function.

Measured data are points with error bars, predictions are lines; colours are the colour-blind
palette of seaborn, and line styles differ too, so that figures read in print.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from asgd_model import transport
from asgd_model.files import write_bytes
from asgd_model.profile import RESOURCES, Profile

if TYPE_CHECKING:
    import pandas as pd

LABELS = {
    "simulation": "simulation",
    "queueing": "queueing, no overlap",
    "queueing_overlap": "queueing, overlap-aware",
}
_COLOURS = sns.color_palette("colorblind")
_MEASURED = "black"
_STYLES = ("-", "--", "-.", ":")
_RESOURCE_COLOURS = {
    "downlink": _COLOURS[0],
    "worker": _COLOURS[1],
    "uplink": _COLOURS[2],
    "server": _COLOURS[4],
}


def throughput(
    predictions: pd.DataFrame, measured: pd.DataFrame | None = None, ax: Axes | None = None
) -> Axes:
    """Draw throughput against the number of workers.

    Parameters
    ----------
    predictions : DataFrame
        From `asgd_model.predict`; one line per method and number of servers, with a band where
        the method has an interval, and dotted lines for the bounds where it has some.
    measured : DataFrame, optional
        Runs with `workers`, `steps_per_s`, `steps_per_s_low`, `steps_per_s_high`.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(6.4, 4.2), layout="constrained")[1]
    several = predictions["servers"].nunique() > 1
    groups = predictions.groupby(["method", "servers"], sort=False)
    # The bounds of one queueing model are enough: the most accurate one's.
    methods = set(predictions["method"])
    bounded = "queueing_overlap" if "queueing_overlap" in methods else "queueing"
    for index, (_, curve) in enumerate(groups):
        method, servers = str(curve["method"].iloc[0]), curve["servers"].iloc[0]
        colour = _COLOURS[index % len(_COLOURS)]
        label = LABELS.get(method, method) + (f", {servers} server(s)" if several else "")
        ax.plot(
            curve["workers"],
            curve["steps_per_s"],
            _STYLES[index % len(_STYLES)],
            color=colour,
            label=label,
        )
        if curve["steps_per_s_low"].notna().any():
            ax.fill_between(
                curve["workers"],
                curve["steps_per_s_low"],
                curve["steps_per_s_high"],
                color=colour,
                alpha=0.2,
                linewidth=0,
                label=f"{label}: 95 % of runs",
            )
        if method == bounded:
            _bounds(ax, curve)
    if measured is not None:
        margin = [
            measured["steps_per_s"] - measured["steps_per_s_low"],
            measured["steps_per_s_high"] - measured["steps_per_s"],
        ]
        ax.errorbar(
            measured["workers"],
            measured["steps_per_s"],
            yerr=np.array(margin),
            fmt="o",
            color=_MEASURED,
            capsize=3,
            markersize=5,
            markerfacecolor="white",
            label="measured, 95 % interval",
            zorder=5,
        )
    ax.set_xlabel("workers")
    ax.set_ylabel("throughput (steps/s)")
    ax.set_xlim(left=0.5)
    ax.set_ylim(bottom=0.0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False, fontsize="small")
    sns.despine(ax=ax)
    return ax


def what_if(curves: pd.DataFrame, workers: int, ax: Axes | None = None) -> Axes:
    """Draw the throughput of a changed job or cluster beside that of the present one.

    Parameters
    ----------
    curves : DataFrame
        From `asgd_model.interactive.what_if`; a line per `case`.
    workers : int
        Number of workers to point out on the last line; must be one of the curve's.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(6.4, 4.2), layout="constrained")[1]
    cases = list(curves.groupby("case", sort=False))
    for index, (case, curve) in enumerate(cases):
        last = index == len(cases) - 1
        colour = _COLOURS[0] if last else "grey"
        style = _STYLES[0] if last else _STYLES[1]
        ax.plot(curve["workers"], curve["examples_per_s"], style, color=colour, label=case)
    alone = curve["examples_per_s"].iloc[0] / curve["workers"].iloc[0]
    chosen = float(curve["examples_per_s"][curve["workers"] == workers].iloc[0])
    ax.plot(workers, chosen, "o", color=_COLOURS[0])
    ax.set_title(
        f"{workers} worker{'s' if workers > 1 else ''}: {chosen:.3g} examples/s, "
        f"{100.0 * chosen / (workers * alone):.0f} % of perfect scaling",
        fontsize="medium",
    )
    ax.set_xlabel("workers")
    ax.set_ylabel("throughput (examples/s)")
    ax.set_xlim(left=0.5)
    ax.set_ylim(bottom=0.0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False, fontsize="small")
    sns.despine(ax=ax)
    return ax


def throughput_grid(predictions: pd.DataFrame, measured: pd.DataFrame) -> Figure:
    """Draw throughput against the number of workers, a panel per job.

    Parameters
    ----------
    predictions : DataFrame
        From `asgd_model.accuracy.predict_all`.
    measured : DataFrame
        From `asgd_model.load_all_measurements`.

    Returns
    -------
    Figure
    """
    jobs = ["platform", "dnn", "batch_size"]
    panels = list(predictions.groupby(jobs, sort=False))
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.6 * columns, 3.0 * rows), layout="constrained", squeeze=False
    )
    runs = measured.groupby(jobs)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax, (job, curve) in zip(axes.flat, panels, strict=False):
        throughput(curve, runs.get_group(job), ax)
        platform, dnn, batch_size = job
        ax.set_title(f"{dnn}, batch {batch_size}\n{platform}", loc="left", fontsize="small")
    _share_legend(figure)
    return figure


def throughput_by_servers(curves: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw throughput against workers for several numbers of servers, a panel per job.

    Parameters
    ----------
    curves : mapping of str to DataFrame
        From `asgd_model.predict` with one method, by name of the job.

    Returns
    -------
    Figure
    """
    figure, axes = plt.subplots(
        1, len(curves), figsize=(3.4 * len(curves), 3.4), layout="constrained", squeeze=False
    )
    for ax, (job, curve) in zip(axes[0], curves.items(), strict=True):
        throughput(curve, ax=ax)
        ax.set_title(job, loc="left", fontsize="medium")
    _share_legend(figure)
    return figure


def utilisation(predictions: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how much of each resource is in use against the number of workers.

    Parameters
    ----------
    predictions : DataFrame
        From `asgd_model.predict`; the rows of the simulation are drawn.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(6.4, 2.6), layout="constrained")[1]
    curve = predictions[predictions["method"] == "simulation"]
    lines = {
        "server_send": "server, sending link",
        "server_receive": "server, receiving link",
        "server_cpu": "server, CPU",
        "worker_cpu": "workers, CPU",
    }
    for index, (column, label) in enumerate(lines.items()):
        ax.plot(
            curve["workers"],
            100.0 * curve[column],
            _STYLES[index],
            color=_COLOURS[index],
            marker=".",
            label=label,
        )
    ax.set_xlabel("workers")
    ax.set_ylabel("utilisation (%)")
    ax.set_ylim(0.0, 105.0)
    ax.set_xlim(left=0.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    sns.despine(ax=ax)
    return ax


def utilisation_over_time(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how much of each resource is in use over the time of a run, one row per resource.

    Parameters
    ----------
    table : DataFrame
        From `SimulationResult.utilisation_over_time`, all of its columns or some.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    resources = table.shape[1]
    size = (8.0, 0.3 * resources + 1.0)
    ax = ax or plt.subplots(figsize=size, layout="constrained")[1]
    begin, end = (table.index.get_level_values(edge) for edge in ("begin", "end"))
    mesh = ax.pcolormesh(
        np.append(begin, end[-1:]),
        np.arange(resources + 1),
        100.0 * table.to_numpy().T,
        cmap="Blues",
        vmin=0.0,
        vmax=100.0,
        rasterized=True,
    )
    ax.figure.colorbar(mesh, ax=ax, label="utilisation (%)")
    ax.set_yticks(np.arange(resources) + 0.5, table.columns)
    ax.tick_params(axis="y", length=0)
    ax.invert_yaxis()
    ax.set_xlabel("time since the run began (s)")
    return ax


def scaling(runs: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw throughput against the number of workers, on logarithmic axes.

    Parameters
    ----------
    runs : DataFrame
        From `asgd_model.sweep`, of one profile and policy; a line per number of servers through
        the means over the seeds, with the range of the seeds as a band.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(6.4, 4.2), layout="constrained")[1]
    for index, servers in enumerate(sorted(runs["servers"].unique())):
        curve = runs[runs["servers"] == servers]
        points = curve.groupby("workers")["steps_per_s"].agg(["mean", "min", "max"])
        colour = _COLOURS[index % len(_COLOURS)]
        ax.plot(
            points.index,
            points["mean"],
            _STYLES[index % len(_STYLES)],
            marker="o",
            markersize=4,
            color=colour,
            label=f"{servers} server{'s' if servers > 1 else ''}",
        )
        ax.fill_between(
            points.index, points["min"], points["max"], color=colour, alpha=0.2, linewidth=0
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}")
    ax.set_xlabel("workers")
    ax.set_ylabel("throughput (steps/s)")
    ax.legend(frameon=False, fontsize="small")
    sns.despine(ax=ax)
    return ax


def timeline(profile: Profile, step: int = 0, ax: Axes | None = None) -> Axes:
    """Draw one profiled step: when each operation ran, one lane per resource.

    A lane is as thick as the number of operations that are open at the time. A transfer is open
    from its request to its arrival; on the downlink nearly all wait together from the start.

    Parameters
    ----------
    profile : Profile
        Any.
    step : int
        Index of the profiled step.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(8.0, 4.2), layout="constrained")[1]
    operations = profile.to_frame(step)
    for lane, resource in enumerate(RESOURCES):
        own = operations[operations["resource"] == resource].sort_values(["end_s", "start_s"])
        transfer = resource in ("downlink", "uplink")
        if transfer:
            own = own[own["bytes"] > 0]
        rows = np.linspace(0.4, -0.4, max(len(own), 2))[: len(own)] if transfer else 0.0
        ax.barh(
            lane + rows,
            own["end_s"] - own["start_s"],
            left=own["start_s"],
            height=0.8 / max(len(own), 1) if transfer else 0.8,
            color=_RESOURCE_COLOURS[resource],
            alpha=0.9 if transfer else 0.5,
            linewidth=0,
        )
    names = {
        "downlink": "downloads,\none row each",
        "worker": "worker's\ncomputations",
        "uplink": "uploads,\none row each",
        "server": "server's\noperations",
    }
    ax.set_yticks(range(len(RESOURCES)), [names[resource] for resource in RESOURCES])
    ax.invert_yaxis()
    ax.set_xlabel("time since the step began (s)")
    ax.set_xlim(left=0.0)
    sns.despine(ax=ax, left=True)
    ax.tick_params(axis="y", length=0)
    return ax


def timelines(profiles: Mapping[str, Profile], step: int = 0) -> NDArray[np.object_]:
    """Draw the same step of several profiles below each other, on one time axis.

    Parameters
    ----------
    profiles : mapping of str to Profile
        Recorded or synthetic steps by what they are called.
    step : int
        Index of the step in each of them.

    Returns
    -------
    ndarray of Axes, shape (profiles,)
    """
    count = len(profiles)
    axes = plt.subplots(
        count, figsize=(8.0, 3.4 * count), sharex=True, layout="constrained", squeeze=False
    )[1][:, 0]
    for ax, (title, profile) in zip(axes, profiles.items(), strict=True):
        timeline(profile, step, ax)
        ax.set_title(title, loc="left", fontsize="medium")
        ax.label_outer()
    axes[0].set_xlim(right=1.02 * max(profile.step_times[step] for profile in profiles.values()))
    return axes


def largest_operations(profile: Profile, count: int = 12, ax: Axes | None = None) -> Axes:
    """Draw the operations that compute the longest, with the spread over the profiled steps.

    Parameters
    ----------
    profile : Profile
        Any.
    count : int
        How many to draw.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(8.0, 0.3 * count + 1.0), layout="constrained")[1]
    mean, spread = profile.work.mean(axis=0), profile.work.std(axis=0)
    chosen = np.argsort(-mean, kind="stable")[:count]
    ax.barh(
        range(len(chosen)),
        1e3 * mean[chosen],
        xerr=1e3 * spread[chosen],
        color=[_RESOURCE_COLOURS[RESOURCES[profile.resources[op]]] for op in chosen],
        error_kw={"elinewidth": 1, "capsize": 2},
    )
    ax.set_yticks(range(len(chosen)), [_shortened(profile.names[op]) for op in chosen])
    ax.invert_yaxis()
    ax.set_xlabel("work per step (ms of one core)")
    sns.despine(ax=ax)
    return ax


def largest_transfers(profile: Profile, count: int = 12, ax: Axes | None = None) -> Axes:
    """Draw the tensors with the most bytes, in both directions.

    Parameters
    ----------
    profile : Profile
        Any.
    count : int
        How many to draw.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(8.0, 0.3 * count + 1.0), layout="constrained")[1]
    chosen = np.argsort(-profile.sizes, kind="stable")[:count]
    ax.barh(
        range(len(chosen)),
        profile.sizes[chosen] / 1e6,
        color=[_RESOURCE_COLOURS[RESOURCES[profile.resources[op]]] for op in chosen],
    )
    ax.set_yticks(range(len(chosen)), [_shortened(profile.names[op]) for op in chosen])
    ax.invert_yaxis()
    ax.set_xlabel("size (MB)")
    sns.despine(ax=ax)
    return ax


def replayed_runs(runs: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw measured runs beside their simulation from the same and from random start times.

    Parameters
    ----------
    runs : DataFrame
        From `asgd_model.accuracy.replay`.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(6.4, 4.2), layout="constrained")[1]
    position = np.arange(len(runs))
    kinds = (("random", "random starts", -0.12), ("replayed", "the run's own starts", 0.12))
    for index, (kind, label, shift) in enumerate(kinds):
        margin = [runs[kind] - runs[f"{kind}_low"], runs[f"{kind}_high"] - runs[kind]]
        ax.errorbar(
            position + shift,
            runs[kind],
            yerr=np.abs(np.array(margin)),
            fmt="_",
            markersize=9,
            color=_COLOURS[index],
            capsize=3,
            label=f"simulation, {label}: mean, 95 % of runs",
        )
    ax.plot(
        position, runs["measured"], "o", color=_MEASURED, markerfacecolor="white", label="measured"
    )
    labels = [f"{run.workers}\nrun {run.repeat}" for run in runs.itertuples()]
    ax.set_xticks(position, labels)
    ax.set_xlabel("workers")
    ax.set_ylabel("throughput (steps/s)")
    ax.set_ylim(bottom=0.0)
    ax.legend(frameon=False, fontsize="small")
    sns.despine(ax=ax)
    return ax


def step_times(measured: pd.DataFrame, simulated: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how long each step of each worker took, measured and simulated, over a run.

    Parameters
    ----------
    measured, simulated : DataFrame
        `worker`, `start`, `end` in seconds: from `load_steps` and from
        `SimulationResult.to_frame`.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(8.0, 3.6), layout="constrained")[1]
    for index, (worker, steps) in enumerate(measured.groupby("worker")):
        ax.plot(
            steps["start"],
            steps["end"] - steps["start"],
            "o",
            color=_COLOURS[index % len(_COLOURS)],
            markerfacecolor="white",
            label=f"worker {worker}, measured",
        )
    for index, (worker, steps) in enumerate(simulated.groupby("worker")):
        ax.plot(
            steps["start"],
            steps["end"] - steps["start"],
            _STYLES[index % len(_STYLES)],
            color=_COLOURS[index % len(_COLOURS)],
            label=f"worker {worker}, simulated",
        )
    ax.set_xlabel("start of the step (s)")
    ax.set_ylabel("step time (s)")
    ax.set_ylim(bottom=0.0)
    ax.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    sns.despine(ax=ax)
    return ax


def gains(comparison: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how much faster variants of a cluster are than the first one, against its size.

    Parameters
    ----------
    comparison : DataFrame
        From `asgd_model.compare`; bars are the 95 % intervals of the mean gains.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(6.4, 3.6), layout="constrained")[1]
    reference = comparison["variant"].iloc[0]
    ax.axhline(0.0, color="grey", linewidth=1, label=reference)
    others = comparison[comparison["variant"] != reference].groupby("variant", sort=False)
    for index, (variant, curve) in enumerate(others):
        margin = [curve["gain"] - curve["gain_low"], curve["gain_high"] - curve["gain"]]
        ax.errorbar(
            curve["workers"] + 0.06 * (index - 0.5 * (len(others) - 1)),
            100.0 * curve["gain"],
            yerr=100.0 * np.array(margin),
            fmt=_STYLES[index % len(_STYLES)],
            marker=".",
            color=_COLOURS[index % len(_COLOURS)],
            capsize=2,
            label=variant,
        )
    ax.set_xlabel("workers")
    ax.set_ylabel("gain in throughput (%)")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    sns.despine(ax=ax)
    return ax


def staleness(distribution: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how often gradients miss how many updates, for each number of workers.

    Parameters
    ----------
    distribution : DataFrame
        From `asgd_model.staleness_distribution`.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(6.4, 3.2), layout="constrained")[1]
    for index, (workers, bars) in enumerate(distribution.groupby("workers")):
        ax.plot(
            bars["staleness"],
            100.0 * bars["fraction"],
            _STYLES[index % len(_STYLES)],
            marker="o",
            color=_COLOURS[index % len(_COLOURS)],
            label=f"{workers} workers",
        )
    ax.set_xlabel("updates by others that a gradient misses")
    ax.set_ylabel("steps (%)")
    ax.set_ylim(bottom=0.0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False, fontsize="small")
    sns.despine(ax=ax)
    return ax


def each_method(
    comparison: pd.DataFrame, predictions: pd.DataFrame, measured: pd.DataFrame
) -> Figure:
    """Draw every method's curve on the same measured runs, one panel each.

    Parameters
    ----------
    comparison : DataFrame
        From `asgd_model.accuracy.compare`: says which runs a method was fitted to.
    predictions : DataFrame
        From `asgd_model.predict`, for one number of servers.
    measured : DataFrame
        Runs with `workers`, `steps_per_s`, `steps_per_s_low`, `steps_per_s_high`.

    Returns
    -------
    Figure
        Filled points are runs that the method was fitted to.
    """
    methods = list(dict.fromkeys(predictions["method"]))
    rows = -(-len(methods) // 4)
    figure, grid = plt.subplots(
        rows, 4, figsize=(10.0, 2.4 * rows), sharex=True, sharey=True, layout="constrained"
    )
    highest = 1.5 * measured["steps_per_s"].max()
    for ax, method in zip(grid.flat, methods, strict=False):
        curve = predictions[predictions["method"] == method]
        ax.plot(curve["workers"], curve["steps_per_s"], color=_COLOURS[0])
        if curve["steps_per_s_low"].notna().any():
            low, high = curve["steps_per_s_low"], curve["steps_per_s_high"]
            ax.fill_between(curve["workers"], low, high, color=_COLOURS[0], alpha=0.2, linewidth=0)
        own = comparison[comparison["method"] == method]
        seen = measured["workers"].isin(own.loc[own["fitted"], "workers"])
        for runs, face in ((measured[~seen], "white"), (measured[seen], _MEASURED)):
            margin = [
                runs["steps_per_s"] - runs["steps_per_s_low"],
                runs["steps_per_s_high"] - runs["steps_per_s"],
            ]
            ax.errorbar(
                runs["workers"],
                runs["steps_per_s"],
                yerr=np.array(margin),
                fmt="o",
                color=_MEASURED,
                markerfacecolor=face,
                markersize=4,
                capsize=2,
            )
        ax.set_title(LABELS.get(method, method), fontsize="medium")
        ax.set_ylim(0.0, highest)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        sns.despine(ax=ax)
    for ax in grid.flat[len(methods) :]:
        ax.set_axis_off()
    for index, ax in enumerate(grid.flat[: len(methods)]):
        if index + 4 >= len(methods):
            ax.set_xlabel("workers")
            ax.tick_params(labelbottom=True)
        if index % 4 == 0:
            ax.set_ylabel("throughput\n(steps/s)")
    points = {"measured, 95 % interval": "white", "measured, and seen by the method": _MEASURED}
    handles = [
        Line2D([], [], marker="o", linestyle="", color=_MEASURED, markerfacecolor=face, label=label)
        for label, face in points.items()
    ]
    handles.append(Line2D([], [], color=_COLOURS[0], label="predicted, band: 95 % interval"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def errors(comparison: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the error of every method on every run of more than one worker as a heat map.

    Parameters
    ----------
    comparison : DataFrame
        From `asgd_model.accuracy.compare_all`.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
        Colours end at 50 %; errors in brackets are on sizes that the method was fitted to.
    """
    several = comparison[comparison["workers"] > 1]
    runs = ["platform", "dnn", "batch_size", "workers", "servers", "repeat"]
    methods = list(dict.fromkeys(several["method"]))
    table = several.pivot(index=runs, columns="method", values="error")[methods]
    fitted = several.pivot(index=runs, columns="method", values="fitted")[methods].to_numpy()
    percent = 100.0 * table.to_numpy()
    size = (0.8 * len(methods) + 4.0, 0.3 * len(table) + 1.8)
    ax = ax or plt.subplots(figsize=size, layout="constrained")[1]
    text = np.array([f"{value + 0.0:+.0f}" for value in percent.ravel().round()]).reshape(
        percent.shape
    )
    sns.heatmap(
        percent,
        ax=ax,
        cmap="PuOr",
        center=0.0,
        vmin=-50.0,
        vmax=50.0,
        annot=np.where(fitted, np.char.add(np.char.add("(", text), ")"), text),
        fmt="",
        annot_kws={"fontsize": "small"},
        linewidths=0.5,
        cbar_kws={"label": "predicted over measured, minus 1 (%)", "extend": "both"},
        xticklabels=[LABELS.get(method, method).replace(", ", ",\n") for method in methods],
        yticklabels=[
            f"{platform}  {dnn}, {workers} workers, run {repeat}"
            for platform, dnn, _, workers, _, repeat in table.index
        ],
    )
    ax.tick_params(length=0)
    ax.set_xticklabels(ax.get_xticklabels(), rotation=45, ha="right")
    ax.set_xlabel("method")
    ax.set_ylabel("")
    return ax


def ablation(comparison: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the errors on runs of more than one worker with each part of the model left out.

    Parameters
    ----------
    comparison : DataFrame
        From `asgd_model.ablation.ablate`, the whole model first.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
        A bar for the mean absolute error of each variant, the largest first, a dot for each run's
        and a line at the mean of the whole model.
    """
    several = comparison[comparison["workers"] > 1]
    percent = 100.0 * several["error"].abs()
    means = percent.groupby(several["method"]).mean()
    reference = several["method"].iloc[0]
    whole = means.pop(reference)
    means = means.sort_values(ascending=False)
    ax = ax or plt.subplots(figsize=(6.4, 0.35 * len(means) + 1.6), layout="constrained")[1]
    for place, (variant, mean) in enumerate(means.items()):
        worse = mean > whole
        ax.barh(place, mean, color=_COLOURS[1] if worse else _COLOURS[2], alpha=0.5)
        runs = percent[several["method"] == variant]
        ax.plot(runs, np.full(len(runs), place), ".", color=_MEASURED, alpha=0.5, markersize=4)
    ax.axvline(whole, color=_COLOURS[0], linestyle="--", label=f"{reference}: {whole:.1f} %")
    ax.set_yticks(range(len(means)), [str(variant) for variant in means.index])
    ax.invert_yaxis()
    ax.set_xlabel("absolute error of the throughput (%): mean, and each run")
    ax.set_xlim(left=0.0)
    ax.legend(frameon=False, fontsize="small", loc="lower right")
    sns.despine(ax=ax)
    return ax


def cost_against_time(costs: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw what training costs against how long it takes, a point per cluster.

    Parameters
    ----------
    costs : DataFrame
        From `asgd_model.provisioning.cost_of_training`; points of one number of servers are
        joined in order of workers, whose number stands beside them.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(6.4, 4.2), layout="constrained")[1]
    for index, servers in enumerate(sorted(costs["servers"].unique())):
        curve = costs[costs["servers"] == servers].sort_values("workers")
        colour = _COLOURS[index % len(_COLOURS)]
        hours = curve["seconds"] / 3600.0
        ax.plot(
            hours,
            curve["cost"],
            _STYLES[index % len(_STYLES)],
            marker="o",
            markersize=4,
            color=colour,
            label=f"{servers} server{'s' if servers > 1 else ''}",
        )
        for x, y, workers in zip(hours, curve["cost"], curve["workers"], strict=True):
            ax.annotate(
                str(workers),
                (x, y),
                xytext=(4, 4) if index % 2 == 0 else (-4, 4),
                ha="left" if index % 2 == 0 else "right",
                textcoords="offset points",
                fontsize="small",
                color=colour,
            )
    ax.set_xlabel("time of the training (hours); numbers are workers")
    ax.set_ylabel("cost (unit of the prices)")
    ax.set_xlim(left=0.0)
    ax.set_ylim(bottom=0.0)
    ax.legend(frameon=False, fontsize="small")
    sns.despine(ax=ax)
    return ax


def allocation(plays: pd.DataFrame, deadline: float, ax: Axes | None = None) -> Axes:
    """Draw the number of workers of a controlled job over time.

    Parameters
    ----------
    plays : DataFrame
        `case` and the columns of `asgd_model.provisioning.allocation_over_time`; a line per case.
    deadline : float
        Seconds.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(6.4, 3.2), layout="constrained")[1]
    for index, (case, play) in enumerate(plays.groupby("case", sort=False)):
        ax.step(
            play["time"] / 3600.0,
            play["workers"],
            _STYLES[index % len(_STYLES)],
            where="post",
            color=_COLOURS[index % len(_COLOURS)],
            label=case,
        )
    ax.axvline(deadline / 3600.0, color="grey", linestyle=":", label="deadline")
    ax.set_xlabel("time (hours)")
    ax.set_ylabel("workers")
    ax.set_xlim(left=0.0)
    ax.set_ylim(bottom=0.0)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    sns.despine(ax=ax)
    return ax


def advice(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw what each change of a cluster would bring.

    Parameters
    ----------
    table : DataFrame
        From `asgd_model.advise`.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(6.4, 0.3 * len(table) + 1.0), layout="constrained")[1]
    ax.barh(
        table["change"],
        100.0 * table["gain"],
        xerr=100.0 * table["margin"],
        color=_COLOURS[0],
        error_kw={"elinewidth": 1, "capsize": 2},
    )
    ax.axvline(0.0, color="grey", linewidth=1)
    ax.invert_yaxis()
    ax.set_xlabel("gain in throughput (%), 95 % interval")
    sns.despine(ax=ax)
    return ax


def communication_costs(costs: pd.DataFrame) -> NDArray[np.object_]:
    """Draw the CPU time that moving tensors took against what the fitted costs say.

    Parameters
    ----------
    costs : DataFrame
        From `asgd_model.explained_costs`.

    Returns
    -------
    ndarray of Axes, shape (2,)
        One for the worker, one for the server.
    """
    axes = plt.subplots(1, 2, figsize=(8.0, 3.8), layout="constrained", sharex=True, sharey=True)[1]
    for ax, (node, own) in zip(axes, costs.groupby("node", sort=False), strict=True):
        for index, (does, part) in enumerate(own.groupby("does", sort=False)):
            colour, marker = _COLOURS[index], "os"[index]
            ax.loglog(
                1e3 * part["fitted"], 1e3 * part["measured"], marker, color=colour, label=does
            )
        ends = 1e3 * np.array([costs["measured"].min() / 1.5, costs["measured"].max() * 1.5])
        ax.plot(ends, ends, "--", color="grey", linewidth=1, label="as fitted")
        ax.set_title(str(node), loc="left", fontsize="medium")
        ax.set_xlabel("fitted CPU time per step (ms)")
        ax.legend(frameon=False, fontsize="small")
        sns.despine(ax=ax)
    axes[0].set_ylabel("measured CPU time per step (ms)")
    return np.asarray(axes)


def link_shares(shares: pd.DataFrame, rate: float, ax: Axes | None = None) -> Axes:
    """Draw what each of several equal flows got of a link.

    Parameters
    ----------
    shares : DataFrame
        From `asgd_model.link_shares`.
    rate : float
        Payload that one flow alone gets, bit/s; a line marks its even share.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(6.4, 3.2), layout="constrained")[1]
    sns.barplot(
        shares.assign(rate=shares["rate"] / 1e6),
        x="flow",
        y="rate",
        hue="direction",
        palette=_COLOURS[:2],
        ax=ax,
    )
    flows = shares["flow"].nunique()
    label = f"{rate / 1e6:.0f} Mbit/s / {flows}"
    ax.axhline(rate / 1e6 / flows, color="grey", linestyle="--", linewidth=1, label=label)
    ax.set_xlabel("flow")
    ax.set_ylabel("rate of payload (Mbit/s)")
    ax.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    sns.despine(ax=ax)
    return ax


def resource_use(use: pd.DataFrame) -> NDArray[np.object_]:
    """Draw how much of links and CPU quotas the runs of each job used.

    Parameters
    ----------
    use : DataFrame
        From `asgd_model.resource_use`; one panel per network and batch size.

    Returns
    -------
    ndarray of Axes, shape (jobs,)
    """
    jobs = list(use.groupby(["dnn", "batch_size"], sort=False))
    axes = plt.subplots(
        1, len(jobs), figsize=(2.4 * len(jobs) + 1.6, 3.0), layout="constrained", sharey=True
    )[1]
    lines = {
        "server_send": "server, sending link",
        "server_receive": "server, receiving link",
        "server_cpu": "server, CPU",
        "worker_cpu": "workers, CPU",
    }
    for ax, ((dnn, batch_size), runs) in zip(np.atleast_1d(axes), jobs, strict=True):
        for index, (column, label) in enumerate(lines.items()):
            mean = runs.groupby("workers")[column].mean()
            ax.plot(
                mean.index,
                100.0 * mean,
                _STYLES[index],
                marker="os^D"[index],
                markersize=4,
                color=_COLOURS[index],
                label=label,
            )
        ax.set_title(f"{dnn}, batch {batch_size}", fontsize="medium")
        ax.set_xlabel("workers")
        ax.set_ylim(0.0, 105.0)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        sns.despine(ax=ax)
    np.atleast_1d(axes)[0].set_ylabel("of the capacity (%)")
    np.atleast_1d(axes)[-1].legend(
        frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5)
    )
    return np.atleast_1d(axes)


def repeatability(noise: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how far repeats of one configuration are apart.

    Parameters
    ----------
    noise : DataFrame
        `dnn` and the columns of `asgd_model.accuracy.noise`.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(6.4, 3.4), layout="constrained")[1]
    configurations = noise.groupby(["dnn", "workers"], sort=False).first().reset_index()
    for index, (dnn, own) in enumerate(configurations.groupby("dnn", sort=False)):
        ax.plot(
            own["workers"],
            100.0 * own["spread"],
            _STYLES[index % len(_STYLES)],
            marker="os^Dv"[index % 5],
            markersize=4,
            color=_COLOURS[index % len(_COLOURS)],
            label=dnn,
        )
    ax.axhline(3.0, color="grey", linewidth=1, linestyle=":", label="3 %")
    ax.set_xlabel("workers")
    ax.set_ylabel("fastest over slowest repeat,\nminus 1 (%)")
    ax.set_ylim(bottom=0.0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    sns.despine(ax=ax)
    return ax


def speed_up_by_offset(tables: Mapping[str, pd.DataFrame], ax: Axes | None = None) -> Axes:
    """Draw how fast two workers are together against the offset of their starts.

    Parameters
    ----------
    tables : mapping of str to DataFrame
        From `asgd_model.phases.throughput_by_offset`, by name of the job.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(6.4, 3.6), layout="constrained")[1]
    for index, (job, table) in enumerate(tables.items()):
        ax.plot(
            table["offset"],
            table["speed_up"],
            _STYLES[index % len(_STYLES)],
            marker="os^Dv"[index % 5],
            markersize=4,
            color=_COLOURS[index % len(_COLOURS)],
            label=job,
        )
    ax.axhline(2.0, color="grey", linewidth=1, linestyle=":", label="twice one worker")
    ax.set_xlabel("offset of the second worker's start (fraction of a step)")
    ax.set_ylabel("throughput of two workers\nover that of one")
    ax.set_ylim(1.0, 2.1)
    ax.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    sns.despine(ax=ax)
    return ax


def random_starts(simulated: pd.DataFrame, measured: pd.DataFrame) -> NDArray[np.object_]:
    """Draw the distribution of throughput over random starts, and the measured repeats in it.

    Parameters
    ----------
    simulated : DataFrame
        A row per simulated run: `workers` and `steps_per_s`.
    measured : DataFrame
        Runs, from `asgd_model.load_measurements`, of the same numbers of workers.

    Returns
    -------
    ndarray of Axes, shape (sizes,)
        A panel for each number of workers.
    """
    sizes = list(simulated.groupby("workers", sort=True))
    axes = plt.subplots(
        1, len(sizes), figsize=(3.6 * len(sizes), 3.2), layout="constrained", squeeze=False
    )[1][0]
    for ax, (workers, runs) in zip(axes, sizes, strict=True):
        sns.histplot(
            runs, x="steps_per_s", stat="percent", bins=20, color=_COLOURS[0], alpha=0.4, ax=ax
        )
        own = measured[measured["workers"] == workers]
        ax.vlines(
            own["steps_per_s"],
            0.0,
            0.15,
            transform=ax.get_xaxis_transform(),
            color=_MEASURED,
            linewidth=2,
            label="measured runs",
        )
        ax.set_title(f"{workers} workers", loc="left", fontsize="medium")
        ax.set_xlabel("throughput (steps/s)")
        ax.set_ylabel("simulated runs (%)" if ax is axes[0] else "")
        sns.despine(ax=ax)
    axes[-1].legend(frameon=False, fontsize="small")
    return np.asarray(axes)


def streams(tables: Mapping[str, pd.DataFrame], step: int = 0) -> NDArray[np.object_]:
    """Draw one step's transfers in both directions: when each was asked for and had its turns.

    A row of the upper panels is a transfer, pale while it waits, dark while it has its turn.
    Where tensors have names, all panels have them in the same order, that of the first table.
    The lowest panels show how the bytes of all transfers add up.

    Parameters
    ----------
    tables : mapping of str to DataFrame
        Tables of frames by what they are called, the first one in black below.
    step : int
        Number of the step in each of them.

    Returns
    -------
    ndarray of Axes, shape (tables + 1, 2)
    """
    count = len(tables) + 1
    axes: NDArray[np.object_] = plt.subplots(
        count,
        2,
        figsize=(9.0, 2.3 * count),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )[1]
    colours = {"down": _RESOURCE_COLOURS["downlink"], "up": _RESOURCE_COLOURS["uplink"]}
    rows: dict[str, dict[str, int]] = {direction: {} for direction in transport.DIRECTIONS}
    for index, (title, frames) in enumerate(tables.items()):
        own = frames[frames["step"] == step]
        begin = own["time"].min()
        moved, turns = transport.transfers(own), transport.turns(own)
        carried = transport.bytes_over_time(own)
        for ax, below, direction in zip(axes[index], axes[-1], transport.DIRECTIONS, strict=True):
            some = moved[moved["direction"] == direction].sort_values("begun", kind="stable")
            key = some["tensor"].where(some["tensor"].notna(), some["stream"].astype(str))
            place = rows[direction]
            for name in key:
                place.setdefault(name, len(place))
            row = dict(zip(zip(some["connection"], some["stream"], strict=True), key, strict=True))
            waits = some["ended"] - some["requested"]
            ax.barh(
                key.map(place),
                waits,
                left=some["requested"] - begin,
                height=1.0,
                color="0.88",
                linewidth=0,
            )
            part = turns[turns["direction"] == direction]
            ax.barh(
                [place[row[name]] for name in zip(part["connection"], part["stream"], strict=True)],
                part["ended"] - part["begun"],
                left=part["begun"] - begin,
                height=1.0,
                color=colours[direction],
                edgecolor=colours[direction],
                linewidth=0.6,  # or the shortest would not be seen
            )
            ax.set_title(f"{title}, {direction}", loc="left", fontsize="medium")
            ax.set_yticks([])
            line = carried[carried["direction"] == direction]
            below.plot(
                line["time"],
                line["moved"] / 1e6,
                _STYLES[index % len(_STYLES)],
                color=_MEASURED if index == 0 else _COLOURS[index - 1],
                label=title,
            )
    for left, right in axes[:-1]:
        for ax in (left, right):
            ax.invert_yaxis()
            ax.margins(y=0.01)
    for ax in axes[:-1, 0]:
        ax.set_ylabel("a row per tensor")
    for ax in axes[-1]:
        ax.set_xlabel("time since the step's first frame (s)")
        ax.set_ylim(bottom=0.0)
        ax.legend(frameon=False, fontsize="small")
    axes[-1, 0].set_ylabel("received by then (MB)")
    axes[-1, 1].set_ylabel("sent by then (MB)")
    axes[-1, 0].set_xlim(left=0.0)
    for ax in axes.flat:
        sns.despine(ax=ax)
    return axes


def write_sizes(frames: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how the size of a write grows with time, and the steps of gRPC's rule.

    Parameters
    ----------
    frames : DataFrame
        A table of frames.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
        Dotted lines are 128 KiB times the powers of 1.5.
    """
    ax = ax or plt.subplots(figsize=(6.4, 3.2), layout="constrained")[1]
    sizes = transport.write_sizes(frames)
    rungs = 2**17 * 1.5 ** np.arange(13)
    top = 1.5 * max(sizes["bytes"].max(), 2**22)
    for rung in rungs[rungs < top]:
        ax.axhline(rung / 2**20, color="0.7", linestyle=":", linewidth=0.8, zorder=0)
    labels = {"down": "server's writes", "up": "worker's writes"}
    for index, direction in enumerate(transport.DIRECTIONS):
        own = sizes[sizes["direction"] == direction]
        ax.plot(
            own["time"],
            own["bytes"] / 2**20,
            "os"[index],
            color=_COLOURS[2 * index],
            markerfacecolor="none",
            markersize=4,
            label=labels[direction],
        )
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.set_xlabel("time (s)")
    ax.set_ylabel("full DATA frame (MiB)")
    ax.legend(frameon=False, fontsize="small", loc="lower right")
    sns.despine(ax=ax)
    return ax


def stream_orders(frames: pd.DataFrame) -> NDArray[np.object_]:
    """Draw the order in which tensors begin against that of the requests and of another step.

    Parameters
    ----------
    frames : DataFrame
        A table of frames; its first step is what later ones are drawn against.

    Returns
    -------
    ndarray of Axes, shape (2,)
        Points are tensors: by direction, and paler for later steps.
    """
    axes: NDArray[np.object_] = plt.subplots(1, 2, figsize=(8.0, 3.9), layout="constrained")[1]
    paired = transport.paired_orders(frames)
    colours = {"down": _RESOURCE_COLOURS["downlink"], "up": _RESOURCE_COLOURS["uplink"]}
    labels = {"down": "parameters", "up": "gradients"}
    for ax, order in zip(axes, ("requested", "first_step"), strict=True):
        for index, (direction, own) in enumerate(paired.dropna(subset=order).groupby("direction")):
            ax.plot(
                own[order] + 1,
                own["begun"] + 1,
                "os"[index],
                color=colours[str(direction)],
                alpha=0.45,
                markersize=3.5,
                markeredgewidth=0,
                label=labels[str(direction)],
            )
        ax.set_aspect("equal")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        sns.despine(ax=ax)
    axes[0].set_xlabel("place in the order of requests of the step")
    axes[1].set_xlabel("place on the wire in the first step")
    axes[0].set_ylabel("place on the wire")
    handles, names = axes[0].get_legend_handles_labels()
    axes[0].figure.legend(handles, names, loc="outside upper center", ncols=2, frameon=False)
    return axes


def save(figure: Figure, table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG and SVG, and what it shows as CSV, all with the same stem.

    The same figure and table give the same bytes.

    Parameters
    ----------
    figure : Figure
        What to write.
    table : DataFrame
        The data that the figure was drawn from; floats are written with six digits.
    path : path-like
        Without extension.
    """
    stem = Path(path)
    with matplotlib.rc_context({"svg.hashsalt": stem.name, "svg.fonttype": "path"}):
        for extension, options in (
            ("png", {"dpi": 160, "metadata": {"Software": None}}),
            ("svg", {"metadata": {"Date": None, "Creator": None}}),
        ):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=extension, **options)
            write_bytes(stem.with_name(f"{stem.name}.{extension}"), buffer.getvalue())
    text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    write_bytes(stem.with_name(f"{stem.name}.csv"), text.encode())


def _share_legend(figure: Figure) -> None:
    """One legend below all panels, that of the last one, in place of one in each."""
    for ax in figure.axes:
        if (legend := ax.get_legend()) is not None:
            handles, labels = ax.get_legend_handles_labels()
            legend.remove()
    figure.legend(
        handles, labels, frameon=False, fontsize="small", loc="outside lower center", ncols=3
    )


def _bounds(ax: Axes, curve: pd.DataFrame) -> None:
    for column, label in (("bound_low", "asymptotic bounds"), ("bound_high", None)):
        ax.plot(curve["workers"], curve[column], ":", color="grey", linewidth=1, label=label)


def _shortened(name: str, length: int = 48) -> str:
    return name if len(name) <= length else "..." + name[-length:]
