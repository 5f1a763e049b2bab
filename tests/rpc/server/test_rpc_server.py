"""The server in its thread: ports, health, the end, and what does not disturb it."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import ExitStack, suppress

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from psruntime.config import JobConfig
from psruntime.core.members.membership import Role
from psruntime.errors import UnreachableError, UsageError
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.server.rpc_server import RpcServer, require_free
from psruntime.rpc.server.servicer import CoordinationServicer
from psruntime.rpc.wire import channel_options
from tests.rpc.conftest import JOB_ID, LONG, a_beat, a_join, hold
from tests.support import http2
from tests.support.polling import poll_until

JOB = JobConfig(job_id=JOB_ID, lease_s=LONG, ps_timeout_s=LONG)
KEEPALIVE = ("keepalive_time_ms", "keepalive_timeout_ms", "http2.ping_timeout_ms")
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def server():
    server = RpcServer("127.0.0.1:0")
    server.start()
    yield server
    server.stop(0.0)


def health_of(port: int, service: str = "") -> int:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status


def test_start_tells_the_port_that_was_chosen(server):
    assert server.port > 0
    assert health_of(server.port) == NOT_SERVING


def test_health_is_what_was_said_last(server):
    server.set_serving(True)
    assert health_of(server.port) == SERVING
    server.set_serving(False)
    assert health_of(server.port) == NOT_SERVING


def test_health_of_the_coordinator_is_its_own(stage):
    port = stage.coordinator(JOB).port
    assert health_of(port) == NOT_SERVING
    assert health_of(port, CoordinationServicer.name) == SERVING
    assert CoordinationServicer.name == "psruntime.v1.CoordinationService"


def test_there_is_no_coordinator_without_one(server):
    with pytest.raises(grpc.RpcError) as unknown:
        health_of(server.port, CoordinationServicer.name)
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_port_that_is_taken_is_named_with_the_flag(server):
    address = f"127.0.0.1:{server.port}"
    with pytest.raises(UsageError) as refused:
        RpcServer(address, flag="--coordinator").start()
    assert str(refused.value) == f"address {address} is in use; choose another port with --coordinator"


def test_a_port_taken_at_the_last_moment_is_refused_too(server, monkeypatch):
    monkeypatch.setattr("psruntime.rpc.server.rpc_server.require_free", lambda *_: None)
    with pytest.raises(UsageError, match="is in use"):
        RpcServer(f"127.0.0.1:{server.port}").start()


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("localhost", "is not host:port"),
        ("192.0.2.7:0", "address 192.0.2.7:0 cannot be listened at: Cannot assign requested address"),
        ("no-such-host.invalid:0", "address no-such-host.invalid:0 cannot be resolved"),
    ],
)
def test_an_address_that_is_not_ours_is_refused(address, line):
    with pytest.raises(UsageError, match=line):
        RpcServer(address).start()


def test_a_port_that_was_let_go_is_free_at_once():
    server = RpcServer("127.0.0.1:0")
    port = server.start()
    health_of(port)
    server.stop(0.0)
    require_free(f"127.0.0.1:{port}", "--port")
    again = RpcServer(f"127.0.0.1:{port}")
    assert again.start() == port
    again.stop(0.0)


def test_a_defect_while_starting_belongs_to_the_caller(stage):
    def fail() -> CoordinationServicer:
        raise ZeroDivisionError("no coordinator")

    with pytest.raises(ZeroDivisionError):
        RpcServer("127.0.0.1:0", fail).start()


def test_stop_may_be_repeated_and_nothing_works_after_it(server):
    server.stop(0.0)
    server.stop(0.0)
    server.set_serving(True)
    with pytest.raises(grpc.RpcError):
        health_of(server.port)
    RpcServer("127.0.0.1:0").stop(0.0)


def test_stop_answers_the_heartbeats_that_are_held(stage, pool):
    server = stage.coordinator(JOB)
    client = stage.client(server)
    answer = client.join(a_join(Role.PS, 0))
    held = hold(pool, client, a_beat(answer, Role.PS, 0))
    server.stop(grace_s=60.0)
    assert held.result(10.0) == answer


def test_stop_cuts_off_calls_without_a_traceback(stage, capfd):
    for _ in range(8):
        server = stage.coordinator(JOB)
        client = stage.client(server)
        answer = client.join(a_join(Role.PS, 0))

        def beat(client=client, answer=answer):
            with suppress(UnreachableError):
                while True:
                    client.heartbeat(a_beat(answer, Role.PS, 0))

        members = [threading.Thread(target=beat) for _ in range(4)]
        for member in members:
            member.start()
        time.sleep(0.05)
        server.stop(0.0)
        for member in members:
            member.join()
    assert capfd.readouterr().err == ""


@pytest.mark.long
def test_pings_during_a_held_heartbeat_are_allowed(stage, monkeypatch):
    """Both ends' options fit each other.  Their times are divided by 5 here, to a ping every second."""

    def faster(options):
        return [(name, value // 5 if name.endswith("_ms") else value) for name, value in options]

    monkeypatch.setattr("psruntime.rpc.wire.channel_options.SERVER_OPTIONS", faster(channel_options.SERVER_OPTIONS))
    monkeypatch.setattr(
        "psruntime.rpc.client.coordinator_client.CALLER_OPTIONS", faster(channel_options.CALLER_OPTIONS)
    )
    client = stage.client(stage.coordinator(JOB))
    answer = client.join(a_join(Role.PS, 0))
    long_enough_s = 6.0  # the third ping too many would end the connection
    assert client.heartbeat(a_beat(answer, Role.PS, 0, wait_s=long_enough_s), LONG) == answer


def test_a_connection_on_which_a_heartbeat_is_held_is_not_idle(stage, monkeypatch):
    short = {**dict(channel_options.SERVER_OPTIONS), "grpc.max_connection_idle_ms": 200}
    monkeypatch.setattr("psruntime.rpc.wire.channel_options.SERVER_OPTIONS", tuple(short.items()))
    client = stage.client(stage.coordinator(JOB))
    answer = client.join(a_join(Role.PS, 0))
    assert client.heartbeat(a_beat(answer, Role.PS, 0, wait_s=2.0), LONG) == answer


def test_a_caller_that_answers_no_ping_is_dropped(stage, monkeypatch):
    """One that a link cut off, or that does not read: it has begun as it must, and holds a call."""
    short = {**dict(channel_options.SERVER_OPTIONS), **{f"grpc.{name}": 300 for name in KEEPALIVE}}
    monkeypatch.setattr("psruntime.rpc.wire.channel_options.SERVER_OPTIONS", tuple(short.items()))
    server = stage.coordinator(JOB)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as caller:
        half = http2.opening(f"/{CoordinationServicer.name}/Join".encode())
        caller.sendall(http2.PREFACE + http2.settings() + half)
        caller.recv(9)
        caller.sendall(http2.frame(http2.SETTINGS, http2.ACK))
        while caller.recv(1 << 16):
            continue


def test_one_thread_serves_many_callers(stage):
    server = stage.coordinator(JOB)
    before = threading.active_count()
    clients = [stage.client(server) for _ in range(20)]
    for client in clients:
        client.get_job()
    assert threading.active_count() - before <= len(clients)  # those of the callers' own channels


def test_garbage_on_the_port_does_not_disturb(stage):
    server = stage.coordinator(JOB)
    client = stage.client(server)
    for garbage in (
        os.urandom(4096),
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(999),
        b"",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as caller:
            caller.sendall(garbage)
    assert client.get_job() == JOB
    assert health_of(server.port) == NOT_SERVING
    assert not stage.events.named("defect")


def test_a_message_that_is_no_message_does_not_disturb(stage):
    server = stage.coordinator(JOB)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        join = channel.unary_unary(f"/{CoordinationServicer.name}/Join")
        with pytest.raises(grpc.RpcError):
            join(b"\xff" * 100, timeout=10)
    assert stage.client(server).get_job() == JOB


def test_a_flood_of_idle_connections_does_not_disturb(stage):
    server = stage.coordinator(JOB)
    with ExitStack() as flood:
        for _ in range(200):
            flood.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
        assert stage.client(server).get_job() == JOB
        assert health_of(server.port, CoordinationServicer.name) == SERVING


def test_who_comes_when_there_is_no_room_is_turned_away_and_members_stay(stage, monkeypatch):
    monkeypatch.setattr("psruntime.rpc.wire.channel_options.CONNECTIONS", 3)
    server = stage.coordinator(JOB)
    client = stage.client(server)
    answer = client.join(a_join(Role.PS, 0))
    with ExitStack() as crowd:
        connect = lambda: socket.create_connection(("127.0.0.1", server.port), timeout=30)  # noqa: E731
        callers = [crowd.enter_context(connect()) for _ in range(5)]
        poll_until(lambda: sum(map(is_closed, callers)) == 3, 30, "as many are turned away as are too many")
        assert client.heartbeat(a_beat(answer, Role.PS, 0)) == answer
    newcomer = stage.client(server)
    poll_until(lambda: can_call(newcomer), 30, "there is room again")


def is_closed(caller: socket.socket) -> bool:
    caller.setblocking(False)
    try:
        return caller.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def can_call(client: CoordinatorClient) -> bool:
    try:
        return client.get_job() == JOB
    except UnreachableError:
        return False


def test_a_caller_that_vanishes_in_the_middle_of_a_held_heartbeat_does_not_disturb(stage, pool):
    server = stage.coordinator(JOB)
    client, vanishing = stage.client(server), stage.client(server)
    answer = client.join(a_join(Role.PS, 0))
    held = hold(pool, vanishing, a_beat(answer, Role.PS, 0))
    vanishing.close()
    assert held.exception(30) is not None
    assert client.heartbeat(a_beat(answer, Role.PS, 0)) == answer
    assert not stage.events.named("defect")
