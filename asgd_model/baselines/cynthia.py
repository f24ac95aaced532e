"""Computation plus communication, slowed down by what the servers cannot supply.

Source
    Zheng, Xu, Chen, Zhou, Liu, Cynthia: Cost-Efficient Cloud Resource Provisioning for Predictable
    Distributed Deep Neural Network Training, ICPP 2019; as described in the literature, not
    checked against the text.
Equations
    Asynchronous: a step takes T = w / c + G / b + G / b, with the work w of a step, the worker's
    cores c, G bytes of parameters and the rate b of the link; W workers make W / T steps/s. The
    servers' demand for bandwidth and CPU grows with the steps; where it exceeds the supply, the
    workers are slowed down by demand / supply, the most over all resources.
    Synchronous: all workers exchange at once, a step takes the longer of the slowest worker's
    computation and of the exchange, and W workers make W steps in it.
Inputs
    Bytes and work of one step, the server's CPU time per step, updates as well as the calibrated
    cost of moving the tensors; links and cores of the cluster.
Sees
    The profile of one worker, for the baseline run; no measurement.
Limits
    No queueing below saturation and no overlap of computation and communication. We take the
    servers' sending and receiving rates as two resources, since links are full duplex, and the
    whole step, not its computation alone, as what is slowed down; otherwise the prediction would
    exceed the servers' capacity.

Examples
--------
Links of 1 MB/s, 100 kB each way and 0.4 s of computation: a step takes 0.6 s. Four workers ask
the link for 4 / 0.6 x 100 kB/s = 667 kB/s and get it; eight ask for 1.33 MB/s and get 1 MB/s.

>>> from asgd_model.cluster import Cluster, Node
>>> node = Node(cores=1, uplink=8e6, downlink=8e6)
>>> step = Phases(download=1e5, computation=0.4, upload=1e5, update=0.0)
>>> for workers in (4, 8):
...     print(round(throughput(step, Cluster((node,) * workers, (node,))), 3))
6.667
10.0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from asgd_model.baselines.phases import (
    Phases,
    PhaseTimes,
    exchange_time,
    receiving_rate,
    sending_rate,
    slowest_computation,
    usable_cores,
)
from asgd_model.cluster import Cluster
from asgd_model.prediction import ONE_WORKER, prediction
from asgd_model.profile import DOWNLINK, UPLINK, Profile

if TYPE_CHECKING:
    import pandas as pd


def predict(
    profile: Profile,
    clusters: Sequence[Cluster],
    measured: pd.DataFrame | None = None,
    *,
    synchronous: bool = False,
) -> pd.DataFrame:
    """Throughput from the balance of demand and supply; see `prediction` for the columns.

    Parameters
    ----------
    profile : Profile
        Steps of one worker.
    clusters : sequence of Cluster
        What to predict for.
    measured : DataFrame, optional
        Not looked at.
    synchronous : bool
        Whether workers wait for each other after each step.
    """
    model = synchronous_throughput if synchronous else throughput
    steps_per_s = [model(_demands(profile, cluster), cluster) for cluster in clusters]
    return prediction(clusters, steps_per_s, ONE_WORKER)


def throughput(step: Phases, cluster: Cluster) -> float:
    """Asynchronous steps/s of all workers together."""
    wanted = 0.0
    for worker, count in Counter(cluster.workers).items():
        time = PhaseTimes.of(step, worker, cluster.servers)
        wanted += count / (time.download + time.computation + time.upload)
    overload = max(
        wanted * step.download / sending_rate(cluster.servers),
        wanted * step.upload / receiving_rate(cluster.servers),
        wanted * step.update / sum(map(usable_cores, cluster.servers)),
    )
    return wanted / max(1.0, overload)


def synchronous_throughput(step: Phases, cluster: Cluster) -> float:
    """Steps/s of all workers together when each step of one waits for those of all others."""
    computation = slowest_computation(step.computation, cluster.workers)
    return len(cluster.workers) / max(computation, exchange_time(step, cluster))


def _demands(profile: Profile, cluster: Cluster) -> Phases:
    """The phases of a step, with the servers' CPU time for moving its tensors in the update."""
    step, costs = Phases.of(profile), cluster.calibration
    moving = sum(
        cost.per_byte * profile.bytes_moved(resource)
        + cost.per_tensor * np.count_nonzero(profile.resources == resource)
        for cost, resource in ((costs.server_send, DOWNLINK), (costs.server_receive, UPLINK))
    )
    return replace(step, update=step.update + moving)
