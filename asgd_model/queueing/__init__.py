"""Closed queueing networks: exact and approximate solutions, and bounds.

A network is a list of stations and a population; a solver turns it into a `Solution`.

Examples
--------
>>> from asgd_model.queueing import ClosedNetwork, delay, exact_mva, multi_server, ps
>>> network = ClosedNetwork(
...     [
...         ps("downlink", 0.04),
...         delay("worker", 0.5),
...         ps("uplink", 0.04),
...         multi_server("server CPU", 0.05, servers=2),
...     ],
...     population=8,
... )
>>> round(exact_mva(network).total_throughput, 2)
11.71
"""

from asgd_model.queueing.approximate import bard_schweitzer, linearizer
from asgd_model.queueing.bounds import asymptotic_bounds, balanced_job_bounds
from asgd_model.queueing.convolution import exact_convolution
from asgd_model.queueing.mva import exact_mva, throughput_curve
from asgd_model.queueing.network import (
    ClosedNetwork,
    Station,
    delay,
    fcfs,
    load_dependent,
    multi_server,
    ps,
)
from asgd_model.queueing.solution import Solution

__all__ = [
    "ClosedNetwork",
    "Solution",
    "Station",
    "asymptotic_bounds",
    "balanced_job_bounds",
    "bard_schweitzer",
    "delay",
    "exact_convolution",
    "exact_mva",
    "fcfs",
    "linearizer",
    "load_dependent",
    "multi_server",
    "ps",
    "throughput_curve",
]
