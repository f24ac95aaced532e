"""The critical path through the layers of a step, with contention at the servers.

Source
    Yan, Ruwase, He, Chilimbi, Performance Modeling and Scalability Optimization of Distributed
    Deep Learning Systems, KDD 2015; as described in the literature, not checked against the text.
Equations
    Parameters arrive one after the other; a layer computes forward once it has its parameters
    and the layer below is done; the backward pass follows in the opposite order; gradients leave
    one after the other as they are ready, and the server applies each one as it arrives. The end
    of the last update is the step time T, and W workers make W / T steps/s.
    Contention: of the W - 1 others, each one occupies a resource of the servers for the time
    that one step needs of it, D, stretched s times, out of T; so a transfer or update finds the
    resource shared by s = 1 + (W - 1) s D / T, that is s = 1 / (1 - (W - 1) D / T). The step time
    solves T = path(s(T)) with one s for sending, receiving and updating each.
Inputs
    Layers of the profiled step (`asgd_model.baselines.layers`), links and cores of the cluster.
Sees
    The profile of one worker; no measurement.
Limits
    One worker per node, so that workers do not contend for memory bandwidth, and no model
    parallelism. P servers count as one with P times the rate. Each worker meets W - 1 others like
    itself. The contention in closed form is our reading; it is that of Bard and Schweitzer's
    approximate mean value analysis and keeps the servers below their capacity.

Examples
--------
Two layers of 100 kB over links of 1 MB/s, 0.1 s forward and 0.2 s backward each. Parameters are
there at 0.1 and 0.2 s, the forward pass ends at 0.3 s, gradients are ready at 0.5 and 0.7 s, and
the second one has left at 0.8 s.

>>> from asgd_model.cluster import Node
>>> layers = Layers(0.0, *np.array([[1e5, 1e5], [0.1, 0.1], [0.2, 0.2], [1e5, 1e5]]))
>>> node = Node(cores=1, uplink=8e6, downlink=8e6)
>>> round(step_time(layers, update=0.0, worker=node, servers=(node,), workers=1), 3)
0.8

With two workers a transfer takes s times as long and T = 0.5 + 0.3 s. A link is busy with the
other worker for 0.2 s of a step, so that s = 1 / (1 - 0.2 / T) and T = (1 + sqrt(0.6)) / 2.

>>> round(step_time(layers, update=0.0, worker=node, servers=(node,), workers=2), 3)
0.887
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from asgd_model.baselines.layers import Layers, pipeline
from asgd_model.baselines.phases import (
    BITS,
    Phases,
    receiving_rate,
    sending_rate,
    usable_cores,
)
from asgd_model.cluster import Cluster, Node
from asgd_model.prediction import ONE_WORKER, prediction
from asgd_model.profile import Profile

if TYPE_CHECKING:
    import pandas as pd


def predict(
    profile: Profile, clusters: Sequence[Cluster], measured: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Throughput from the critical path of each worker; see `prediction` for the columns.

    Parameters
    ----------
    profile : Profile
        Steps of one worker.
    clusters : sequence of Cluster
        What to predict for.
    measured : DataFrame, optional
        Not looked at.

    Raises
    ------
    InputError
        If the profile has no transfers to divide it into layers.
    """
    layers, update = Layers.of(profile), Phases.of(profile).update
    throughput = [
        sum(
            count / step_time(layers, update, worker, cluster.servers, len(cluster.workers))
            for worker, count in Counter(cluster.workers).items()
        )
        for cluster in clusters
    ]
    return prediction(clusters, throughput, ONE_WORKER)


def step_time(
    layers: Layers, update: float, worker: Node, servers: tuple[Node, ...], workers: int
) -> float:
    """Seconds of a step of one of `workers` equal workers.

    Parameters
    ----------
    layers : Layers
        What the worker computes and moves.
    update : float
        Seconds of one core that the servers spend on a step, spread over the gradients by size.
    worker : Node
        The worker.
    servers : tuple of Node
        The parameter servers.
    workers : int
        How many workers share the servers.
    """
    demands = np.array(
        [
            layers.parameter_bytes.sum() / sending_rate(servers),
            layers.gradient_bytes.sum() / receiving_rate(servers),
            update / sum(map(usable_cores, servers)),
        ]
    )
    parts = layers.gradient_bytes / layers.gradient_bytes.sum()
    speed = usable_cores(worker)

    def path(sharing: NDArray[np.float64]) -> float:
        """Step time when the servers' resources are so many times slower."""
        seconds_down = max(BITS / worker.downlink, sharing[0] / sending_rate(servers))
        seconds_up = max(BITS / worker.uplink, sharing[1] / receiving_rate(servers))
        arrived = np.cumsum(layers.parameter_bytes) * seconds_down
        arrived[0] = max(arrived[0], layers.input_work / speed)
        forward = pipeline(arrived, layers.forward_work / speed)[-1]
        ready = forward + np.cumsum(layers.backward_work) / speed
        received = pipeline(ready, layers.gradient_bytes * seconds_up)
        return float(pipeline(received, parts * demands[2] * sharing[2])[-1])

    if workers == 1:
        return path(np.ones(3))
    others = (workers - 1) * demands

    def excess(time: float) -> float:
        """What the path takes beyond a step time that others are assumed to have."""
        return path(1 / (1 - others / time)) - time

    # The servers cannot sustain a shorter T than W D; the path is longer then. It is the longest
    # if all W share all the time.
    shortest = max(workers * float(demands.max()), path(np.ones(3)))
    if excess(shortest) <= 0:
        return shortest
    return float(brentq(excess, shortest, path(np.full(3, float(workers)))))
