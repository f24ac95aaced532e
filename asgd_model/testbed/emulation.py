"""The cluster that the machine plays: its network, control groups and processes."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from asgd_model.testbed.cpu import CpuGroup, find_controller, remove_groups
from asgd_model.testbed.errors import TestbedError
from asgd_model.testbed.machine import exclusive, remove_remains
from asgd_model.testbed.network import INTERFACE, Network
from asgd_model.testbed.platform import NodeLimits, Platform
from asgd_model.testbed.protocol import Command, Task, Training, Transfers

PORT = 2222
SILENCE = 900.0
"""Seconds without any message after which a run has failed."""


@dataclass(frozen=True)
class Usage:
    """What a node has used: CPU time in seconds, bytes sent and received with all headers."""

    cpu: float
    sent: int
    received: int

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(
            self.cpu - earlier.cpu, self.sent - earlier.sent, self.received - earlier.received
        )


class Emulation:
    """Nodes ``ps0``, ``ps1``, ... and ``worker0``, ... of a platform; a context manager.

    Entering makes network and control groups, after removing whatever a killed run left;
    leaving ends all processes and removes everything, however the run ended.

    Parameters
    ----------
    platform : Platform
        Links and limits of the nodes.
    workers, servers : int
        Number of nodes.
    logs : Path
        Folder for what the nodes' processes print.

    Raises
    ------
    TestbedError
        On entering, if another run uses the machine, or network or control groups cannot be
        made.
    """

    def __init__(self, platform: Platform, workers: int, servers: int, logs: Path) -> None:
        self.platform = platform
        self.servers = [f"ps{index}" for index in range(servers)]
        self.workers = [f"worker{index}" for index in range(workers)]
        self.nodes = [*self.servers, *self.workers]
        self.network = Network(self.nodes, platform.link)
        self._logs = logs
        self._groups: dict[str, CpuGroup] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._spawned: list[subprocess.Popen[bytes]] = []
        self._unread = dict.fromkeys(self.nodes, b"")
        self._selector = selectors.DefaultSelector()
        self._resources = ExitStack()

    def __enter__(self) -> Emulation:
        with ExitStack() as stack:
            stack.enter_context(exclusive())
            remove_remains()
            controller = find_controller()
            stack.callback(remove_groups, controller)
            stack.enter_context(self.network)
            for node in self.nodes:
                self._groups[node] = CpuGroup(controller, node)
            stack.callback(self._end_processes)
            self._resources = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with _uninterrupted():
            self._resources.close()

    def start(self, job: Training | Transfers) -> str:
        """Start a process on every node and wait until all are ready.

        Returns
        -------
        str
            Name and version of the framework.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        cluster = {
            role: tuple(f"{self.network.address(node)}:{PORT}" for node in nodes)
            for role, nodes in (("ps", self.servers), ("worker", self.workers))
        }
        for node in self.nodes:
            self._launch(node)
            role, nodes = ("ps", self.servers) if node in self.servers else ("worker", self.workers)
            limits, index = self.limits(node), nodes.index(node)
            task = Task(role=role, index=index, cluster=cluster, limits=limits, job=job)
            self._write(node, task.model_dump_json())
        return str(self.wait("ready", self.nodes)[self.nodes[0]]["framework"])

    def spawn(
        self, node: str, module: str, *arguments: str, stderr: IO[bytes] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a Python module as a process of a node; it ends with the emulation at last."""
        environment = {
            name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
        }
        process = subprocess.Popen(
            self.network.command(node, [sys.executable, "-m", module, *arguments]),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            start_new_session=True,  # an interrupt is for this process only
        )
        self._spawned.append(process)
        self._groups[node].add(process.pid)
        return process

    def limits(self, node: str) -> NodeLimits:
        """What a node may use."""
        return self.platform.server if node in self.servers else self.platform.worker

    def enforce_quotas(self, enforced: bool = True) -> None:
        """Enforce the CPU quotas of all nodes, or lift them."""
        for node, group in self._groups.items():
            cores = self.limits(node).cores if enforced else None
            group.limit(cores, self.platform.quota_period)

    def tell(self, node: str, command: Command) -> None:
        """Send a command to a node."""
        self._write(node, command.model_dump_json())

    def obey(self, nodes: Collection[str], command: Command) -> None:
        """Send a command to nodes and wait until all of them are done."""
        for node in nodes:
            self.tell(node, command)
        self.wait("done", nodes)

    def wait(self, event: str, nodes: Collection[str]) -> dict[str, dict[str, Any]]:
        """Wait until all of these nodes have sent a message; other messages are dropped."""
        found: dict[str, dict[str, Any]] = {}
        for node, message in self.messages():
            if message["event"] == event and node in nodes:
                found[node] = message
                if len(found) == len(nodes):
                    break
        return found

    def messages(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Messages of all nodes as they come.

        Raises
        ------
        TestbedError
            If a node's process ends, or all are silent for `SILENCE` seconds.
        """
        while True:
            ready = self._selector.select(SILENCE)
            if not ready:
                raise TestbedError(f"no node has reported for {SILENCE:.0f} s")
            for key, _ in ready:
                received = os.read(key.fd, 65_536)
                if not received:
                    raise self._failure(key.data)
                *lines, rest = (self._unread[key.data] + received).split(b"\n")
                self._unread[key.data] = rest
                for line in lines:
                    yield key.data, json.loads(line)

    def usage(self, node: str) -> Usage:
        """What a node has used since its start."""
        counters = Path(f"/proc/{self._processes[node].pid}/net/dev").read_text()
        for line in counters.splitlines():
            name, _, values = line.strip().partition(":")
            if name == INTERFACE:
                received, sent = int(values.split()[0]), int(values.split()[8])
                return Usage(self._groups[node].seconds, sent, received)
        raise TestbedError(f"{node} has no interface {INTERFACE}")

    def _launch(self, node: str) -> None:
        with open(self._logs / f"{node}.log", "wb") as log:
            process = self.spawn(node, "asgd_model.testbed.node", stderr=log)
        self._processes[node] = process
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, node)

    def _write(self, node: str, line: str) -> None:
        stream = self._processes[node].stdin
        assert stream is not None
        try:
            stream.write(line.encode() + b"\n")
        except BrokenPipeError:
            raise self._failure(node) from None

    def _failure(self, node: str) -> TestbedError:
        """What to say of a node whose process ended."""
        code = self._processes[node].wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed ({code})"
        log = self._logs / f"{node}.log"
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        return TestbedError(f"{node} {how}; {log} ends with: {' '.join(last) or 'nothing'}")

    def _end_processes(self) -> None:
        for process in self._spawned:
            process.kill()
        for process in self._spawned:
            process.communicate()
        self._selector.close()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off interrupts: a clean-up must end once it has begun."""
    signals = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(number, signal.SIG_IGN) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, previous, strict=True):
            signal.signal(number, handler)
