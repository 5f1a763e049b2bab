"""The training loop when its view is replaced or its session lost: every step counts once."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, RECEIVED, REPEATED
from psruntime.core.members.messages import Assignment, Ending
from psruntime.errors import StopRequested
from psruntime.graph.loop.step_runner import Ran, Started, StepRunner
from psruntime.graph.session.session import ViewHook, callable_of
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import LocalCluster, LocalControlPlane, Run, linear_model, train, with_spec
from tests.support.selection import long_but

SGD = linear_model(OPTIMIZERS["sgd"])


def next_view(control_plane: LocalControlPlane) -> None:
    control_plane.view = replace(control_plane.view, number=control_plane.view.number + 1)


def totals(run: Run, column: int) -> set[int]:
    return {int(ledger[column]) for ledger in run.cluster.ledgers(run.graph.plan).values()}


def test_a_view_that_is_replaced_between_two_steps() -> None:
    class Changing(LocalControlPlane):
        def stepped(self, global_step: int) -> None:
            super().stepped(global_step)
            if self.done == 3:
                next_view(self)

    run = train(LocalCluster(1), SGD, 6, make_control_plane=Changing)
    assert [event["view"] for event in run.named("session")] == [1, 2]
    assert len(run.named("first_step")) == 2
    assert totals(run, APPLIED) == totals(run, RECEIVED) == {6}


def test_a_view_that_is_replaced_after_the_last_step_costs_no_further_step() -> None:
    class Changing(LocalControlPlane):
        def await_end(self, assignment: Assignment) -> Ending:
            if assignment.view.number == 1:
                next_view(self)
                return Ending.RESUME
            return super().await_end(assignment)

    run = train(LocalCluster(1), SGD, 4, make_control_plane=Changing)
    assert [event["view"] for event in run.named("session")] == [1, 2]
    assert totals(run, RECEIVED) == {4}


LOST_ANSWERS = [tf1.errors.CancelledError, tf1.errors.DeadlineExceededError, tf1.errors.AbortedError]


@pytest.mark.parametrize("error", long_but([tf1.errors.AbortedError], LOST_ANSWERS))
def test_a_push_whose_answer_is_lost_is_not_applied_twice(error: Any, monkeypatch: Any) -> None:
    """The step is repeated in a new session; the buckets know its number."""
    lost = lose_the_answer_of(3, error, monkeypatch)
    run = train(LocalCluster(2), SGD, 6, slice_bytes=64)
    assert lost
    assert len(run.named("session")) == 2
    assert totals(run, REPEATED) == {1}
    assert totals(run, APPLIED) == {6}
    assert totals(run, RECEIVED) == {7}


def test_steps_that_are_under_way_together_are_applied_once_each_when_one_is_lost(monkeypatch: Any) -> None:
    lost = lose_the_answer_of(7, tf1.errors.AbortedError, monkeypatch)
    control_planes: list[Overlapping] = []

    def make_control_plane(*arguments: Any) -> Overlapping:
        control_planes.append(Overlapping(*arguments))
        return control_planes[0]

    run = train(LocalCluster(2), SGD, 40, slice_bytes=64, pipeline=4, make_control_plane=make_control_plane)
    assert lost
    assert control_planes[0].most == 3, "as many were under way as may be when another began"
    assert len(run.named("session")) == 2
    assert totals(run, APPLIED) == {40}
    assert totals(run, REPEATED) == {1}, "only the lost one is sent again, though others were under way"
    assert len(run.results) == 40
    assert max(result.staleness or 0 for result in run.results) <= 2 * 3


def test_a_pipeline_begins_as_many_steps_as_the_job_has_and_hooks_see_each_once() -> None:
    seen: list[int] = []

    class Counting(tf1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> Any:
            return tf1.train.SessionRunArgs(tf1.train.get_global_step()) if len(seen) % 2 else None

        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(run_context.original_args.feed_dict is not None)

    run = train(LocalCluster(1), with_spec(SGD, hooks=[Counting()]), 11, pipeline=3)
    assert len(seen) == len(run.results) == 11
    assert totals(run, APPLIED) == totals(run, RECEIVED) == {11}


class Overlapping(LocalControlPlane):
    """most: steps that were under way when another one began."""

    most = 0

    def may_step(self, under_way: int = 0) -> bool:
        self.most = max(self.most, under_way)
        return super().may_step(under_way)


def lose_the_answer_of(global_step: int, error: Any, monkeypatch: Any) -> list[int]:
    """The first step that leads to it, or beyond, is done, but its session is lost; not empty once that happened.

    Steps that are under way together may both see the later of their global steps, so none may see a certain one.
    """
    lost: list[int] = []
    due = threading.Lock()  # whoever gets it

    def make_losing(*arguments: Any) -> Any:
        call = callable_of(*arguments)

        def run_and_lose(*values: Any) -> Any:
            result = call(*values)
            is_late = isinstance(result, dict) and result["global_step"] >= global_step
            if is_late and due.acquire(blocking=False):
                lost.append(1)
                raise error(None, None, "the answer was lost")
            return result

        return run_and_lose

    monkeypatch.setattr("psruntime.graph.session.session.callable_of", make_losing)
    return lost


def test_the_loop_ends_when_the_place_says_stop() -> None:
    class Changing(LocalControlPlane):
        def may_step(self, under_way: int = 0) -> bool:
            if self.done == 2:
                raise StopRequested("asked to stop")
            return True

    with pytest.raises(StopRequested):
        train(LocalCluster(1), SGD, 5, make_control_plane=Changing)


def test_evaluation_sees_the_last_global_step() -> None:
    seen: list[int] = []
    train(LocalCluster(1), SGD, 5, close=seen.append)
    assert seen == [5]


class SeenView(ViewHook):
    """In a session that began at global step 10."""

    def __init__(self) -> None:
        self._global_step = 10
        self.seen: list[int] = []

    def saw(self, global_step: int) -> None:
        self.seen.append(global_step)


def test_a_step_that_ended_in_a_session_before_a_rollback_does_not_bring_its_global_step_back() -> None:
    run = train(LocalCluster(1), SGD, 1)
    view = SeenView()
    runner = StepRunner(run.graph, view, [])
    ran = Ran({"global_step": 1900}, {}, None, None, 0.0, 0.0)
    with run.cluster.session(run.graph.graph) as session:
        runner.after_create_session(session, None)
        finished = [
            runner.finish(Started(tf1.train.SessionRunContext(None, ran_in), lambda: ran), ran)["global_step"]
            for ran_in in (object(), session)
        ]
    assert finished == view.seen == [10, 1900]
