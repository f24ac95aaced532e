"""Approximate mean value analysis, for networks whose populations are too large for exact MVA.

Both methods solve the equations of MVA at the full population only, and replace the queue that
an arriving customer sees, Q_kj(N - e_r), by an estimate from Q_kj(N). Two kinds of station need
more than its mean or are not of product form, and are approximated as well:

- Load-dependent: the number J that an arrival finds is taken as binomial with that mean, as if
  customers were there independently of each other, and R = D E[(1 + J) / a(1 + J)]. This is
  right where nobody waits and where the station always runs at its largest rate, and was chosen
  for its smaller errors in between than those of Seidmann's server and delay in series.
- FCFS with different service times: an arrival waits for the service times of those ahead
  (Reiser, A queueing network analysis of computer communication networks with window flow
  control, IEEE Transactions on Communications 27(8), 1979).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asgd_model.queueing.network import ClosedNetwork
from asgd_model.queueing.solution import Solution

Floats = NDArray[np.float64]
TOLERANCE = 1e-10
"""Largest change of a queue in one iteration, as a share of the class, that ends the search."""
MAX_ITERATIONS = 100_000


def bard_schweitzer(network: ClosedNetwork, *, tolerance: float = TOLERANCE) -> Solution:
    """Solve a network on the assumption that one customer less changes no queue's share.

    Q_kj(N - e_r) = (N_j - [j = r]) Q_kj(N) / N_j. Bard, Some extensions to multiclass queueing
    network analysis, 1979; Schweitzer, Approximate analysis of multiclass closed networks of
    queues, 1979. Throughput is usually within a few percent of the exact one.

    Parameters
    ----------
    network : ClosedNetwork
    tolerance : float
        See `TOLERANCE`.

    Returns
    -------
    Solution

    Raises
    ------
    RuntimeError
        If the fixed point is not found within the tolerance.

    Examples
    --------
    The exact throughput is 3.846 (see `exact_mva`).

    >>> from asgd_model.queueing import ClosedNetwork, bard_schweitzer, delay, ps
    >>> network = ClosedNetwork([ps("uplink", 0.1), delay("worker", 0.4)], population=2)
    >>> round(bard_schweitzer(network).total_throughput, 3)
    3.82
    """
    equations = _Equations(network, "Bard-Schweitzer")
    unchanged = np.zeros((*network.demands.shape, len(network.classes)))
    return equations.solution(unchanged, tolerance)


def linearizer(network: ClosedNetwork, *, tolerance: float = TOLERANCE) -> Solution:
    """Solve a network on the assumption that the changes of queues' shares change little.

    Chandy and Neuse, Linearizer: a heuristic algorithm for queueing network models of computing
    systems, Communications of the ACM 25(2), 1982. With F_kj(n) = Q_kj(n) / n_j, the differences
    F_kj(N - e_r) - F_kj(N), taken for the same at N and at every N - e_s, are found in three
    rounds. Throughput is usually within some tenths of a percent of the exact one.

    Parameters
    ----------
    network : ClosedNetwork
    tolerance : float
        See `TOLERANCE`.

    Returns
    -------
    Solution

    Raises
    ------
    RuntimeError
        If a fixed point is not found within the tolerance.

    Examples
    --------
    >>> from asgd_model.queueing import ClosedNetwork, delay, linearizer, ps
    >>> network = ClosedNetwork([ps("uplink", 0.1), delay("worker", 0.4)], population=2)
    >>> round(linearizer(network).total_throughput, 3)
    3.845
    """
    equations = _Equations(network, "Linearizer")
    population = network.population
    change = np.zeros((*network.demands.shape, len(network.classes)))
    for _ in range(2):
        full = equations.shares(population, change, tolerance)
        fewer = [
            equations.shares(population - one, change, tolerance) if population[r] else full
            for r, one in enumerate(np.eye(len(population), dtype=np.int64))
        ]
        change = np.stack(fewer, axis=2) - full[:, :, None]
    return equations.solution(change, tolerance)


class _Equations:
    """The equations of MVA at one population, with estimates of what an arrival sees."""

    def __init__(self, network: ClosedNetwork, method: str) -> None:
        self.network, self.method = network, method
        demands = network.demands
        self.think = demands[network.delays].sum(axis=0)
        self.service = demands / network.peak_rates[:, None]  # seconds without others
        self.service[network.delays] = 0.0
        # Seconds that class r waits at station k for each customer of class j ahead, [k, r, j].
        self.waits = np.repeat(self.service[:, :, None], len(network.classes), axis=2)
        for k, station in enumerate(network.stations):
            if station.kind == "fcfs":
                self.waits[k] = np.outer(network.visits[k], demands[k] / network.visits[k])
        self.slowness = {k: self._slowness(k) for k in network.load_dependent}

    def _slowness(self, k: int) -> Floats:
        """(1 + j) (1 / a(1 + j) - 1 / peak) for the j customers that an arrival finds."""
        station = self.network.stations[k]
        rates = station.slow_rates(int(self.network.population.sum()))
        slowness: Floats = np.arange(1, len(rates) + 1) * (1 / rates - 1 / station.peak_rate)
        return slowness

    def solve(
        self, population: NDArray[np.int64], change: Floats, tolerance: float
    ) -> tuple[Floats, Floats]:
        """Throughput, shape (R,), and residence times at the queues, (K, R), by substitution.

        `change`, shape (K, R, R), is F_kj(n - e_r) - F_kj(n) at [k, j, r], where F_kj(n) is the
        share of class j at station k.
        """
        fewer = np.maximum(population[:, None] - np.eye(len(population)), 0)
        share = self.service / (self.think + self.service.sum(axis=0))
        for _ in range(MAX_ITERATIONS):
            seen = np.maximum(fewer * (share[:, :, None] + change), 0)
            residence = self.service + np.einsum("krj,kjr->kr", self.waits, seen)
            for k, slowness in self.slowness.items():
                found = _binomial(int(population.sum()) - 1, seen[k].sum(axis=0), len(slowness))
                residence[k] += self.network.demands[k] * (found @ slowness)
            cycle = self.think + residence.sum(axis=0)
            previous, share = share, residence / cycle
            if np.abs(share - previous).max() < tolerance:
                return population / cycle, residence
        raise RuntimeError(
            f"{self.method}: no fixed point within {tolerance:g} in {MAX_ITERATIONS} iterations"
        )

    def shares(self, population: NDArray[np.int64], change: Floats, tolerance: float) -> Floats:
        """Queue lengths as shares of their class, shape (K, R); 0 for a class of nobody."""
        throughput, residence = self.solve(population, change, tolerance)
        return throughput * residence / np.maximum(population, 1)

    def solution(self, change: Floats, tolerance: float) -> Solution:
        """Results at the full population."""
        network = self.network
        throughput, residence = self.solve(network.population, change, tolerance)
        residence[network.delays] = network.demands[network.delays]
        residence[:, network.population == 0] = 0.0
        return Solution(network, self.method, throughput, residence, throughput * residence)


def _binomial(trials: int, means: Floats, outcomes: int) -> Floats:
    """Probabilities of 0, ..., outcomes - 1 successes for each mean, shape (R, outcomes)."""
    j = np.arange(outcomes)
    failures = np.maximum(trials - j, 0)
    probability = np.clip(means / max(trials, 1), 1e-300, 1 - 1e-15)[:, None]
    with np.errstate(divide="ignore"):
        log_ways = np.append(0.0, np.cumsum(np.log(failures[:-1]) - np.log(j[1:])))[:outcomes]
    logs: Floats = log_ways + j * np.log(probability) + failures * np.log1p(-probability)
    return np.exp(logs)
