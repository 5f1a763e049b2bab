"""A worker's place over a scripted seat: when it may step, what it reports, what it does at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from psruntime.config import JobConfig
from psruntime.core.members.messages import Answer, Assignment, Rest, Standing, WorkerStats
from psruntime.core.members.view import Phase, PsEntry, View
from psruntime.core.rounds.round_messages import Closed, Complete, Done, Duty, Turn
from psruntime.errors import JobDoneError, JobFailedError, ReplacedError, StopRequested, UnreachableError
from psruntime.rpc.worker.worker_control import QUICK_S, WORK_S, WorkerPlace

VIEW = View(1, (PsEntry(0, "127.0.0.1:1", 5),))
OTHER = View(2, (PsEntry(0, "127.0.0.1:2", 6),))


def answer(phase: Phase, view: View = VIEW, incarnation: int = 9, **more: Any) -> Answer:
    return Answer(incarnation, Standing(phase, "because", view, **more), revision=1, floor=0)


class ScriptedSeat:
    """Gives one answer after the other; each wait moves on until its predicate holds."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.beats = 0
        self.unreachable = False
        self.replaced_for = 0  # beats
        self.turns: list[Turn | Exception | None] = []  # one after the other
        self.said: list[Done | None] = []  # with each
        self.holds: list[float] = []  # of each

    @property
    def answer(self) -> Answer:
        return self.answers[0]

    @property
    def incarnation(self) -> int:
        return self.answers[0].incarnation

    def beat_now(self) -> Answer:
        self.beats += 1
        if self.replaced_for:
            self.replaced_for -= 1
            raise ReplacedError("replaced")
        if self.unreachable:
            raise UnreachableError("gone")
        return self.answer

    def take_turn(
        self, assignment: Assignment, done: Done | None, max_wait_s: float, is_wanted: Callable[[], bool] | None
    ) -> Turn | None:
        assert assignment == ASSIGNMENT and max_wait_s > 0
        assert is_wanted() if is_wanted else max_wait_s == QUICK_S
        self.said.append(done)
        self.holds.append(max_wait_s)
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        if turn is not None and turn.duty is Duty.NONE:
            self.answers.pop(0)
        return turn

    def wait_until(self, ready: Callable[[Answer], bool], timeout_s: float | None) -> Answer | None:
        if ready(self.answer):
            return self.answer
        self.answers.pop(0)
        return None


class Stage:
    def __init__(self, *answers: Answer) -> None:
        self.seat = ScriptedSeat(*answers)
        self.stop = threading.Event()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.place = WorkerPlace(
            JobConfig(train_steps=10),
            lambda waiting: WorkerStats(waiting=waiting),
            self.stop,
            lambda event, **facts: self.events.append((event, facts)),
        )
        self.place.attach(self.seat)  # type: ignore[arg-type]


ASSIGNMENT = Assignment(VIEW, 9, prepare=False)


def test_waits_for_a_prepared_view_that_lets_it_in_and_says_for_what() -> None:
    stage = Stage(answer(Phase.FORMING), answer(Phase.TRAINING), answer(Phase.TRAINING, fenced_in=True))
    assert stage.place.await_view() == ASSIGNMENT
    assert stage.events[0] == ("waiting", {"reason": "every ps to admit this worker"})
    assert stage.place.beat().stats.waiting == ""


def test_asks_the_coordinator_before_a_session_is_opened() -> None:
    stage = Stage(answer(Phase.TRAINING, fenced_in=True))
    stage.seat.replaced_for = 1
    assert stage.place.await_view() == ASSIGNMENT
    assert stage.seat.beats == 2
    assert stage.events == [("waiting", {"reason": "replaced"})]


def test_the_chief_is_asked_to_prepare() -> None:
    outside, within = answer(Phase.PREPARING, chief=True), answer(Phase.PREPARING, chief=True, fenced_in=True)
    stage = Stage(outside, outside, within)
    assert stage.place.await_view() == Assignment(VIEW, 9, prepare=True)
    assert len(stage.seat.answers) == 1, "not before every ps admits it"
    assert stage.events[0] == ("waiting", {"reason": "every ps to admit this worker"})
    assert stage.place.is_chief()


@pytest.mark.parametrize(("phase", "error"), [(Phase.DONE, JobDoneError), (Phase.FAILED, JobFailedError)])
def test_a_job_that_is_over_ends_the_wait(phase: Phase, error: type[Exception]) -> None:
    with pytest.raises(error, match="because"):
        Stage(answer(phase)).place.await_view()


