"""The graphs of a worker's training: each is built once and made ready beside the steps; a failure harms nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from psruntime.core.members.messages import GraphsBuilt
from psruntime.errors import UsageError
from psruntime.graph.loop.loop_graphs import LoopGraphs, ReadyGraphs
from tests.support.polling import poll_until

PUSHES, BOTH = GraphsBuilt(pushes=True), GraphsBuilt(rounds=True, pushes=True)


class Built:
    """A graph.  warmed: how often; is_warm: whether its sessions are wanted."""

    def __init__(self, mode: str) -> None:
        self.mode, self.warmed, self.is_warm = mode, 0, False
        self.sessions = SimpleNamespace(close=self._cool, keeps_any=False)

    def heat(self) -> None:
        self.warmed, self.is_warm = self.warmed + 1, True

    def _cool(self) -> None:
        self.is_warm = False


class Builds:
    """Builds the graphs of these modes at first, others when it may; notes what is ready whenever that changes."""

    def __init__(self, *modes: str) -> None:
        self.asked: list[str] = []
        self.changes: list[GraphsBuilt] = []
        self.may = threading.Event()
        self.may.set()
        self.error: Exception | None = None
        self.on_change = lambda: self.changes.append(self.ready.built)
        self.warm: Callable[[Any], None] = lambda graph: graph.heat()
        self.graphs = LoopGraphs(self.make)
        for mode in modes:
            self.graphs.of(mode)
        self.ready = ReadyGraphs(self.graphs, "async", lambda: self.on_change(), lambda graph: self.warm(graph))

    def make(self, mode: str) -> Any:
        self.asked.append(mode)
        assert self.may.wait(10)
        if self.error:
            raise self.error
        return Built(mode)

    def await_end(self) -> None:
        poll_until(lambda: not self.ready.is_building, 10, "the end of the build")


def test_async_and_bounded_have_one_graph() -> None:
    builds = Builds()
    found: list[Any] = [builds.graphs.of(mode) for mode in ("async", "bounded", "sync", "async")]
    assert found == [found[0], found[0], found[2], found[0]] and [each.mode for each in found[1:3]] == ["async", "sync"]
    assert builds.asked == ["async", "sync"] and Builds("async", "bounded", "sync").ready.built == BOTH


def test_what_is_prepared_is_built_once_and_others_wait_for_it() -> None:
    builds = Builds("async")
    builds.may.clear()
    for number in (1, 1, 2):
        builds.ready.prepare("sync", number)
    poll_until(lambda: builds.asked == ["async", "sync"], 10, "the build")
    assert builds.ready.built == PUSHES and builds.ready.is_building
    taken: list[Any] = []
    other = threading.Thread(target=lambda: taken.append(builds.graphs.of("sync")))
    other.start()
    builds.may.set()
    other.join(10)
    assert [graph.mode for graph in taken] == ["sync"]
    builds.await_end()
    builds.ready.prepare("sync", 3)
    builds.ready.prepare("", 0)
    assert builds.asked == ["async", "sync"] and builds.changes == [BOTH] and not builds.ready.is_building


@pytest.mark.parametrize(
    ("error", "failure"),
    [(UsageError("no optimizer"), "no optimizer"), (KeyError("kernel"), "KeyError: 'kernel'")],
)
def test_what_cannot_be_built_is_told_and_tried_again_for_another_change(error: Exception, failure: str) -> None:
    builds = Builds("async")
    builds.error = error
    for _ in range(2):
        builds.ready.prepare("sync", 1)
        builds.await_end()
    failed = GraphsBuilt(pushes=True, failure=failure, failed_build=1)
    assert builds.asked == ["async", "sync"] and builds.changes == [failed]
    builds.ready.prepare("sync", 2)
    builds.await_end()
    assert builds.changes == [failed, replace(failed, failed_build=2)]
    builds.error = None
    builds.ready.prepare("sync", 3)
    builds.await_end()
    found: Any = builds.graphs.of("sync")
    assert found.mode == "sync" and builds.ready.built == BOTH


def test_a_change_that_comes_while_the_failure_of_another_is_told_is_built_for() -> None:
    """The answer to that word may be the next change, and no other answer comes that would begin its build."""
    builds = Builds("async")
    builds.error = UsageError("no optimizer")
    noted = threading.Event()

    def tell() -> None:
        if builds.ready.built.failure:
            builds.error = None
            builds.ready.prepare("sync", 2)
            noted.set()

    builds.on_change = tell
    builds.ready.prepare("sync", 1)
    assert noted.wait(10)
    builds.await_end()
    assert builds.asked == ["async", "sync", "sync"] and builds.ready.built == BOTH


@pytest.mark.parametrize(("number", "failure"), [(0, ""), (2, "no optimizer")])
def test_a_failure_is_of_the_change_that_is_wanted_when_it_shows(number: int, failure: str) -> None:
    builds = Builds("async")
    builds.error = UsageError("no optimizer")
    builds.may.clear()
    builds.ready.prepare("sync", 1)
    builds.ready.prepare("sync" if number else "", number)
    builds.may.set()
    builds.await_end()
    assert builds.ready.built == GraphsBuilt(pushes=True, failure=failure, failed_build=number)


def test_the_graph_that_is_left_has_to_be_made_ready_again() -> None:
    """So a change back waits, too, until a session in it is warm."""
    builds = Builds()
    pushes: Any = builds.ready.enter("async")
    builds.ready.prepare("sync", 1)
    builds.await_end()
    assert builds.changes == [PUSHES, BOTH]
    rounds: Any = builds.ready.enter("sync")
    assert builds.ready.built == GraphsBuilt(rounds=True)
    builds.ready.prepare("bounded", 2)
    builds.await_end()
    assert (pushes.warmed, rounds.warmed) == (1, 1) and builds.ready.built == BOTH
    assert builds.ready.enter("bounded") is pushes
    assert builds.changes == [PUSHES, BOTH, GraphsBuilt(rounds=True), BOTH, PUSHES]
    assert builds.asked == ["async", "sync"]


def test_it_is_ready_once_it_is_warm() -> None:
    builds = Builds()
    builds.ready.enter("async")
    seen: list[GraphsBuilt] = []
    builds.warm = lambda _: seen.append(builds.ready.built)
    builds.ready.prepare("sync", 1)
    builds.await_end()
    assert seen == [PUSHES] and builds.ready.built == BOTH


def test_no_session_is_kept_once_no_step_is_taken() -> None:
    builds = Builds()
    builds.ready.enter("async")
    builds.ready.prepare("sync", 1)
    builds.await_end()
    rounds: Any = builds.graphs.of("sync")
    assert rounds.is_warm
    builds.ready.close()
    assert not rounds.is_warm


def test_what_is_wanted_before_a_mode_is_entered_is_made_ready_after_it() -> None:
    """It was ready when it was wanted, and nobody says again that it is."""
    builds = Builds()
    pushes: Any = builds.ready.enter("async")
    builds.ready.prepare("sync", 1)
    builds.await_end()
    builds.ready.prepare("async", 2)
    assert not builds.ready.is_building
    builds.ready.enter("sync")
    builds.await_end()
    assert pushes.warmed == 1 and builds.ready.built == BOTH


def test_what_is_wanted_while_another_is_made_ready_comes_after_it() -> None:
    builds = Builds()
    builds.ready.enter("async")
    builds.may.clear()
    builds.ready.prepare("sync", 1)
    training = threading.Thread(target=builds.ready.enter, args=("sync",))
    training.start()
    builds.ready.prepare("async", 2)
    builds.may.set()
    training.join(10)
    poll_until(lambda: builds.ready.built == BOTH, 10, "both")
