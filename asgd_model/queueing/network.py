"""Closed queueing networks: what they consist of, and how they are written down."""

from __future__ import annotations

import html
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from asgd_model.errors import InputError

Kind = Literal["ps", "fcfs", "delay", "load-dependent"]
PerClass = float | Mapping[str, float]
"""One number for all classes, or one for each class by name."""
ONLY_CLASS = "customer"
"""Name of the class in a network that does not name any."""
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class Station:
    """A place where customers receive service.

    The functions `ps`, `fcfs`, `delay`, `load_dependent` and `multi_server` make one.

    Parameters
    ----------
    name : str
        Shown in tables and errors; unique within a network.
    kind : {"ps", "fcfs", "delay", "load-dependent"}
        How customers are served. A load-dependent station shares its rate equally.
    demand : float or mapping of class name to float
        Service demand in seconds: the work of one cycle of a customer, over all its visits.
    visits : float or mapping of class name to float
        Visits in one cycle. They matter to response times per visit and to FCFS stations,
        whose mean service time ``demand / visits`` product form wants equal in all classes.
    rates : sequence of float
        Rate of service with 1, 2, ... customers, in seconds of work per second; the last one
        holds for any larger number. Constant 1 for stations that are not load-dependent.

    Raises
    ------
    InputError
        If the kind is unknown, a demand is negative or not finite, a rate or a number of visits
        is not positive and finite, or only a load-dependent station could have the rates.
    """

    name: str
    kind: Kind
    demand: PerClass
    visits: PerClass = 1.0
    rates: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(
                self._where, self.kind, f"one of {', '.join(get_args(Kind))}", field="kind"
            )
        if not self.rates:
            raise InputError(self._where, "no rates", "at least one rate", field="rates")
        if self.kind != "load-dependent" and self.rates != (1.0,):
            raise InputError(self._where, self.rates, "a constant rate of 1", field="rates")
        for demand in _values(self.demand):
            if not (_finite(demand) and demand >= 0):
                raise InputError(self._where, demand, "finite seconds, 0 or more", field="demand")
        for field, values in (("visits", _values(self.visits)), ("rates", self.rates)):
            for value in values:
                if not (_finite(value) and value > 0):
                    raise InputError(self._where, value, "a positive finite number", field=field)

    @property
    def _where(self) -> str:
        return f"station {self.name!r}"

    @property
    def peak_rate(self) -> float:
        """Largest rate of service, in seconds of work per second."""
        return float(max(self.rates))

    def rates_up_to(self, customers: int) -> NDArray[np.float64]:
        """Rates of service with 1, ..., `customers` customers; shape (customers,)."""
        given = np.asarray(self.rates[:customers], dtype=np.float64)
        return np.pad(given, (0, customers - len(given)), mode="edge")

    def slow_rates(self, customers: int) -> NDArray[np.float64]:
        """Rates with 1, 2, ... customers, up to the last of `customers` that is below the peak."""
        rates = self.rates_up_to(customers)
        return rates[: np.flatnonzero(rates < self.peak_rate).max(initial=-1) + 1]


def ps(name: str, demand: PerClass, *, visits: PerClass = 1.0) -> Station:
    """Processor sharing: all customers present are served at once, at equal rates.

    Examples
    --------
    >>> ps("uplink", 0.04).kind
    'ps'
    """
    return Station(name, "ps", demand, visits)


def fcfs(name: str, demand: PerClass, *, visits: PerClass = 1.0) -> Station:
    """First come, first served, by one server with exponential service times."""
    return Station(name, "fcfs", demand, visits)


def delay(name: str, demand: PerClass, *, visits: PerClass = 1.0) -> Station:
    """No waiting: every customer has a server of its own (think time, a worker's computation)."""
    return Station(name, "delay", demand, visits)


