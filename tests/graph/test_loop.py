"""The training loop when its view is replaced or its session lost: every step counts once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.facts import Assignment, Rest
from psruntime.core.ledger import APPLIED, RECEIVED, REPEATED
from psruntime.errors import StopRequested
from tests.graph.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import LocalCluster, LocalPlace, Run, linear_model, train

SGD = linear_model(OPTIMIZERS["sgd"])


def next_view(place: LocalPlace) -> None:
    place.view = replace(place.view, number=place.view.number + 1)


def totals(run: Run, column: int) -> set[int]:
    return {int(ledger[column]) for ledger in run.cluster.ledgers(run.graph.plan).values()}


def test_a_view_that_is_replaced_between_two_steps() -> None:
    class Place(LocalPlace):
        def stepped(self, global_step: int) -> None:
            super().stepped(global_step)
            if self.done == 3:
                next_view(self)

    run = train(LocalCluster(1), SGD, 6, make_place=Place)
    assert [event["view"] for event in run.named("session")] == [1, 2]
    assert len(run.named("first_step")) == 2
    assert totals(run, APPLIED) == totals(run, RECEIVED) == {6}


def test_a_view_that_is_replaced_after_the_last_step_costs_no_further_step() -> None:
    class Place(LocalPlace):
        def rest(self, assignment: Assignment) -> Rest:
            if assignment.view.number == 1:
                next_view(self)
                return Rest.RESUME
            return super().rest(assignment)

    run = train(LocalCluster(1), SGD, 4, make_place=Place)
    assert [event["view"] for event in run.named("session")] == [1, 2]
    assert totals(run, RECEIVED) == {4}


@pytest.mark.parametrize(
    "error", [tf1.errors.CancelledError, tf1.errors.DeadlineExceededError, tf1.errors.AbortedError]
)
def test_a_push_whose_answer_is_lost_is_not_applied_twice(error: Any, monkeypatch: Any) -> None:
    """The step is repeated in a new session; the buckets know its number."""
    lost: list[int] = []
    original = tf1.Session.run

    def run_and_lose(self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, fetches, *args, **kwargs)
        is_step = isinstance(fetches, dict) and isinstance(fetches.get("caller"), dict)
        if is_step and result["caller"]["global_step"] == 3 and not lost:
            lost.append(1)
            raise error(None, None, "the answer was lost")
        return result

    monkeypatch.setattr(tf1.Session, "run", run_and_lose)
    run = train(LocalCluster(2), SGD, 6, slice_bytes=64)
    assert lost
    assert len(run.named("session")) == 2
    assert totals(run, REPEATED) == {1}
    assert totals(run, APPLIED) == {6}
    assert totals(run, RECEIVED) == {7}


def test_the_loop_ends_when_the_place_says_stop() -> None:
    class Place(LocalPlace):
        def may_step(self) -> bool:
            if self.done == 2:
                raise StopRequested("asked to stop")
            return True

    with pytest.raises(StopRequested):
        train(LocalCluster(1), SGD, 5, make_place=Place)


def test_evaluation_sees_the_last_global_step() -> None:
    seen: list[int] = []
    train(LocalCluster(1), SGD, 5, close=seen.append)
    assert seen == [5]
