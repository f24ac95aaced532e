"""What each part of the simulator contributes to its accuracy.

Measured runs are predicted with the whole model and then with one part of it left out at a time. A
part that matters makes the error larger where it is missing; one that makes it smaller is wrong, or
makes up for what another part gets wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asgd_model.accuracy import compare_all, measured_jobs
from asgd_model.cluster import Cluster, Node
from asgd_model.errors import InputError
from asgd_model.measurements import load_all_measurements
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, CommunicationCost, Profile
from asgd_model.simulator import predict

if TYPE_CHECKING:
    import pandas as pd

WHOLE = "whole model"
"""Name of the predictions with nothing left out."""

NO_LIMIT = 1024
"""Threads of a node that is not limited: the most that a profile may state."""


def _same_profile(profile: Profile) -> Profile:
    return profile


def _same_cluster(cluster: Cluster) -> Cluster:
    return cluster


@dataclass(frozen=True)
class Part:
    """A part of the model, and how to do without it.

    Attributes
    ----------
    instead : str
        What the model assumes without the part.
    profile, cluster : callable
        What has to be changed in the job or in the cluster for that.
    """

    instead: str
    profile: Callable[[Profile], Profile] = _same_profile
    cluster: Callable[[Cluster], Cluster] = _same_cluster


def without_overlap(profile: Profile) -> Profile:
    """Make a step receive, compute and send one after the other.

    Nothing is computed before all parameters are there that do not wait for a computation
    themselves, and no gradient leaves before everything is computed that does not wait for one.
    """
    kinds = profile.resources
    after_worker = _follows(profile, kinds == WORKER)
    after_upload = _follows(profile, kinds == UPLINK)
    received, computed = profile.ops, profile.ops + 1
    additional = {
        WORKER: np.array([received], dtype=np.int32),
        UPLINK: np.array([computed], dtype=np.int32),
    }
    nothing = np.array([], dtype=np.int32)
    dependencies = [
        np.append(row, additional.get(int(kind), nothing)).astype(np.int32)
        for kind, row in zip(kinds, profile.dependencies, strict=True)
    ]
    for chosen in ((kinds == DOWNLINK) & ~after_worker, (kinds == WORKER) & ~after_upload):
        dependencies.append(np.flatnonzero(chosen).astype(np.int32))
    nobody = np.zeros((profile.steps, 2))
    return replace(
        profile,
        names=(*profile.names, "all received", "all computed"),
        kinds=(*profile.kinds, "NoOp", "NoOp"),
        resources=np.append(kinds, [WORKER, WORKER]).astype(np.int8),
        servers=np.append(profile.servers, [-1, -1]).astype(np.int32),
        sizes=np.append(profile.sizes, [0, 0]),
        dependencies=tuple(dependencies),
        work=np.hstack([profile.work, nobody]),
        start=np.hstack([profile.start, nobody]),
        end=np.hstack([profile.end, nobody]),
    )


def _follows(profile: Profile, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each operation waits, directly or through others, for a chosen one, shape (ops,)."""
    follows = np.zeros(profile.ops, dtype=np.bool_)
    for op in profile.topological_order:
        before = profile.dependencies[op]
        follows[op] = (follows[before] | chosen[before]).any()
    return follows


def _mean_step(profile: Profile) -> Profile:
    return replace(
        profile,
        work=profile.work.mean(axis=0, keepdims=True),
        start=profile.start.mean(axis=0, keepdims=True),
        end=profile.end.mean(axis=0, keepdims=True),
    )


def _no_updates(profile: Profile) -> Profile:
    return replace(profile, work=np.where(profile.resources == SERVER, 0.0, profile.work))


def _recalibrated(**values: Any) -> Callable[[Cluster], Cluster]:
    def change(cluster: Cluster) -> Cluster:
        return replace(cluster, calibration=cluster.calibration.model_copy(update=values))

    return change


def _in_order(order: str) -> Callable[[Cluster], Cluster]:
    def change(cluster: Cluster) -> Cluster:
        return replace(cluster, stream_order=order)

    return change


def _whole_tensors(cluster: Cluster) -> Cluster:
    return replace(cluster, stream_order="fifo", stream_window=None)


def _unlimited_threads(cluster: Cluster) -> Cluster:
    def unlimited(node: Node) -> Node:
        return replace(node, threads=NO_LIMIT)

    return replace(
        cluster,
        workers=tuple(map(unlimited, cluster.workers)),
        servers=tuple(map(unlimited, cluster.servers)),
    )


_FREE = CommunicationCost()

