"""Mutual TLS between two ends: what fits goes through, and what does not is one line at once."""

from __future__ import annotations

import re
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from psruntime.commands import status
from psruntime.config.process import SecurityConfig
from psruntime.config.settings import flag_of
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import LeaveKind
from psruntime.errors import CredentialsError, UnreachableError
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.join import fetch_job, retrying
from psruntime.rpc.wire.messages import Leave
from psruntime.rpc.wire.security import OPEN, Security
from tests.rpc.conftest import LONG, PAIR, Events, a_beat, a_join, hold
from tests.support.certificates import YESTERDAY, Authority, loaded, trusting
from tests.support.polling import poll_until

ALL = "--tls-ca, --tls-cert and --tls-key"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_every_name_of_a_certificate_goes_through(stage, authority, host):
    server = stage.coordinator(PAIR, f"{host}:0", security=authority.security())
    assert stage.client(server, authority.security("10.0.0.9"), host).get_job() == PAIR


def test_a_whole_conversation(stage, authority, pool):
    client = stage.client(stage.coordinator(PAIR, security=authority.security()), authority.security())
    answer = client.join(a_join(Role.PS, 0))
    held = hold(pool, client, a_beat(answer, Role.PS, 0))
    worker = client.join(a_join(Role.WORKER, 0))
    assert held.result(30).instructions.admitted == ((0, worker.incarnation),)
    client.leave(Leave(Role.PS, 0, answer.incarnation, LeaveKind.ASKED, "bye"))


def test_health_is_for_whoever_has_a_certificate(stage, authority):
    server = stage.coordinator(PAIR, security=authority.security())
    for credentials in (grpc.ssl_channel_credentials(authority.security().tls.ca), None):
        with pytest.raises(grpc.RpcError) as refused:
            health_of(server.port, credentials)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert health_of(server.port, authority.security().tls.channel_credentials()) == "NOT_SERVING"


def health_of(port: int, credentials: grpc.ChannelCredentials | None) -> str:
    address = f"127.0.0.1:{port}"
    with grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def good(authority: Authority, _: Authority) -> Security:
    return authority.security()


def none(*_: Authority) -> Security:
    return OPEN


# The server, the flags of the status command, and what it says.
FAULTS = {
    "a server of another CA": (
        lambda _, stranger: stranger.security(),
        lambda authority, _: authority.files(),
        "coordinator HERE has a certificate that --tls-ca CA does not accept: another CA signed it",
    ),
    "a server whose certificate has expired": (
        lambda authority, _: authority.security(not_after=YESTERDAY),
        lambda authority, _: authority.files(),
        "coordinator HERE has a certificate that has expired: renew it",
    ),
    "a server with the certificate of another host": (
        lambda authority, _: authority.security("10.0.0.9", "elsewhere"),
        lambda authority, _: authority.files(),
        "coordinator HERE has a certificate for other hosts than 127.0.0.1: call it as the certificate does, or renew "
        "that",
    ),
    "a server that trusts another CA": (
        lambda authority, stranger: loaded(trusting(authority.files(), stranger)),
        lambda authority, _: authority.files(),
        "coordinator HERE breaks off when it has seen --tls-cert CERT: its own --tls-ca needs the CA that signed this "
        "certificate, and keys have to be RSA, P-256 or P-384",
    ),
    "a server without TLS": (
        none,
        lambda authority, _: authority.files(),
        f"coordinator HERE does not speak TLS: start ps 0 with {ALL}, or leave them out here",
    ),
    "a caller without TLS": (good, lambda *_: SecurityConfig(), f"coordinator HERE speaks TLS: give {ALL}"),
    "a caller whose certificate has expired": (
        good,
        lambda authority, _: authority.files(not_after=YESTERDAY),
        "--tls-cert CERT is of no use with --tls-ca CA: certificate has expired",
    ),
    "a caller with the certificate of another CA": (
        good,
        lambda authority, stranger: trusting(stranger.files(), authority),
        "--tls-cert CERT is of no use with --tls-ca CA: another CA signed it",
    ),
    "a caller of another CA": (
        good,
        lambda _, stranger: stranger.files(),
        "coordinator HERE has a certificate that --tls-ca CA does not accept: another CA signed it",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_one_line_of_the_status_command(stage, authority, stranger, capsys, fault):
    make_server, make_files, line = FAULTS[fault]
    files = make_files(authority, stranger)
    address = f"127.0.0.1:{stage.coordinator(PAIR, security=make_server(authority, stranger)).port}"
    argv = [f"{flag_of(name)}={value}" for name, value in vars(files).items() if value]
    assert status.main(["--coordinator", address, *argv]) == 2
    output = capsys.readouterr()
    expected = line.replace("HERE", address).replace("CERT", files.tls_cert)
    expected = re.sub(r"--tls-ca CA\b", f"--tls-ca {files.tls_ca}", expected)
    assert (output.out, output.err) == ("", f"psruntime status: {expected}\n")


@pytest.mark.parametrize("fault", ["a server of another CA", "a server without TLS", "a server that trusts another CA"])
def test_a_fault_ends_the_first_exchange_at_once_and_is_not_waited_for(stage, authority, stranger, fault):
    make_server, make_files, _ = FAULTS[fault]
    client = stage.client(
        stage.coordinator(PAIR, security=make_server(authority, stranger)), loaded(make_files(authority, stranger))
    )
    with pytest.raises(CredentialsError):
        fetch_job(client, {}, LONG, threading.Event(), stage.events)
    assert not stage.events.named("unreachable")


def test_a_certificate_that_expires_while_its_process_runs_is_named(stage, authority):
    """Such a process has passed the check of its own files."""
    client = stage.client(
        stage.coordinator(PAIR, security=authority.security()), authority.security(not_after=YESTERDAY)
    )
    with pytest.raises(CredentialsError, match=r"is of no use with .*: certificate has expired"):
        client.get_job()


def test_a_coordinator_that_comes_later_is_waited_for(stage, authority):
    address, log, found = stage.refusing(), Events(), []
    client = CoordinatorClient(address, authority.security())
    caller = threading.Thread(
        target=lambda: found.append(retrying(client.get_job, LONG, threading.Event(), client.name, log))
    )
    caller.start()
    poll_until(lambda: log.named("unreachable"), 10, "the caller waits")
    stage.coordinator(PAIR, address, security=authority.security())
    caller.join(60)
    client.close()
    assert found == [PAIR]


def test_a_coordinator_that_goes_is_unreachable(stage, authority):
    server = stage.coordinator(PAIR, security=authority.security())
    client = stage.client(server, authority.security())
    client.get_job()
    server.stop(0.0)
    with pytest.raises(UnreachableError):
        client.get_job()
