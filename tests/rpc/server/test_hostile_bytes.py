"""Bytes on the coordinator's port that are no calls, or none that it knows."""

from __future__ import annotations

import random
import socket
import time
from contextlib import ExitStack, suppress

import grpc
import pytest

from psruntime.rpc.server.servicer import CoordinationServicer
from tests.rpc.server.honest import JOB, Honest
from tests.support import http2

FOR_S = 1.2 * JOB.lease_s  # a coordinator that no longer listens to its members loses them within that
NAME = CoordinationServicer.name.encode()
JOIN = b"/" + NAME + b"/Join"
HELLO = http2.PREFACE + http2.settings()

# A TLS ClientHello: a record of 512 bytes, of which the handshake message takes 508.
CLIENT_HELLO = b"\x16\x03\x01\x02\x00" + b"\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + bytes(250)

KNOWN = {
    "nothing": b"",
    "TLS": CLIENT_HELLO,
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "HTTP/1.1 for ever": b"POST /x HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx",
    "half a preface": http2.PREFACE[:11],
    "half a frame": HELLO + http2.opening(JOIN)[:7],
    "a frame of 16 MB": HELLO + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "half a message": HELLO + http2.opening(JOIN) + http2.message(b"x" * 50, size=100, end=False),
    "a message that claims to have 4 GB": HELLO + http2.opening(JOIN) + http2.message(b"x", size=2**32 - 1),
    "a message that is shorter than it claims": HELLO + http2.opening(JOIN) + http2.message(b"x", size=9),
    "a call without a message": HELLO + http2.opening(JOIN) + http2.frame(http2.DATA, http2.END_STREAM, 1),
    "data before headers": HELLO + http2.message(b"x"),
    "a path that is not UTF-8": HELLO + http2.opening(b"/\xff\xfe") + http2.message(b""),
    "a method that is not UTF-8": HELLO + http2.opening(b"/" + NAME + b"/\xc3") + http2.message(b""),
    "an empty path": HELLO + http2.opening(b"") + http2.message(b""),
    "a path of control characters": HELLO + http2.opening(b"/\0\r\n/") + http2.message(b""),
    "a header that is not UTF-8": HELLO + http2.opening(JOIN, 1, (b"authorization", b"\xff\0")) + http2.message(b""),
    "a binary header that is none": HELLO + http2.opening(JOIN, 1, (b"x-bin", b"!!!")) + http2.message(b""),
    "a time that is none": HELLO + http2.opening(JOIN, 1, (b"grpc-timeout", b"soon")) + http2.message(b""),
    "a time in the past": HELLO + http2.opening(JOIN, 1, (b"grpc-timeout", b"0n")) + http2.message(b""),
    "a compression that nobody knows": HELLO + http2.opening(JOIN, 1, (b"grpc-encoding", b"\xff")) + http2.message(b""),
    "header fields from an empty table": HELLO + http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff" * 64),
    "a window that overflows": HELLO + http2.frame(http2.WINDOW_UPDATE, payload=b"\x7f\xff\xff\xff") * 2,
    "pings": HELLO + http2.frame(http2.PING, payload=bytes(8)) * 500,
}


@pytest.fixture
def server(stage):
    return stage.coordinator(JOB)


@pytest.fixture
def honest(stage, server):
    return Honest(stage, server, stage.events.named)


def send(port: int, junk: bytes) -> socket.socket:
    """Without a look at what comes back; the other end may close while this one still sends."""
    caller = socket.create_connection(("127.0.0.1", port), timeout=10)
    with suppress(OSError):
        caller.sendall(junk)
    return caller


@pytest.mark.parametrize("junk", KNOWN.values(), ids=KNOWN)
def test_what_is_no_call_ends_nothing(stage, junk):
    """One kind at a time, so that the one that ends the server is named."""
    server = stage.coordinator(JOB)
    client = stage.client(server)
    with send(server.port, junk) as caller:
        caller.settimeout(0.05)
        with suppress(OSError):
            caller.recv(1 << 16)
        assert client.get_job() == JOB
    assert client.get_job() == JOB
    assert not stage.events.named("defect")


def test_junk_for_longer_than_a_lease_costs_no_member_its_place(server, honest):
    """All that there is, again and again, and random bytes; the connections stay open, so the last half is silence."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    until_s = time.monotonic() + FOR_S
    with ExitStack() as connections:
        while time.monotonic() < until_s:
            noise = draw.randbytes(draw.randrange(1, 5000))
            for junk in (*KNOWN.values(), noise, HELLO + noise, HELLO + http2.opening(JOIN) + noise):
                connections.enter_context(send(server.port, junk))
            time.sleep(0.2)
        honest.check()
    honest.check()


def test_a_method_that_there_is_not_is_unimplemented(stage, server):
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        for path in (
            "/no.such.Service/Method",
            f"/{CoordinationServicer.name}/NoSuchMethod",
            "/grpc.health.v1.Health/Watch",
        ):
            with pytest.raises(grpc.RpcError) as refused:
                next(channel.unary_stream(path)(b"", timeout=10))
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
