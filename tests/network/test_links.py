"""Connections that lead nowhere are ended, and no others."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from psruntime.core.members.messages import Instructions
from psruntime.core.members.view import Phase, PsEntry, View
from psruntime.network import connections
from psruntime.network.connections import Links, WorkerLinks
from tests.support.away import Away, away, refusal
from tests.support.polling import poll_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows a process its sockets")

TIMEOUT_S = 2.0
SOON_S = 10.0


class Watch:
    """The links of a worker that is this process, and what they logged."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, dict[str, Any]]] = []
        log = lambda event, **facts: self.logged.append((event, facts))  # noqa: E731
        self.links = WorkerLinks("127.0.0.1:1", TIMEOUT_S, log)
        self.links.start()

    def close(self) -> None:
        self.links.close()

    def follow(self, phase: Phase, *ps: str) -> None:
        view = View(1, tuple(PsEntry(i, address, 7) for i, address in enumerate(ps)))
        self.links.follow(Instructions(phase, "", view))

    def knows(self, *ps: str) -> bool:
        return set(ps) <= self.links._ends.keys()


@pytest.fixture
def watch() -> Iterator[Watch]:
    with closing(Watch()) as watch:
        yield watch


class Peer:
    """A server, and connections to it that were accepted."""

    def __init__(self, stack: ExitStack, name: str = "127.0.0.1") -> None:
        self._stack = stack
        self._server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.address = f"{name}:{self._server.getsockname()[1]}"

    def connect(self) -> socket.socket:
        connection = self._stack.enter_context(socket.create_connection(self._server.getsockname()))
        self._stack.enter_context(self._server.accept()[0])
        connection.settimeout(SOON_S)
        return connection


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def ends(connection: socket.socket) -> bool:
    """Whether a reader of it finds its end."""
    return connection.recv(1) == b""


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.0)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True


def test_a_read_from_a_lost_ps_ends_and_from_the_others_goes_on(watch: Watch, stack: ExitStack) -> None:
    lost, live, other = Peer(stack), Peer(stack), Peer(stack)
    to_lost, to_live, to_other = lost.connect(), live.connect(), other.connect()
    watch.follow(Phase.TRAINING, lost.address, live.address)
    poll_until(lambda: watch.knows(lost.address, live.address), SOON_S, "both ps")
    assert is_open(to_lost)
    to_lost.settimeout(SOON_S)
    watch.follow(Phase.PREPARING, live.address)
    assert ends(to_lost)
    assert is_open(to_live) and is_open(to_other)
    told = ("cut_links", {"ps": lost.address, "reason": "it is in no usable view any more"})
    poll_until(lambda: watch.logged == [told], SOON_S, f"{told} in {watch.logged}")


def test_no_ps_is_waited_for_while_there_is_no_view(watch: Watch, stack: ExitStack) -> None:
    """Also not by a session that is opened too late."""
    ps = Peer(stack)
    watch.follow(Phase.TRAINING, ps.address)
    poll_until(lambda: watch.knows(ps.address), SOON_S, "the ps")
    before = ps.connect()
    watch.follow(Phase.FORMING, ps.address)
    assert ends(before)
    assert ends(ps.connect())
    watch.follow(Phase.PREPARING, ps.address)
    poll_until(lambda: ps.address in watch.links._usable, SOON_S, "the new view")
    after = ps.connect()
    time.sleep(2 * connections.LOOK_S)
    assert is_open(after)


def test_a_ps_may_be_known_by_a_name(watch: Watch, stack: ExitStack) -> None:
    ps = Peer(stack, "localhost")
    watch.follow(Phase.TRAINING, ps.address, "no-such-host.invalid:2222", "nonsense")
    poll_until(lambda: watch.knows(ps.address), SOON_S, "the ps")
    connection = ps.connect()
    watch.follow(Phase.FAILED, ps.address)
    assert ends(connection)


def test_the_kernel_watches_what_counts_alone(stack: ExitStack) -> None:
    ps, other = Peer(stack), Peer(stack)
    port = int(ps.address.rpartition(":")[2])
    found = Links(lambda connection: connection.remote.port == port, TIMEOUT_S, lambda *_, **__: None)
    stack.callback(found.close)
    found.start()
    watched, left_alone = ps.connect(), other.connect()

    def timeout_of(connection: socket.socket) -> int:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    poll_until(lambda: timeout_of(watched) == 1000 * TIMEOUT_S, SOON_S, "the connection to be watched")
    assert watched.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert timeout_of(left_alone) == 0 and not left_alone.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_system_without_means_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "DESCRIPTORS", "/none")
    with closing(Watch()) as watch:
        watch.follow(Phase.TRAINING, "127.0.0.1:1")
        assert [event for event, _ in watch.logged] == ["links_unwatched"]


# A machine that is down.

ACCEPTS_TWO = """
import socket, sys
server = socket.create_server((sys.argv[1], 7000))
print("ready", flush=True)
held = [server.accept() for _ in range(2)]
input()
"""


@pytest.fixture
def machine(stack: ExitStack) -> Away:
    """Another one, with a process that accepts two connections."""
    if reason := refusal():
        pytest.skip(reason)
    machine = stack.enter_context(away())
    command = ["ip", "netns", "exec", machine.network, sys.executable, "-c", ACCEPTS_TWO, machine.there]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return machine


@pytest.mark.long
def test_a_silent_connection_to_a_machine_that_is_down_ends(watch: Watch, stack: ExitStack, machine: Away) -> None:
    """Both while nothing is under way and while something is."""
    watch.follow(Phase.TRAINING, f"{machine.there}:7000")
    silent, sending = (stack.enter_context(socket.create_connection((machine.there, 7000))) for _ in range(2))
    for connection in (silent, sending):
        poll_until(lambda c=connection: c.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT), SOON_S, "the watch")  # type: ignore[misc]
        connection.settimeout(TIMEOUT_S)
        with pytest.raises(TimeoutError):  # silence alone does no harm
            connection.recv(1)
        connection.settimeout(10 * TIMEOUT_S)
    machine.unplug()
    sending.sendall(b"x")
    for connection in (silent, sending):
        with pytest.raises(OSError) as raised:
            connection.recv(1)
        assert raised.value.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)  # no limit of Python's
    assert watch.logged == []