def test_holds_only_the_same_view_and_incarnation() -> None:
    assert Stage(answer(Phase.TRAINING)).place.holds(ASSIGNMENT)
    assert Stage(answer(Phase.DRAINING)).place.holds(ASSIGNMENT)
    assert not Stage(answer(Phase.FORMING)).place.holds(ASSIGNMENT)
    assert not Stage(answer(Phase.TRAINING, OTHER)).place.holds(ASSIGNMENT)
    assert not Stage(answer(Phase.TRAINING, incarnation=8)).place.holds(ASSIGNMENT)


def test_parts_of_the_end_are_told_to_the_coordinator() -> None:
    """Of another incarnation they would prolong the time that this one has."""
    stage = Stage(answer(Phase.DRAINING, fenced_in=True, chief=True))
    stage.place.entered(ASSIGNMENT)
    assert stage.place.beat().closed_parts == 0
    stage.place.closed_part()
    stage.place.closed_part()
    assert stage.place.beat().closed_parts == 2
    stage.seat.answers = [answer(Phase.DRAINING, incarnation=8)]
    assert stage.place.beat().closed_parts == 0


def test_may_step() -> None:
    assert Stage(answer(Phase.TRAINING)).place.may_step()
    assert Stage(answer(Phase.FORMING)).place.may_step()  # the session finds out, and waits
    assert not Stage(answer(Phase.DRAINING)).place.may_step()
    assert not Stage(answer(Phase.DONE)).place.may_step()
    with pytest.raises(JobFailedError):
        Stage(answer(Phase.FAILED)).place.may_step()
    stage = Stage(answer(Phase.TRAINING))
    stage.stop.set()
    with pytest.raises(StopRequested):
        stage.place.may_step()


def test_the_status_tells_of_a_worker_whose_own_work_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step, its input or a checkpoint: nothing else tells that this worker is in one."""
    now_s = [1000.0]
    monkeypatch.setattr("psruntime.rpc.worker.worker_control.time.monotonic", lambda: now_s[0])
    stage = Stage(answer(Phase.TRAINING, fenced_in=True))
    assert stage.place.beat().stats.waiting == "starting"

    def after(passed_s: float) -> str:
        now_s[0] += passed_s
        return stage.place.beat().stats.waiting

    stage.place.await_view()
    assert (after(WORK_S - 1), after(1)) == ("", f"its own work, for {WORK_S:.0f} s")
    stage.place.may_step()
    assert (after(WORK_S - 1), after(60)) == ("", "its own work, for 69 s")
    stage.seat.turns = [Turn(Duty.CONTRIBUTE, round=1)]
    stage.place.next_turn(ASSIGNMENT, None)
    assert (after(WORK_S - 1), after(1)) == ("", "its own work, for 10 s")


def test_steps_are_counted_from_the_entry_into_the_view() -> None:
    stage = Stage(answer(Phase.TRAINING))
    stage.place.entered(ASSIGNMENT)
    for global_step in (3, 7):
        stage.place.stepped(global_step)
    beat = stage.place.beat()
    assert (beat.view, beat.steps, beat.global_step, beat.stopped) == (1, 2, 7, False)
    stage.place.entered(Assignment(OTHER, 9, prepare=False))
    beat = stage.place.beat()
    assert (beat.view, beat.steps, beat.global_step) == (2, 0, 0)


def test_a_session_lost_in_the_same_view_loses_no_steps() -> None:
    """Else the worker's clock would fall behind what it has done, and the bound with it."""
    stage = Stage(answer(Phase.TRAINING))
    stage.place.entered(ASSIGNMENT)
    stage.place.stepped(3)
    stage.place.entered(Assignment(VIEW, 9, prepare=True))
    stage.place.stepped(5)
    beat = stage.place.beat()
    assert (beat.view, beat.steps, beat.global_step) == (1, 2, 5)


def test_the_clock_of_the_entry_comes_with_the_view() -> None:
    stage = Stage(answer(Phase.TRAINING, fenced_in=True, clock=12))
    assert stage.place.await_view() == Assignment(VIEW, 9, prepare=False, clock=12)


def test_what_an_earlier_incarnation_did_is_not_reported_for_the_next() -> None:
    """A new coordinator counts views from 1 again: the number alone does not tell them apart."""
    stage = Stage(answer(Phase.TRAINING), answer(Phase.TRAINING, incarnation=10))
    stage.place.entered(ASSIGNMENT)
    stage.place.stepped(7)
    stage.seat.answers.pop(0)
    beat = stage.place.beat()
    assert (beat.view, beat.steps, beat.global_step, beat.stopped) == (0, 0, 0, False)