PARTS: Mapping[str, Part] = {
    "overlap": Part(
        "a step receives, computes and sends one after the other", profile=without_overlap
    ),
    "recorded order": Part("streams take turns as they become ready", cluster=_in_order("fifo")),
    "flow control": Part(
        "each tensor is sent whole, in the order in which they become ready",
        cluster=_whole_tensors,
    ),
    "turns of streams": Part(
        "all streams of a connection share it evenly", cluster=_in_order("shared")
    ),
    "cost of communication": Part(
        "sending and receiving need no CPU",
        cluster=_recalibrated(
            worker_send=_FREE, worker_receive=_FREE, server_send=_FREE, server_receive=_FREE
        ),
    ),
    "threads": Part(
        "a node computes all that is ready at the same time", cluster=_unlimited_threads
    ),
    "updates": Part("the servers' own operations take no time", profile=_no_updates),
    "variability": Part("each step takes the mean work of the profiled ones", profile=_mean_step),
    "unequal shares": Part(
        "connections share a link evenly",
        cluster=_recalibrated(share_spread=0.0, newcomer_share=1.0),
    ),
    "throttling": Part(
        "a worker whose CPU is short reaches its link's rate",
        cluster=_recalibrated(throttled_rate=1.0),
    ),
    "overhead of tracing": Part(
        "computations take as long as they do while they are traced",
        cluster=_recalibrated(tracing_overhead=0.0),
    ),
}
"""The parts that can be left out, by name."""


def ablate(
    folder: str | os.PathLike[str],
    parts: Sequence[str] = tuple(PARTS),
    *,
    stand_ins: Mapping[str, str] | None = None,
    replications: int = 20,
    warm_up: int = 2,
    seed: int = 0,
) -> pd.DataFrame:
    """Predict all measured runs of a data folder with each part of the model left out.

    Parameters
    ----------
    folder : path-like
        As for `asgd_model.accuracy.predict_all`.
    parts : sequence of str
        Any of `PARTS`.
    stand_ins : mapping of str to str, optional
        For platforms without profiles, the platform whose profiles are taken instead.
    replications, warm_up, seed
        As for `asgd_model.simulator.replicate`; the same seeds for all. Steps are those of the
        measured runs.

    Returns
    -------
    DataFrame
        The rows of `asgd_model.accuracy.compare_all`; `method` is `WHOLE` or "without" and the
        name of the part.

    Raises
    ------
    InputError
        If a part is not known, there are no measurements, or a file is missing or wrong.
    """
    import pandas as pd

    for part in parts:
        if part not in PARTS:
            raise InputError("ablate", part, f"one of {', '.join(PARTS)}", field="parts")
    variants = {WHOLE: Part("")} | {f"without {part}": PARTS[part] for part in parts}
    curves = []
    for job, profile, measured, steps in measured_jobs(folder, stand_ins):
        sizes = measured[["workers", "parameter_servers"]].drop_duplicates()
        clusters = [
            Cluster.like(profile, int(workers), int(servers))
            for workers, servers in sizes.itertuples(index=False)
        ]
        for name, variant in variants.items():
            curve = predict(
                variant.profile(profile),
                [variant.cluster(cluster) for cluster in clusters],
                replications=replications,
                steps=steps,
                warm_up=warm_up,
                seed=seed,
            )
            curves.append(curve.assign(method=name, **job))
    return compare_all(pd.concat(curves, ignore_index=True), load_all_measurements(folder))


def contributions(ablation: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """How large the errors are without each part, and how much each part takes off them.

    Parameters
    ----------
    ablation : DataFrame
        From `ablate`.
    by : sequence of str
        Columns whose values are looked at separately, such as the platform.

    Returns
    -------
    DataFrame
        One row per value of `by` and variant, of runs with more than one worker: `by`, `variant`,
        `contribution` (mean absolute error without the part minus that of the whole model),
        `runs`, `mean_abs_error`, `p95_abs_error`, `max_abs_error`, `mean_error` (with its sign)
        and `changed`, by how much the predicted throughput differs from that of the whole model
        on average, whatever the sign. All but `runs` are fractions.
    """
    several = ablation[ablation["workers"] > 1]
    runs = ["platform", "dnn", "batch_size", "workers", "servers", "repeat"]
    whole = several[several["method"] == WHOLE].set_index(runs)["predicted"].rename("whole")
    several = several.join(whole, on=runs)
    several = several.assign(
        abs_error=several["error"].abs(),
        changed=(several["predicted"] / several["whole"] - 1.0).abs(),
    )
    table = several.groupby([*by, "method"], sort=False).agg(
        runs=("error", "size"),
        mean_abs_error=("abs_error", "mean"),
        p95_abs_error=("abs_error", lambda errors: errors.quantile(0.95)),
        max_abs_error=("abs_error", "max"),
        mean_error=("error", "mean"),
        changed=("changed", "mean"),
    )
    table = table.reset_index().rename(columns={"method": "variant"})
    error_of_whole = table["mean_abs_error"].where(table["variant"] == WHOLE)
    groups = [table[column] for column in by] or np.zeros(len(table))
    contribution = table["mean_abs_error"] - error_of_whole.groupby(groups).transform("first")
    table.insert(len(by) + 1, "contribution", contribution)
    return table
