"""Bounds on the throughput of closed networks that cost next to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asgd_model.errors import InputError
from asgd_model.queueing.network import ClosedNetwork

if TYPE_CHECKING:
    import pandas as pd


def asymptotic_bounds(network: ClosedNetwork) -> pd.DataFrame:
    """Bounds from the bottleneck alone and from no and full interference.

    Denning and Buzen, The operational analysis of queueing network models, ACM Computing Surveys
    10(3), 1978; as in Lazowska, Zahorjan, Graham and Sevcik, Quantitative System Performance,
    1984, section 5.2. With N customers in all, N_r of class r, D_r its demands at queues and Z_r
    at delays,

        N_r / (Z_r + N D_r) <= X_r <= min(N_r / (Z_r + D_r), 1 / max_k D_kr).

    Where the rate of service depends on the load, work takes as long as at the smallest rate, at
    the largest rate per customer and at the largest rate, respectively. At an FCFS station whose
    classes differ, the lower bound takes the others for customers of the slowest class.

    Parameters
    ----------
    network : ClosedNetwork

    Returns
    -------
    pandas.DataFrame
        One row per class; columns lower and upper, throughput in cycles/s.

    Examples
    --------
    >>> from asgd_model.queueing import ClosedNetwork, asymptotic_bounds, delay, ps
    >>> network = ClosedNetwork([ps("uplink", 0.1), delay("worker", 0.4)], population=8)
    >>> asymptotic_bounds(network).round(3)  # doctest: +NORMALIZE_WHITESPACE
              lower  upper
    class
    customer  6.667   10.0
    """
    population, total = network.population, network.population.sum()
    think = network.demands[network.delays].sum(axis=0)
    alone, crowded, busy = think.copy(), think.copy(), np.zeros_like(think)
    for k in [*network.queues, *network.load_dependent]:
        station, demand = network.stations[k], network.demands[k]
        others = demand
        if station.kind == "fcfs":
            others = network.visits[k] * (demand / network.visits[k]).max()
        rates = station.rates_up_to(int(total))
        alone += demand / (rates / np.arange(1, total + 1)).max()
        crowded += (demand + (total - 1) * others) / rates.min()
        busy = np.maximum(busy, demand / rates.max())
    with np.errstate(divide="ignore"):
        upper = np.where(population > 0, np.minimum(population / alone, 1 / busy), 0.0)
    return _frame(network, population / crowded, upper)


def balanced_job_bounds(network: ClosedNetwork) -> pd.DataFrame:
    """Bounds from the balanced networks that are slower and faster than this one.

    Zahorjan, Sevcik, Eager and Galler, Balanced job bound analysis of queueing networks,
    Communications of the ACM 25(2), 1982; with delays as in Lazowska et al. 1984, section 5.4.
    With D the sum, D_max the maximum and D_ave the mean of the queues' demands, Z of the delays,

        N / (D + Z + (N - 1) D_max / (1 + Z / (N D))) <= X
        X <= min(1 / D_max, N / (D + Z + (N - 1) D_ave / (1 + Z / D))).

    Parameters
    ----------
    network : ClosedNetwork
        Of one class, without load-dependent stations.

    Returns
    -------
    pandas.DataFrame
        One row, the class; columns lower and upper, throughput in cycles/s.

    Raises
    ------
    InputError
        If the network has several classes or load-dependent stations.

    Examples
    --------
    >>> from asgd_model.queueing import ClosedNetwork, balanced_job_bounds, delay, ps
    >>> network = ClosedNetwork([ps("uplink", 0.1), delay("worker", 0.4)], population=8)
    >>> balanced_job_bounds(network).round(3)  # doctest: +NORMALIZE_WHITESPACE
              lower  upper
    class
    customer  8.276   10.0
    """
    if len(network.classes) > 1:
        raise InputError(
            "balanced-job bounds", f"{len(network.classes)} classes", "one; use asymptotic_bounds"
        )
    if network.load_dependent:
        raise InputError(
            "balanced-job bounds", "a load-dependent station", "none; use asymptotic_bounds"
        )
    customers = network.population
    think = network.demands[network.delays].sum()
    queues = (network.demands / network.peak_rates[:, None])[network.queues]
    total, largest = queues.sum(), queues.max(initial=0.0)
    if total == 0:
        return _frame(network, customers / think, customers / think)
    below = (customers - 1) * largest / (1 + think / (customers * total))
    above = (customers - 1) * queues.mean() / (1 + think / total)
    upper = np.minimum(1 / largest, customers / (total + think + above))
    return _frame(network, customers / (total + think + below), upper)


def _frame(
    network: ClosedNetwork, lower: NDArray[np.float64], upper: NDArray[np.float64]
) -> pd.DataFrame:
    import pandas as pd

    index = pd.Index(network.classes, name="class")
    return pd.DataFrame({"lower": lower, "upper": upper}, index=index)
