"""The fine-grained model: a fluid discrete-event simulation of the step graph."""

from asgd_model.simulator.jobs import Job, simulate_jobs
from asgd_model.simulator.replications import compare, predict, replicate, throughput_interval
from asgd_model.simulator.results import SimulationResult, staleness_distribution
from asgd_model.simulator.simulation import Simulation, simulate, simulate_to_precision
from asgd_model.simulator.steady_state import SteadyState
from asgd_model.simulator.trace import profile_trace, simulation_trace, synthetic_profile

__all__ = [
    "Job",
    "Simulation",
    "SimulationResult",
    "SteadyState",
    "compare",
    "predict",
    "profile_trace",
    "replicate",
    "simulate",
    "simulate_jobs",
    "simulate_to_precision",
    "simulation_trace",
    "staleness_distribution",
    "synthetic_profile",
    "throughput_interval",
]
