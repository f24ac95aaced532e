"""What a solver finds out about a closed network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asgd_model.queueing.network import ClosedNetwork

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class Solution:
    """Mean performance of a closed network in steady state.

    Values of a class without customers are 0.

    Attributes
    ----------
    network : ClosedNetwork
        K stations, R classes.
    method : str
        The solver's name.
    throughput : ndarray, shape (R,)
        Cycles per second of all customers of a class.
    residence_time : ndarray, shape (K, R)
        Seconds that a customer spends at a station in one cycle, over all its visits.
    queue_length : ndarray, shape (K, R)
        Mean number of customers at a station, those in service included.

    Examples
    --------
    >>> from asgd_model.queueing import ClosedNetwork, delay, exact_mva, ps
    >>> network = ClosedNetwork([ps("uplink", 0.1), delay("worker", 0.4)], population=2)
    >>> exact_mva(network).per_station().round(3)  # doctest: +NORMALIZE_WHITESPACE
                      residence_time  response_time  queue_length  utilisation
    station class
    uplink  customer            0.12           0.12         0.462        0.385
    worker  customer            0.40           0.40         1.538        1.538
    """

    network: ClosedNetwork
    method: str
    throughput: Floats
    residence_time: Floats
    queue_length: Floats

    @property
    def total_throughput(self) -> float:
        """Cycles per second of all classes together."""
        return float(self.throughput.sum())

    @property
    def response_time(self) -> Floats:
        """Seconds of one visit to each station, shape (K, R)."""
        response: Floats = self.residence_time / self.network.visits
        return response

    @property
    def utilisation(self) -> Floats:
        """Share of each station's peak rate in use, shape (K, R).

        The utilisation law, U = X D (Denning and Buzen 1978), over the largest rate of service:
        for c servers the share of them that is busy, for a delay the mean number of customers.
        """
        work: Floats = self.throughput * self.network.demands
        return work / self.network.peak_rates[:, None]

    def per_class(self) -> pd.DataFrame:
        """Results of each class.

        Returns
        -------
        pandas.DataFrame
            Index class; columns population, throughput (cycles/s), response_time (seconds of a
            cycle at other stations than delays) and cycle_time (seconds).
        """
        import pandas as pd

        at_delays = self.residence_time[self.network.delays].sum(axis=0)
        cycle = self.residence_time.sum(axis=0)
        return pd.DataFrame(
            {
                "population": self.network.population,
                "throughput": self.throughput,
                "response_time": cycle - at_delays,
                "cycle_time": cycle,
            },
            index=pd.Index(self.network.classes, name="class"),
        )

    def per_station(self) -> pd.DataFrame:
        """Results of each class at each station.

        Returns
        -------
        pandas.DataFrame
            Index (station, class); columns residence_time (seconds per cycle), response_time
            (seconds per visit), queue_length (customers) and utilisation.
        """
        import pandas as pd

        names = [station.name for station in self.network.stations]
        index = pd.MultiIndex.from_product(
            [names, self.network.classes], names=["station", "class"]
        )
        columns = ("residence_time", "response_time", "queue_length", "utilisation")
        return pd.DataFrame({name: getattr(self, name).ravel() for name in columns}, index=index)

    def __repr__(self) -> str:
        return f"{self.method}\n{self.per_class()}\n{self.per_station()}"

    def _repr_html_(self) -> str:
        return f"<p>{self.method}</p>{self.per_class().to_html()}{self.per_station().to_html()}"