def load_dependent(
    name: str, demand: PerClass, rates: Sequence[float], *, visits: PerClass = 1.0
) -> Station:
    """A rate of service that depends on how many customers are present, shared equally.

    ``rates[n - 1]`` is the rate with n customers, the last one also for more.

    Examples
    --------
    A link that loses a fifth of its capacity once three connections use it:

    >>> load_dependent("link", 0.04, rates=[1, 1, 0.8]).rates_up_to(5).tolist()
    [1.0, 1.0, 0.8, 0.8, 0.8]
    """
    return Station(name, "load-dependent", demand, visits, tuple(rates))


def multi_server(name: str, demand: PerClass, servers: int, *, visits: PerClass = 1.0) -> Station:
    """Equal servers, each for one customer at a time: the load-dependent rate is min(n, servers).

    Examples
    --------
    >>> multi_server("server CPU", 0.02, servers=4).rates
    (1, 2, 3, 4)
    """
    if servers < 1:
        raise InputError(f"station {name!r}", servers, "at least one server", field="servers")
    return Station(name, "load-dependent", demand, visits, tuple(range(1, servers + 1)))


class ClosedNetwork:
    """Stations that a fixed number of customers visit in endless cycles.

    Parameters
    ----------
    stations : iterable of Station
        In the order in which tables list them; it has no influence on the results.
    population : int or mapping of class name to int
        Number of customers, or of each class. One class without a name is called "customer".

    Attributes
    ----------
    stations : tuple of Station
        K stations.
    classes : tuple of str
        R classes.
    population : ndarray of int, shape (R,)
        Customers of each class.
    demands : ndarray, shape (K, R)
        Service demands in seconds.
    visits : ndarray, shape (K, R)
        Visits in one cycle.

    Raises
    ------
    InputError
        If there is no station, two have the same name, a station names an unknown class or
        leaves one out, a population is not a whole number of at least 0, nobody is in the
        network, or a class has no demand at all.

    Examples
    --------
    >>> ClosedNetwork(
    ...     [ps("uplink", 0.04), multi_server("server CPU", 0.02, servers=2), delay("worker", 0.5)],
    ...     population=8,
    ... )
    ClosedNetwork, population 8
    station     kind                   demand (s)
    uplink      ps                     0.04
    server CPU  load-dependent (1, 2)  0.02
    worker      delay                  0.5

    Two types of worker that differ in their computation only:

    >>> ClosedNetwork(
    ...     [ps("uplink", 0.04), delay("worker", {"fast": 0.5, "slow": 1.2})],
    ...     population={"fast": 4, "slow": 2},
    ... )
    ClosedNetwork, population fast 4, slow 2
    station  kind   fast (s)  slow (s)
    uplink   ps     0.04      0.04
    worker   delay  0.5       1.2
    """

    def __init__(self, stations: Iterable[Station], population: int | Mapping[str, int]) -> None:
        self.stations = tuple(stations)
        customers = population if isinstance(population, Mapping) else {ONLY_CLASS: population}
        self.classes = tuple(customers)
        counts = [_count(name, number) for name, number in customers.items()]
        self.population = _frozen(np.array(counts, dtype=np.int64))
        if not self.stations:
            raise InputError("stations", "none", "at least one station")
        names = [station.name for station in self.stations]
        if len(set(names)) < len(names):
            raise InputError("stations", ", ".join(names), "names that differ")
        if self.population.sum() == 0:
            raise InputError("population", dict(customers), "at least one customer")
        self.demands = _frozen(np.array([self._row(s, "demand", s.demand) for s in self.stations]))
        self.visits = _frozen(np.array([self._row(s, "visits", s.visits) for s in self.stations]))
        for name, demand in zip(self.classes, self.demands.sum(axis=0), strict=True):
            if demand == 0:
                raise InputError(f"class {name!r}", "no demand", "a demand at some station")

    def _row(self, station: Station, field: str, value: PerClass) -> list[float]:
        """Values of all classes at one station."""
        if not isinstance(value, Mapping):
            return [float(value)] * len(self.classes)
        if set(value) != set(self.classes):
            found, expected = ", ".join(value), ", ".join(self.classes)
            raise InputError(
                f"station {station.name!r}", f"classes {found}", f"classes {expected}", field=field
            )
        return [float(value[name]) for name in self.classes]

    def with_population(self, population: int | Mapping[str, int]) -> ClosedNetwork:
        """The same stations with other customers."""
        return ClosedNetwork(self.stations, population)

    @property
    def delays(self) -> list[int]:
        """Indices of the delay stations."""
        return [k for k, s in enumerate(self.stations) if s.kind == "delay"]

    @property
    def queues(self) -> list[int]:
        """Indices of the stations with a constant rate of service."""
        return [
            k
            for k, s in enumerate(self.stations)
            if s.kind != "delay" and s.peak_rate == min(s.rates)
        ]

    @property
    def load_dependent(self) -> list[int]:
        """Indices of the stations whose rate of service varies."""
        return [k for k, s in enumerate(self.stations) if s.peak_rate > min(s.rates)]

    @property
    def peak_rates(self) -> NDArray[np.float64]:
        """Largest rate of service of each station, shape (K,); 1 for a delay."""
        return np.array([s.peak_rate for s in self.stations], dtype=np.float64)

    def require_product_form(self, method: str) -> None:
        """Refuse networks for which exact methods are not exact.

        FCFS stations have a product form only if service times are exponential with the same
        mean in all classes (Baskett, Chandy, Muntz and Palacios 1975, type 1).

        Raises
        ------
        InputError
            If classes differ in their mean service time at an FCFS station.
        """
        for k, station in enumerate(self.stations):
            if station.kind != "fcfs":
                continue
            times = (self.demands[k] / self.visits[k])[self.demands[k] > 0]
            if times.size and not np.allclose(times, times[0], rtol=1e-9, atol=0):
                raise InputError(
                    method,
                    f"mean service times of {', '.join(f'{t:g}' for t in times)} s at the FCFS "
                    f"station {station.name!r}",
                    "the same time for all classes (product form); bard_schweitzer and "
                    "linearizer approximate the others, ps stations have no such limit",
                )

    def _table(self) -> tuple[str, list[list[str]]]:
        """Title and rows (the first one is the header) that describe the network."""
        if self.classes == (ONLY_CLASS,):
            title, columns = f"population {self.population[0]}", ["demand (s)"]
        else:
            pairs = zip(self.classes, self.population, strict=True)
            title = "population " + ", ".join(f"{name} {count}" for name, count in pairs)
            columns = [f"{name} (s)" for name in self.classes]
        rows = [["station", "kind", *columns]]
        for station, demands in zip(self.stations, self.demands, strict=True):
            kind: str = station.kind
            if station.kind == "load-dependent":
                shown = [f"{rate:g}" for rate in station.rates]
                if len(shown) > 6:
                    shown[3:-1] = ["..."]
                kind += f" ({', '.join(shown)})"
            rows.append([station.name, kind, *(f"{demand:g}" for demand in demands)])
        return f"ClosedNetwork, {title}", rows

    def __repr__(self) -> str:
        title, rows = self._table()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([title, *lines])

    def _repr_html_(self) -> str:
        """The same table for notebooks, with bars for the time that each station needs."""
        title, (header, *rows) = self._table()
        loads = (self.demands / self.peak_rates[:, None]) @ self.population
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        body = ""
        for row, load, station in zip(rows, loads / loads.max(), self.stations, strict=True):
            colour = "#bbb" if station.kind == "delay" else "#4878a8"
            bar = f'<div style="background:{colour};height:0.8em;width:{8 * load:.2f}em"></div>'
            cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
            body += f"<tr>{cells}<td>{bar}</td></tr>"
        return (
            f"<table><caption>{html.escape(title)}</caption><thead>"
            f"<tr>{head}<th>work of all customers</th></tr></thead><tbody>{body}</tbody></table>"
        )


def _values(value: PerClass) -> Iterable[float]:
    return value.values() if isinstance(value, Mapping) else (value,)


def _finite(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _count(name: str, number: Any) -> int:
    """A number of customers as int, from any integer type."""
    try:
        count = operator.index(number)
    except TypeError:
        count = -1
    if count < 0:
        raise InputError("population", number, "a whole number, 0 or more", field=name)
    return count


def _frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    array.setflags(write=False)
    return array
