"""What a platform's links carry, how they are shared, and what communication costs its CPUs.

All but the sharing is measured with one worker and one server, under the platform's quotas.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.optimize import nnls

from asgd_model.calibration import share_spread
from asgd_model.documents import validate
from asgd_model.files import read_json, write_json
from asgd_model.profile import Calibration, CommunicationCost
from asgd_model.testbed.bulk import Flow, measure_flows
from asgd_model.testbed.emulation import Emulation
from asgd_model.testbed.errors import TestbedError
from asgd_model.testbed.machine import Machine, check, this_machine
from asgd_model.testbed.platform import Platform
from asgd_model.testbed.protocol import Initialize, Run, Transfer, Transfers
from asgd_model.testbed.results import Results
from asgd_model.testbed.run import Report

FLOWS = 8
"""Flows that share a link when its fairness is measured."""

MOST_SPREAD = 0.2
LEAST_NEWCOMER_SHARE = 0.8
"""A link that shares less evenly than this is unfair."""

_SECONDS = 6.0
_RAMP = 1.0
"""Seconds at the beginning of a flow that do not count."""

_JOINS = (0.5, 2.0)
"""Seconds after which a second flow joins a first one."""

_TENSORS = ((1, 4), (200, 4), (200, 65_536), (8, 1 << 21), (2, 1 << 23))
"""Numbers and bytes of the tensors that a step moves."""

_TRANSFER_SECONDS = 4.0


class TransferCost(BaseModel):
    """CPU time in seconds that a step of equal tensors cost the two nodes, mean over steps."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    direction: str
    tensors: int
    bytes_each: int
    steps: int
    seconds: float = Field(description="duration of a step")
    server: float
    worker: float


class PlatformCalibration(BaseModel):
    """All that calibrating a platform found."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    platform: Platform
    link_rate: float = Field(description="payload of one flow, bit/s")
    link_rate_both_ways: float = Field(description="of each of two opposite flows, bit/s")
    shares_down: tuple[float, ...] = Field(description="rates of equal flows, bit/s")
    shares_up: tuple[float, ...]
    newcomers_down: tuple[float, ...] = Field(description="rate of a later flow over the first's")
    newcomers_up: tuple[float, ...]
    transfers: tuple[TransferCost, ...]
    calibration: Calibration
    machine: Machine
    framework: str
    date: str

    @property
    def fair(self) -> bool:
        """Whether flows share links evenly, whoever was there first."""
        known = self.calibration
        return known.share_spread <= MOST_SPREAD and known.newcomer_share >= LEAST_NEWCOMER_SHARE


def calibrate(platform: Platform, logs: Path, report: Report) -> PlatformCalibration:
    """Measure what a platform's links carry, how they are shared, and what communication costs.

    Takes some two minutes.

    Parameters
    ----------
    platform : Platform
        The cluster.
    logs : Path
        Folder for what the nodes' processes print.
    report : callable
        Is told of the progress.

    Raises
    ------
    TestbedError
        If the machine cannot, a measurement fails, or links are unfair and the platform does
        not say so.
    """
    check(platform, 1, 1)
    machine = this_machine()
    with Emulation(platform, FLOWS, 1, logs) as cluster:
        report("rate of the links")
        one = Flow("ps0", "worker0", 0.0, _SECONDS)
        back = Flow("worker0", "ps0", 0.0, _SECONDS)
        alone = min(*_rates(cluster, [one]), *_rates(cluster, [back]))
        both = _rates(cluster, [one, back])
        report(f"{FLOWS} flows from a server, and a second one that joins later")
        down = _sharing(cluster, [("ps0", worker) for worker in cluster.workers])
        report(f"{FLOWS} flows to a server, and a second one that joins later")
        up = _sharing(cluster, [(worker, "ps0") for worker in cluster.workers])
    framework, transfers = _transfers(platform, logs, report)
    newcomer_share = min(1.0, float(np.exp(np.log(down[1]).mean())))
    found = PlatformCalibration(
        platform=platform,
        link_rate=round(alone),
        link_rate_both_ways=round(both.min()),
        shares_down=tuple(np.round(down[0]).tolist()),
        shares_up=tuple(np.round(up[0]).tolist()),
        newcomers_down=tuple(np.round(down[1], 3).tolist()),
        newcomers_up=tuple(np.round(up[1], 3).tolist()),
        transfers=transfers,
        calibration=Calibration(
            worker_send=communication_cost(transfers, "up", "worker"),
            worker_receive=communication_cost(transfers, "down", "worker"),
            server_send=communication_cost(transfers, "down", "server"),
            server_receive=communication_cost(transfers, "up", "server"),
            share_spread=round(max(share_spread(down[0]), share_spread(up[0])), 3),
            newcomer_share=round(newcomer_share, 3),
        ),
        machine=machine,
        framework=framework,
        date=datetime.date.today().isoformat(),
    )
    if not (found.fair or platform.unfair):
        known = found.calibration
        raise TestbedError(
            f"the links of {platform.name} are unfair: shares spread by {known.share_spread} "
            f"(at most {MOST_SPREAD}), a newcomer gets {known.newcomer_share} of the share of the "
            f"first (at least {LEAST_NEWCOMER_SHARE}); a platform meant to be says unfair: true"
        )
    return found


def calibrated(platform: Platform, results: Results, report: Report) -> PlatformCalibration:
    """The calibration of a platform on this machine, measured unless it is among the results.

    Raises
    ------
    TestbedError
        As `calibrate`.
    InputError
        If the calibration among the results is damaged.
    """
    path = results.calibration
    if path.exists():
        known = load_calibration(path)
        if known.platform == platform and this_machine().is_like(known.machine.as_columns()):
            return known
    report(f"calibrating {platform.name}")
    found = calibrate(platform, results.logs, report)
    save_calibration(found, path)
    return found


def communication_cost(
    transfers: Sequence[TransferCost], direction: str, node: str
) -> CommunicationCost:
    """Cost per byte and per tensor that explains what steps of different tensors cost a node.

    Least squares with non-negative coefficients: a step's CPU time is a constant, which running
    any step costs, and the two costs. Each step counts by its relative error, or large tensors
    alone would decide.

    Parameters
    ----------
    transfers : sequence of TransferCost
        Measured steps.
    direction, node : str
        Which of them and whose CPU time count: ``down`` or ``up``, ``worker`` or ``server``.
    """
    chosen = [cost for cost in transfers if cost.direction == direction]
    seconds = np.array([getattr(cost, node) for cost in chosen])
    moved = np.array([[1.0, cost.tensors, cost.tensors * cost.bytes_each] for cost in chosen])
    relative = moved / seconds[:, None]
    scale = relative.max(axis=0)  # columns of like size, for the sake of the numbers
    coefficients, _ = nnls(relative / scale, np.ones(len(chosen)))
    _, per_tensor, per_byte = coefficients / scale
    return CommunicationCost(per_byte=float(per_byte), per_tensor=float(per_tensor))


def save_calibration(found: PlatformCalibration, path: Path) -> None:
    """Write a calibration as JSON, all or nothing."""
    write_json(path, found.model_dump(mode="json"))


def load_calibration(path: Path) -> PlatformCalibration:
    """Read a calibration.

    Raises
    ------
    InputError
        If the file is not one.
    """
    return validate(PlatformCalibration, read_json(path), str(path))


def _rates(cluster: Emulation, flows: Sequence[Flow]) -> NDArray[np.float64]:
    """Rates of flows from the last one's start, bit/s."""
    begin = max(flow.begin for flow in flows) + _RAMP
    return measure_flows(cluster, flows, begin, _SECONDS)


