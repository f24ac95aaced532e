"""What limits a training job, and what each upgrade of its cluster would bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asgd_model.cluster import STREAM_ORDERS, Cluster, Node
from asgd_model.errors import InputError
from asgd_model.profile import Profile
from asgd_model.simulator import replicate

if TYPE_CHECKING:
    import pandas as pd

RESOURCES = {
    "server_send": "server's sending link",
    "server_receive": "server's receiving link",
    "server_cpu": "server's CPU",
    "worker_cpu": "workers' CPU",
}
"""Names of what a simulated prediction gives the utilisation of."""


def limits(curve: pd.DataFrame) -> pd.DataFrame:
    """What limits a job on each cluster of a prediction.

    A full resource limits the throughput. Where none is full, its phases do: what the busiest
    resource waits for is work that has to be done elsewhere first.

    Parameters
    ----------
    curve : DataFrame
        From `asgd_model.predict`; the rows of the simulation are looked at.

    Returns
    -------
    DataFrame
        Index (workers, servers); one column per resource with its utilisation, `phases` with the
        fraction of time in which the busiest resource idles, and `limit`, the largest of them.

    Raises
    ------
    InputError
        If the curve has no rows of the simulation.

    Examples
    --------
    >>> import pandas as pd
    >>> curve = pd.DataFrame({
    ...     "method": "simulation", "workers": [1, 8], "servers": 1, "server_send": [0.2, 0.98],
    ...     "server_receive": [0.2, 0.97], "server_cpu": [0.1, 0.3], "worker_cpu": [0.4, 0.3]})
    >>> limits(curve)["limit"].tolist()
    ['phases', "server's sending link"]
    """
    if "method" not in curve or not (curve["method"] == "simulation").any():
        raise InputError("curve", "no rows of the simulation", "a prediction by simulation")
    simulated = curve[curve["method"] == "simulation"].set_index(["workers", "servers"])
    shares = simulated[list(RESOURCES)].rename(columns=RESOURCES)
    shares["phases"] = 1.0 - shares.max(axis=1)
    return shares.assign(limit=shares.idxmax(axis=1))


def advise(
    profile: Profile,
    workers: int,
    servers: int | None = None,
    *,
    other_profiles: Mapping[str, Profile] | None = None,
    replications: int = 20,
    steps: int = 20,
    warm_up: int = 2,
    seed: int = 0,
    **cluster: Any,
) -> pd.DataFrame:
    """Simulate what one change at a time would bring to a job.

    The changes: twice the rate of all links, one more server, twice the cores of each worker or
    of each server (with as many threads as before), each other order of transmissions, and a
    batch twice as large, whose computation is taken to be in proportion
    (`Profile.with_batch_size`). What else changes the step itself needs a profile of its own.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    workers, servers : int
        Nodes of the present cluster; as many servers as the profiled job had by default.
    other_profiles : mapping of str to Profile, optional
        The job with another batch size or network, profiled anywhere, by the name of the change.
        Simulated on the nodes of the present cluster.
    replications, steps, warm_up, seed
        As for `asgd_model.simulator.replicate`. All changes use the same seeds, but for one more
        server, as the seeds depend on the number of nodes.
    **cluster
        What differs in the present cluster from the profiled one, as for `Cluster.like`.

    Returns
    -------
    DataFrame
        One row per change, the largest gain first: `change`; `now` and `then`, the throughput in
        examples/s without and with it, mean of the replications; `gain`, the mean of then over
        now, minus 1; `margin`, half the width of the mean gain's 95 % interval (Student's t over
        the replications; NaN for a single one).

    Raises
    ------
    InputError
        As `Cluster.like` and `replicate`.
    """
    import pandas as pd
    from scipy.stats import t

    present = Cluster.like(profile, workers, servers, **cluster)
    worker, server = present.workers[0], present.servers[0]
    changes = {
        "twice the bandwidth": _with_nodes(
            present, _twice_the_rate(worker), _twice_the_rate(server)
        ),
        "one more server": replace(present, servers=(*present.servers, server)),
        "twice the workers' cores": _with_nodes(present, _twice_the_cores(worker), server),
        "twice the servers' cores": _with_nodes(present, worker, _twice_the_cores(server)),
    }
    for order in STREAM_ORDERS:
        if order not in (present.stream_order, "shared"):
            changes[f"transmission order {order}"] = replace(present, stream_order=order)
    nodes = {
        "bandwidth": worker.uplink,
        "worker_cores": worker.cores,
        "server_cores": server.cores,
        **cluster,
    }
    trials = [(change, profile, changed) for change, changed in changes.items()]
    larger = profile.with_batch_size(2 * profile.metadata.batch_size)
    trials.append(("twice the batch size", larger, present))
    for change, other in (other_profiles or {}).items():
        trials.append((change, other, Cluster.like(other, workers, len(present.servers), **nodes)))

    def examples_per_s(job: Profile, on: Cluster) -> NDArray[np.float64]:
        runs = replicate(job, on, replications, steps=steps, warm_up=warm_up, seed=seed)
        return np.array([run.examples_per_s for run in runs])

    now = examples_per_s(profile, present)
    rows = []
    for change, job, changed in trials:
        then = examples_per_s(job, changed)
        gains = then / now - 1.0
        deviation = gains.std(ddof=1) if len(gains) > 1 else np.nan
        margin = t.ppf(0.975, len(gains) - 1) * deviation / np.sqrt(len(gains))
        rows.append((change, now.mean(), then.mean(), gains.mean(), margin))
    table = pd.DataFrame(rows, columns=["change", "now", "then", "gain", "margin"])
    return table.sort_values("gain", ascending=False, ignore_index=True)


def _with_nodes(cluster: Cluster, worker: Node, server: Node) -> Cluster:
    workers, servers = (worker,) * len(cluster.workers), (server,) * len(cluster.servers)
    return replace(cluster, workers=workers, servers=servers)


def _twice_the_rate(node: Node) -> Node:
    return replace(node, uplink=2 * node.uplink, downlink=2 * node.downlink)


def _twice_the_cores(node: Node) -> Node:
    return replace(node, cores=2 * node.cores)
