"""A step as a chain of layers whose exchange hides behind the backward pass.

Source
    Shi, Wang, Chu, Performance Modeling and Evaluation of Distributed Deep Learning Frameworks on
    GPUs, DASC/PiCom/DataCom/CyberSciTech 2018, and A DAG Model of Synchronous Stochastic Gradient
    Descent in Distributed Deep Learning, arXiv 1805.03812; as described in the literature, not
    checked against the text.
Equations
    With input, forward and backward times t_in, t_f(l), t_b(l) of the layers l = L, ..., 1 in the
    order of their backward pass, exchange times t_c(l) and update t_u: without overlap
    T = t_in + sum t_f + sum t_b + sum t_c + t_u. With wait-free backpropagation the exchange of
    a layer starts once its gradient is there and that of the layer above it has ended,

        e(l) = max(e(l + 1), t_in + sum t_f + sum_{k >= l} t_b(k)) + t_c(l),  T = e(1) + t_u.

Inputs
    Layers of the profiled step (`asgd_model.baselines.layers`), links and cores of the cluster.
    Through a parameter server, the exchange of a layer of g bytes moves g bytes to the server and
    g back for each of W workers, t_c = W g / B + W g / B, and the server applies W updates.
Sees
    The profile of one worker; no measurement.
Limits
    Made for synchronous SGD: the slowest worker sets the pace, all exchange at once, and W workers
    make W / T steps/s. Parameters that arrive while layers before theirs compute forward are not
    taken into account: nothing of an exchange hides behind the forward pass.

Examples
--------
Two layers, 0.1 s forward each, backward 0.1 s (top) and 0.2 s; exchanges take 0.3 s (top) and
0.1 s. The backward pass of the top layer ends at 0.3 s, its exchange runs until 0.6 s and hides
the rest of the backward pass, which ends at 0.5 s; the second exchange ends at 0.7 s.

>>> backward, exchange = np.array([0.1, 0.2]), np.array([0.3, 0.1])
>>> round(step_time(0.2, backward, exchange, update=0.0, overlap=True), 3)
0.7
>>> round(step_time(0.2, backward, exchange, update=0.0, overlap=False), 3)
0.9
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asgd_model.baselines.layers import Layers, pipeline
from asgd_model.baselines.phases import Phases, exchange_time, slowest_computation, usable_cores
from asgd_model.cluster import Cluster
from asgd_model.prediction import ONE_WORKER, prediction
from asgd_model.profile import Profile

if TYPE_CHECKING:
    import pandas as pd


def predict(
    profile: Profile,
    clusters: Sequence[Cluster],
    measured: pd.DataFrame | None = None,
    *,
    overlap: bool = True,
) -> pd.DataFrame:
    """Throughput from the step of all workers; see `prediction` for the columns.

    Parameters
    ----------
    profile : Profile
        Steps of one worker.
    clusters : sequence of Cluster
        What to predict for.
    measured : DataFrame, optional
        Not looked at.
    overlap : bool
        Whether exchanges run during the backward pass.

    Raises
    ------
    InputError
        If the profile has no transfers to divide it into layers.
    """
    layers, step = Layers.of(profile), Phases.of(profile)
    sizes = layers.gradient_bytes / layers.gradient_bytes.sum()
    throughput = []
    for cluster in clusters:
        workers = len(cluster.workers)
        speed = slowest_computation(1.0, cluster.workers)
        time = step_time(
            forward=(layers.input_work + layers.forward_work.sum()) * speed,
            backward=layers.backward_work * speed,
            exchange=sizes * exchange_time(step, cluster),
            update=workers * step.update / sum(map(usable_cores, cluster.servers)),
            overlap=overlap,
        )
        throughput.append(workers / time)
    return prediction(clusters, throughput, ONE_WORKER)


def step_time(
    forward: float,
    backward: NDArray[np.float64],
    exchange: NDArray[np.float64],
    update: float,
    overlap: bool,
) -> float:
    """Seconds of a step.

    Parameters
    ----------
    forward : float
        Seconds of the input and the whole forward pass.
    backward, exchange : ndarray, shape (layers,)
        Seconds of each layer, in the order of the backward pass.
    update : float
        Seconds of the update.
    overlap : bool
        Whether exchanges run during the backward pass.
    """
    if not overlap:
        return float(forward + backward.sum() + exchange.sum() + update)
    ready = forward + np.cumsum(backward)
    return float(pipeline(ready, exchange)[-1] + update)
