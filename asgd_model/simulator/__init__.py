"""The fine-grained model: a fluid discrete-event simulation of the step graph."""

from asgd_model.simulator.replications import predict, replicate, throughput_interval
from asgd_model.simulator.results import SimulationResult
from asgd_model.simulator.simulation import Simulation, simulate

__all__ = [
    "Simulation",
    "SimulationResult",
    "predict",
    "replicate",
    "simulate",
    "throughput_interval",
]
