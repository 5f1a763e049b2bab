"""How long a step takes by itself."""

from __future__ import annotations

import time

from psruntime.core.members.messages import Assignment
from psruntime.core.members.view import Phase
from psruntime.rpc.worker.step_gate import StepTimer
from tests.rpc.worker.test_worker_control import ASSIGNMENT, Stage, answer


def test_what_a_worker_waits_for_others_is_not_its_own() -> None:
    timer = StepTimer()
    timer.restart()
    assert timer.ended(1.0) is None, "the first of a session"
    assert timer.ended(1.5) == 0.5
    timer.waited(0.25)
    timer.waited(0.25)
    assert timer.ended(3.0) == 1.0
    assert timer.ended(3.25) == 0.25
    timer.waited(9.0)
    assert timer.ended(4.0) == 0.0, "clocks may disagree, and no step takes less than nothing"


def test_the_first_step_of_each_session_is_not_measured() -> None:
    timer = StepTimer()
    timer.ended(1.0)
    timer.restart()
    timer.waited(5.0)
    assert timer.ended(100.0) is None
    assert timer.ended(101.0) == 1.0


def test_steps_are_told_where_the_bound_is_chosen() -> None:
    def told(bound: object) -> tuple[float, ...]:
        stage = Stage(answer(Phase.TRAINING, admitted_by_ps=True), mode="bounded", bound=bound)
        assignment: Assignment = stage.control.await_view()
        assert assignment == ASSIGNMENT
        stage.control.entered(assignment)
        for _ in range(4):
            assert stage.control.may_step()
            time.sleep(0.01)
            stage.control.stepped(1)
        return stage.beat().step_times_s

    assert told(3) == ()
    steps = told("auto:1-8")
    assert len(steps) == 3 and all(0.005 < step_s < 5 for step_s in steps)


def test_what_was_taken_before_a_hold_is_not_told_after_it() -> None:
    stage = Stage(answer(Phase.TRAINING, admitted_by_ps=True), mode="bounded", bound="auto:1-8")
    stage.control.entered(stage.control.await_view())
    stage.facts.took(1.0)
    stage.facts.instructed(9, 0)
    assert stage.beat().step_times_s == (1.0,)
    stage.facts.instructed(9, 1)
    assert stage.beat().step_times_s == ()
