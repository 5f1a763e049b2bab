"""How fast this machine moves bytes over 127.0.0.1: a pull and a push as two processes of Python make them.

    python -m benchmarks.loopback --bytes N --seconds S

The other side is a process that this one starts.  A turn is N bytes that are asked from there, and then N bytes to
there, which are answered: one after the other, as in a step.  Each side has one buffer of N bytes, which it sends and
into which it receives, over one connection.  After S seconds it prints `moved R`: bytes a second, of both directions
together.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time

WARM_UP_TURNS = 2  # in which the buffers get their memory
SIGN = b"."  # that asks, or answers
BACKLOG = 1


def receive(connection: socket.socket, buffer: memoryview) -> None:
    """Fills the buffer."""
    at = 0
    while at < len(buffer):
        received = connection.recv_into(buffer[at:])
        if not received:
            raise ConnectionError("the other side is gone")
        at += received


def serve(port: int, size: int) -> None:
    """The other side, until ours is gone."""
    buffer = memoryview(bytearray(size))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while connection.recv(len(SIGN)):
            connection.sendall(buffer)
            receive(connection, buffer)
            connection.sendall(SIGN)


def rate(connection: socket.socket, size: int, seconds: float) -> float:
    """Bytes/s."""
    buffer, answer = memoryview(bytearray(size)), memoryview(bytearray(SIGN))
    turns, began_s = -WARM_UP_TURNS, time.monotonic()
    while turns <= 0 or time.monotonic() - began_s < seconds:
        if turns == 0:
            began_s = time.monotonic()
        connection.sendall(SIGN)
        receive(connection, buffer)
        connection.sendall(buffer)
        receive(connection, answer)
        turns += 1
    return 2 * size * turns / (time.monotonic() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--port", type=int, help="be the other side, of who listens there")
    arguments = parser.parse_args()
    if arguments.port:
        return serve(arguments.port, arguments.bytes)
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as server:
        port = str(server.getsockname()[1])
        command = [sys.executable, "-m", "benchmarks.loopback", "--bytes", str(arguments.bytes), "--port", port]
        with subprocess.Popen(command), server.accept()[0] as connection:
            print(f"moved {rate(connection, arguments.bytes, arguments.seconds)}", flush=True)


if __name__ == "__main__":
    main()
