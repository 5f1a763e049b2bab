"""The endpoint at which Prometheus reads one process's metrics: http://HOST:PORT/metrics, or https with mutual TLS."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
from socketserver import TCPServer
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import (
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.exposition import ThreadingWSGIServer

from psruntime.errors import UsageError
from psruntime.metrics.families import Families, of_process
from psruntime.observe.log import Log

IDLE_S = 10.0  # for a caller to send its request


def open_endpoint(role: str, index: int, address: tuple[str, int], tls: ssl.SSLContext | None, log: Log) -> Endpoint:
    """Serves the metrics that every process has; others are added later.  address: as of Endpoint.

    Raises:
        UsageError: the address is in use, or not one of this machine.
    """
    endpoint = Endpoint(*address, tls)
    endpoint.add(of_process(role, index, lambda: log.counts))
    log("metrics", url=endpoint.url)
    return endpoint


class Endpoint:
    """Serves the metrics in its registry at `host:port`; port 0 lets the system choose, and `port` is that.

    tls: of a server that asks for certificates; None: it serves every caller.

    Raises:
        UsageError: the address is in use, or not one of this machine.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter and histogram, without use
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        bare = host.strip("[]")
        server_class = _ServerIpv6 if ":" in bare else _Server
        try:
            server: Any = make_server(bare, port, make_wsgi_app(self.registry), server_class, _Handler)
        except OSError as error:
            raise UsageError(_refusal(f"{host}:{port}", error)) from None
        self.port = int(server.server_port)
        self.url = f"{'https' if tls else 'http'}://{host}:{self.port}/metrics"
        if tls:  # a handshake is made by the thread that serves the call, so that no caller blocks the others
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self._server = server
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()

    def add(self, collector: Families) -> None:
        """Serves this collector, too; several threads call it, at each reading."""
        self.registry.register(collector)

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingWSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Binds without the DNS lookup of HTTPServer, whose result is not used."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: a caller that broke off, or had no certificate, is no event of the training."""


class _ServerIpv6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Logs nothing: readings are no events."""


def _refusal(address: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"address {address} is in use; choose another port with --metrics-port"
    return f"address {address} cannot be listened at: {os.strerror(error.errno) if error.errno else error}"
