"""The token: who has it is served, who has not is refused before the request is read, and health is open."""

from __future__ import annotations

import os
import socket
import threading

import grpc
import pytest

from psruntime.commands import control, status
from psruntime.config.process import split_address
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import NOT_JOINED, LeaveKind
from psruntime.core.steering.commands import Command, Kind
from psruntime.errors import CredentialsError, UsageError
from psruntime.network import hosts
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.join import fetch_job
from psruntime.rpc.server.rpc_server import RpcServer
from psruntime.rpc.server.servicer import CoordinationServicer
from psruntime.rpc.wire.job_token import LOG_EVERY_S, TokenCheck
from psruntime.rpc.wire.messages import ControlRequest, Leave
from psruntime.rpc.wire.security import Security
from tests.rpc.conftest import LONG, PAIR, a_join
from tests.rpc.server.test_rpc_server import SERVING, health_of
from tests.support.certificates import TOKEN

OURS = Security(tokens=(TOKEN,))
MISSING = "the coordinator refuses the call, which has no token: give the job's with --token-file or PSRUNTIME_TOKEN"
WRONG = MISSING.replace("no token", "another token than the job's")


@pytest.fixture
def server(stage) -> RpcServer:
    return stage.coordinator(PAIR, security=OURS)


def test_who_has_the_token_is_served(stage, server):
    assert stage.client(server, OURS).get_job() == PAIR


def test_a_token_that_nobody_asks_for_is_harmless(stage):
    assert stage.client(stage.coordinator(PAIR), OURS).get_job() == PAIR


@pytest.mark.parametrize(("token", "line"), [("", MISSING), (TOKEN[:-1], WRONG), (TOKEN + "x", WRONG)])
def test_who_has_not_is_told_so_at_once(stage, server, token, line):
    client = stage.client(server, Security(tokens=(token,) if token else ()))
    with pytest.raises(CredentialsError) as refused:
        fetch_job(client, {}, LONG, threading.Event(), stage.events)
    assert str(refused.value) == line
    assert not stage.events.named("unreachable")


@pytest.mark.parametrize(("token", "line"), [(None, MISSING), (TOKEN.upper(), WRONG)])
def test_the_status_command_says_it_in_one_line(server, tmp_path, monkeypatch, capsys, token, line):
    if token:
        monkeypatch.setenv("PSRUNTIME_TOKEN", token)
    assert status.main(["--coordinator", f"127.0.0.1:{server.port}"]) == 2
    assert capsys.readouterr() == ("", f"psruntime status: {line}\n")


def test_the_status_command_finds_it_in_file_and_environment(server, tmp_path, monkeypatch, capsys):
    argv = ["--json", "--coordinator", f"127.0.0.1:{server.port}"]
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(TOKEN + "\n")
    assert status.main([*argv, "--token-file", str(path)]) == 0
    monkeypatch.setenv("PSRUNTIME_TOKEN_FILE", str(path))
    assert status.main(argv) == 0
    monkeypatch.delenv("PSRUNTIME_TOKEN_FILE")
    monkeypatch.setenv("PSRUNTIME_TOKEN", TOKEN)
    assert status.main(argv) == 0
    assert '"phase": "FORMING"' in capsys.readouterr().out


def raw_call(server: RpcServer, method: str, *metadata: tuple[str, str | bytes], request: bytes = b"") -> grpc.RpcError:
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(method)(request, timeout=30, metadata=metadata)
    return refused.value


GET_JOB = f"/{CoordinationServicer.name}/GetJob"


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"bearer {TOKEN}", f"Bearer  {TOKEN}", "Bearer ~"]
)
def test_what_is_nearly_the_token_is_refused(server, value):
    assert raw_call(server, GET_JOB, ("authorization", value)).code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_token_is_looked_for_in_one_place_only(server):
    for key in ("proxy-authorization", "token", "authorization-bin"):
        refused = raw_call(server, GET_JOB, (key, f"Bearer {TOKEN}".encode() if "bin" in key else f"Bearer {TOKEN}"))
        assert refused.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "method", ["/no.such.Service/Call", f"/{CoordinationServicer.name}/NoSuch", "/", "/grpc.health"]
)
def test_without_it_nobody_learns_what_is_served(server, method):
    assert raw_call(server, method).code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_request_is_not_read_before_the_token(server):
    """One above the size limit would be RESOURCE_EXHAUSTED, a malformed one INTERNAL."""
    for request in (b"\xff" * 100, b"\x00" * (17 << 20)):
        refused = raw_call(server, f"/{CoordinationServicer.name}/Join", request=request)
        assert (refused.code(), refused.details()) == (grpc.StatusCode.UNAUTHENTICATED, MISSING)


def test_health_needs_no_token(server):
    assert health_of(server.port, CoordinationServicer.name) == SERVING


