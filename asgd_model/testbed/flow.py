"""One end of a bulk flow between two nodes, as a program of its own.

``receive PORT`` waits for a connection and says so, reads all that comes and prints what it had
received when. ``send ADDRESS PORT`` connects, says so, and sends between the two times that it
reads. Times are those of the machine's monotonic clock.
"""

import json
import socket
import sys
import time

_BLOCK = 1 << 18
_SAMPLING = 0.05


def _receive(port: int) -> None:
    samples = []
    received, following = 0, 0.0
    buffer = bytearray(_BLOCK)
    with socket.create_server(("", port)) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
        with connection:
            while count := connection.recv_into(buffer):
                received += count
                now = time.monotonic()
                if now >= following:
                    samples.append((now, received))
                    following = now + _SAMPLING
    samples.append((time.monotonic(), received))
    print(json.dumps(samples))


def _send(address: str, port: int) -> None:
    block = bytes(_BLOCK)
    with socket.create_connection((address, port)) as connection:
        print("ready", flush=True)
        begin, end = map(float, sys.stdin.readline().split())
        time.sleep(max(0.0, begin - time.monotonic()))
        while time.monotonic() < end:
            connection.sendall(block)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        _receive(int(sys.argv[2]))
    else:
        _send(sys.argv[2], int(sys.argv[3]))
