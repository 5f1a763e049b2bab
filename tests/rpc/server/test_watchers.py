"""Who watches a job hears that it is over before its coordinator ends, and keeps nobody long who does not."""

from __future__ import annotations

import time
from concurrent.futures import Executor

import pytest

from psruntime.core.members.membership import Role
from psruntime.core.members.messages import LeaveKind
from psruntime.core.members.view import Phase
from psruntime.errors import UnreachableError
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.server.polls import AGAIN_S, MOST, Watchers
from psruntime.rpc.server.rpc_server import RpcServer
from tests.rpc.conftest import PAIR, Stage


def test_who_asked_a_moment_ago_is_to_hear_once_that_it_is_over() -> None:
    watchers = Watchers()
    assert not watchers.are_to_hear(0.0)
    watchers.ask("a", False, 0.0)
    watchers.ask("b", False, 1.0)
    assert watchers.are_to_hear(1.5)
    watchers.ask("b", True, 1.6)
    assert watchers.are_to_hear(1.7)
    watchers.ask("a", True, 1.8)
    assert not watchers.are_to_hear(1.9)


def test_who_does_not_ask_again_is_not_waited_for() -> None:
    watchers = Watchers()
    watchers.ask("a", False, 5.0)
    assert watchers.are_to_hear(5.0 + AGAIN_S - 0.1) and not watchers.are_to_hear(5.0 + AGAIN_S)


def test_a_crowd_is_not_remembered_for_ever() -> None:
    watchers = Watchers()
    for number in range(2 * MOST):
        watchers.ask(f"{number}", False, 0.0)
    for number in range(MOST, 2 * MOST):
        assert watchers.are_to_hear(0.0)
        watchers.ask(f"{number}", True, 0.0)
    assert not watchers.are_to_hear(0.0), "those before them are forgotten"


@pytest.fixture
def failed(stage: Stage) -> tuple[RpcServer, CoordinatorClient]:
    """A coordinator whose job fails after somebody has watched it."""
    server = stage.coordinator(PAIR)
    client = stage.client(server)
    client.get_status(watches=True)
    worker = stage.membership(client, PAIR, Role.WORKER, 0)
    worker.start(10)
    worker.leave(LeaveKind.FATAL, "made up")
    assert client.get_status()[0].phase is Phase.FAILED, "but that was somebody who does not watch"
    return server, client


def test_the_coordinator_ends_once_who_watches_has_heard_of_the_end(
    failed: tuple[RpcServer, CoordinatorClient], pool: Executor
) -> None:
    server, client = failed
    stopped = pool.submit(server.stop, 0.0)
    time.sleep(0.3)
    assert not stopped.done()
    assert client.get_status(watches=True)[0].reason == "worker 0: made up"
    stopped.result(2.0)


def test_a_coordinator_that_was_asked_to_stop_ends_soon(stage: Stage) -> None:
    server = stage.coordinator(PAIR, is_hurried=lambda: True)
    client = stage.client(server)
    client.get_status(watches=True)
    worker = stage.membership(client, PAIR, Role.WORKER, 0)
    worker.start(10)
    worker.leave(LeaveKind.FATAL, "made up")
    server.stop(0.0)
    with pytest.raises(UnreachableError):
        client.get_status(watches=True)


def test_it_ends_without_who_has_gone_away(failed: tuple[RpcServer, CoordinatorClient]) -> None:
    server, client = failed
    server.stop(0.0)
    with pytest.raises(UnreachableError):
        client.get_status()
