"""What operations cost, recovered from the intervals in which they and the network were active."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def recover_work(
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    cores: float,
    busy_start: NDArray[np.float64],
    busy_end: NDArray[np.float64],
    busy_cores: NDArray[np.float64],
) -> NDArray[np.float64]:
    """CPU time that operations took on a node whose cores they shared.

    A node of c cores on which n(t) operations run while communication uses u(t) cores gives each
    of them min(1, (c - u(t)) / n(t)) cores: processor sharing, one thread for each operation.
    The work is the integral of this share over the operation's interval. Where a quota enforces
    the cores, this holds on average over its period (a shorter operation may run at full speed
    or wait for the next period).

    Parameters
    ----------
    start, end : ndarray, shape (ops,)
        Seconds; when each operation ran.
    cores : float
        CPU capacity of the node in cores.
    busy_start, busy_end : ndarray, shape (periods,)
        Seconds; when the node communicated. Periods may overlap.
    busy_cores : ndarray, shape (periods,)
        Cores that communication used in each period; u(t) is their sum, at most `cores`.

    Returns
    -------
    ndarray, shape (ops,)
        Seconds of one core.
    """
    instants = np.unique(np.concatenate([start, end, busy_start, busy_end]))
    running = _height(instants, start, end, np.ones_like(start))
    used = np.clip(_height(instants, busy_start, busy_end, busy_cores), 0.0, cores)
    share = np.minimum(1.0, (cores - used) / np.maximum(running, 1.0))
    received = np.concatenate([[0.0], np.cumsum(share * np.diff(instants))])
    work: NDArray[np.float64] = (
        received[np.searchsorted(instants, end)] - received[np.searchsorted(instants, start)]
    )
    return work


def busy_periods(
    start: NDArray[np.float64], end: NDArray[np.float64], amount: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """When the transfers of one connection in one direction were open, and the mean rate then.

    A record tells when a tensor was asked for and when it was there, not when its bytes moved:
    a large tensor moves while many small ones come and go. But a connection with an open
    transfer is not idle, so within a maximal period with at least one open transfer the rate is
    taken as constant. Each transfer lies in one period: every amount is conserved, and the rate
    is a mean of rates that the link really had. Periods of no length have no rate and are left
    out.

    Parameters
    ----------
    start, end : ndarray, shape (transfers,)
        Seconds.
    amount : ndarray, shape (transfers,)
        What each transfer moves or costs.

    Returns
    -------
    period_start, period_end, rate : ndarray, shape (periods,)
        Seconds, in order of time, and amount per second.
    """
    if len(start) == 0:
        return start, end, amount
    order = np.argsort(start, kind="stable")
    start, end, amount = start[order], end[order], amount[order]
    latest = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate([[True], start[1:] > latest[:-1]]))
    period_start = start[first]
    period_end = np.maximum.reduceat(end, first)
    total = np.add.reduceat(amount, first)
    lasting = period_end > period_start
    period_start, period_end, total = period_start[lasting], period_end[lasting], total[lasting]
    return period_start, period_end, total / (period_end - period_start)


def _height(
    instants: NDArray[np.float64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    heights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Sum the heights of the intervals that cover each gap between sorted `instants`."""
    change = np.zeros(len(instants))
    np.add.at(change, np.searchsorted(instants, start), heights)
    np.subtract.at(change, np.searchsorted(instants, end), heights)
    return np.cumsum(change)[:-1]
