"""What the process that runs a measurement tells its nodes, one line of JSON each.

A node is first told its `Task`. It answers with a message whose field ``event`` is ``ready``,
then follows commands: ``initialize`` the variables, ``run`` steps (`Run`), ``save`` the traces
(`Save`). It sends ``step`` after each step and ``done`` after each command.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from asgd_model.testbed.platform import NodeLimits

Policy = Literal["default", "layers"]
"""Order in which a worker receives variables: as TensorFlow has it, or that of the layers, which
control dependencies enforce."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Training(_Line):
    """Train a network."""

    kind: Literal["training"] = "training"
    dnn: str
    batch_size: int
    policy: Policy = "default"
    seed: int = 0


class Transfer(_Line):
    """Move equal tensors: ``down`` from the server to the worker, or ``up``."""

    direction: Literal["down", "up"]
    tensors: int
    bytes_each: int


class Transfers(_Line):
    """Move tensors without computing; each transfer is a kind of step of its own."""

    kind: Literal["transfers"] = "transfers"
    steps: tuple[Transfer, ...]


class Task(_Line):
    """What a node is to be."""

    role: Literal["ps", "worker"]
    index: int
    cluster: dict[str, tuple[str, ...]]
    limits: NodeLimits
    job: Training | Transfers


class Initialize(_Line):
    """Give the variables their initial values."""

    do: Literal["initialize"] = "initialize"


class Run(_Line):
    """Run steps.

    Attributes
    ----------
    count : int
        Number of steps.
    at : float
        When to begin, in seconds of the machine's monotonic clock.
    step : int
        Which kind of step of the job.
    trace_every : int
        Trace the first step and each so-many-th after it; 0 for none.
    graphs : bool
        Whether traced steps also record the partition graphs; earlier traces are forgotten.
    """

    do: Literal["run"] = "run"
    count: int
    at: float = 0.0
    step: int = 0
    trace_every: int = 0
    graphs: bool = False


class Save(_Line):
    """Write the traces of the steps run, but for some of the first, and forget them.

    The first trace of all, which has the partition graphs, gives them to the first one written.
    """

    do: Literal["save"] = "save"
    folder: str
    skip: int


Command = Initialize | Run | Save
