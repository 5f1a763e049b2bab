"""A worker and a hold: who says that it holds is in no step, and begins none before the hold is over."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from psruntime.core.members.messages import WorkerStats
from psruntime.core.members.view import Phase
from psruntime.core.rounds.round_messages import Action, ActionKind
from psruntime.core.steering.commands import Overrides
from psruntime.errors import StopRequested, UnreachableError
from psruntime.rpc.worker.worker_facts import WorkerFacts
from tests.rpc.worker.test_worker_control import ASSIGNMENT, OTHER, ScriptedMembership, Stage, answer


def facts() -> WorkerFacts:
    return WorkerFacts(lambda waiting: WorkerStats(waiting=waiting), threading.Event())


def test_who_is_in_a_step_does_not_hold_before_it_has_ended() -> None:
    worker = facts()
    worker.entered(ASSIGNMENT)
    assert worker.begins(9)
    worker.instructed(9, 3)
    assert worker.beat(9).paused_epoch == 0
    worker.stepped(1)
    assert worker.beat(9).paused_epoch == 3
    assert not worker.begins(9)
    worker.instructed(9, 0)
    assert worker.beat(9).paused_epoch == 0 and worker.begins(9)


def test_with_a_pipeline_all_that_are_under_way_have_to_end() -> None:
    worker = facts()
    worker.entered(ASSIGNMENT)
    assert worker.begins(9) and worker.begins(9)
    worker.instructed(9, 3)
    worker.stepped(1)
    assert worker.beat(9).paused_epoch == 0
    worker.stepped(2)
    assert worker.beat(9).paused_epoch == 3


def test_a_step_that_was_begun_and_came_to_nothing_is_forgotten_with_the_next() -> None:
    worker = facts()
    assert worker.begins(9)
    worker.instructed(9, 3)
    worker.has_under_way(0)
    assert worker.beat(9).paused_epoch == 3


def test_a_hold_of_another_incarnation_means_nothing_and_lets_nothing_begin() -> None:
    """What the next incarnation is told is not known for a moment."""
    worker = facts()
    worker.instructed(9, 3)
    assert worker.beat(8).paused_epoch == 0
    worker.instructed(9, 0)
    assert not worker.begins(8)
    worker.instructed(8, 0)
    assert worker.begins(8)


def test_no_session_is_needed_to_hold() -> None:
    worker = facts()
    worker.instructed(9, 1)
    assert worker.beat(9).paused_epoch == 1


class Holding(ScriptedMembership):
    """Tells the facts of each answer, as the heartbeats do."""

    def __init__(self, stage: Stage, *answers: Any) -> None:
        super().__init__(*answers)
        self._facts = stage.facts
        self.tell()

    def tell(self) -> None:
        self._facts.instructed(self.answer.incarnation, self.answer.instructions.pause_epoch)

    def wait_until(self, ready: Any, timeout_s: float | None) -> Any:
        found = super().wait_until(ready, timeout_s)
        self.tell()
        return found


def held(*answers: Any, **settings: Any) -> Stage:
    stage = Stage(*answers, **settings)
    stage.membership = Holding(stage, *answers)
    stage.control._membership = stage.control._client = stage.membership  # type: ignore[assignment]
    stage.control.entered(ASSIGNMENT)
    return stage


HELD = answer(Phase.TRAINING, pause_epoch=1, pause_reason="paused by control at global step 7")


def test_a_hold_is_waited_for_and_told_at_once() -> None:
    stage = held(HELD, HELD, answer(Phase.TRAINING))
    acted: list[str] = []
    stage.control.while_paused(lambda: acted.append(stage.beat().stats.waiting))
    assert stage.control.may_step()
    assert stage.membership.beats == 1, "it says that it holds without waiting for the next heartbeat"
    assert acted and set(acted) == {"paused by control at global step 7"}
    assert stage.events == [("waiting", {"reason": "paused by control at global step 7"})]
    assert stage.beat().stats.waiting == ""


def test_steps_under_way_end_first() -> None:
    stage = held(HELD)
    assert not stage.control.may_step(2)
    assert stage.membership.beats == 0 and stage.beat().paused_epoch == 0
    stage.control.stepped(1)
    stage.control.stepped(2)
    assert stage.beat().paused_epoch == 1


@pytest.mark.parametrize("end", [Phase.DRAINING, Phase.DONE, Phase.STOPPED])
def test_the_end_of_the_job_ends_a_hold(end: Phase) -> None:
    assert not held(HELD, answer(end)).control.may_step()


@pytest.mark.parametrize("lost", [answer(Phase.FORMING, pause_epoch=1), answer(Phase.TRAINING, OTHER, pause_epoch=1)])
def test_a_lost_view_ends_it_so_that_the_session_is_opened_anew(lost: Any) -> None:
    assert held(HELD, lost).control.may_step()


def test_a_signal_ends_it() -> None:
    stage = held(HELD, HELD, HELD)
    stage.asked.set()
    with pytest.raises(StopRequested):
        stage.control.may_step()


@pytest.mark.parametrize("news", [{"clock": 7}, {"settings": Overrides(2)}])
def test_a_change_that_comes_between_the_answer_and_the_step_is_taken_up_first(news: dict[str, Any]) -> None:
    """The step would else be taken by rules that are over, and its clock be counted from the wrong one."""
    stage = held(answer(Phase.TRAINING))
    begins, seen = stage.facts.begins, []

    def while_it_changes(incarnation: int) -> bool:
        seen.append(stage.membership.answer.instructions)
        if len(seen) == 1:
            stage.membership.answers = [answer(Phase.TRAINING, **news)]
        return begins(incarnation)

    stage.facts.begins = while_it_changes  # type: ignore[method-assign]
    assert stage.control.may_step()
    assert len(seen) == 2 and seen[1] != seen[0]
    stage.control.stepped(1)
    stage.facts.instructed(9, 3)
    assert stage.beat().paused_epoch == 3, "one step was begun, and has ended"


def test_who_lost_its_session_in_a_step_lets_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In mode async nobody waits for it, but a change waits for its step."""
    now_s = [100.0]
    monkeypatch.setattr("psruntime.rpc.worker.worker_control.time.monotonic", lambda: now_s[0])
    stage = held(answer(Phase.TRAINING), lease_s=4.0)
    assert stage.control.may_step()
    for _ in range(4):
        stage.control.no_session(ASSIGNMENT, "ps 1 is not reached")
        now_s[0] += 6.0
    stage.facts.instructed(9, 3)
    with pytest.raises(UnreachableError, match="no session on view 1 for 24 s"):
        stage.control.no_session(ASSIGNMENT, "ps 1 is not reached")
    stage.facts.has_under_way(0)
    stage.control.no_session(ASSIGNMENT, "ps 1 is not reached")  # a paused job waits as long as you like


def test_in_rounds_the_turns_hold() -> None:
    assert held(HELD, mode="sync").control.may_step()


def test_who_waits_for_its_turn_in_a_hold_acts_at_once_when_a_checkpoint_is_wanted() -> None:
    stage = held(HELD, answer(Phase.TRAINING, pause_epoch=1, save=True), answer(Phase.TRAINING), mode="sync")
    acted: list[bool] = []

    def act() -> None:
        acted.append(stage.membership.answer.instructions.save)

    stage.control.while_paused(act)
    wanted: list[tuple[bool, bool]] = []

    def next_action(*arguments: Any) -> Action | None:
        is_wanted = arguments[1]
        before = is_wanted()
        stage.membership.answers.pop(0)
        wanted.append((before, is_wanted()))
        return Action(ActionKind.PUSH, round=1) if len(wanted) == 2 else None

    stage.membership.next_action = next_action  # type: ignore[method-assign, assignment]
    action = stage.control.next_action(ASSIGNMENT, None)
    assert action is not None and action.kind is ActionKind.PUSH
    assert wanted == [(True, False), (True, True)], "the call is off once a save is wanted, and the next one is not"
    assert acted == [False, True]
