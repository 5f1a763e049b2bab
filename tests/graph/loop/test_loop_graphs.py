"""The graphs of a worker's training: each is built once, also beside the steps, and a failure harms nobody."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from psruntime.core.members.messages import GraphsBuilt
from psruntime.errors import UsageError
from psruntime.graph.loop.loop_graphs import LoopGraphs
from tests.support.polling import poll_until

PUSHES, BOTH = GraphsBuilt(pushes=True), GraphsBuilt(rounds=True, pushes=True)


class Builds:
    """Builds texts instead of graphs, when it may, and notes what is said to be built."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told: list[GraphsBuilt] = []
        self.may = threading.Event()
        self.may.set()
        self.error: Exception | None = None
        self.graphs = LoopGraphs(self.make, self.told.append)

    def make(self, mode: str) -> Any:
        self.asked.append(mode)
        assert self.may.wait(10)
        if self.error:
            raise self.error
        return f"graph of {mode}"

    def await_told(self, graphs: GraphsBuilt) -> None:
        poll_until(lambda: self.told[-1:] == [graphs], 10, str(graphs))


def test_async_and_bounded_have_one_graph() -> None:
    builds = Builds()
    found: list[Any] = [builds.graphs.of(mode) for mode in ("async", "bounded", "sync", "async")]
    assert found == ["graph of async", "graph of async", "graph of sync", "graph of async"]
    assert builds.asked == ["async", "sync"] and builds.told == [PUSHES, BOTH]


def test_what_is_prepared_is_built_once_and_others_wait_for_it() -> None:
    builds = Builds()
    builds.graphs.of("async")
    builds.may.clear()
    for _ in range(3):
        builds.graphs.prepare("sync")
    poll_until(lambda: builds.asked == ["async", "sync"], 10, "the build")
    assert builds.graphs.built == PUSHES
    taken: list[Any] = []
    other = threading.Thread(target=lambda: taken.append(builds.graphs.of("sync")))
    other.start()
    builds.may.set()
    other.join(10)
    assert taken == ["graph of sync"] and builds.asked == ["async", "sync"]
    builds.await_told(BOTH)
    builds.graphs.prepare("sync")
    builds.graphs.prepare("")
    assert builds.asked == ["async", "sync"] and builds.told == [PUSHES, BOTH]


def test_a_failure_to_build_what_nobody_wants_any_more_is_not_told() -> None:
    builds = Builds()
    builds.graphs.of("async")
    builds.error = UsageError("no optimizer")
    builds.may.clear()
    builds.graphs.prepare("sync")
    poll_until(lambda: builds.asked == ["async", "sync"], 10, "the build")
    builds.graphs.prepare("")
    builds.may.set()
    assert builds.graphs._task
    builds.graphs._task.join(10)
    assert builds.told == [PUSHES] and builds.graphs.built == PUSHES


@pytest.mark.parametrize(
    ("error", "failure"),
    [(UsageError("no optimizer"), "no optimizer"), (KeyError("kernel"), "KeyError: 'kernel'")],
)
def test_what_cannot_be_built_is_told_and_tried_again_only_when_it_is_wanted_again(
    error: Exception, failure: str
) -> None:
    builds = Builds()
    builds.graphs.of("async")
    builds.error = error
    failed = GraphsBuilt(pushes=True, failure=failure)
    builds.graphs.prepare("sync")
    builds.await_told(failed)
    builds.graphs.prepare("sync")
    assert builds.asked == ["async", "sync"]
    builds.graphs.prepare("")
    assert builds.told == [PUSHES, failed, PUSHES]
    builds.error = None
    builds.graphs.prepare("sync")
    builds.await_told(BOTH)
    found: Any = builds.graphs.of("sync")
    assert found == "graph of sync"
