"""Bytes as the kernel counts them, on connections between this process and another one, and within this one."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from psruntime.network import connections
from psruntime.network.connections import Descriptor
from psruntime.observe import meter
from psruntime.observe.meter import TrafficMeter
from tests.support.polling import poll_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process what its sockets moved")

SLACK = 2  # bytes a connection, for opening and closing it
# Another process: it serves two connections at a time and answers COUNT RETURN with so many bytes of its own.
OTHER = """
import socket, threading
server = socket.create_server((HOST, 0), family=socket.AF_INET6 if ":" in HOST else socket.AF_INET)
print(server.getsockname()[1], flush=True)
def serve(connection):
    lines = connection.makefile("rb")
    for line in lines:
        count, back = map(int, line.split())
        assert len(lines.read(count)) == count
        connection.sendall(b"y" * back)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


class Other:
    """Another process, and what this one has moved to and from it."""

    def __init__(self, host: str) -> None:
        self.host = host
        source = f"HOST = {host!r}\n{OTHER}"
        self.process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.port = int(self.process.stdout.readline())
        self.sent = self.received = self.connections = 0

    def connect(self) -> socket.socket:
        self.connections += 1
        return socket.create_connection((self.host, self.port), timeout=30)

    def move(self, connection: socket.socket, count: int, back: int) -> None:
        """Sends `count` bytes beside the order, and takes `back` of them."""
        order = f"{count} {back}\n".encode()
        connection.sendall(order + b"x" * count)
        left = back
        while left:
            left -= len(connection.recv(min(left, 1 << 16)))
        self.sent, self.received = self.sent + len(order) + count, self.received + back

    def check(self, found: TrafficMeter) -> None:
        """What is found is what was moved.  The last acknowledgement may still be under way."""

        def is_right() -> bool:
            moved = found.moved()
            assert moved is not None
            assert moved.sent <= self.sent + SLACK * self.connections
            assert self.received <= moved.received <= self.received + SLACK * self.connections
            return moved.sent >= self.sent

        poll_until(is_right, 30, "acknowledgements")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        assert self.process.stdout
        self.process.stdout.close()


@pytest.fixture(params=["127.0.0.1", "::1"])
def other(request: pytest.FixtureRequest) -> Iterator[Other]:
    if ":" in request.param and not Path("/proc/net/if_inet6").exists():
        pytest.skip("there is no IPv6 here")
    with closing(Other(request.param)) as process:
        yield process


def of(*others: Other) -> TrafficMeter:
    return TrafficMeter(lambda connection: connection.remote.port in [each.port for each in others])


def test_bytes_of_both_directions_are_counted(other: Other) -> None:
    found = of(other)
    with other.connect() as connection:
        for count, back in ((0, 1), (3_000_000, 10), (70_000, 5_000_000)):
            other.move(connection, count, back)
            other.check(found)
        other.check(found)  # nothing is counted twice


def test_sums_go_on_when_connections_come_and_go(other: Other) -> None:
    found = of(other)
    for size in (100_000, 200_000, 300_000):
        with other.connect() as first, other.connect() as second:
            other.move(first, size, 2 * size)
            other.move(second, 3 * size, size)
            other.check(found)
        other.check(found)


def test_a_second_descriptor_of_a_socket_is_the_same_socket(other: Other) -> None:
    found = of(other)
    with other.connect() as connection, connection.dup():
        other.move(connection, 100_000, 100_000)
        other.check(found)


def test_only_what_counts_is_counted(other: Other) -> None:
    with closing(Other("127.0.0.1")) as stranger, other.connect() as ours, stranger.connect() as theirs:
        found, all_of_them = of(other), of(other, stranger)
        other.move(ours, 1_000, 2_000)
        stranger.move(theirs, 500_000, 500_000)
        other.check(found)
        moved = all_of_them.moved()
        assert moved is not None and moved.received >= other.received + stranger.received


