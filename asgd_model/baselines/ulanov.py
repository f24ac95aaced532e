"""Speedup from the ratio of computation to communication.

Source
    Ulanov, Simanovsky, Marwah, Modeling Scalability of Distributed Machine Learning, ICDE 2017,
    arXiv 1610.06276; as described in the literature, not checked against the text.
Equations
    With every worker computing a batch of its own, a step of n workers takes
    t(n) = C + communication(n), and the speedup is s(n) = n t(1) / t(n). The communication of G
    bytes each way over links of rate B is 2 n G / B if one node exchanges with all others
    (linear), 2 log2(n) G / B if they form a tree (logarithmic).
Inputs
    Bytes and work of one step, links and cores of the cluster; the duration of the profiled
    steps, which turns the speedup into a throughput.
Sees
    The profile of one worker; no measurement.
Limits
    Made for synchronous gradient descent: the step is that of the slowest worker, and all
    exchange at once. Neither overlap nor the servers' CPU is in the model. P servers count as
    one with P times the rate.

Examples
--------
Links of 1 MB/s, 100 kB each way and 0.4 s of computation. A step of one worker takes 0.6 s. For
four, the linear exchange takes 0.8 s and the speedup is 4 x 0.6 / 1.2 = 2; in a tree a single
worker exchanges with nobody, four take 2 x 0.2 s, and the speedup is 4 x 0.4 / 0.8 = 2.

>>> from asgd_model.cluster import Node
>>> node = Node(cores=1, uplink=8e6, downlink=8e6)
>>> step = Phases(download=1e5, computation=0.4, upload=1e5, update=0.0)
>>> for workers in (1, 4):
...     cluster = Cluster((node,) * workers, (node,))
...     print(*(round(step_time(step, cluster, scheme), 3) for scheme in get_args(Scheme)))
0.6 0.4
1.2 0.8
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from asgd_model.baselines.phases import (
    Phases,
    exchange_time,
    peer_exchange_time,
    slowest_computation,
)
from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.prediction import ONE_WORKER, prediction
from asgd_model.profile import Profile

if TYPE_CHECKING:
    import pandas as pd

Scheme = Literal["linear", "logarithmic"]


def predict(
    profile: Profile,
    clusters: Sequence[Cluster],
    measured: pd.DataFrame | None = None,
    *,
    scheme: Scheme = "linear",
) -> pd.DataFrame:
    """Throughput of one worker times the speedup; see `prediction` for the columns.

    Parameters
    ----------
    profile : Profile
        Steps of one worker.
    clusters : sequence of Cluster
        What to predict for.
    measured : DataFrame, optional
        Not looked at.
    scheme : {"linear", "logarithmic"}
        How communication grows with the workers; parameter servers are linear.

    Raises
    ------
    InputError
        If there is no such scheme.
    """
    step = Phases.of(profile)
    overhead = profile.metadata.calibration.tracing_overhead
    profiled = profile.step_times.mean() / (1 + overhead)
    correction = step_time(step, Cluster.like(profile), scheme) / profiled
    throughput = [
        correction * len(cluster.workers) / step_time(step, cluster, scheme) for cluster in clusters
    ]
    return prediction(clusters, throughput, ONE_WORKER)


def step_time(step: Phases, cluster: Cluster, scheme: Scheme) -> float:
    """Seconds of a step of all workers, t(n) of the module's equations."""
    if scheme not in get_args(Scheme):
        raise InputError("ulanov", scheme, f"one of {', '.join(get_args(Scheme))}", field="scheme")
    workers = cluster.workers
    computation = slowest_computation(step.computation, workers)
    if scheme == "linear":
        return computation + exchange_time(step, cluster)
    return computation + math.log2(len(workers)) * peer_exchange_time(step, workers)
