"""Who gets in when there are too many: the oldest has to go, and what takes long leaves time to the others."""

from __future__ import annotations

import asyncio
import socket
import time

import grpc
import pytest

from psruntime.rpc.server import load_shedding
from psruntime.rpc.server.load_shedding import Intake
from psruntime.rpc.server.servicer import CoordinationServicer
from tests.rpc.conftest import PAIR
from tests.support import http2

JOIN = f"/{CoordinationServicer.name}/Join"


class Call:
    """A call of `method`, with what a handler asks of its context."""

    def __init__(self, path: str, request: bytes | None = b"") -> None:
        self.method, self._request = path, request
        self.is_read = asyncio.Event()  # is set when somebody waits for a request that does not come
        self.done: list = []

    async def read(self):
        if self._request is None:
            self.is_read.set()
            await asyncio.Event().wait()
        return self._request

    def add_done_callback(self, callback):
        self.done.append(callback)

    async def abort(self, code, details, metadata):
        raise Refused(code, details, dict(metadata))


class Refused(Exception):
    @property
    def is_busy(self) -> bool:
        code, _, metadata = self.args
        return code is grpc.StatusCode.RESOURCE_EXHAUSTED and metadata == {"psruntime-cause": "busy"}


def let_in(doorkeeper: Intake, call: Call, answer: bytes = b"answer", work=lambda: None) -> asyncio.Task:
    """What becomes of a call of a method that does its work and gives this answer."""

    async def method(request, context):
        work()
        return answer

    handler = grpc.unary_unary_rpc_method_handler(method, bytes, bytes)

    async def whole() -> bytes:
        async def find(_):
            return handler

        found = await doorkeeper.intercept_service(find, call)
        return await found.stream_unary(None, call)

    return asyncio.ensure_future(whole())


def test_one_too_many_cuts_off_the_oldest(monkeypatch):
    monkeypatch.setattr(load_shedding, "ARRIVING", 2)

    async def check() -> None:
        doorkeeper = Intake()
        calls = [Call(JOIN, None) for _ in range(3)]
        ends = []
        for call in calls:
            ends.append(let_in(doorkeeper, call))
            await call.is_read.wait()
        with pytest.raises(Refused) as refused:
            await ends[0]
        assert refused.value.is_busy
        assert await let_in(doorkeeper, Call("/another/Method")) == b"answer"
        with pytest.raises(Refused):
            await ends[1]
        assert not ends[2].done()
        ends[2].cancel()

    asyncio.run(check())


def test_a_request_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(load_shedding, "ARRIVAL_S", 0.01)

    async def check() -> None:
        with pytest.raises(Refused) as refused:
            await let_in(Intake(), Call(JOIN, None))
        assert refused.value.is_busy

    asyncio.run(check())


def test_what_takes_long_leaves_time_to_the_others():
    """While one large request after the other takes the loop for 0.1 s, small ones go through between two."""

    async def check() -> None:
        doorkeeper, order = Intake(), []

        def work() -> None:
            time.sleep(0.1)
            order.append("large")

        async def small_ones() -> None:
            while order.count("large") < 4:
                await let_in(doorkeeper, Call("/a/Small"), work=lambda: order.append("small"))

        large = [let_in(doorkeeper, Call(JOIN, bytes(load_shedding.SMALL_BYTES + 1)), work=work) for _ in range(4)]
        await asyncio.gather(small_ones(), *large)
        between = "".join("L" if one == "large" else "s" for one in order).strip("s").split("L")[1:-1]
        assert len(between) == 3
        assert all(len(some) >= 10 for some in between), between

    asyncio.run(check())


def test_large_answers_wait_for_their_callers_up_to_a_number(monkeypatch):
    monkeypatch.setattr(load_shedding, "UNFETCHED", 2)
    large = bytes(load_shedding.SMALL_BYTES + 1)

    async def check() -> None:
        doorkeeper = Intake()
        calls = [Call("/a/GetModel") for _ in range(3)]
        for call in calls[:2]:
            assert await let_in(doorkeeper, call, large) == large
        with pytest.raises(Refused) as refused:
            await let_in(doorkeeper, calls[2], large)
        assert refused.value.is_busy
        assert await let_in(doorkeeper, Call("/b/GetModel"), b"small") == b"small"
        assert await let_in(doorkeeper, Call("/a/GetStatus"), large) == large
        for callback in calls[0].done:
            callback(calls[0])
        assert await let_in(doorkeeper, calls[2], large) == large

    asyncio.run(check())


def test_half_a_request_is_answered_in_time(stage, monkeypatch):
    monkeypatch.setattr(load_shedding, "ARRIVAL_S", 0.1)
    server = stage.coordinator(PAIR)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as caller:
        half = http2.opening(JOIN.encode()) + http2.message(b"x" * 50, size=100, end=False)
        caller.sendall(http2.PREFACE + http2.settings() + half)
        heard = b""
        while b"try again" not in heard:
            more = caller.recv(1 << 16)
            assert more, heard
            heard += more
    assert not stage.events.named("defect")