def test_the_last_step_is_reported_at_once_even_if_nobody_hears_it() -> None:
    stage = Stage(answer(Phase.TRAINING))
    stage.place.entered(ASSIGNMENT)
    stage.place.stepped(9)
    assert stage.seat.beats == 0
    stage.seat.unreachable = True
    stage.place.stepped(10)
    assert stage.seat.beats == 1
    assert stage.events[-1][0] == "report_failed"


ENDS = {
    "done": (answer(Phase.DONE), Rest.OVER),
    "chief": (answer(Phase.DRAINING, chief=True, close=True), Rest.CLOSE),
    "ps lost": (answer(Phase.FORMING), Rest.RESUME),
    "joined again": (answer(Phase.DRAINING, incarnation=8), Rest.RESUME),
    "new view": (answer(Phase.DRAINING, OTHER), Rest.RESUME),
    "rolled back": (answer(Phase.TRAINING, OTHER), Rest.RESUME),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_comes_after_the_last_step(end: str) -> None:
    last, expected = ENDS[end]
    stage = Stage(answer(Phase.DRAINING), last)
    stage.place.entered(ASSIGNMENT)
    assert stage.place.rest(ASSIGNMENT) is expected
    if end != "joined again":
        assert stage.place.beat().stopped


def test_one_that_stops_by_itself_rests_while_the_others_train() -> None:
    trains = answer(Phase.TRAINING, fenced_in=True)
    stage = Stage(trains, trains, answer(Phase.DRAINING, chief=True, close=True))
    stage.place.entered(ASSIGNMENT)
    assert stage.place.rest(ASSIGNMENT) is Rest.CLOSE
    assert stage.place.beat().stopped
    assert stage.events[0] == ("waiting", {"reason": "the others to stop"})


def test_a_failed_job_is_an_error_of_the_rest() -> None:
    with pytest.raises(JobFailedError):
        Stage(answer(Phase.FAILED)).place.rest(ASSIGNMENT)


def test_what_was_done_is_said_until_it_is_heard_and_then_no_more() -> None:
    stage = Stage(answer(Phase.TRAINING, chief=True))
    closes = Turn(Duty.CLOSE, 3, 5, 5, Complete(3, 5, 1, 8.0))
    stage.seat.turns = [UnreachableError("gone"), ReplacedError("not the chief"), Turn(Duty.WAIT), None, closes]
    assert stage.place.next_turn(ASSIGNMENT, Closed(2, 4, 2)) == closes
    assert stage.seat.said == [Closed(2, 4, 2)] * 3 + [None, None]
    assert [event for event, _ in stage.events] == ["waiting", "waiting"]


def test_the_turn_after_a_quick_one_is_waited_for_in_a_call_that_cannot_be_called_off() -> None:
    stage = Stage(answer(Phase.TRAINING))
    contribute = Turn(Duty.CONTRIBUTE, 3, 5, 5)
    late = UnreachableError("no answer in time")
    stage.seat.turns = [contribute, contribute, Turn(Duty.WAIT), contribute, late, contribute, contribute]
    for _ in range(5):
        assert stage.place.next_turn(ASSIGNMENT, None) == contribute
    long_s = stage.seat.holds[0]
    assert long_s > QUICK_S
    assert stage.seat.holds == [long_s, QUICK_S, QUICK_S, long_s, QUICK_S, long_s, QUICK_S]
    assert not stage.events, "a quick call that is late is repeated at once"


@pytest.mark.parametrize("end", [answer(Phase.DRAINING), answer(Phase.FORMING), answer(Phase.TRAINING, OTHER)])
def test_turns_end_with_the_view_and_with_training(end: Answer) -> None:
    stage = Stage(answer(Phase.TRAINING), end)
    stage.seat.turns = [Turn(Duty.NONE)]
    assert stage.place.next_turn(ASSIGNMENT, None) is None
    assert stage.seat.beats == 1, "it asks at once what has become of the view"
    assert stage.place.next_turn(ASSIGNMENT, Closed(2, 4, 2)) is None
    assert len(stage.seat.said) == 1


def test_a_pause_ends_when_the_process_shall_stop() -> None:
    stage = Stage(answer(Phase.TRAINING))
    stage.stop.set()
    with pytest.raises(StopRequested):
        stage.place.pause("no session")
    assert stage.events == [("retry", {"reason": "no session"})]
