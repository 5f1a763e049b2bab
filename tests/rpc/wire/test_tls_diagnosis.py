"""What the look at a handshake proves, and what it does not, with servers that behave as gRPC's do not."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from psruntime.rpc.wire.security import Security
from psruntime.rpc.wire.tls_faults import why_refused
from tests.support.certificates import loaded, trusting


@contextmanager
def serving(answer: Callable[[socket.socket, int], None]) -> Iterator[str]:
    """An address; `answer(connection, n)` is called for the n-th connection, from 0, which is then closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for number in range(1000):
                try:
                    connection, _ = listener.accept()
                except OSError:  # the test is over
                    return
                with connection:
                    connection.settimeout(10)
                    try:
                        answer(connection, number)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def look(address: str, security: Security, timeout_s: float = 30.0) -> str:
    return why_refused("it", address, security.tls, timeout_s)


def secured(connection: socket.socket, security: Security) -> ssl.SSLSocket:
    return security.tls.mirror[1].wrap_socket(connection, server_side=True)


def test_a_server_that_closes_once_is_looked_at_again(authority):
    ours, looks = authority.security(), []

    def answer(connection: socket.socket, number: int) -> None:
        looks.append(number)
        with secured(connection, ours) as tls:
            if number:
                tls.sendall(b"settings")

    with serving(answer) as address:
        assert look(address, ours) == ""
    assert looks == [0, 1]


def test_a_server_that_closes_again_and_again_does_not_like_the_certificate(authority):
    ours = authority.security()
    with serving(lambda connection, _: secured(connection, ours).close()) as address:
        assert look(address, ours).startswith(f"it breaks off when it has seen --tls-cert {ours.tls.cert_file}")


def test_a_server_that_goes_after_it_closed_proves_nothing(authority):
    ours = authority.security()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                listener.close()
                secured(connection, ours).close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert look(f"127.0.0.1:{listener.getsockname()[1]}", ours) == ""
        thread.join(10)


def test_an_alert_about_the_certificate_is_told(authority, stranger):
    ours, theirs = authority.security(), loaded(trusting(authority.files(), stranger))
    with serving(lambda connection, _: secured(connection, theirs).close()) as address:
        assert look(address, ours) == f"it refuses --tls-cert {ours.tls.cert_file}: tlsv1 alert unknown ca"


BREAKING = {
    "is no TLS": lambda connection, _: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "closes at once": lambda connection, _: None,
    "closes in the middle of the handshake": lambda connection, _: connection.sendall(b"\x16\x03\x03\x00\x7a\x02"),
    "sends a broken record": lambda connection, _: connection.sendall(b"\x16\x03\x03\x00\x05" + b"\xff" * 5),
    "closes after it has read": lambda connection, _: connection.recv(1),
}


@pytest.mark.parametrize("server", BREAKING)
def test_a_connection_that_breaks_proves_nothing(authority, server):
    with serving(BREAKING[server]) as address:
        assert look(address, authority.security()) == ""
        assert look(address, Security()) == ""


def test_a_paused_server_proves_nothing(authority):
    """It accepts, and says no word: the look ends with its time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert look(address, authority.security(), 0.2) == ""
        assert look(address, Security(), 0.2) == ""


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:9"])
def test_nobody_there_proves_nothing(authority, address):
    assert look(address, authority.security()) == ""
    assert look(address, Security()) == ""
