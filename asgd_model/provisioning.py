"""How many nodes a job should get, given its predicted throughput.

Everything here starts from a throughput curve, a DataFrame with one row per cluster and the
columns `workers`, `servers` and `steps_per_s`, such as one method of a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from asgd_model.errors import InputError

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Prices:
    """What nodes cost, in any currency, per node and hour."""

    worker: float
    server: float

    def __post_init__(self) -> None:
        for name in ("worker", "server"):
            _require_positive("Prices", name, getattr(self, name), zero=True)


def cost_of_training(curve: pd.DataFrame, steps: float, prices: Prices) -> pd.DataFrame:
    """Time and cost of a job on each cluster of a curve.

    Parameters
    ----------
    curve : DataFrame
        Columns `workers`, `servers`, `steps_per_s`.
    steps : float
        Steps of all workers together until the job is done.
    prices : Prices
        Of nodes.

    Returns
    -------
    DataFrame
        The curve with the columns `seconds` and `cost`, in the currency of the prices.

    Raises
    ------
    InputError
        If the curve lacks a column, has two rows for one cluster or a throughput that is not
        positive, or if `steps` is not positive.
    """
    _require_positive("job", "steps", steps)
    costs = _checked(curve)
    costs["seconds"] = steps / costs["steps_per_s"]
    rent = costs["workers"] * prices.worker + costs["servers"] * prices.server
    costs["cost"] = rent * costs["seconds"] / SECONDS_PER_HOUR
    return costs


def cheapest_within_deadline(
    curve: pd.DataFrame, steps: float, deadline: float, prices: Prices
) -> pd.DataFrame:
    """The cluster that finishes a job in time at the least cost.

    The question of Zheng et al., Cynthia, ICPP 2019; here answered by looking at every cluster
    of the curve.

    Parameters
    ----------
    curve, steps, prices
        See `cost_of_training`.
    deadline : float
        Seconds.

    Returns
    -------
    DataFrame
        The one row of `cost_of_training`; of equal costs, that with the fewest nodes.

    Raises
    ------
    InputError
        As `cost_of_training`, and if no cluster is fast enough.

    Examples
    --------
    An hour of one worker, or 40 minutes of two that slow each other down:

    >>> curve = pd.DataFrame({"workers": [1, 2], "servers": 1, "steps_per_s": [1.0, 1.5]})
    >>> prices = Prices(worker=0.9, server=0.1)
    >>> cheapest_within_deadline(curve, 3600, 3600, prices)
       workers  servers  steps_per_s  seconds  cost
    0        1        1          1.0   3600.0   1.0
    >>> cheapest_within_deadline(curve, 3600, 3000, prices).round(3)
       workers  servers  steps_per_s  seconds   cost
    0        2        1          1.5   2400.0  1.267
    """
    _require_positive("job", "deadline", deadline)
    costs = cost_of_training(curve, steps, prices)
    in_time = costs[costs["seconds"] <= deadline]
    if in_time.empty:
        fastest = f"{costs['seconds'].min():,.6g} s on the fastest cluster of the curve"
        raise InputError("deadline", f"{deadline:,.6g} s", f"at least {fastest}")
    return _first(in_time, "cost")


def fastest_within_budget(
    curve: pd.DataFrame, steps: float, budget: float, prices: Prices
) -> pd.DataFrame:
    """The cluster that finishes a job first for what may be spent.

    Parameters
    ----------
    curve, steps, prices
        See `cost_of_training`.
    budget : float
        In the currency of the prices.

    Returns
    -------
    DataFrame
        The one row of `cost_of_training`; of equal times, that with the fewest nodes.

    Raises
    ------
    InputError
        As `cost_of_training`, and if no cluster is cheap enough.
    """
    _require_positive("job", "budget", budget)
    costs = cost_of_training(curve, steps, prices)
    affordable = costs[costs["cost"] <= budget]
    if affordable.empty:
        cheapest = f"{costs['cost'].min():,.6g} on the cheapest cluster of the curve"
        raise InputError("budget", f"{budget:,.6g}", f"at least {cheapest}")
    return _first(affordable, "seconds")


def knee(curve: pd.DataFrame) -> pd.DataFrame:
    """Where further workers begin to cost more than they bring, for each number of servers.

    Eager, Zahorjan and Lazowska, Speedup versus efficiency in parallel systems, IEEE Transactions
    on Computers 38(3), 1989: the size at which efficiency over execution time is largest, that
    is, speedup times efficiency, X(W)^2 / W. It is Kleinrock's power of a closed system.

    Parameters
    ----------
    curve : DataFrame
        Columns `workers`, `servers`, `steps_per_s`.

    Returns
    -------
    DataFrame
        The curve's row of each knee, in order of servers; of equals the smaller cluster.

    Raises
    ------
    InputError
        If the curve lacks a column, has two rows for one cluster or a throughput that is not
        positive.

    Examples
    --------
    Linear up to four workers, nothing more from there on:

    >>> workers = np.arange(1, 9)
    >>> curve = pd.DataFrame({"workers": workers, "servers": 1,
    ...                       "steps_per_s": np.minimum(workers, 4.0)})
    >>> knee(curve)
       workers  servers  steps_per_s
    0        4        1          4.0
    """
    checked = _checked(curve).sort_values(["servers", "workers"], ignore_index=True)
    power = checked["steps_per_s"] ** 2 / checked["workers"]
    best = power.groupby(checked["servers"]).idxmax()
    return checked.loc[best].reset_index(drop=True)


@dataclass(frozen=True, eq=False)
class DeadlineControl:
    """Chooses the number of workers of a running job, again and again, so that it ends in time.

    Ferguson, Bodik, Kandula, Boutin and Fonseca, Jockey, EuroSys 2012: an offline
    model gives the time that the rest of a job takes with each allocation, and a control loop
    takes the smallest one that meets the deadline, with three guards against errors of the model
    and noise: slack, a dead zone and hysteresis. As described in the literature, not checked
    against the text; the offline model is the throughput curve.

    Attributes
    ----------
    curve : DataFrame
        Columns `workers`, `servers`, `steps_per_s`, for one number of servers.
    deadline : float
        Seconds from the start of the job.
    slack : float
        Predicted times are taken this many times longer, 1 or more.
    dead_zone : float
        The job is planned to end so many seconds before the deadline, but more workers are asked
        for only once it would miss the deadline itself.
    hysteresis : float
        Share of the way from the present to the wanted size, counted in sizes of the curve, that
        a decision goes at least; above 0 and at most 1.

    Raises
    ------
    InputError
        If the curve has several numbers of servers or is unusable otherwise, or a parameter is
        out of its range.

    Examples
    --------
    100 steps in 100 s need one worker without slack, two with it.

    >>> curve = pd.DataFrame({"workers": [1, 2], "servers": 1, "steps_per_s": [1.0, 1.8]})
    >>> DeadlineControl(curve, deadline=100, slack=1).workers(time=0, remaining=100)
    1
    >>> DeadlineControl(curve, deadline=100).workers(time=0, remaining=100)
    2
    """

    curve: pd.DataFrame
    deadline: float
    slack: float = 1.2
    dead_zone: float = 0.0
    hysteresis: float = 0.2

    def __post_init__(self) -> None:
        where = "DeadlineControl"
        self._throughput  # noqa: B018 - raises for an unusable curve
        _require_positive(where, "deadline", self.deadline)
        if not 1 <= self.slack < math.inf:
            raise InputError(where, self.slack, "a finite number, 1 or more", field="slack")
        if not 0 <= self.dead_zone < self.deadline:
            expected = "0 or more, below the deadline"
            raise InputError(where, self.dead_zone, expected, field="dead_zone")
        if not 0 < self.hysteresis <= 1:
            expected = "above 0, at most 1"
            raise InputError(where, self.hysteresis, expected, field="hysteresis")

    @cached_property
    def _throughput(self) -> pd.Series:
        return _of_one_job("DeadlineControl", self.curve)

    def workers(self, time: float, remaining: float, current: int | None = None) -> int:
        """Number of workers from now on.

        Parameters
        ----------
        time : float
            Seconds since the start of the job.
        remaining : float
            Steps that are left.
        current : int, optional
            Number of workers until now; none at the start, when no guard but the slack applies.

        Returns
        -------
        int
            A size of the curve. If none ends the job in time, the fastest is wanted.

        Raises
        ------
        InputError
            If `current` is not a size of the curve.
        """
        sizes, throughput = self._throughput.index.to_numpy(), self._throughput.to_numpy()
        end = time + self.slack * remaining / throughput
        sufficient = np.flatnonzero(end <= self.deadline - self.dead_zone)
        wanted = int(sufficient[0] if len(sufficient) else throughput.argmax())
        if current is None:
            return int(sizes[wanted])
        if current not in sizes:
            expected = f"one of {', '.join(map(str, sizes))}"
            raise InputError("DeadlineControl", current, expected, field="current")
        present = int(np.searchsorted(sizes, current))
        if wanted > present and end[present] <= self.deadline:
            return current
        way = math.ceil(self.hysteresis * abs(wanted - present))
        return int(sizes[present + way if wanted > present else present - way])


def allocation_over_time(
    control: DeadlineControl,
    steps: float,
    interval: float,
    throughput: Callable[[int, float], float],
) -> pd.DataFrame:
    """Play a job under deadline control.

    Parameters
    ----------
    control : DeadlineControl
        Decides on the workers.
    steps : float
        Steps of all workers together until the job is done.
    interval : float
        Seconds between decisions.
    throughput : callable
        Steps/s that the job really makes with some workers at some time in seconds.

    Returns
    -------
    DataFrame
        One row per decision; columns `time` (s), `remaining` (steps) and `workers` from then on.
        The last row has the end of the job, with nothing remaining and no workers.

    Raises
    ------
    InputError
        If `steps`, `interval` or a throughput is not positive and finite.
    """
    _require_positive("job", "steps", steps)
    _require_positive("job", "interval", interval)
    rows = []
    time, remaining, workers = 0.0, float(steps), None
    while remaining > 0:
        workers = control.workers(time, remaining, workers)
        rows.append((time, remaining, workers))
        rate = throughput(workers, time)
        _require_positive(f"throughput of {workers} workers", "steps_per_s", rate)
        if remaining <= rate * interval:
            rows.append((time + remaining / rate, 0.0, 0))
        else:
            time += interval
        remaining -= rate * interval
    return pd.DataFrame(rows, columns=["time", "remaining", "workers"])


def share_workers(curves: Mapping[str, pd.DataFrame], workers: int) -> pd.DataFrame:
    """Divide a cluster's workers between jobs by what each one gains.

    Lin, Paolieri, Chou and Golubchik, MASCOTS 2018: nodes go one after the other to the job
    whose speedup grows most by one more; as described in the literature, not checked against the
    text. Every job starts with its smallest size. Where a curve leaves out sizes, or grows
    slowly before it grows fast, the gain is that of the best larger size, per worker. Workers
    that speed up no job are left over.

    Parameters
    ----------
    curves : mapping of str to DataFrame
        For each job the columns `workers`, `servers`, `steps_per_s`, for one number of servers.
    workers : int
        How many there are.

    Returns
    -------
    DataFrame
        Index `job`; columns `workers`, `steps_per_s`, `speedup` over the smallest size.

    Raises
    ------
    InputError
        If there are no jobs or too few workers for their smallest sizes, or a curve has several
        numbers of servers or is unusable otherwise.

    Examples
    --------
    >>> sizes = {"workers": [1, 2, 3], "servers": 1}
    >>> curves = {
    ...     "scales": pd.DataFrame({**sizes, "steps_per_s": [1.0, 1.9, 2.7]}),
    ...     "saturates": pd.DataFrame({**sizes, "steps_per_s": [5.0, 6.0, 6.0]}),
    ... }
    >>> share_workers(curves, 4)["workers"].to_dict()
    {'scales': 3, 'saturates': 1}
    """
    if not curves:
        raise InputError("curves", "no jobs", "at least one")
    throughput = {job: _of_one_job(f"curve of {job}", curve) for job, curve in curves.items()}
    speedup = {job: steps / steps.iloc[0] for job, steps in throughput.items()}
    given = {job: int(steps.index[0]) for job, steps in throughput.items()}
    free = workers - sum(given.values())
    if free < 0:
        raise InputError("workers", workers, f"at least {sum(given.values())} for all jobs")
    while True:
        offers = [
            ((speedup[job][size] - speedup[job][present]) / (size - present), size, job)
            for job, present in given.items()
            for size in speedup[job].index
            if present < size <= present + free
        ]
        gain, size, job = max(offers, key=lambda offer: offer[0], default=(0.0, 0, ""))
        if gain <= 0:
            break
        free -= size - given[job]
        given[job] = size
    return pd.DataFrame(
        {
            "workers": given,
            "steps_per_s": {job: throughput[job][size] for job, size in given.items()},
            "speedup": {job: speedup[job][size] for job, size in given.items()},
        }
    ).rename_axis("job")


def _first(clusters: pd.DataFrame, column: str) -> pd.DataFrame:
    """The row with the least value of a column, and of equals the one with the fewest nodes."""
    nodes = clusters["workers"] + clusters["servers"]
    order = clusters.assign(nodes=nodes).sort_values([column, "nodes"], kind="stable").index
    return clusters.loc[order[:1]].reset_index(drop=True)


def _of_one_job(where: str, curve: pd.DataFrame) -> pd.Series:
    """Throughput in steps/s by number of workers, in increasing order."""
    checked = _checked(curve)
    servers = sorted(checked["servers"].unique())
    if len(servers) > 1:
        found = f"{', '.join(map(str, servers))} servers"
        raise InputError(where, found, "one number of servers", field="servers")
    return checked.set_index("workers")["steps_per_s"].sort_index()


def _checked(curve: pd.DataFrame) -> pd.DataFrame:
    """A copy of a curve whose rows are usable, with a new index."""
    for name in ("workers", "servers", "steps_per_s"):
        if name not in curve.columns:
            found = f"columns {', '.join(map(str, curve.columns))}"
            raise InputError("curve", found, f"the column {name}")
        if len(curve) == 0:
            raise InputError("curve", "no rows", "at least one cluster")
        values = pd.to_numeric(curve[name], errors="coerce")
        wrong = curve[name][~(np.isfinite(values) & (values > 0))]
        if len(wrong):
            raise InputError("curve", wrong.iloc[0], "a positive number", field=name)
    twice = curve[curve.duplicated(["workers", "servers"])]
    if len(twice):
        found = f"{twice['workers'].iloc[0]} workers, {twice['servers'].iloc[0]} servers twice"
        raise InputError("curve", found, "one row per cluster, such as those of one method")
    return curve.reset_index(drop=True)


def _require_positive(where: str, field: str, value: float, *, zero: bool = False) -> None:
    if not ((value > 0 or (zero and value == 0)) and math.isfinite(value)):
        expected = "a finite number, 0 or more" if zero else "a finite number above 0"
        raise InputError(where, value, expected, field=field)
