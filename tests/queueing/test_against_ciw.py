"""Exact MVA against a discrete-event simulation of the same network by Ciw."""

from __future__ import annotations

import ciw
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from asgd_model.queueing import ClosedNetwork, delay, exact_mva, fcfs, multi_server, ps

WARM_UP, DURATION, BATCHES = 200.0, 4000.0, 30
NETWORK = ClosedNetwork(
    [
        ps("uplink", {"fast": 0.1, "slow": 0.2}),
        fcfs("disk", 0.08),
        multi_server("cpu", 0.3, servers=2),
        delay("worker", {"fast": 0.5, "slow": 1.0}),
    ],
    population={"fast": 4, "slow": 3},
)


def simulated(network: ClosedNetwork, insensitive, seed: int) -> pd.DataFrame:
    """Visits after the warm-up; `insensitive` is the service distribution at ps and delay."""

    def service(kind, mean):
        if kind in ("ps", "delay"):
            return insensitive(mean)
        return ciw.dists.Exponential(1 / mean)

    kinds = [station.kind for station in network.stations]
    size = len(kinds)
    enter = {  # all customers come at the start, none leaves
        name: [ciw.dists.Sequential([1e-9] * int(count) + [np.inf])] + [None] * (size - 1)
        for name, count in zip(network.classes, network.population, strict=True)
    }
    model = ciw.create_network(
        arrival_distributions=enter,
        service_distributions={
            name: [service(kind, mean) for kind, mean in zip(kinds, demands, strict=True)]
            for name, demands in zip(network.classes, network.demands.T, strict=True)
        },
        routing=dict.fromkeys(network.classes, np.roll(np.eye(size), 1, axis=1).tolist()),
        number_of_servers=[
            np.inf if kind in ("ps", "delay") else len(station.rates)
            for kind, station in zip(kinds, network.stations, strict=True)
        ],
    )
    ciw.seed(seed)
    run = ciw.Simulation(
        model, node_class=[ciw.PSNode if kind == "ps" else ciw.Node for kind in kinds]
    )
    run.simulate_until_max_time(WARM_UP + DURATION)
    visits = pd.DataFrame(run.get_all_records())
    return visits[visits.exit_date > WARM_UP]


@pytest.mark.parametrize(
    "insensitive",
    [lambda mean: ciw.dists.Exponential(1 / mean), lambda mean: ciw.dists.Uniform(0, 2 * mean)],
    ids=["exponential", "uniform at ps and delay"],
)
def test_simulated_means_agree(insensitive):
    """Throughput and response times lie in the simulation's intervals, of at most 10 %.

    16 intervals of 99.9 % each from batch means. Processor sharing and delays are insensitive to
    the distribution of service times, so uniform ones give the same means.
    """
    visits = simulated(NETWORK, insensitive, seed=1)
    batch = ((visits.exit_date - WARM_UP) * BATCHES / DURATION).astype(int).clip(upper=BATCHES - 1)
    groups = visits.assign(batch=batch, response=visits.exit_date - visits.arrival_date).groupby(
        ["node", "customer_class", "batch"]
    )
    solution = exact_mva(NETWORK)
    measures = [
        (groups.size() * BATCHES / DURATION, np.tile(solution.throughput, (4, 1))),
        (groups.response.mean(), solution.response_time),
    ]
    quantile = stats.t.ppf(0.9995, BATCHES - 1)
    for measured, exact in measures:
        batches = measured.to_numpy().reshape(*exact.shape, BATCHES)
        mean = batches.mean(axis=-1)
        half = quantile * batches.std(axis=-1, ddof=1) / np.sqrt(BATCHES)
        assert (half < 0.1 * mean).all()
        assert (np.abs(mean - exact) < half).all()
