"""Bulk flows between nodes: what links carry, and how flows share them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asgd_model.testbed.emulation import Emulation
from asgd_model.testbed.errors import TestbedError

_PROGRAM = "asgd_model.testbed.flow"
_FIRST_PORT = 5000
_LEAD = 0.2


@dataclass(frozen=True)
class Flow:
    """A flow from one node to another that begins and ends at some second."""

    source: str
    target: str
    begin: float
    end: float


def measure_flows(
    cluster: Emulation, flows: Sequence[Flow], begin: float, end: float
) -> NDArray[np.float64]:
    """Payload rates of flows over an interval of time.

    Parameters
    ----------
    cluster : Emulation
        Where they run.
    flows : sequence of Flow
        With the same zero of time.
    begin, end : float
        Seconds; the interval in which they count.

    Returns
    -------
    ndarray of float64, shape (flows,)
        bit/s.

    Raises
    ------
    TestbedError
        If a flow breaks.
    """
    receivers, senders = [], []
    for port, flow in enumerate(flows, start=_FIRST_PORT):
        receivers.append(cluster.spawn(flow.target, _PROGRAM, "receive", str(port)))
    for receiver in receivers:
        _await_ready(receiver)
    for port, flow in enumerate(flows, start=_FIRST_PORT):
        address = cluster.network.address(flow.target)
        senders.append(cluster.spawn(flow.source, _PROGRAM, "send", address, str(port)))
    for sender in senders:
        _await_ready(sender)
    zero = time.monotonic() + _LEAD
    for sender, flow in zip(senders, flows, strict=True):
        assert sender.stdin is not None
        sender.stdin.write(f"{zero + flow.begin} {zero + flow.end}\n".encode())
    rates = []
    for receiver in receivers:
        output, _ = receiver.communicate()
        if receiver.returncode != 0:
            raise TestbedError("a bulk flow broke")
        instants, amounts = np.array(json.loads(output)).T
        received = np.interp((zero + begin, zero + end), instants, amounts)
        rates.append(8.0 * (received[1] - received[0]) / (end - begin))
    return np.array(rates)


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise TestbedError("a bulk flow could not start")
