"""What passes a node's interface, as a packet capture."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asgd_model.testbed.errors import TestbedError
from asgd_model.testbed.network import INTERFACE, Network

_BUFFER_KIB = 65_536
_HAND_OVER = 2.0
"""Seconds after which the kernel has handed over the last packets: it does so in blocks."""
_DROPPED = re.compile(r"(\d+) packets? dropped by kernel")


def require_tools() -> None:
    """Refuse to go on without the commands that a capture takes.

    Raises
    ------
    TestbedError
        If ``tcpdump`` or ``tshark`` is missing.
    """
    for command in ("tcpdump", "tshark"):
        if shutil.which(command) is None:
            raise TestbedError(f"the command {command} is missing (Debian package {command})")


@contextmanager
def captured(network: Network, node: str, port: int, path: Path) -> Iterator[None]:
    """Write whole packets of a TCP port that pass a node's interface while the block runs.

    What the node sends is seen when it leaves the node's link, what it receives on its arrival.

    Parameters
    ----------
    network : Network
        Where the node is.
    node : str
        Its name.
    port : int
        TCP port of either end.
    path : Path
        The file to write.

    Raises
    ------
    TestbedError
        If ``tcpdump`` fails, or packets were lost.
    """
    listen = ["tcpdump", "-i", INTERFACE, "-B", str(_BUFFER_KIB), "-n", "-w", "-"]
    command = network.command(node, [*listen, "tcp", "port", str(port)])
    with (
        open(path, "wb") as packets,
        subprocess.Popen(
            command, stdout=packets, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process,
    ):
        assert process.stderr is not None
        said = ""
        for said in process.stderr:
            if "listening on" in said:
                break
        else:
            raise TestbedError(f"tcpdump failed: {said.strip()}")
        try:
            yield
            time.sleep(_HAND_OVER)
        finally:
            process.terminate()
            rest = process.stderr.read()
    dropped = _DROPPED.search(rest)
    if dropped is None:
        raise TestbedError(f"tcpdump failed: {rest.strip()}")
    if int(dropped.group(1)) > 0:
        raise TestbedError(f"tcpdump lost {dropped.group(1)} packets; the machine is too busy")
