"""A server of HTTP for few callers: how many it serves at a time, and for how long.

A caller has a thread, since a handshake, a request and an answer each take as long as the caller makes them.

Law: at most CALLERS calls at a time.  One more cuts off the one that began first, of the address that has the most.
Law: a call takes at most CALL_S, from the connection to the end of its answer, however it is spent.
"""

from __future__ import annotations

import contextlib
import io
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, NamedTuple, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

CALLERS = 32  # a reading of 256 workers takes 16 ms: so many at a time are slow, and each has a thread
CALL_S = 10.0  # the time that Prometheus gives a reading by default
CUT_S = 0.1  # for the thread of a call that was cut off to end
Key = TypeVar("Key")


class Call(NamedTuple):
    """connection: a second descriptor of it, to cut it off by; TLS takes the first one over."""

    address: str
    until_s: float
    connection: socket.socket


def first_to_go(calls: Mapping[Key, Call]) -> Key | None:
    """Of calls in the order in which they began: the first of the address that has the most."""
    of = Counter(call.address for call in calls.values())
    return max(calls, key=lambda key: of[calls[key].address], default=None)


def serve(host: str, port: int, application: Any, tls: Callable[[], ssl.SSLContext] | None = None) -> BoundedServer:
    """A server of a WSGI application that listens, for `serve_forever`; port 0 lets the system choose.

    host: without brackets.  tls: is asked at each connection, so that new certificates need no new server.

    Raises:
        OSError: the address is in use, or not one of this machine.
    """
    server: BoundedServer = make_server(
        host, port, application, _Ipv6Server if ":" in host else BoundedServer, _Handler
    )
    server.tls = tls
    return server


class BoundedServer(ThreadingMixIn, WSGIServer):
    """Keeps the laws: those that connect while it is full wait in the system's queue for a moment."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self.tls: Callable[[], ssl.SSLContext] | None = None
        self._places = threading.Semaphore(CALLERS)  # of threads
        self._lock = threading.Lock()
        self._calls: dict[Any, Call] = {}  # by their sockets, oldest first, without those that were cut off
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Binds without the DNS lookup of HTTPServer, whose result is not used."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the caller's thread, as soon as another has ended if there are too many."""
        wait_s = 0.0
        while not self._places.acquire(timeout=wait_s):
            with self._lock:
                first = first_to_go(self._calls)
            self._cut_off(first)
            wait_s = CUT_S
        try:
            call = Call(client_address[0], time.monotonic() + CALL_S, request.dup())
            with self._lock:
                self._calls[request] = call
            super().process_request(request, client_address)
        except BaseException:  # there are no threads or descriptors left
            self._end(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The caller's thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._end(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serves the call, its handshake included."""
        with contextlib.ExitStack() as stack:
            connection = request
            if self.tls:
                connection = stack.enter_context(self.tls().wrap_socket(request, server_side=True))
            _Handler(connection, client_address, self, lambda: request in self._calls)

    def service_actions(self) -> None:
        """Cuts off what takes too long; called at least twice a second."""
        now_s = time.monotonic()
        with self._lock:
            late = [request for request, call in self._calls.items() if call.until_s <= now_s]
        for request in late:
            self._cut_off(request)

    def server_close(self) -> None:
        """Cuts off all calls, too."""
        super().server_close()
        with self._lock:
            left = list(self._calls)
        for request in left:
            self._cut_off(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: a caller that broke off, or had no certificate, is no event of the training."""

    def _cut_off(self, request: Any) -> None:
        """Ends what the call waits for, unless it has ended."""
        if call := self._taken(request):
            with call.connection, contextlib.suppress(OSError):  # the caller has closed it
                call.connection.shutdown(socket.SHUT_RDWR)

    def _end(self, request: Any) -> None:
        if call := self._taken(request):
            call.connection.close()
        self._places.release()

    def _taken(self, request: Any) -> Call | None:
        """The call, for the one who closes its descriptor."""
        with self._lock:
            return self._calls.pop(request, None)


class _Ipv6Server(BoundedServer):
    address_family = socket.AF_INET6


class _Writer(io.BufferedIOBase):
    """Writes to a connection.  Of TLS, too, its end is a ConnectionError, for which wsgiref prints no traceback."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Writes all."""
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise ConnectionAbortedError(str(error)) from error
        return len(data)


class _Handler(WSGIRequestHandler):
    """Serves one request.  is_wanted: whether the call has not been cut off."""

    def __init__(self, request: Any, client_address: Any, server: BoundedServer, is_wanted: Callable[[], bool]) -> None:
        self._is_wanted = is_wanted
        super().__init__(request, client_address, server)

    def setup(self) -> None:
        """As StreamRequestHandler."""
        super().setup()
        self.wfile = _Writer(self.connection)

    def parse_request(self) -> bool:
        """Whether there is a request to answer; the headers that a cut off leaves look like all."""
        return super().parse_request() and self._is_wanted()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Logs nothing: readings are no events."""