def test_a_connection_within_the_process_is_left_out(other: Other) -> None:
    found = TrafficMeter(lambda _: True)
    with ExitStack() as stack:
        connection = stack.enter_context(other.connect())
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        here = stack.enter_context(socket.create_connection(server.getsockname()))
        there = stack.enter_context(server.accept()[0])
        other.move(connection, 1_000, 1_000)
        before = found.moved()
        here.sendall(b"x" * 50_000)
        left = 50_000
        while left:
            left -= len(there.recv(left))
        other.move(connection, 1_000, 1_000)
        after = found.moved()
        assert before is not None and after is not None
        assert 1_000 <= after.received - before.received < 50_000 and after.sent - before.sent < 50_000


def test_no_socket_is_disturbed(other: Other) -> None:
    """Whatever kind it is: descriptors stay open, modes stay as they are, also where new sockets have a time limit."""
    with ExitStack() as stack:
        connection = stack.enter_context(other.connect())
        connection.settimeout(None)
        pair = [stack.enter_context(each) for each in socket.socketpair()]
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        unconnected = stack.enter_context(socket.socket())
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        sockets = [connection, *pair, datagrams, unconnected, listening]
        stack.callback(socket.setdefaulttimeout, socket.getdefaulttimeout())
        socket.setdefaulttimeout(1.0)
        other.move(connection, 10, 10)
        modes = [os.get_blocking(each.fileno()) for each in sockets]
        descriptors = os.listdir("/proc/self/fd")
        assert True in modes
        for _ in range(3):
            assert TrafficMeter(lambda _: True).moved() is not None
        assert [os.get_blocking(each.fileno()) for each in sockets] == modes
        assert os.listdir("/proc/self/fd") == descriptors
        other.move(connection, 10, 10)


def test_a_number_that_another_socket_has_by_now_is_not_mistaken(other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    with other.connect() as small, other.connect() as large:
        other.move(small, 10, 10)
        other.move(large, 900_000, 900_000)
        inode = os.fstat(small.fileno()).st_ino
        monkeypatch.setattr(connections, "descriptors", lambda: [Descriptor(large.fileno(), inode)])
        assert of(other).moved() is None
        two = [Descriptor(small.fileno(), inode), Descriptor(1_000_000, 7)]
        monkeypatch.setattr(connections, "descriptors", lambda: two)
        moved = of(other).moved()
        assert moved is not None and moved.received == 10


@pytest.mark.parametrize("lack", ["descriptors", "option", "bytes", "counts"])
def test_where_the_system_does_not_tell_it_is_unknown(
    lack: str, other: Other, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with other.connect() as connection:
        other.move(connection, 10, 10)
        assert of(other).moved() is not None
        if lack == "descriptors":
            monkeypatch.setattr(connections, "DESCRIPTORS", str(tmp_path / "none"))
        elif lack == "option":
            monkeypatch.delattr(socket, "TCP_INFO")
        elif lack == "bytes":  # an older kernel has a shorter struct
            monkeypatch.setattr(meter, "BYTES", struct.Struct("=900xQQ"))
        else:
            monkeypatch.setattr(connections, "descriptors", list)
        assert of(other).moved() is None


def test_it_goes_on_where_it_was_once_the_system_tells_again(other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    found = of(other)
    with other.connect() as connection:
        other.move(connection, 1_000, 1_000)
        other.check(found)
        with monkeypatch.context() as without:
            without.setattr(connections, "DESCRIPTORS", "/none")
            assert found.moved() is None
        other.move(connection, 1_000, 1_000)
        other.check(found)


def test_a_socket_that_was_not_read_once_goes_on_where_it_was(other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    found = of(other)
    with other.connect() as connection:
        other.move(connection, 1_000, 1_000)
        other.check(found)
        with monkeypatch.context() as without:
            without.setattr(meter, "_read", lambda *_: None)
            other.check(found)
        other.move(connection, 1_000, 1_000)
        other.check(found)


def test_nothing_moved_is_not_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some sandboxes have the fields and leave them empty."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        only = Descriptor(connection.fileno(), os.fstat(connection.fileno()).st_ino)
        monkeypatch.setattr(connections, "descriptors", lambda: [only])
        assert TrafficMeter(lambda _: True).moved() is None
