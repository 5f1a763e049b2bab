"""The proxy of the tests: what it does to connections, and what it never does to their bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.polling import poll_until
from tests.support.proxy import Proxy

WAIT_S = 10.0


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that sends back whatever it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(end: socket.socket) -> None:
        with end:
            try:
                while data := end.recv(1 << 16):
                    end.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(end,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def proxy(echo: str) -> Iterator[Proxy]:
    proxy = Proxy(seed=3)
    proxy.lead_to(echo)
    yield proxy
    proxy.close()


def connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.partition(":")
    end = socket.create_connection((host, int(port)), WAIT_S)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return end


def read(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = end.recv(count - len(data))
        assert more, "the connection has ended"
        data += more
    return data


def test_connections_overtake_each_other_and_their_bytes_do_not(proxy: Proxy) -> None:
    proxy.delay(0.05)
    ends = [connect(proxy) for _ in range(4)]
    messages = [f"{number:06d}".encode() for number in range(40)]
    for message in messages:
        for end in ends:
            end.sendall(message)
    for end in ends:
        assert read(end, 6 * len(messages)) == b"".join(messages)
        end.close()
    assert proxy.counts["overtook"] > 0 and proxy.counts["delayed"] > 0
    assert proxy.counts["connections"] == 4 and proxy.counts["cut"] == 0


def test_a_cut_ends_what_is_there_and_nothing_that_comes_after(proxy: Proxy) -> None:
    with connect(proxy) as before:
        before.sendall(b"a")
        assert read(before, 1) == b"a"
        proxy.cut()
        with pytest.raises((ConnectionResetError, AssertionError)):
            read(before, 1)
    assert proxy.counts["cut"] == 1
    with connect(proxy) as after:
        after.sendall(b"b")
        assert read(after, 1) == b"b"


def test_what_was_dropped_never_comes_and_its_connection_ends(proxy: Proxy) -> None:
    with connect(proxy) as touched, connect(proxy) as silent:
        for end in (touched, silent):
            end.sendall(b"a")
            assert read(end, 1) == b"a"
        proxy.drop()
        touched.sendall(b"lost")
        poll_until(lambda: proxy.counts["dropped"], WAIT_S, "a chunk that is dropped")
        touched.setblocking(False)
        with pytest.raises(BlockingIOError):
            touched.recv(1)
        touched.settimeout(WAIT_S)
        proxy.heal()
        with pytest.raises((ConnectionResetError, AssertionError)):
            read(touched, 1)
        silent.sendall(b"b")
        assert read(silent, 1) == b"b", "it has lost nothing"


def test_nobody_behind_it_is_a_connection_that_ends(proxy: Proxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    proxy.lead_to(nobody)
    with connect(proxy) as end, pytest.raises((ConnectionResetError, AssertionError)):
        read(end, 1)
    assert proxy.counts["refused"] == 1
