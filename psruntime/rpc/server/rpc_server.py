"""A gRPC server in a thread of its own: health of this process, and on ps 0 the coordinator.

One event loop serves every caller, so a caller that waits costs no thread.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from psruntime.config.process import ProcessConfig, split_address
from psruntime.errors import UsageError
from psruntime.network.hosts import own_host
from psruntime.rpc.server.crowding import Crowding
from psruntime.rpc.server.load_shedding import Intake
from psruntime.rpc.server.servicer import CoordinationServicer
from psruntime.rpc.wire.channel_options import most_connections, server_options
from psruntime.rpc.wire.job_token import TokenCheck
from psruntime.rpc.wire.security import OPEN, Security


def require_free(address: str, setting: str) -> None:
    """Raises a UsageError if `host:port` cannot be bound; `setting` is the flag that gives the port.

    The answer may be outdated at once; the next bind may be refused all the same.
    """
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(f"address {address} cannot be resolved: {error}") from None
    failures = [failure for failure in (_bind(family, where) for family, _, _, _, where in found) if failure]
    if errno.EADDRINUSE in failures:
        raise in_use(address, setting)
    if len(failures) == len(found):
        raise UsageError(f"address {address} cannot be listened at: {os.strerror(failures[0])}")


def in_use(address: str, setting: str) -> UsageError:
    return UsageError(f"address {address} is in use; choose another port with {setting}")


def _bind(family: int, where: tuple[object, ...]) -> int | None:
    """Binds and lets go; the error number if that fails.  SO_REUSEADDR as gRPC has it: a port in TIME_WAIT is free."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
    except OSError as error:
        return error.errno
    return None


def make_server(checks: Sequence[Any] = ()) -> Any:
    """A grpc.aio.Server of the running loop.  `checks` are interceptors that see a call before its request is read.

    gRPC's own before 1.84, which needs no help, and of a version that has changed what rpc/server/any_path.py uses: of
    the latter a call with a path that is not UTF-8 may end the server.
    """
    interceptors = (*checks, Intake())
    try:
        from psruntime.rpc.server.any_path import AnyPathServer
    except ImportError:
        return grpc.aio.server(interceptors=interceptors, options=server_options())
    return AnyPathServer(interceptors, server_options())


START_S = 30.0  # binding takes milliseconds; more means that the process does not run
END_S = 5.0  # for closing the loop after the grace
# Of that, for calls that were cut off to end; gRPC prints a traceback of one that the loop's end cancels.
REMAINDER_S = 1.0


def serve_health(where: ProcessConfig, security: Security, flag: str = "--health-port") -> tuple[str, RpcServer]:
    """(the host at which the others reach this process, its health service there, which has started).

    Raises:
        UsageError: the host cannot be found, or the port is taken; `flag` is named as the one that gives it.
    """
    host = own_host(where)
    server = RpcServer(f"{host}:{where.health_port}", flag=flag, security=security)
    server.start()
    return host, server


class RpcServer:
    """Serves grpc.health.v1, and the coordinator if `service` makes one, at `address` (`host:port`).

    `service` is called in the server's event loop.  Port 0 lets the system choose, and `port` is what it chose;
    `flag` is the one that gives the port, for messages.  `security` says whom it serves: with TLS only who has a
    certificate, with a token only who sends it, health apart; `log` logs calls without it.
    Health of "" is what `set_serving` set last, at first NOT_SERVING; health of the coordinator's name is SERVING
    while it runs.
    """

    def __init__(
        self,
        address: str,
        service: Callable[[], CoordinationServicer] | None = None,
        flag: str = "--port",
        security: Security = OPEN,
        log: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        self.address = address
        self.port = split_address(address)[1]
        self._make_service = service
        self._flag = flag
        self._security = security
        self._log = log
        self._health = health.aio.HealthServicer()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._grace_s = 0.0

    def start(self) -> int:
        """Binds and serves; returns the port.

        Raises:
            UsageError: the address is malformed, in use, or not one of this machine.
        """
        require_free(self.address, self._flag)
        bound: futures.Future[int] = futures.Future()
        self._thread = threading.Thread(target=self._run, args=(bound,), name="rpc-server", daemon=True)
        self._thread.start()
        self.port = bound.result(START_S)
        return self.port

    def set_serving(self, serving: bool) -> None:
        """What health says of this process from now on.  From any thread; without effect on a server that stopped."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        setting = self._health.set("", _serving(serving))
        try:
            asyncio.run_coroutine_threadsafe(setting, loop).result(END_S)
        except RuntimeError:  # the loop was closed just now
            setting.close()
        except futures.TimeoutError:  # the process is starved; health follows when the loop runs again
            return

    def stop(self, grace_s: float) -> None:
        """Answers held calls, lets who watches a job hear of its end, then gives calls under way `grace_s` seconds.

        It takes no other call from then on.  Bounded; may be repeated.
        """
        loop, stopping, thread = self._loop, self._stopping, self._thread
        if loop is None or stopping is None or thread is None:
            return
        self._grace_s = grace_s
        try:
            loop.call_soon_threadsafe(stopping.set)
        except RuntimeError:  # the loop is closed already
            return
        thread.join(grace_s + END_S)

    def _run(self, bound: futures.Future[int]) -> None:
        asyncio.run(self._serve(bound))

    async def _serve(self, bound: futures.Future[int]) -> None:
        service = None
        security = self._security
        checks = [TokenCheck(lambda: (security.tokens, security.readers), self._log)] if security.tokens else []
        server = make_server(checks)
        try:
            await self._health.set("", _serving(False))
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
            service = self._make_service() if self._make_service else None
            if service:
                service.add_to(server)
            port = self._bind(server)
            await server.start()
            if service:
                crowding = Crowding(port, most_connections(), service.members_by_host, self._log)
                crowding.start()
                service.open()
                await self._health.set(service.name, _serving(True))
        except BaseException as error:  # noqa: BLE001 - belongs to the caller of `start`, who waits for it
            await server.stop(None)
            bound.set_exception(error)
            return
        self._stopping, self._loop = asyncio.Event(), asyncio.get_running_loop()
        bound.set_result(port)
        await self._stopping.wait()
        await self._health.enter_graceful_shutdown()
        if service:
            await service.close()
            crowding.close()
        await server.stop(self._grace_s)
        remainder = asyncio.all_tasks() - {asyncio.current_task()}
        if remainder:
            await asyncio.wait(remainder, timeout=REMAINDER_S)

    def _bind(self, server: Any) -> int:
        try:
            if self._security.tls:
                return int(server.add_secure_port(self.address, self._security.server_credentials()))
            return int(server.add_insecure_port(self.address))
        except RuntimeError:  # another process took it since `require_free`
            raise in_use(self.address, self._flag) from None


def _serving(serving: bool) -> Any:
    statuses = health_pb2.HealthCheckResponse
    return statuses.SERVING if serving else statuses.NOT_SERVING
