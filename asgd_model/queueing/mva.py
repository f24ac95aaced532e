"""Exact mean value analysis (MVA) of closed product-form networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asgd_model.queueing.memory import MEMORY_LIMIT, population_vectors, require_memory
from asgd_model.queueing.network import ClosedNetwork
from asgd_model.queueing.solution import Solution

if TYPE_CHECKING:
    import pandas as pd


def exact_mva(network: ClosedNetwork, *, memory_limit: float = MEMORY_LIMIT) -> Solution:
    """Solve a network exactly by recursion over its population.

    Reiser and Lavenberg, Mean-value analysis of closed multichain queueing networks, Journal of
    the ACM 27(2), 1980; load-dependent stations in the stable form of
    `asgd_model.queueing.recursion.add_station`.

    Time grows with the number S of population vectors (the product of the N_r + 1) times
    stations times classes; memory with S / (largest N_r + 1), or S if a station is
    load-dependent.

    Parameters
    ----------
    network : ClosedNetwork
    memory_limit : float
        Bytes that may be used.

    Returns
    -------
    Solution

    Raises
    ------
    InputError
        Before anything is computed, if the network has no product form or needs more memory.

    Examples
    --------
    Two workers at a link: the second waits only if the first one is there (0.1 s of 0.5 s).

    >>> from asgd_model.queueing import ClosedNetwork, delay, exact_mva, ps
    >>> network = ClosedNetwork([ps("uplink", 0.1), delay("worker", 0.4)], population=2)
    >>> round(float(exact_mva(network).residence_time[0, 0]), 6)  # 0.1 (1 + 0.1 / 0.5)
    0.12
    """
    # The class with the largest population first: the recursion looks back the least.
    order = np.argsort(-network.population, kind="stable")
    throughput, residence = _recursion("exact MVA", network, order, False, memory_limit)
    restore = np.argsort(order)
    last = throughput[(population_vectors(network) - 1) % len(throughput), restore]
    return Solution(network, "exact MVA", last, residence[:, restore], last * residence[:, restore])


def throughput_curve(network: ClosedNetwork, *, memory_limit: float = MEMORY_LIMIT) -> pd.DataFrame:
    """Exact throughput for every population up to that of the network, in one recursion.

    Parameters
    ----------
    network : ClosedNetwork
    memory_limit : float
        Bytes that may be used.

    Returns
    -------
    pandas.DataFrame
        One row per population, its index the customers of each class; one column per class with
        its throughput in cycles/s.

    Raises
    ------
    InputError
        Before anything is computed, if the network has no product form or needs more memory.

    Examples
    --------
    >>> from asgd_model.queueing import ClosedNetwork, delay, ps, throughput_curve
    >>> network = ClosedNetwork([ps("uplink", 0.1), delay("worker", 0.4)], population=4)
    >>> throughput_curve(network).round(3)["customer"].to_dict()
    {1: 2.0, 2: 3.846, 3: 5.493, 4: 6.893}
    """
    import pandas as pd

    order = np.arange(len(network.classes))
    throughput, _ = _recursion("throughput curve", network, order, True, memory_limit)
    levels = [range(int(count) + 1) for count in network.population]
    index = (
        pd.RangeIndex(len(levels[0]), name=network.classes[0])
        if len(levels) == 1
        else pd.MultiIndex.from_product(levels, names=network.classes)
    )
    return pd.DataFrame(throughput, index=index, columns=list(network.classes)).iloc[1:]


def _recursion(
    method: str,
    network: ClosedNetwork,
    order: NDArray[np.intp],
    whole: bool,
    memory_limit: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Throughput on the lattice (all of it or its end) and residence times, classes in `order`."""
    network.require_product_form(method)
    population = network.population[order]
    demands = np.ascontiguousarray(network.demands[:, order])  # one memory layout to compile for
    queues, varying = network.queues, network.load_dependent
    total = int(population.sum())
    slow = {k: network.stations[k].slow_rates(total) for k in varying}

    states = population_vectors(network)
    window = states // (int(population[0]) + 1) + 1
    rows = states if whole or varying else window
    numbers = rows * len(population) + window * len(queues)
    if varying:
        numbers += min(len(varying), 2) * states * len(population)
        numbers += window * (3 + max(map(len, slow.values())))
    require_memory(method, network, numbers, memory_limit)

    from asgd_model.queueing import recursion  # Numba takes a second to import

    loads = demands[queues] / network.peak_rates[queues, None]
    think = demands[network.delays].sum(axis=0)
    residence = np.where(population > 0, demands, 0.0)  # right for delays; others follow
    base = np.empty((rows, len(population)))
    residence[queues] = recursion.visit_queues(loads, think, population, base, False)
    throughput = base
    for k in varying:  # each one in turn is the last to be added, which shows its queue
        throughput = base
        for j in [*(other for other in varying if other != k), k]:
            throughput, last = recursion.add_station(
                throughput, demands[j], slow[j], network.stations[j].peak_rate, population
            )
        residence[k] = last
    if varying:
        residence[queues] = recursion.visit_queues(loads, think, population, throughput, True)
    return throughput, residence
