"""Callers who connect and say nothing, ask and do not read, or send too much: what they cost the coordinator.

Its memory is that of a process of its own.  The bounds are some three times what was measured.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from psruntime.core.plan.buckets import VariableSpec
from psruntime.errors import UnreachableError
from psruntime.rpc.server.load_shedding import UNFETCHED
from psruntime.rpc.server.servicer import CoordinationServicer
from psruntime.rpc.wire.channel_options import CALLS_PER_CONNECTION, MESSAGE_BYTES
from psruntime.rpc.wire.codec import to_wire
from psruntime.rpc.wire.messages import Model
from psruntime.v1 import coordination_pb2 as pb
from tests.rpc.server.honest import JOB, PLACES, Honest
from tests.support import http2
from tests.support.coordinator_process import CoordinatorProcess, coordinator_process
from tests.support.flood import LARGE_HEARTBEAT_BYTES, flood
from tests.support.polling import poll_until
from tests.support.selection import long_but

FEWER, CONNECTIONS = 2_000, 10_000
SPARE_FILES = 200  # for whatever else a process has open
CONNECTION_BYTES = 40_000
MESSAGE_COST = 12  # times its size: half of that in gRPC, Python and protobuf together, and double to be safe
MODEL = tuple(VariableSpec(f"tower/layer_{i}/kernel", (128, 128), "float32") for i in range(20_000))
MODEL_BYTES = to_wire(Model(MODEL), pb.Model).ByteSize()
MB = 1_000_000

# The times after which the server closes a connection, in ms; in the product they are longer.
SOON = {
    "grpc.server_handshake_timeout_ms": 2500,
    "grpc.http2.settings_timeout": 2500,
    "grpc.max_connection_idle_ms": 2500,
}


@pytest.fixture
def server(tmp_path) -> Iterator[CoordinatorProcess]:
    with coordinator_process(tmp_path, JOB, SOON) as server:
        yield server


@contextmanager
def callers(port: int, count: int, *said: bytes) -> Iterator[list[socket.socket]]:
    """Connections that say one of these each, in turn."""
    with ExitStack() as open_:
        connections = []
        for i in range(count):
            connection = open_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            connection.sendall(said[i % len(said)])
            connections.append(connection)
        yield connections


def acknowledge(connections: list[socket.socket]) -> None:
    """Says that the server's settings are taken, as HTTP/2 demands."""
    for connection in connections:
        assert connection.recv(9)[3] == http2.SETTINGS
        connection.sendall(http2.frame(http2.SETTINGS, http2.ACK))


def allowed_files() -> int:
    """How many files this process may open, which also is what the server may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@pytest.mark.parametrize("wanted", long_but([FEWER], [FEWER, CONNECTIONS]))
def test_a_crowd_that_says_nothing(stage, server, wanted):
    """Half of it says nothing, a quarter begins with HTTP/2 but never answers, a quarter has done all that it must."""
    honest = Honest(stage, server, server.events)
    count = min(wanted, allowed_files() // 2 - SPARE_FILES)
    if count < wanted:
        print(f"{count} connections instead of {wanted}: a process may open {allowed_files()} files here")
    before_bytes, before_files = server.memory_bytes, server.files
    begun = http2.PREFACE + http2.settings()
    with callers(server.port, count, b"", begun, b"", begun) as connections:
        acknowledge(connections[3::4])
        poll_until(lambda: server.files >= before_files + count // 2, 30, "most are there at a time")
        honest.check()
        grown = server.most_memory_bytes - before_bytes
        print(f"{grown / count:.0f} bytes for each of {count} connections")
        assert grown < count * CONNECTION_BYTES
        poll_until(lambda: server.files <= before_files + len(PLACES), 60, "all are gone, by themselves")
    honest.check()


def asking(rpc: str) -> bytes:
    """As many calls as a connection may have, of a caller who takes not a byte of an answer."""
    path, streams = f"/{CoordinationServicer.name}/{rpc}".encode(), range(1, 2 * CALLS_PER_CONNECTION, 2)
    calls = b"".join(http2.opening(path, stream) + http2.message(b"", stream) for stream in streams)
    return http2.PREFACE + http2.settings(window=0) + calls


def test_a_crowd_that_asks_and_does_not_read(stage, server):
    """It asks for large answers and for small ones, until no more large ones are given out."""
    honest = Honest(stage, server, server.events, specs=MODEL)
    before_bytes = server.memory_bytes

    def is_full() -> bool:
        try:
            honest.client.get_model()
        except UnreachableError as error:
            return "wait for callers that do not fetch them" in str(error)
        return False

    with ExitStack() as crowd:

        def is_full_with_some_more() -> bool:
            more = crowd.enter_context(callers(server.port, 2, asking("GetModel"), asking("GetStatus")))
            acknowledge(more)
            return is_full()

        poll_until(is_full_with_some_more, 60, "all answers that may wait do")
        honest.check()
        grown = server.most_memory_bytes - before_bytes
        print(f"{grown / MB:.0f} MB for {UNFETCHED} answers of {MODEL_BYTES / MB:.1f} MB")
        assert grown < 6 * UNFETCHED * MODEL_BYTES
    poll_until(lambda: not is_full(), 30, "there is room again")
    honest.check()


def test_a_message_over_the_limit_costs_next_to_nothing(stage, server):
    honest = Honest(stage, server, server.events)
    before_bytes = server.memory_bytes
    ends = flood(server.port, "too_large", connections=8, calls=4, seconds=2.0)
    assert set(ends) == {"too_large RESOURCE_EXHAUSTED"}, ends
    assert server.most_memory_bytes - before_bytes < 8 * MESSAGE_BYTES
    honest.check()


@pytest.mark.long
def test_large_messages_are_taken_a_few_at_a_time(stage, tmp_path):
    """Of a caller whose requests are refused, but only when they have been seen."""
    few, connections = 4, 4
    with coordinator_process(tmp_path, JOB, {"ARRIVING": few, "QUEUED": few}) as server:
        honest = Honest(stage, server, server.events)
        before_bytes = server.memory_bytes
        ends = flood(server.port, "large_heartbeat", connections, CALLS_PER_CONNECTION, JOB.lease_s)
        assert ends["large_heartbeat INVALID_ARGUMENT"] > 0, ends
        assert ends["large_heartbeat RESOURCE_EXHAUSTED"] > 0, "there were never too many of them"
        grown, sent = server.most_memory_bytes - before_bytes, connections * CALLS_PER_CONNECTION
        print(f"{grown / MB:.0f} MB for {few} of {sent} requests of {LARGE_HEARTBEAT_BYTES / MB:.1f} MB")
        assert grown < 2 * few * MESSAGE_COST * LARGE_HEARTBEAT_BYTES  # as many wait to be worked at
        honest.check()
