"""The evaluation at the end has a limit, and its failure is its own; a lost session is not."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.errors import ReplacedError, StopRequested, UserCodeError
from psruntime.graph.loop.training_loop import FinalEvaluation
from psruntime.graph.model.evaluate import Measuring


class Recorded:
    """An evaluation whose measure does this with the function that is called after each batch."""

    def __init__(self, does: Any, limit_s: float = 50.0) -> None:
        self.shown: list[str] = []
        self.waited: list[str] = []
        self.logged: list[tuple[str, dict[str, object]]] = []
        self.sessions: list[str] = []
        built: Any = SimpleNamespace(graph="graph", measure=lambda session, on_batch: does(on_batch))
        self.evaluation = FinalEvaluation(
            lambda: built, limit_s, self.shown.append, self.waited.append,
            lambda event, **facts: self.logged.append((event, facts)),
        )  # fmt: skip

    def measure(self) -> dict[str, float] | None:
        session: Any = SimpleNamespace(close=lambda: self.sessions.append("closed"))
        return self.evaluation.measure(lambda graph: self.sessions.append(graph) or session, 100)


def test_it_shows_after_each_batch_how_far_it_is() -> None:
    def measure(on_batch: Any) -> dict[str, float]:
        for number in (1, 2):
            on_batch(Measuring(number, 8 * number, 20.0 * number))
        return {"loss": 0.5}

    recorded = Recorded(measure)
    assert recorded.measure() == {"loss": 0.5} and not recorded.evaluation.failure
    assert recorded.shown[0] == "evaluates: 1 batches, 8 examples, 20 s of at most 50 s"
    assert [event for event, _ in recorded.logged] == ["evaluating"], "once in ten seconds"
    assert recorded.sessions == ["graph", "closed"]


def test_it_ends_at_its_limit() -> None:
    recorded = Recorded(lambda on_batch: [on_batch(Measuring(n, n, float(n))) for n in range(100)])
    assert recorded.measure() is None
    assert recorded.evaluation.failure.startswith("it did not end within 50 s (5 times --drain-timeout): 50 batches")
    assert recorded.logged[-1][0] == "evaluation_failed" and recorded.sessions == ["graph", "closed"]


def test_a_batch_that_never_comes_ends_it_too() -> None:
    comes = threading.Event()

    def measure(on_batch: Any) -> dict[str, float]:
        on_batch(Measuring(3, 24, 0.1))
        comes.wait()
        return {}

    recorded = Recorded(measure, limit_s=0.2)
    try:
        assert recorded.measure() is None and recorded.evaluation.is_stuck
    finally:
        comes.set()
    assert recorded.evaluation.failure.startswith("it did not end within 0.2 s (5 times --drain-timeout): 3 batches")
    assert recorded.waited[-1].startswith("evaluates: 3 batches") and len(recorded.shown) == 1, "it is no progress"
    assert recorded.sessions == ["graph"], "a close would wait for what runs"


@pytest.mark.parametrize(
    "error",
    [UserCodeError("bad"), ValueError("bad"), MemoryError("bad"), tf1.errors.InvalidArgumentError(None, None, "bad")],
)
def test_its_failure_is_no_failure_of_the_training(error: Exception) -> None:
    def measure(_: Any) -> dict[str, float]:
        raise error

    recorded = Recorded(measure)
    assert recorded.measure() is None and "bad" in recorded.evaluation.failure


@pytest.mark.parametrize(
    "error", [tf1.errors.UnavailableError(None, None, "gone"), ReplacedError("gone"), StopRequested("asked")]
)
def test_what_is_lost_is_the_job_s_to_deal_with(error: Exception) -> None:
    def measure(_: Any) -> dict[str, float]:
        raise error

    recorded = Recorded(measure)
    with pytest.raises(type(error)):
        recorded.measure()
    assert recorded.sessions == ["graph", "closed"]