def _sharing(
    cluster: Emulation, pairs: Sequence[tuple[str, str]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rates of flows that start together, and rates of later ones over those of first ones."""
    together = _rates(cluster, [Flow(*pair, 0.0, _SECONDS) for pair in pairs])
    ratios = []
    for join in _JOINS:
        first, second = Flow(*pairs[0], 0.0, _SECONDS), Flow(*pairs[1], join, _SECONDS)
        rates = _rates(cluster, [first, second])
        ratios.append(rates[1] / rates[0])
    return together, np.array(ratios)


def _transfers(
    platform: Platform, logs: Path, report: Report
) -> tuple[str, tuple[TransferCost, ...]]:
    """Framework, and what moving tensors costs one worker and one server."""
    steps = tuple(
        Transfer(direction=direction, tensors=tensors, bytes_each=size)
        for direction in ("down", "up")
        for tensors, size in _TENSORS
    )
    costs = []
    with Emulation(platform, 1, 1, logs) as cluster:
        cluster.enforce_quotas(False)
        framework = cluster.start(Transfers(steps=steps))
        cluster.obey(cluster.workers, Initialize())
        cluster.enforce_quotas()
        for index, step in enumerate(steps):
            report(f"{step.tensors} tensors of {step.bytes_each:,} bytes {step.direction}")
            cluster.obey(cluster.workers, Run(count=2, step=index))
            begin = time.monotonic()
            cluster.obey(cluster.workers, Run(count=1, step=index))
            count = max(3, round(_TRANSFER_SECONDS / (time.monotonic() - begin)))
            before = {node: cluster.usage(node) for node in cluster.nodes}
            begin = time.monotonic()
            cluster.obey(cluster.workers, Run(count=count, step=index))
            seconds = (time.monotonic() - begin) / count
            used = {node: cluster.usage(node) - before[node] for node in cluster.nodes}
            costs.append(
                TransferCost(
                    direction=step.direction,
                    tensors=step.tensors,
                    bytes_each=step.bytes_each,
                    steps=count,
                    seconds=seconds,
                    server=used["ps0"].cpu / count,
                    worker=used["worker0"].cpu / count,
                )
            )
    return framework, tuple(costs)
