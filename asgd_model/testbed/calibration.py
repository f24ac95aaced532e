"""What a platform's links carry, how they are shared, and what communication costs its CPUs.

All but the sharing is measured with one worker and one server, under the platform's quotas.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
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

if TYPE_CHECKING:
    import pandas as pd

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


class Links(BaseModel):
    """What bulk flows found of a platform's links; rates of payload in bit/s."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rate: float = Field(description="of one flow")
    rate_both_ways: float = Field(description="of each of two opposite flows")
    shares_down: tuple[float, ...] = Field(description="of equal flows from a server")
    shares_up: tuple[float, ...] = Field(description="of equal flows to a server")
    newcomers_down: tuple[float, ...] = Field(description="rate of a later flow over the first's")
    newcomers_up: tuple[float, ...]

    @property
    def spread(self) -> float:
        """`asgd_model.calibration.share_spread` in the direction in which it is larger."""
        return round(max(share_spread(self.shares_down), share_spread(self.shares_up)), 3)

    @property
    def newcomer_share(self) -> float:
        """Share of a flow that joins one from a server over the other's, geometric mean."""
        return round(min(1.0, float(np.exp(np.log(self.newcomers_down).mean()))), 3)

    @property
    def fair(self) -> bool:
        """Whether flows share links evenly, whoever was there first."""
        return self.spread <= MOST_SPREAD and self.newcomer_share >= LEAST_NEWCOMER_SHARE


class PlatformCalibration(BaseModel):
    """All that calibrating a platform found."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    platform: Platform
    links: Links
    transfers: tuple[TransferCost, ...]
    calibration: Calibration
    machine: Machine
    framework: str
    date: str


def calibrate(platform: Platform, logs: Path, report: Report) -> PlatformCalibration:
    """Measure what a platform's links carry, how they are shared, and what communication costs.

    Takes some three minutes.

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
    links = _measure_links(platform, logs, report)
    if not (links.fair or platform.unfair):
        raise TestbedError(
            f"the links of {platform.name} are unfair: shares spread by {links.spread} (at most "
            f"{MOST_SPREAD}), a newcomer gets {links.newcomer_share} of the share of the first "
            f"(at least {LEAST_NEWCOMER_SHARE}); a platform meant to be says unfair: true"
        )
    framework, transfers = _measure_transfers(platform, logs, report)
    return PlatformCalibration(
        platform=platform,
        links=links,
        transfers=transfers,
        calibration=Calibration(
            worker_send=communication_cost(transfers, "up", "worker"),
            worker_receive=communication_cost(transfers, "down", "worker"),
            server_send=communication_cost(transfers, "down", "server"),
            server_receive=communication_cost(transfers, "up", "server"),
            share_spread=links.spread,
            newcomer_share=links.newcomer_share,
        ),
        machine=machine,
        framework=framework,
        date=datetime.date.today().isoformat(),
    )


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
    _, per_tensor, per_byte = _fit(transfers, direction, node)
    return CommunicationCost(per_byte=per_byte, per_tensor=per_tensor)


def explained_costs(transfers: Sequence[TransferCost]) -> pd.DataFrame:
    """What moving tensors cost, beside what the fitted costs of `communication_cost` say.

    Parameters
    ----------
    transfers : sequence of TransferCost
        Measured steps.

    Returns
    -------
    DataFrame
        One row per kind of step and node: `node`, `does` (``sends`` or ``receives``), `tensors`,
        `bytes_each`, `measured` and `fitted` (CPU seconds per step).
    """
    import pandas as pd

    rows = []
    for node, direction, does in (
        ("worker", "up", "sends"),
        ("worker", "down", "receives"),
        ("server", "down", "sends"),
        ("server", "up", "receives"),
    ):
        constant, per_tensor, per_byte = _fit(transfers, direction, node)
        for cost in transfers:
            if cost.direction == direction:
                moved = per_tensor + per_byte * cost.bytes_each
                rows.append(
                    {
                        "node": node,
                        "does": does,
                        "tensors": cost.tensors,
                        "bytes_each": cost.bytes_each,
                        "measured": getattr(cost, node),
                        "fitted": constant + cost.tensors * moved,
                    }
                )
    return pd.DataFrame(rows)


def link_shares(links: Links) -> pd.DataFrame:
    """Rates of equal flows that started together.

    Returns
    -------
    DataFrame
        One row per flow: `direction`, `flow` (from 1) and `rate` (payload in bit/s).
    """
    import pandas as pd

    rows = [
        {"direction": direction, "flow": flow, "rate": rate}
        for direction, rates in (
            ("from the server", links.shares_down),
            ("to the server", links.shares_up),
        )
        for flow, rate in enumerate(rates, start=1)
    ]
    return pd.DataFrame(rows)


def _fit(
    transfers: Sequence[TransferCost], direction: str, node: str
) -> tuple[float, float, float]:
    """Seconds of CPU per step, per tensor and per byte."""
    chosen = [cost for cost in transfers if cost.direction == direction]
    seconds = np.array([getattr(cost, node) for cost in chosen])
    moved = np.array([[1.0, cost.tensors, cost.tensors * cost.bytes_each] for cost in chosen])
    relative = moved / seconds[:, None]
    scale = relative.max(axis=0)  # columns of like size, for the sake of the numbers
    coefficients, _ = nnls(relative / scale, np.ones(len(chosen)))
    constant, per_tensor, per_byte = (coefficients / scale).tolist()
    return constant, per_tensor, per_byte


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


def _measure_links(platform: Platform, logs: Path, report: Report) -> Links:
    with Emulation(platform, FLOWS, 1, logs) as cluster:
        report("rate of the links")
        one = Flow("ps0", "worker0", 0.0, _SECONDS)
        back = Flow("worker0", "ps0", 0.0, _SECONDS)
        alone = min(*_rates(cluster, [one]), *_rates(cluster, [back]))
        both = min(_rates(cluster, [one, back]))
        report(f"{FLOWS} flows from a server, and a second one that joins later")
        shares_down, newcomers_down = _sharing(cluster, [("ps0", node) for node in cluster.workers])
        report(f"{FLOWS} flows to a server, and a second one that joins later")
        shares_up, newcomers_up = _sharing(cluster, [(node, "ps0") for node in cluster.workers])
    return Links(
        rate=round(alone),
        rate_both_ways=round(both),
        shares_down=shares_down,
        shares_up=shares_up,
        newcomers_down=newcomers_down,
        newcomers_up=newcomers_up,
    )


def _rates(cluster: Emulation, flows: Sequence[Flow]) -> list[float]:
    """Rates of flows from some time after the last one's start, bit/s."""
    begin = max(flow.begin for flow in flows) + _RAMP
    return list(map(float, measure_flows(cluster, flows, begin, _SECONDS)))


def _sharing(
    cluster: Emulation, pairs: Sequence[tuple[str, str]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Rates of flows that start together, and rates of later ones over those of first ones."""
    together = _rates(cluster, [Flow(*pair, 0.0, _SECONDS) for pair in pairs])
    ratios = []
    for join in _JOINS:
        first = Flow(*pairs[0], 0.0, _SECONDS)
        rates = _rates(cluster, [first, Flow(*pairs[1], join, _SECONDS)])
        ratios.append(round(rates[1] / rates[0], 4))
    return tuple(round(rate) for rate in together), tuple(ratios)


def _measure_transfers(
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
