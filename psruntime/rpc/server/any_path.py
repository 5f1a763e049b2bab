"""A server of gRPC 1.84 and later that no call can end.

These decode the path of a call to a method that they do not know in the loop that accepts all calls: a path that is not
UTF-8 raises there, and the server closes for good.  So such calls are answered here, without a look at their path.

This is the only file that knows names of gRPC's inner modules.  Importing it raises ImportError where these are others.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from grpc._cython.cygrpc import AioServer, _handle_rpc, _schedule_rpc_coro, get_working_loop
from grpc.aio._server import Server

PARAMETERS = ["method_name", "method_resolver", "interceptors", "rpc_state", "loop", "concurrency_exceeded"]
UNKNOWN = "/unknown"  # stands for the path

try:
    if [*inspect.signature(_handle_rpc).parameters] != PARAMETERS:
        raise ImportError("grpc._cython.cygrpc._handle_rpc has other parameters")
except ValueError as error:
    raise ImportError("grpc._cython.cygrpc._handle_rpc tells no parameters") from error


class AnyPathServer(Server):  # type: ignore[misc]
    def __init__(self, interceptors: Sequence[Any], options: Sequence[tuple[str, int]]) -> None:
        self._loop = get_working_loop()
        self._server = _Calls(self._loop, None, (), interceptors, options, None)


class _Calls(AioServer):  # type: ignore[misc]
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
            answer = _handle_rpc(UNKNOWN, _NoMethods(), self._checks, call, loop, False)
            task = loop.create_task(_schedule_rpc_coro(answer, call, loop, UNKNOWN))
            self._refusing.add(task)
            task.add_done_callback(self._refusing.discard)


class _NoMethods:
    def resolve_handler(self, _call: Any) -> None:
        return None
