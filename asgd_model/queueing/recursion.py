"""The inner loops of exact mean value analysis, compiled by Numba.

Both walk the lattice of population vectors n = 0, ..., N in lexicographic order, the last class
fastest, so that n has index i and n - e_r (one customer of class r less) has i - strides[r].
Since strides[0] is the largest, what is only looked up at the vectors n - e_r lives in a window
of strides[0] + 1 rows that is written round and round.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asgd_model.compilation import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@compiled()
def strides_of(population: Ints) -> Ints:
    """Distance in the lattice between n and n - e_r, shape (R,)."""
    strides = np.ones_like(population)
    for r in range(len(population) - 2, -1, -1):
        strides[r] = strides[r + 1] * (population[r + 1] + 1)
    return strides


@compiled()
def advance(n: Ints, population: Ints) -> None:
    """Step to the next population vector, in place."""
    r = len(n) - 1
    while n[r] == population[r]:
        n[r] = 0
        r -= 1
    n[r] += 1


@compiled()
def visit_queues(
    demands: Floats, think: Floats, population: Ints, throughput: Floats, known: bool
) -> Floats:
    """Mean value analysis of queues with a constant rate (Reiser and Lavenberg 1980).

    An arriving customer of class r sees the queue that n - e_r customers leave,
    R_kr(n) = D_kr (1 + Q_k(n - e_r)); X_r(n) = n_r / (Z_r + sum_k R_kr(n)); Q_kr = X_r R_kr.

    Parameters
    ----------
    demands : ndarray, shape (K, R)
        Seconds.
    think : ndarray, shape (R,)
        Seconds at the delay stations together.
    population : ndarray of int, shape (R,)
    throughput : ndarray, shape (rows, R)
        Row ``i % rows`` is X(n) of lattice index i; at least strides[0] + 1 rows.
    known : bool
        Whether `throughput` is given for the whole lattice, because other stations have a part
        in it, or to be filled in.

    Returns
    -------
    ndarray, shape (K, R)
        Residence times at the full population, in seconds.
    """
    stations, classes = demands.shape
    strides = strides_of(population)
    window = strides[0] + 1
    rows = len(throughput)
    queue = np.zeros((window, stations))
    residence = np.zeros((stations, classes))
    n = np.zeros_like(population)
    if not known:
        throughput[0] = 0.0
    for i in range(1, strides[0] * (population[0] + 1)):
        advance(n, population)
        row, here = i % rows, i % window
        queue[here] = 0.0
        for r in range(classes):
            if n[r] == 0:
                throughput[row, r] = 0.0
                continue
            before = (i - strides[r]) % window
            cycle = think[r]
            for k in range(stations):
                residence[k, r] = demands[k, r] * (1.0 + queue[before, k])
                cycle += residence[k, r]
            if not known:
                throughput[row, r] = n[r] / cycle if cycle > 0.0 else np.inf
            for k in range(stations):
                if demands[k, r] > 0.0:
                    queue[here, k] += throughput[row, r] * residence[k, r]
    return residence


@compiled()
def add_station(
    rest: Floats, demand: Floats, slow_rates: Floats, peak: float, population: Ints
) -> tuple[Floats, Floats]:
    """Add a load-dependent station to a network of which only the throughput is known.

    By Norton's theorem (Chandy, Herzog and Woo, Parametric analysis of queueing networks, IBM
    Journal of Research and Development 19(1), 1975) the rest acts like one station. With p(j|n)
    the probability of j customers at the new station and a(j) its rate, the marginal recursion
    of load-dependent mean value analysis (Reiser and Lavenberg 1980) is

        p(j|n) = sum_r X_r(n) D_r p(j-1|n - e_r) / a(j),  j > 0.

    Its classical companion p(0|n) = 1 - sum_j p(j|n) loses all digits once the station saturates.
    Here p(0|n) = p(0|n - e_s) X_s(n) / X_s^rest(n) for any class s that is present (Reiser,
    Mean-value analysis and convolution method for queue-dependent servers in closed queueing
    networks, Performance Evaluation 1(1), 1981), and sum_j p(j|n) = 1 yields the throughput,

        1 / X_s(n) = p(0|n - e_s) / X_s^rest(n) + sum_r w_r D_r sum_j p(j-1|n - e_r) / a(j),

    with w_r = X_r(n) / X_s(n) = X_r(n - e_s) / X_s(n - e_r). No probability is subtracted, so no
    digits are lost; logarithms keep those that underflow and matter again with more customers.
    Only states slower than the peak rate need their own p(j|n): 1/a(j) = 1/peak + excess(j).

    Parameters
    ----------
    rest : ndarray, shape (S, R)
        Throughput of the rest for each vector of the lattice; infinite if it takes no time.
    demand : ndarray, shape (R,)
        Seconds at the new station.
    slow_rates : ndarray, shape (J,)
        Rates a(1), ..., a(J), up to the last one below the peak rate.
    peak : float
        Largest rate, and the rate with more than J customers.
    population : ndarray of int, shape (R,)

    Returns
    -------
    throughput : ndarray, shape (S, R)
        Of the network with the new station.
    residence : ndarray, shape (R,)
        Seconds at the new station at the full population.
    """
    states, classes = rest.shape
    strides = strides_of(population)
    window = strides[0] + 1
    excess = 1.0 / slow_rates - 1.0 / peak
    log_p = np.full((window, len(slow_rates) + 1), -np.inf)
    unit_service = np.zeros(window)  # sum_j p(j-1|n) / a(j)
    unit_residence = np.zeros(window)  # sum_j j p(j-1|n) / a(j)
    throughput = np.zeros((states, classes))
    residence = np.zeros(classes)
    ratio = np.zeros(classes)
    n = np.zeros_like(population)
    log_p[0, 0] = 0.0
    unit_service[0], unit_residence[0] = seen_on_arrival(log_p[0], excess, peak, 0.0)
    for i in range(1, states):
        advance(n, population)
        here = i % window
        log_p[here] = -np.inf
        if needs_no_time(n, strides, rest, demand):
            throughput[i] = np.inf
            continue
        before = (i - strides) % window
        s = np.argmax(n > 0)
        inverse = np.exp(log_p[before[s], 0]) / rest[i, s]
        for r in range(classes):
            if n[r] > 0:
                ratio[r] = 1.0
                if r != s:
                    ratio[r] = throughput[i - strides[s], r] / throughput[i - strides[r], s]
                inverse += ratio[r] * demand[r] * unit_service[before[r]]
            else:
                ratio[r] = 0.0
        throughput[i] = ratio / inverse

        log_p[here, 0] = log_p[before[s], 0] + np.log(throughput[i, s]) - np.log(rest[i, s])
        work = throughput[i] * demand
        for j in range(1, len(slow_rates)):
            log_p[here, j] = log_mixture(log_p[:, j - 1], before, work)
            log_p[here, j] -= np.log(slow_rates[j - 1])

        queue = 0.0
        for r in range(classes):
            if n[r] > 0:
                residence[r] = demand[r] * unit_residence[before[r]]
                queue += throughput[i, r] * residence[r]
        unit_service[here], unit_residence[here] = seen_on_arrival(log_p[here], excess, peak, queue)
    return throughput, residence


@compiled()
def needs_no_time(n: Ints, strides: Ints, rest: Floats, demand: Floats) -> bool:
    """Whether a class of which somebody is present has no demand at any station so far."""
    for r in range(len(n)):
        if n[r] > 0 and demand[r] == 0.0 and np.isinf(rest[strides[r], r]):
            return True
    return False


@compiled()
def log_mixture(log_p: Floats, rows: Ints, weights: Floats) -> float:
    """Logarithm of the sum of p at the rows, one for each class, times their weights."""
    largest = -np.inf
    for r in range(len(rows)):
        if weights[r] > 0.0:
            largest = max(largest, log_p[rows[r]])
    if largest == -np.inf:
        return -np.inf
    total = 0.0
    for r in range(len(rows)):
        if weights[r] > 0.0:
            total += weights[r] * np.exp(log_p[rows[r]] - largest)
    return largest + float(np.log(total))


@compiled()
def seen_on_arrival(
    log_p: Floats, excess: Floats, peak: float, queue: float
) -> tuple[float, float]:
    """Means of 1/a(j+1) and of (j+1)/a(j+1) over the j customers that an arrival finds."""
    service, residence = 1.0 / peak, (1.0 + queue) / peak
    for j in range(len(excess)):
        share = np.exp(log_p[j]) * excess[j]
        service += share
        residence += (j + 1) * share
    return service, residence
