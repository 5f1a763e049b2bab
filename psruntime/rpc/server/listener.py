"""The port at which a process listens.

The grpc.aio server of a process, which no call can end.

gRPC 1.85 decodes the path of a call to a method that it does not know in the loop that accepts all calls: a path
that is not UTF-8 raises there, and the server closes for good.  So such calls are answered here, without a look at
their path.  This is the only file that knows names of gRPC's inner modules.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from typing import Any

from grpc._cython import cygrpc
from grpc.aio import _server as grpc_server

from psruntime.config.process import split_address
from psruntime.errors import UsageError
from psruntime.rpc.server.load_shedding import Intake
from psruntime.rpc.wire.channel_options import server_options


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


UNKNOWN = "/unknown"  # stands for the path


def make_server(checks: Sequence[Any] = ()) -> Any:
    """A grpc.aio.Server of the running loop.  `checks` are interceptors that see a call before its request is read."""
    return _Server((*checks, Intake()), server_options())


class _Server(grpc_server.Server):  # type: ignore[misc]
    def __init__(self, interceptors: Sequence[Any], options: Sequence[tuple[str, int]]) -> None:
        self._loop = cygrpc.get_working_loop()
        self._server = _Calls(self._loop, None, (), interceptors, options, None)


class _Calls(cygrpc.AioServer):  # type: ignore[misc]
    """Hands on the calls to registered methods, which gRPC tells apart before it gets here."""

    def __init__(self, loop: Any, pool: Any, handlers: Any, interceptors: Sequence[Any], *others: Any) -> None:
        super().__init__(loop, pool, handlers, interceptors, *others)
        self._checks = tuple(interceptors)
        self._refusing: set[asyncio.Task[None]] = set()  # the loop itself holds them weakly

    async def _request_call(self) -> Any:
        """The next call to a method that is not registered.  There is never one: it is answered here.

        UNIMPLEMENTED, unless an interceptor refuses it for something else.
        """
        loop = asyncio.get_running_loop()
        while True:
            call = await super()._request_call()
            answer = cygrpc._handle_rpc(UNKNOWN, _NoMethods(), self._checks, call, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(answer, call, loop, UNKNOWN))
            self._refusing.add(task)
            task.add_done_callback(self._refusing.discard)


class _NoMethods:
    def resolve_handler(self, _call: Any) -> None:
        return None
