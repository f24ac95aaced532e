"""A platform: the links and nodes of the cluster that the machine plays."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from asgd_model.documents import read_yaml, validate


class Link(BaseModel):
    """The full-duplex link of every node to the switch."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rate: float = Field(gt=0.0, description="bit/s in each direction, headers included")
    queue: int = Field(default=262_144, gt=0, description="bytes that wait for a link at most")
    burst: int = Field(default=65_536, ge=1514, description="bytes sent at once after a pause")
    sharing: Literal["per-peer", "fifo"] = Field(
        default="per-peer",
        description="one queue for each peer, served in turn, or one queue for all",
    )
    congestion_control: str = Field(default="reno", pattern=r"^[a-z0-9_]+$")


class NodeLimits(BaseModel):
    """What the processes of one node may use."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    cores: float = Field(gt=0.0, description="share of CPU time, in cores")
    intra_op_threads: int = Field(default=1, ge=1, le=64, description="threads of an operation")
    inter_op_threads: int = Field(default=2, ge=1, le=64, description="operations at a time")


class Platform(BaseModel):
    """A cluster of equal workers and equal parameter servers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=100, description="also names its files"
    )
    description: str = ""
    link: Link
    worker: NodeLimits
    server: NodeLimits
    quota_period: float = Field(
        default=0.01, ge=0.001, le=1.0, description="seconds over which CPU quotas are enforced"
    )
    unfair: bool = Field(default=False, description="measured although links are shared unevenly")

    def cores(self, workers: int, servers: int) -> float:
        """Sum of the CPU quotas of all nodes, in cores."""
        return workers * self.worker.cores + servers * self.server.cores


def load_platform(path: str | Path) -> Platform:
    """Read a platform from a YAML file.

    Raises
    ------
    InputError
        If the file is not a platform, naming the field, what was found and what was expected.
    """
    return validate(Platform, read_yaml(path), str(path))
