"""The network of the cluster: a namespace for each node, and a switch that joins them.

Every node has one interface, ``eth0``; its other end is a port of a bridge that has a namespace
of its own. Both ends are shaped, so a node sends and receives at its link's rate at the same
time.

How a busy link is shared depends on where its packets queue. Flows that queue in the sender's
own namespace are held back without loss, each by its own socket, and whoever was there first
keeps most of the link; a shared queue at a switch's port is fair over seconds only. The sharing
``per-peer`` gives each peer a queue of its own at both ends of the link, which are served in
turn (deficit round robin among the classes of ``htb``): equal shares at any time. The sharing
``fifo`` has one queue at each end (``tbf``).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from asgd_model.testbed.errors import TestbedError
from asgd_model.testbed.platform import Link

PREFIX = "asgd-"
"""How the names of all namespaces of the testbed begin."""

INTERFACE = "eth0"
MAX_NODES = 200

_SWITCH = "switch"
_BRIDGE = "bridge"
_QUANTUM = 3028
"""Bytes that a peer's queue sends in one turn: two packets."""
_ROOT = "1:1"


class Network:
    """The namespaces and links of a cluster; a context manager that makes and removes them.

    Parameters
    ----------
    nodes : sequence of str
        Names of the nodes.
    link : Link
        The link of every node.

    Raises
    ------
    TestbedError
        On entering, if a namespace or interface cannot be made; nothing is left behind then.
    """

    def __init__(self, nodes: Sequence[str], link: Link) -> None:
        if len(nodes) > MAX_NODES:
            raise TestbedError(f"{len(nodes)} nodes; the network has room for {MAX_NODES}")
        self.nodes = tuple(nodes)
        self.link = link

    def address(self, node: str) -> str:
        """IPv4 address of a node."""
        return f"10.213.0.{self.nodes.index(node) + 1}"

    def command(self, node: str, arguments: Sequence[str]) -> list[str]:
        """The command that runs another one on a node."""
        return ["ip", "netns", "exec", PREFIX + node, *arguments]

    def __enter__(self) -> Network:
        try:
            run("ip", "netns", "add", PREFIX + _SWITCH)
            _ip(_SWITCH, f"link add {_BRIDGE} type bridge", f"link set {_BRIDGE} up")
            for node in self.nodes:
                self._add(node)
        except BaseException:
            remove_namespaces()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        remove_namespaces()

    def _add(self, node: str) -> None:
        address = self.address(node)
        run("ip", "netns", "add", PREFIX + node)
        _ip(
            node,
            "link set lo up",
            f"link add {INTERFACE} type veth peer name {node} netns {PREFIX + _SWITCH}",
            f"address add {address}/24 dev {INTERFACE}",
            f"link set {INTERFACE} up",
            f"route replace 10.213.0.0/24 dev {INTERFACE} src {address} "
            f"congctl {self.link.congestion_control}",
        )
        _ip(_SWITCH, f"link set {node} master {_BRIDGE}", f"link set {node} up")
        _tc(node, self._shape(node, INTERFACE, "dst", self.nodes))
        _tc(_SWITCH, self._shape(node, node, "src", self.nodes))

    def reshape(self, active: Sequence[str]) -> None:
        """Shape the links of some nodes anew, for traffic among these alone.

        Classes of ``htb`` seem to carry credit from what went before: after some minutes with other
        flows, one of six was seen to get all that the others' assured rates left.

        Raises
        ------
        TestbedError
            If a link cannot be shaped.
        """
        for node in active:
            for place, device, field in ((node, INTERFACE, "dst"), (_SWITCH, node, "src")):
                shape = self._shape(node, device, field, active)
                _tc(place, [f"qdisc delete dev {device} root", *shape])

    def _shape(self, node: str, device: str, peer_field: str, active: Sequence[str]) -> list[str]:
        """Commands of ``tc`` that shape what leaves a device; peers are told by `peer_field`."""
        rate, link = f"{self.link.rate:.0f}bit", self.link
        if link.sharing == "fifo":
            limits = f"rate {rate} burst {link.burst} limit {link.queue}"
            return [f"qdisc add dev {device} root tbf {limits}"]
        peers = [peer for peer in active if peer != node]
        burst = f"burst {link.burst} cburst {link.burst} quantum {_QUANTUM}"
        whole = f"classid {_ROOT} htb rate {rate} ceil {rate} {burst}"
        commands = [
            f"qdisc add dev {device} root handle 1: htb",
            f"class add dev {device} parent 1: {whole}",
        ]
        assured = f"{link.rate / max(1, len(peers)):.0f}bit"
        for index, peer in enumerate(peers, start=2):
            part = f"classid 1:{index:x} htb rate {assured} ceil {rate} {burst}"
            match = f"u32 match ip {peer_field} {self.address(peer)}"
            commands += [
                f"class add dev {device} parent {_ROOT} {part}",
                f"qdisc add dev {device} parent 1:{index:x} bfifo limit {link.queue}",
                f"filter add dev {device} parent 1: protocol ip {match} flowid 1:{index:x}",
            ]
        return commands


def namespaces() -> list[str]:
    """Names of the testbed's namespaces that exist."""
    names = [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line]
    return sorted(name for name in names if name.startswith(PREFIX))


def remove_namespaces() -> None:
    """Remove all of the testbed's namespaces, and with them their interfaces."""
    for name in namespaces():
        with suppress(TestbedError):  # another clean-up was faster
            run("ip", "netns", "delete", name)


def run(*command: str, text: str | None = None) -> str:
    """Output of a command that reads `text`.

    Raises
    ------
    TestbedError
        If there is no such command, or it fails.
    """
    if shutil.which(command[0]) is None:
        raise TestbedError(f"the command {command[0]} is missing (Debian: iproute2)")
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TestbedError(f"{' '.join(command)}: {done.stderr.strip()}\n{text or ''}".strip())
    return done.stdout


def _ip(node: str, *commands: str) -> None:
    run("ip", "-n", PREFIX + node, "-batch", "-", text="\n".join(commands) + "\n")


def _tc(node: str, commands: Sequence[str]) -> None:
    run("tc", "-n", PREFIX + node, "-batch", "-", text="\n".join(commands) + "\n")
