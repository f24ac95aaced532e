"""The fine-grained model: a fluid discrete-event simulation of the step graph."""

from asgd_model.simulator.results import SimulationResult
from asgd_model.simulator.simulation import simulate

__all__ = ["SimulationResult", "simulate"]
