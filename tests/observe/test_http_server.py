"""Slow and numerous callers of a server of HTTP: threads, how long they are kept, and what others see of them."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from psruntime.observe import http_server
from psruntime.observe.http_server import CALLERS, BoundedServer, Call, first_to_go, serve
from tests.support.certificates import Authority
from tests.support.polling import poll_until
from tests.support.selection import long_but

STRANGER, OTHER = "127.0.0.9", "127.0.0.1"
MANY = 5 * CALLERS
LARGE = b"x" * (16 << 20)  # more than the system takes from a writer for a caller that does not read
HELLO = bytes.fromhex("1603010200010001fc0303")  # the beginning of a handshake
# What a slow caller has sent before it waits; after a handshake, "secured" ones with TLS.
PLAIN = {
    "nothing": b"", "request line": b"GET /met", "headers": b"GET / HTTP/1.1\r\nX: ", "no host": b"GET / HTTP/1.0\r\nX",
    "answer": b"GET /large HTTP/1.1\r\n\r\n", "body": b"POST /large HTTP/1.1\r\nContent-Length: 999\r\n\r\n",
}  # fmt: skip
KINDS = [*PLAIN, "no handshake", "half a handshake", *(f"secured, {kind}" for kind in PLAIN)]
QUICK = ["no host", "half a handshake", "secured, body"]


class Service:
    """A server whose answers are counted.  tls: of the next connection."""

    def __init__(self, authority: Authority | None, host: str = OTHER) -> None:
        self.tls = authority.security().web if authority else None
        self.answers = 0
        self.busy = threading.Event()
        self.busy.set()
        self.server: BoundedServer = serve(host, 0, self._answer, (lambda: self.tls()) if authority else None)
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        self.answers += 1
        self.busy.wait(30)
        start("200 OK", [("Content-Type", "text/plain")])
        return [LARGE if environ["PATH_INFO"] == "/large" else b"fine"]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(10)


class Callers:
    """Those of a test, closed at its end."""

    def __init__(self, service: Service, caller_tls: ssl.SSLContext | None) -> None:
        self._port = service.server.server_port
        self._tls = caller_tls
        self._open: list[socket.socket] = []

    def connect(self, address: str = STRANGER) -> socket.socket:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.bind((address, 0))
        connection.connect((OTHER, self._port))
        self._open.append(connection)
        return connection

    def slow(self, kind: str, address: str = STRANGER) -> socket.socket:
        connection = self.connect(address)
        if kind == "half a handshake":
            connection.sendall(HELLO)
        if kind.startswith("secured") and self._tls:
            with contextlib.suppress(OSError):  # it may be cut off meanwhile
                connection = self._tls.wrap_socket(connection, server_hostname=OTHER)
            self._open.append(connection)
        with contextlib.suppress(OSError):
            connection.sendall(PLAIN.get(kind.removeprefix("secured, "), b""))
        return connection

    def read(self, address: str = OTHER) -> bytes:
        """The answer of one that is not slow."""
        context = {"context": self._tls} if self._tls else {}
        client: Any = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        calling = client(OTHER, self._port, timeout=20, source_address=(address, 0), **context)
        with contextlib.closing(calling):
            calling.request("GET", "/")
            return bytes(calling.getresponse().read())

    def close(self) -> None:
        for connection in self._open:
            connection.close()


@contextlib.contextmanager
def serving(authority: Authority | None) -> Iterator[tuple[Service, Callers]]:
    service = Service(authority)
    callers = Callers(service, authority.security().tls.caller if authority else None)  # type: ignore[union-attr]
    if authority:
        callers._tls.set_alpn_protocols(["http/1.1"])  # type: ignore[union-attr]
    try:
        yield service, callers
    finally:
        service.busy.set()
        service.close()
        callers.close()


@pytest.fixture
def of_kind(tmp_path: Path) -> Callable[[str], Any]:
    """A server, with TLS if that kind of slow caller is about it."""
    return lambda kind: serving(Authority(tmp_path) if "secured" in kind or "handshake" in kind else None)


def is_cut_off(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        while connection.recv(1 << 20):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("kind", long_but(QUICK, KINDS))
def test_slow_callers_get_no_thread_each_and_no_other_waits_for_them(
    kind: str, of_kind: Callable[[str], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    with of_kind(kind) as (service, callers):
        before, most = threading.active_count(), 0
        for number in range(MANY):
            callers.slow(kind)
            most = max(most, threading.active_count())
            if number % CALLERS == 0:
                answers = service.answers
                assert callers.read() == b"fine"
                assert service.answers > answers
        assert most - before < 2 * CALLERS < MANY, "one has ended a moment before its thread is gone"
        if not kind.endswith(("answer", "body")):
            assert service.answers == MANY / CALLERS, "nothing is computed for those that were cut off"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", long_but(QUICK, KINDS))
def test_no_caller_is_kept_for_longer_than_its_time(
    kind: str, of_kind: Callable[[str], Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "CALL_S", 1.0)
    with of_kind(kind) as (_, callers):
        before = threading.active_count()
        slow = [callers.slow(kind) for _ in range(3)]
        poll_until(lambda: threading.active_count() == before + 3, 10, "their threads")

        def all_ended() -> bool:
            for connection in slow:  # a byte now and then does not prolong it
                with contextlib.suppress(OSError):
                    connection.send(b"a")
            return threading.active_count() == before

        poll_until(all_ended, 10, "the end of their threads")
        poll_until(lambda: all(is_cut_off(each) for each in slow), 10, "the end of their connections")
        assert callers.read() == b"fine"
    assert capfd.readouterr().err == ""


def test_one_more_cuts_off_the_first_of_the_address_that_has_the_most() -> None:
    def calls(*addresses: str) -> dict[int, Call]:
        with socket.socket() as any_socket:
            return {i: Call(address, 0.0, any_socket) for i, address in enumerate(addresses)}

    assert first_to_go(calls()) is None
    assert first_to_go(calls("a", "b", "c")) == 0
    assert first_to_go(calls("a", "b", "a", "b", "b")) == 1


def test_callers_of_many_addresses_cut_off_the_first_of_all(of_kind: Callable[[str], Any]) -> None:
    with of_kind("headers") as (_, callers):
        early = [callers.slow("headers", f"127.0.0.{10 + number}") for number in range(CALLERS)]
        assert callers.read("127.0.0.200") == b"fine"
        poll_until(lambda: is_cut_off(early[0]), 10, "the end of the first")
        assert not any(is_cut_off(each) for each in early[1:])


def test_a_full_server_serves_the_next_when_an_answer_is_done(of_kind: Callable[[str], Any]) -> None:
    with of_kind("headers") as (service, callers):
        before = threading.active_count()
        service.busy.clear()
        for _ in range(CALLERS):
            callers.connect().sendall(b"GET / HTTP/1.0\r\n\r\n")
        poll_until(lambda: service.answers == CALLERS, 10, "all to be answered at a time")
        read: list[bytes] = []
        waiting = threading.Thread(target=lambda: read.append(callers.read()))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive() and threading.active_count() <= before + CALLERS + 1
        service.busy.set()
        waiting.join(20)
        assert read == [b"fine"]


def test_certificates_are_asked_for_at_each_connection(tmp_path: Path) -> None:
    old, new = Authority(tmp_path), Authority(tmp_path)
    with serving(old) as (service, callers):
        assert callers.read() == b"fine"
        service.tls = new.security().web
        with pytest.raises((ssl.SSLError, ConnectionError)):
            callers.read()
        callers._tls = new.security().tls.caller  # type: ignore[union-attr]
        callers._tls.set_alpn_protocols(["http/1.1"])
        assert callers.read() == b"fine"

        def unreadable() -> ssl.SSLContext:
            raise ValueError("a file of the next certificates is half written")

        web, service.tls = service.tls, unreadable
        with pytest.raises((ssl.SSLError, ConnectionError)):
            callers.read()
        service.tls = web
        assert callers.read() == b"fine"


def test_the_end_cuts_off_every_caller(of_kind: Callable[[str], Any]) -> None:
    before = threading.active_count()
    with of_kind("headers") as (_, callers):
        slow = [callers.slow("headers") for _ in range(3)]
        poll_until(lambda: threading.active_count() == before + 1 + 3, 10, "their threads")
    poll_until(lambda: threading.active_count() == before, 10, "the end of all threads")
    assert all(each.fileno() == -1 for each in slow)


@pytest.mark.parametrize(
    "request_", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"HEAD / HTTP/1.1\r\n\r\n"]
)
def test_each_request_has_a_connection(request_: bytes, of_kind: Callable[[str], Any]) -> None:
    with of_kind("headers") as (_, callers), callers.connect() as connection:
        connection.sendall(request_)
        answer = b"".join(iter(partial(connection.recv, 4096), b""))
        assert answer.startswith(b"HTTP/1.0 200 OK\r\n")


def test_a_line_that_is_too_long_is_refused(of_kind: Callable[[str], Any]) -> None:
    with of_kind("headers") as (service, callers), callers.connect() as connection:
        connection.sendall(b"GET /" + b"x" * (65537 - 5))
        assert connection.recv(4096).startswith(b"HTTP/1.0 414 ") and service.answers == 0


def test_ipv6() -> None:
    try:
        service = Service(None, "::1")
    except OSError:
        pytest.skip("there is no ::1 here")
    try:
        with contextlib.closing(http.client.HTTPConnection("::1", service.server.server_port, timeout=20)) as calling:
            calling.request("GET", "/")
            assert calling.getresponse().read() == b"fine"
    finally:
        service.close()
