"""Normalising constants by convolution: a second exact method, independent of MVA.

In the generating function of the normalising constants G(n), every station is a factor that
depends on u = sum_r D_r z_r alone: F(u) = sum_m u^m / (a(1) ... a(m)), where a(m) is its rate of
service with m customers; 1 / (1 - u) for a constant rate of 1, exp(u) for a delay. To multiply by
F is Buzen's convolution. Terms are positive and held as logarithms: nothing cancels or overflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asgd_model.queueing.memory import MEMORY_LIMIT, population_vectors, require_memory
from asgd_model.queueing.network import ClosedNetwork, Station
from asgd_model.queueing.solution import Solution

Floats = NDArray[np.float64]


def exact_convolution(network: ClosedNetwork, *, memory_limit: float = MEMORY_LIMIT) -> Solution:
    """Solve a network exactly from its normalising constants.

    Buzen, Computational algorithms for closed queueing networks with exponential servers,
    Communications of the ACM 16(9), 1973; for several classes Reiser and Kobayashi, Queuing
    networks with multiple closed chains, IBM Journal of Research and Development 19(3), 1975.
    Throughput is X_r = G(N - e_r) / G(N); a queue Q_r = D_r [F'(u) g](N - e_r) / G(N), where g
    is the product of the factors of all other stations (the logarithmic derivative of G in D_r).

    Time and memory grow with the number S of population vectors (the product of the N_r + 1);
    time also with the number of customers that a load-dependent station needs to reach its rate.

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
    One customer meets nobody: 1 / (0.1 s + 0.3 s).

    >>> from asgd_model.queueing import ClosedNetwork, exact_convolution, multi_server, ps
    >>> stations = [ps("uplink", 0.1), multi_server("server CPU", 0.3, servers=2)]
    >>> round(exact_convolution(ClosedNetwork(stations, population=1)).total_throughput, 6)
    2.5
    """
    network.require_product_form("convolution")
    require_memory("convolution", network, 10 * population_vectors(network), memory_limit)
    total = int(network.population.sum())
    scale = _scale(network)
    demands = network.demands * scale
    factors = {
        k: _Factor.of(network.stations[k], demands[k], total)
        for k in [*network.queues, *network.load_dependent]
    }

    fixed = _delay_factor(demands[network.delays].sum(axis=0), network.population)
    for k in network.queues:
        fixed = factors[k].times(fixed)
    log_g = fixed
    for k in network.load_dependent:
        log_g = factors[k].times(log_g)

    throughput = _one_less(log_g, log_g)
    queue = demands * throughput  # right for delays; others follow
    for k in network.queues:
        log_h = factors[k].derivative_times(fixed, log_g)
        queue[k] = demands[k] * _one_less(log_h, log_g)
    for k in network.load_dependent:
        others = fixed
        for j in network.load_dependent:
            others = factors[j].times(others) if j != k else others
        log_h = factors[k].derivative_times(others, log_g)
        queue[k] = demands[k] * _one_less(log_h, log_g)
    throughput *= scale
    residence = np.divide(queue, throughput, out=np.zeros_like(queue), where=throughput > 0)
    return Solution(network, "convolution", throughput, residence, queue)


@dataclass(frozen=True)
class _Factor:
    """F(u) of one station, written as P(u) / (1 - u / peak).

    The polynomial P has the coefficients 1 and (1/a(m) - 1/peak) / (a(1) ... a(m-1)), which are
    not negative and end where the rate stays at its peak: c servers cost c steps.
    """

    log_demand: Floats
    log_peak: float
    log_polynomial: Floats

    @classmethod
    def of(cls, station: Station, demand: Floats, customers: int) -> _Factor:
        slow = station.slow_rates(customers)
        before = np.cumsum(np.log(slow)) - np.log(slow)
        with np.errstate(divide="ignore"):
            log_excess = np.log(1 / slow - 1 / station.peak_rate)
            log_demand = np.log(demand)
        return cls(log_demand, math.log(station.peak_rate), np.append(0.0, log_excess - before))

    def times(self, log_g: Floats) -> Floats:
        """F(u) g."""
        return self._divide(self._multiply(self.log_polynomial, log_g))

    def derivative_times(self, log_others: Floats, log_g: Floats) -> Floats:
        """F'(u) g = (P'(u) g + F(u) g / peak) / (1 - u / peak), with g of the other stations."""
        log_sum = log_g - self.log_peak
        if len(self.log_polynomial) > 1:
            derivative = self.log_polynomial[1:] + np.log(np.arange(1, len(self.log_polynomial)))
            log_sum = np.logaddexp(log_sum, self._multiply(derivative, log_others))
        return self._divide(log_sum)

    def _multiply(self, log_polynomial: Floats, log_g: Floats) -> Floats:
        """Polynomial in u times g, by Horner's rule."""
        result: Floats = log_polynomial[-1] + log_g
        for log_coefficient in log_polynomial[-2::-1]:
            higher, result = result, log_coefficient + log_g
            for axis, log_demand in enumerate(self.log_demand):
                after = (slice(None),) * axis + (slice(1, None),)
                before = (slice(None),) * axis + (slice(None, -1),)
                result[after] = np.logaddexp(result[after], log_demand + higher[before])
        return result

    def _divide(self, log_g: Floats) -> Floats:
        """Buzen's recursion G(n) = g(n) + sum_r D_r / peak G(n - e_r), row by row."""
        result = log_g.copy()
        log_loads = self.log_demand - self.log_peak
        for row in np.ndindex(log_g.shape[:-1]):
            for axis, count in enumerate(row):
                if count:
                    before = (*row[:axis], count - 1, *row[axis + 1 :])
                    result[row] = np.logaddexp(result[row], log_loads[axis] + result[before])
            if log_loads[-1] > -np.inf:
                ramp = log_loads[-1] * np.arange(len(result[row]))
                result[row] = ramp + np.logaddexp.accumulate(result[row] - ramp)
        return result


def _delay_factor(think: Floats, population: NDArray[np.int64]) -> Floats:
    """Logarithm of the product of think[r] ** n_r / n_r! for all population vectors."""
    log_g = np.zeros(population + 1)
    for axis, count in enumerate(population):
        with np.errstate(divide="ignore"):
            steps = np.log(think[axis]) - np.log(np.arange(1, count + 1))
        shape = [-1 if other == axis else 1 for other in range(len(population))]
        log_g += np.append(0.0, np.cumsum(steps)).reshape(shape)
    return log_g


def _one_less(log_h: Floats, log_g: Floats) -> Floats:
    """h(N - e_r) / G(N) for each class, shape (R,); 0 for a class without customers."""
    full = tuple(count - 1 for count in log_g.shape)
    ratios = np.zeros(log_g.ndim)
    for r, count in enumerate(full):
        if count:
            ratios[r] = np.exp(log_h[(*full[:r], count - 1, *full[r + 1 :])] - log_g[full])
    return ratios


def _scale(network: ClosedNetwork) -> Floats:
    """Rough throughput of each class, shape (R,): as unit of time it keeps log G small."""
    loads = network.demands / network.peak_rates[:, None]
    loads[network.delays] /= np.maximum(network.population, 1)
    scale: Floats = 1 / loads.max(axis=0)
    return scale
