"""The graphs of a worker's training: each is built once and made ready beside the steps; a failure harms nobody."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from psruntime.core.members.messages import GraphsBuilt
from psruntime.errors import UsageError
from psruntime.graph.loop.loop_graphs import LoopGraphs
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
    """Builds, when it may, and notes what is built whenever that is said to be another."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told: list[GraphsBuilt] = []
        self.may = threading.Event()
        self.may.set()
        self.error: Exception | None = None
        self.graphs = LoopGraphs(self.make, lambda: self.told.append(self.graphs.built), lambda graph: graph.heat())

    def make(self, mode: str) -> Any:
        self.asked.append(mode)
        assert self.may.wait(10)
        if self.error:
            raise self.error
        return Built(mode)

    def await_end(self) -> None:
        poll_until(lambda: not self.graphs.is_building, 10, "the end of the build")


def test_async_and_bounded_have_one_graph() -> None:
    builds = Builds()
    found: list[Any] = [builds.graphs.of(mode) for mode in ("async", "bounded", "sync", "async")]
    assert found == [found[0], found[0], found[2], found[0]] and [each.mode for each in found[1:3]] == ["async", "sync"]
    assert builds.asked == ["async", "sync"] and builds.told == [PUSHES, BOTH]


def test_what_is_prepared_is_built_once_and_others_wait_for_it() -> None:
    builds = Builds()
    builds.graphs.of("async")
    builds.may.clear()
    for number in (1, 1, 2):
        builds.graphs.prepare("sync", number)
    poll_until(lambda: builds.asked == ["async", "sync"], 10, "the build")
    assert builds.graphs.built == PUSHES and builds.graphs.is_building
    taken: list[Any] = []
    other = threading.Thread(target=lambda: taken.append(builds.graphs.of("sync")))
    other.start()
    builds.may.set()
    other.join(10)
    assert [graph.mode for graph in taken] == ["sync"]
    builds.await_end()
    builds.graphs.prepare("sync", 3)
    builds.graphs.prepare("", 0)
    assert builds.asked == ["async", "sync"] and builds.told == [PUSHES, BOTH] and not builds.graphs.is_building


@pytest.mark.parametrize(
    ("error", "failure"),
    [(UsageError("no optimizer"), "no optimizer"), (KeyError("kernel"), "KeyError: 'kernel'")],
)
def test_what_cannot_be_built_is_told_and_tried_again_for_another_change(error: Exception, failure: str) -> None:
    builds = Builds()
    builds.graphs.of("async")
    builds.error = error
    for _ in range(2):
        builds.graphs.prepare("sync", 1)
        builds.await_end()
    failed = GraphsBuilt(pushes=True, failure=failure, failed_build=1)
    assert builds.asked == ["async", "sync"] and builds.told == [PUSHES, failed]
    builds.graphs.prepare("sync", 2)
    builds.await_end()
    assert builds.told == [PUSHES, failed, replace(failed, failed_build=2)]
    builds.error = None
    builds.graphs.prepare("sync", 3)
    builds.await_end()
    found: Any = builds.graphs.of("sync")
    assert found.mode == "sync" and builds.graphs.built == BOTH


def test_a_change_that_comes_while_the_failure_of_another_is_told_is_built_for() -> None:
    """The answer to that word may be the next change, and no other answer comes that would begin its build."""
    builds = Builds()
    builds.graphs.of("async")
    builds.error = UsageError("no optimizer")
    told = threading.Event()

    def tell() -> None:
        if builds.graphs.built.failure:
            builds.error = None
            builds.graphs.prepare("sync", 2)
            told.set()

    builds.graphs._on_change = tell
    builds.graphs.prepare("sync", 1)
    assert told.wait(10)
    builds.await_end()
    assert builds.asked == ["async", "sync", "sync"] and builds.graphs.built == BOTH


@pytest.mark.parametrize(("number", "failure"), [(0, ""), (2, "no optimizer")])
def test_a_failure_is_of_the_change_that_is_wanted_when_it_shows(number: int, failure: str) -> None:
    builds = Builds()
    builds.graphs.of("async")
    builds.error = UsageError("no optimizer")
    builds.may.clear()
    builds.graphs.prepare("sync", 1)
    builds.graphs.prepare("sync" if number else "", number)
    builds.may.set()
    builds.await_end()
    assert builds.graphs.built == GraphsBuilt(pushes=True, failure=failure, failed_build=number)


def test_the_graph_that_is_left_has_to_be_made_ready_again() -> None:
    """So a change back waits, too, until a session in it is warm."""
    builds = Builds()
    pushes: Any = builds.graphs.enter("async")
    builds.graphs.prepare("sync", 1)
    builds.await_end()
    assert builds.told == [PUSHES, BOTH]
    rounds: Any = builds.graphs.enter("sync")
    assert builds.graphs.built == GraphsBuilt(rounds=True)
    builds.graphs.prepare("bounded", 2)
    builds.await_end()
    assert (pushes.warmed, rounds.warmed) == (1, 1) and builds.graphs.built == BOTH
    assert builds.graphs.enter("bounded") is pushes
    assert builds.told == [PUSHES, BOTH, GraphsBuilt(rounds=True), BOTH, PUSHES] and builds.asked == ["async", "sync"]


def test_it_is_ready_once_it_is_warm() -> None:
    builds = Builds()
    builds.graphs.enter("async")
    seen: list[GraphsBuilt] = []
    builds.graphs._warm = lambda _: seen.append(builds.graphs.built)
    builds.graphs.prepare("sync", 1)
    builds.await_end()
    assert seen == [PUSHES] and builds.graphs.built == BOTH


def test_no_session_is_kept_once_no_step_is_taken() -> None:
    builds = Builds()
    builds.graphs.enter("async")
    builds.graphs.prepare("sync", 1)
    builds.await_end()
    rounds: Any = builds.graphs.of("sync")
    assert rounds.is_warm
    builds.graphs.close()
    assert not rounds.is_warm


def test_what_is_wanted_before_a_mode_is_entered_is_made_ready_after_it() -> None:
    """It was ready when it was wanted, and nobody says again that it is."""
    builds = Builds()
    pushes: Any = builds.graphs.enter("async")
    builds.graphs.prepare("sync", 1)
    builds.await_end()
    builds.graphs.prepare("async", 2)
    assert not builds.graphs.is_building
    builds.graphs.enter("sync")
    builds.await_end()
    assert pushes.warmed == 1 and builds.graphs.built == BOTH


def test_what_is_wanted_while_another_is_made_ready_comes_after_it() -> None:
    builds = Builds()
    builds.graphs.enter("async")
    builds.may.clear()
    builds.graphs.prepare("sync", 1)
    training = threading.Thread(target=builds.graphs.enter, args=("sync",))
    training.start()
    builds.graphs.prepare("async", 2)
    builds.may.set()
    training.join(10)
    poll_until(lambda: builds.graphs.built == BOTH, 10, "both")