def test_refusals_are_in_the_log_without_the_token_and_not_each(stage, server):
    for _ in range(3):
        raw_call(server, GET_JOB, ("authorization", "Bearer someone-elses-token"))
    (facts,) = stage.events.named("refused")
    assert facts["calls"] == 1 and str(facts["reason"]) == WRONG
    assert split_address(facts["last_from"])[0] == "ipv4:127.0.0.1"
    assert "someone" not in str(facts)


def test_a_flood_of_refusals_is_a_line_every_so_often(stage):
    now_s = [1000.0]
    check = TokenCheck(lambda: ((TOKEN,), ()), stage.events, lambda: now_s[0])
    for _ in range(5):
        check._note("ipv4:127.0.0.1:5", CredentialsError(MISSING))
    now_s[0] += LOG_EVERY_S
    check._note("ipv4:127.0.0.1:6", CredentialsError(MISSING))
    assert [(facts["calls"], facts["last_from"][-1]) for facts in stage.events.named("refused")] == [(1, "5"), (5, "6")]


LOOKS = "only-looking-0123456789"


def test_a_token_for_looking_sees_the_job_and_changes_nothing(stage):
    server = stage.coordinator(PAIR, security=Security(tokens=(TOKEN, TOKEN + "-old"), readers=(LOOKS,)))
    looking = Security(tokens=(LOOKS,))
    assert stage.client(server, looking).get_status()[1] == PAIR
    assert stage.client(server, looking).get_model() is None
    for change in (
        lambda client: client.get_job(worker=0),  # from then on the job waits for the worker
        lambda client: client.join(a_join(Role.WORKER, 0)),
        lambda client: client.control(ControlRequest(Command(Kind.PAUSE, "one"), 0.0)),
        lambda client: client.leave(Leave(Role.WORKER, 0, NOT_JOINED, LeaveKind.FATAL, "bye")),
        lambda client: client.get_position(),
    ):
        with pytest.raises(CredentialsError, match="which has a token that is for reading only: give the job's with"):
            change(stage.client(server, looking))
    for token in (TOKEN, TOKEN + "-old"):
        assert stage.client(server, Security(tokens=(token,))).get_job() == PAIR


def test_the_commands_of_an_operator_who_looks(stage, tmp_path, capsys):
    server = stage.coordinator(PAIR, security=Security(tokens=(TOKEN,), readers=(LOOKS,)))
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(LOOKS + "\n")
    where = ["--coordinator", f"127.0.0.1:{server.port}", "--token-file", str(path)]
    assert status.main(where) == 0
    assert "FORMING" in capsys.readouterr().out
    for command in (["pause"], ["save"], ["drain"], ["mode", "sync"]):
        assert control.main([*where, *command]) == 2
        assert "a token that is for reading only" in capsys.readouterr().err
    assert not stage.events.named("control")


@pytest.mark.parametrize("main", [status.main, lambda argv: control.main([*argv, "pause"])], ids=["status", "control"])
def test_a_token_leaves_the_machine_with_tls_or_insecure_alone(stage, tmp_path, capsys, main, monkeypatch):
    """Nothing is sent: the address is refused before there is a connection."""
    monkeypatch.setenv("PSRUNTIME_TOKEN", TOKEN)
    assert main(["--coordinator", "192.0.2.1:2222"]) == 2
    assert "the token would be sent to 192.0.2.1:2222 without TLS: give --tls-ca" in capsys.readouterr().err


def test_a_token_is_not_sent_to_another_users_process(stage, monkeypatch):
    server = stage.coordinator(PAIR, security=OURS)
    client = stage.client(server, OURS)
    assert client.get_job() == PAIR
    monkeypatch.setattr(hosts.os, "geteuid", lambda: 4321)
    monkeypatch.setattr(hosts, "listeners_at", lambda _: {4321, 1234})
    with pytest.raises(CredentialsError, match=r"a process of another user \(1234\) listens at 127.0.0.1:"):
        stage.client(server, OURS).get_job()
    assert stage.client(server, Security(tokens=(TOKEN,), insecure=True)).get_job() == PAIR
    with pytest.raises(CredentialsError, match="another user"):  # before each call: it may listen since the last
        client.get_job()


def test_whose_process_listens_is_known():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert hosts.listeners_at(port) == {os.geteuid()}
    assert hosts.listeners_at(port) == set()


def test_another_server_of_the_same_user_has_received_the_token(stage):
    client = CoordinatorClient(stage.health(), OURS)
    with pytest.raises(UsageError, match=r"UNIMPLEMENTED: .*; it has received the token without TLS: replace it"):
        client.get_job()
    client.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_address_of_the_port_counts(monkeypatch):
    """localhost is 127.0.0.1 and ::1: a stranger may listen at the one that is free."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_INET6) as other:
        port = listener.getsockname()[1]
        os.fchown(other.fileno(), 1234, -1)
        other.bind(("::1", port))
        other.listen()
        assert hosts.listeners_at(port) == {0, 1234}
        with pytest.raises(CredentialsError, match=r"another user \(1234\) listens"):
            hosts.require_own_listener(f"localhost:{port}")
