"""How calls are let in: how large a request may be, how long it may take, how many there are at a time.

What a caller sends is memory of this process until it is understood, and an answer is until its caller has fetched
it.  Callers may be slow or hostile, and a member has to get through all the same.

Law: at most ARRIVING requests arrive at a time.  One more cuts off the one that began first: a member's is small, and
is there a moment after its call.
Law: what takes long, a large request or an answer about the whole job, has at most half of the event loop's time; the
small calls get through in between.
Law: at most UNFETCHED large answers to an RPC wait for their callers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from psruntime.errors import PsRuntimeError, UnreachableError, UsageError
from psruntime.rpc.wire import statuses

SMALL_BYTES = 64 << 10  # a heartbeat has some 12 bytes for each worker of the job, a join some 70 for each variable
LARGE_ANSWERS = frozenset({"GetModel", "GetStatus"})  # RPCs whose answer grows with the job
ARRIVAL_S = 10.0  # a join of 6 MB needs 5 Mbit/s for that
# In a flood of small calls two of each RPC arrive at a time, of a dozen RPCs; a member's must not be the oldest then.
# Times MESSAGE_BYTES, times what gRPC and protobuf make of it (5), this is what strangers can fill.
ARRIVING = 32
QUEUED = 8  # large requests and answers that wait to be begun; they take some 0.1 s each
UNFETCHED = 16  # times MESSAGE_BYTES this is what slow readers can fill


class Intake(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets calls in, for all services of a server.  Belongs to one event loop and is used in its thread only."""

    def __init__(self) -> None:
        self._arriving = _Waits(ARRIVING)
        self._queued = _Waits(QUEUED)
        self._queue: deque[asyncio.Future[bool]] = deque()  # those of `_queued`, and some that were ended
        self._busy = False  # with what takes long, or with the rest after it
        self._unfetched: Counter[str] = Counter()  # large answers, by RPC
        self._methods: dict[str, Any] = {}  # by path, as they were made for gRPC

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        """As grpc.aio.ServerInterceptor.  A stream of answers, as of health, would be a call that is held for ever."""
        method = await continuation(call)
        if method is None or method.response_streaming:
            return None
        if method.request_streaming:  # it refuses the call, and reads nothing
            return method
        if call.method not in self._methods:
            self._methods[call.method] = self._let_in(call.method.rpartition("/")[2], method)
        return self._methods[call.method]

    def _let_in(self, rpc: str, method: Any) -> Any:
        """The method, reading its request itself."""

        async def answer(_requests: Any, context: Any) -> bytes:
            try:
                request = await self._request(rpc, method, context)
                answer: bytes = method.response_serializer(await method.unary_unary(request, context))
                self._make_room(rpc, answer, context)
                return answer
            except PsRuntimeError as error:
                refusal = statuses.refusal(error)
            assert refusal is not None
            await context.abort(*refusal)
            raise AssertionError("abort raises")

        return grpc.stream_unary_rpc_method_handler(answer)

    async def _request(self, rpc: str, method: Any, context: Any) -> Any:
        """The request, understood.

        Raises:
            UsageError: it is no message of its type.
            UnreachableError: there are too many at a time, or it did not arrive in time.
        """
        raw = await self._read(context)
        if len(raw) > SMALL_BYTES or rpc in LARGE_ANSWERS:
            await self._turn()
        try:
            return method.request_deserializer(raw)
        except DecodeError:
            raise UsageError(f"the request is no message of {rpc}") from None

    async def _read(self, context: Any) -> bytes:
        """A read that is given up continues until the end of its call: gRPC would not free what it brings."""
        arrived = asyncio.get_running_loop().create_future()
        read = asyncio.ensure_future(context.read())

        def end(_: Any) -> None:
            read.cancelled() or read.exception()  # so that asyncio does not log it
            _settle(arrived, True)

        read.add_done_callback(end)
        await self._arriving.until(arrived)
        raw = read.result()
        if raw is grpc.aio.EOF:
            raise UsageError("the call has no request")
        return bytes(raw)

    async def _turn(self) -> None:
        """Waits until what takes long may be begun; what the caller does before it waits again is that."""
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        if not self._busy:
            self._begin_next()
        try:
            await self._queued.until(turn)
        finally:
            if turn.done() and not turn.cancelled() and turn.result():
                asyncio.get_running_loop().call_soon(self._rest, time.monotonic())

    def _begin_next(self) -> None:
        self._busy = any(_settle(self._queue.popleft(), True) for _ in range(len(self._queue)))

    def _rest(self, began_s: float) -> None:
        """Leaves the loop to the small calls for as long as this took."""
        asyncio.get_running_loop().call_later(time.monotonic() - began_s, self._begin_next)

    def _make_room(self, rpc: str, answer: bytes, context: Any) -> None:
        """Counts a large answer until it is fetched, or the call ends otherwise."""
        if len(answer) <= SMALL_BYTES:
            return
        if self._unfetched[rpc] >= UNFETCHED:
            raise UnreachableError(f"{UNFETCHED} answers of {rpc} wait for callers that do not fetch them: try again")
        self._unfetched[rpc] += 1
        context.add_done_callback(lambda _: self._unfetched.subtract({rpc: 1}))


class _Waits:
    """At most `most` waits at a time: one more ends the oldest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waits: dict[asyncio.Future[bool], None] = {}  # oldest first

    async def until(self, ready: asyncio.Future[bool]) -> None:
        """Waits until `ready` has a result: whether it is what was waited for.

        Raises:
            UnreachableError: the wait was ended for others, or after ARRIVAL_S.
        """
        if len(self._waits) >= self._most:
            any(_settle(wait, False) for wait in self._waits)
        self._waits[ready] = None
        timer = asyncio.get_running_loop().call_later(ARRIVAL_S, _settle, ready, False)
        try:
            if not await ready:
                raise UnreachableError("the call was cut off: there are too many, or its request was slow; try again")
        finally:
            timer.cancel()
            del self._waits[ready]


def _settle(wait: asyncio.Future[bool], result: bool) -> bool:
    """Ends a wait; False if it had ended."""
    if wait.done():
        return False
    wait.set_result(result)
    return True
