"""A worker's control over a scripted membership: when it may step, what it reports, what it does at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from psruntime.config import JobConfig
from psruntime.core.members.messages import Answer, Assignment, Ending, Instructions, WorkerBeat, WorkerStats
from psruntime.core.members.view import Phase, PsEntry, View
from psruntime.core.rounds.round_messages import Action, ActionKind, Applied, Complete, Pushed, Report, Starved
from psruntime.errors import JobDoneError, JobFailedError, ReplacedError, StopRequested, UnreachableError
from psruntime.rpc.client.coordinator_client import ClientContext
from psruntime.rpc.wire.messages import ActionRequest
from psruntime.rpc.worker.worker_control import QUICK_S, WorkerControl
from psruntime.rpc.worker.worker_facts import WORK_S, WorkerFacts

VIEW = View(1, (PsEntry(0, "127.0.0.1:1", 5),))
OTHER = View(2, (PsEntry(0, "127.0.0.1:2", 6),))


def answer(phase: Phase, view: View = VIEW, incarnation: int = 9, **more: Any) -> Answer:
    return Answer(incarnation, Instructions(phase, "because", view, **more), revision=1)


class ScriptedMembership:
    """Gives one answer after the other; each wait moves on until its predicate holds.  It is the client, too."""

    index = 3

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.beats = 0
        self.unreachable = False
        self.replaced_for = 0  # beats
        self.turns: list[Action | Exception | None] = []  # one after the other
        self.said: list[Report | None] = []  # with each
        self.starved_since: list[int | None] = []  # the same
        self.waits: list[float] = []  # of each
        self.attempts: list[int] = []  # of each that was an action

    @property
    def answer(self) -> Answer:
        return self.answers[0]

    def beat_now(self) -> Answer:
        self.beats += 1
        if self.replaced_for:
            self.replaced_for -= 1
            raise ReplacedError("replaced")
        if self.unreachable:
            raise UnreachableError("gone")
        return self.answer

    def next_action(
        self, request: ActionRequest, is_wanted: Callable[[], bool] | None, deadline_s: float
    ) -> Action | None:
        assert (request.worker_index, request.incarnation, request.view) == (self.index, 9, VIEW.number)
        assert 0 < request.max_wait_s < deadline_s
        assert is_wanted() if is_wanted else request.max_wait_s == QUICK_S
        self.said.append(request.report)
        self.starved_since.append(request.starved_since)
        self.waits.append(request.max_wait_s)
        action = self.turns.pop(0)
        if isinstance(action, Exception):
            raise action
        if action is not None and action.kind is ActionKind.NONE:
            self.answers.pop(0)
        return action

    def tried(self, attempt: int) -> None:
        self.attempts.append(attempt)

    def wait_until(self, ready: Callable[[Answer], bool], timeout_s: float | None) -> Answer | None:
        if ready(self.answer):
            return self.answer
        self.answers.pop(0)
        return None


class Stage:
    def __init__(self, *answers: Answer, gate: Any = None, **settings: Any) -> None:
        self.membership = ScriptedMembership(*answers)
        self.asked, self.stop = threading.Event(), threading.Event()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.facts = WorkerFacts(lambda waiting: WorkerStats(waiting=waiting), self.asked)
        context = ClientContext(
            self.membership,  # type: ignore[arg-type]
            JobConfig(train_steps=10, **settings),
            self.stop,
            lambda event, **facts: self.events.append((event, facts)),
            self.asked,
        )
        self.control = WorkerControl(context, self.membership, self.facts, gate)  # type: ignore[arg-type]

    def beat(self) -> WorkerBeat:
        """What the next heartbeat says."""
        return self.facts.beat(self.membership.answer.incarnation)


ASSIGNMENT = Assignment(VIEW, 9, prepare=False)


def test_waits_for_a_prepared_view_that_lets_it_in_and_says_for_what() -> None:
    stage = Stage(answer(Phase.FORMING), answer(Phase.TRAINING), answer(Phase.TRAINING, admitted_by_ps=True))
    assert stage.control.await_view() == ASSIGNMENT
    assert stage.events[0] == ("waiting", {"reason": "every ps to admit this worker"})
    assert stage.beat().stats.waiting == ""


def test_asks_the_coordinator_before_a_session_is_opened() -> None:
    stage = Stage(answer(Phase.TRAINING, admitted_by_ps=True))
    stage.membership.replaced_for = 1
    assert stage.control.await_view() == ASSIGNMENT
    assert stage.membership.beats == 2
    assert stage.events == [("waiting", {"reason": "replaced"})]


def test_the_chief_is_asked_to_prepare() -> None:
    outside, within = answer(Phase.PREPARING, chief=True), answer(Phase.PREPARING, chief=True, admitted_by_ps=True)
    stage = Stage(outside, outside, within)
    assert stage.control.await_view() == Assignment(VIEW, 9, prepare=True)
    assert len(stage.membership.answers) == 1, "not before every ps admits it"
    assert stage.events[0] == ("waiting", {"reason": "every ps to admit this worker"})
    assert stage.control.is_chief()


@pytest.mark.parametrize(("phase", "error"), [(Phase.DONE, JobDoneError), (Phase.FAILED, JobFailedError)])
def test_a_job_that_is_over_ends_the_wait(phase: Phase, error: type[Exception]) -> None:
    with pytest.raises(error, match="because"):
        Stage(answer(phase)).control.await_view()


def test_holds_only_the_same_view_and_incarnation() -> None:
    assert Stage(answer(Phase.TRAINING)).control.is_current(ASSIGNMENT)
    assert Stage(answer(Phase.DRAINING)).control.is_current(ASSIGNMENT)
    assert not Stage(answer(Phase.FORMING)).control.is_current(ASSIGNMENT)
    assert not Stage(answer(Phase.TRAINING, OTHER)).control.is_current(ASSIGNMENT)
    assert not Stage(answer(Phase.TRAINING, incarnation=8)).control.is_current(ASSIGNMENT)


def test_parts_of_the_end_are_told_to_the_coordinator() -> None:
    """Of another incarnation they would prolong the time that this one has."""
    stage = Stage(answer(Phase.DRAINING, admitted_by_ps=True, chief=True))
    stage.control.entered(ASSIGNMENT)
    assert stage.beat().closed_parts == 0
    stage.control.closed_part()
    stage.control.closed_part()
    assert stage.beat().closed_parts == 2
    stage.membership.answers = [answer(Phase.DRAINING, incarnation=8)]
    assert stage.beat().closed_parts == 0


def test_may_step() -> None:
    assert Stage(answer(Phase.TRAINING)).control.may_step()
    assert Stage(answer(Phase.FORMING)).control.may_step()  # the session finds out, and waits
    assert not Stage(answer(Phase.DRAINING)).control.may_step()
    assert not Stage(answer(Phase.DONE)).control.may_step()
    with pytest.raises(JobFailedError):
        Stage(answer(Phase.FAILED)).control.may_step()
    stage = Stage(answer(Phase.TRAINING))
    stage.stop.set()
    with pytest.raises(StopRequested):
        stage.control.may_step()


def test_the_status_tells_of_a_worker_whose_own_work_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step, its input or a checkpoint: nothing else tells that this worker is in one."""
    now_s = [1000.0]
    monkeypatch.setattr("psruntime.rpc.worker.worker_facts.time.monotonic", lambda: now_s[0])
    stage = Stage(answer(Phase.TRAINING, admitted_by_ps=True))
    assert stage.beat().stats.waiting == "starting"

    def after(passed_s: float) -> str:
        now_s[0] += passed_s
        return stage.beat().stats.waiting

    stage.control.await_view()
    assert (after(WORK_S - 1), after(1)) == ("", f"its own work, for {WORK_S:.0f} s")
    stage.control.may_step()
    assert (after(WORK_S - 1), after(60)) == ("", "its own work, for 69 s")
    stage.membership.turns = [Action(ActionKind.PUSH, round=1)]
    stage.control.next_action(ASSIGNMENT, None)
    assert (after(WORK_S - 1), after(1)) == ("", "its own work, for 10 s")


def test_steps_are_counted_from_the_entry_into_the_view() -> None:
    stage = Stage(answer(Phase.TRAINING))
    stage.control.entered(ASSIGNMENT)
    for global_step in (3, 7):
        stage.control.stepped(global_step)
    beat = stage.beat()
    assert (beat.view, beat.steps, beat.global_step, beat.stopped) == (1, 2, 7, False)
    stage.control.entered(Assignment(OTHER, 9, prepare=False))
    beat = stage.beat()
    assert (beat.view, beat.steps, beat.global_step) == (2, 0, 0)


def test_a_session_lost_in_the_same_view_loses_no_steps() -> None:
    """Else the worker's clock would fall behind what it has done, and the bound with it."""
    stage = Stage(answer(Phase.TRAINING))
    stage.control.entered(ASSIGNMENT)
    stage.control.stepped(3)
    stage.control.entered(Assignment(VIEW, 9, prepare=True))
    stage.control.stepped(5)
    beat = stage.beat()
    assert (beat.view, beat.steps, beat.global_step) == (1, 2, 5)


def test_the_clock_of_the_entry_comes_with_the_view() -> None:
    stage = Stage(answer(Phase.TRAINING, admitted_by_ps=True, clock=12))
    assert stage.control.await_view() == Assignment(VIEW, 9, prepare=False, clock=12)


def test_what_an_earlier_incarnation_did_is_not_reported_for_the_next() -> None:
    """A new coordinator counts views from 1 again: the number alone does not tell them apart."""
    stage = Stage(answer(Phase.TRAINING), answer(Phase.TRAINING, incarnation=10))
    stage.control.entered(ASSIGNMENT)
    stage.control.stepped(7)
    stage.membership.answers.pop(0)
    beat = stage.beat()
    assert (beat.view, beat.steps, beat.global_step, beat.stopped) == (0, 0, 0, False)


def test_the_last_step_is_reported_at_once_even_if_nobody_hears_it() -> None:
    stage = Stage(answer(Phase.TRAINING))
    stage.control.entered(ASSIGNMENT)
    stage.control.stepped(9)
    assert stage.membership.beats == 0
    stage.membership.unreachable = True
    stage.control.stepped(10)
    assert stage.membership.beats == 1
    assert stage.events[-1][0] == "report_failed"


def test_no_step_follows_the_last_one_until_the_view_is_another() -> None:
    train, other = answer(Phase.TRAINING), View(VIEW.number + 1, VIEW.ps)
    stage = Stage(train, train, train, answer(Phase.TRAINING, view=other), answer(Phase.TRAINING, view=other))
    stage.control.entered(ASSIGNMENT)
    assert stage.control.may_step()
    stage.control.stepped(10)
    assert not stage.control.may_step(under_way=1), "what is under way ends first"
    assert stage.control.may_step(), "the variables may be of a checkpoint now"
    assert len(stage.membership.answers) < 3, "it has waited for the view"


def test_the_last_global_step_of_the_view_is_reported_by_the_next_incarnation_too() -> None:
    train = answer(Phase.TRAINING, incarnation=10)
    stage = Stage(answer(Phase.TRAINING), train)
    stage.control.entered(ASSIGNMENT)
    stage.membership.unreachable = True
    stage.control.stepped(10)
    stage.membership.answers.pop(0)
    stage.control.entered(Assignment(VIEW, 10, prepare=False))
    assert (stage.beat().steps, stage.beat().global_step) == (0, 10)


ENDS = {
    "done": (answer(Phase.DONE), Ending.OVER),
    "chief": (answer(Phase.DRAINING, chief=True, close=True), Ending.CLOSE),
    "ps lost": (answer(Phase.FORMING), Ending.RESUME),
    "joined again": (answer(Phase.DRAINING, incarnation=8), Ending.RESUME),
    "new view": (answer(Phase.DRAINING, OTHER), Ending.RESUME),
    "rolled back": (answer(Phase.TRAINING, OTHER), Ending.RESUME),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_comes_after_the_last_step(end: str) -> None:
    last, expected = ENDS[end]
    stage = Stage(answer(Phase.DRAINING), last)
    stage.control.entered(ASSIGNMENT)
    assert stage.control.await_end(ASSIGNMENT) is expected
    if end != "joined again":
        assert stage.beat().stopped


def test_one_that_stops_by_itself_rests_while_the_others_train() -> None:
    trains = answer(Phase.TRAINING, admitted_by_ps=True)
    stage = Stage(trains, trains, answer(Phase.DRAINING, chief=True, close=True))
    stage.control.entered(ASSIGNMENT)
    assert stage.control.await_end(ASSIGNMENT) is Ending.CLOSE
    assert stage.beat().stopped
    assert stage.events[0] == ("waiting", {"reason": "the others to stop"})


def test_a_failed_job_is_an_error_of_the_rest() -> None:
    with pytest.raises(JobFailedError):
        Stage(answer(Phase.FAILED)).control.await_end(ASSIGNMENT)


def test_what_was_done_is_said_until_it_is_heard_and_then_no_more() -> None:
    stage = Stage(answer(Phase.TRAINING, chief=True))
    closes = Action(ActionKind.APPLY, 3, 5, 5, Complete(3, 5, 1, 8.0))
    stage.membership.turns = [
        UnreachableError("gone"),
        ReplacedError("not the chief"),
        Action(ActionKind.WAIT),
        None,
        closes,
    ]
    assert stage.control.next_action(ASSIGNMENT, Applied(2, 4, 2)) == closes
    assert stage.membership.said == [Applied(2, 4, 2)] * 3 + [None, None]
    assert stage.membership.attempts == [0, 5]
    assert [event for event, _ in stage.events] == ["waiting", "waiting"]


def test_the_turn_after_a_quick_one_is_waited_for_in_a_call_that_cannot_be_called_off() -> None:
    stage = Stage(answer(Phase.TRAINING))
    contribute = Action(ActionKind.PUSH, 3, 5, 5)
    late = UnreachableError("no answer in time")
    stage.membership.turns = [contribute, contribute, Action(ActionKind.WAIT), contribute, late, contribute, contribute]
    for _ in range(5):
        assert stage.control.next_action(ASSIGNMENT, None) == contribute
    long_s = stage.membership.waits[0]
    assert long_s > QUICK_S
    assert stage.membership.waits == [long_s, QUICK_S, QUICK_S, long_s, QUICK_S, long_s, QUICK_S]
    assert not stage.events, "a quick call that is late is repeated at once"


def test_a_worker_without_a_batch_says_so_and_what_it_did_until_it_may_have_one() -> None:
    stage = Stage(answer(Phase.TRAINING))
    ready = [False, False, True]
    starved = Starved(5, "others hold the rest of epoch 1", lambda: ready.pop(0) if len(ready) > 1 else ready[0])
    stage.membership.turns = [Action(ActionKind.WAIT, reason="round 3 waits for worker 1"), None]
    report = Pushed(2, 4, 0, 8.0)
    assert stage.control.next_action(ASSIGNMENT, report, starved) == Action(ActionKind.WAIT)
    assert stage.membership.said == [report, None]
    assert stage.membership.starved_since == [5, 5]


def test_why_there_is_no_shard_stands_in_the_status() -> None:
    stage = Stage(answer(Phase.TRAINING))
    stage.control.waits_for_shard("others hold the rest of epoch 3")
    assert stage.beat().stats.waiting == "a shard: others hold the rest of epoch 3"
    stage.control.waits_for_shard("")
    assert stage.beat().stats.waiting == ""


def test_in_mode_bounded_a_worker_without_a_shard_rests_until_the_coordinator_knows_better() -> None:
    """It says so at once, both ways, and not again; what it says first is the number of its changes."""
    stage = Stage(answer(Phase.TRAINING, admitted_by_ps=True), mode="bounded", bound=1)
    stage.control.entered(ASSIGNMENT)
    said = stage.membership.beats
    stage.control.waits_for_shard("others hold the rest of epoch 3", no_step_under_way=False)
    assert stage.membership.beats == said and stage.beat().starve_count == 0, "a step is under way still"
    for _ in range(2):
        stage.control.waits_for_shard("others hold the rest of epoch 3", no_step_under_way=True)
    assert stage.membership.beats == said + 1 and stage.beat().starve_count == 1
    for _ in range(2):
        stage.control.waits_for_shard("")
    assert stage.membership.beats == said + 2 and stage.beat().starve_count == 2
    stage.control.waits_for_shard("others hold the rest of epoch 4", no_step_under_way=True)
    assert stage.control.await_view() == ASSIGNMENT and stage.beat().starve_count == 4, (
        "it asks for a shard there first"
    )


class NotedGate:
    """Which clock it was told to report, and when it was told to rest."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def completed(self, assignment: Assignment, steps: int) -> None:
        self.told.append(assignment.clock + steps)

    def reset(self) -> None:
        self.told.append(-1)


def test_a_worker_that_has_rested_stands_at_its_new_clock_before_it_steps() -> None:
    """Else a step would count on the clock as it was, and the gate take what it does not know for the floor."""
    gate = NotedGate()
    stage = Stage(answer(Phase.TRAINING), mode="bounded", bound=1, gate=gate)
    stage.control.entered(ASSIGNMENT)
    stage.control.stepped(1)
    stage.control.waits_for_shard("others hold the rest of epoch 3", no_step_under_way=True)
    told = stage.membership.answers[0]
    stage.membership.answers[0] = replace(told, instructions=replace(told.instructions, clock=8))
    gate.told.clear()
    stage.control.waits_for_shard("")
    assert gate.told == [-1, 9] and stage.facts.assignment and stage.facts.assignment.clock == 8
    stage.control.stepped(2)
    assert gate.told[2:] == [10]


@pytest.mark.parametrize("end", [answer(Phase.DRAINING), answer(Phase.FORMING), answer(Phase.TRAINING, OTHER)])
def test_turns_end_with_the_view_and_with_training(end: Answer) -> None:
    stage = Stage(answer(Phase.TRAINING), end)
    stage.membership.turns = [Action(ActionKind.NONE)]
    assert stage.control.next_action(ASSIGNMENT, None) is None
    assert stage.membership.beats == 1, "it asks at once what has become of the view"
    assert stage.control.next_action(ASSIGNMENT, Applied(2, 4, 2)) is None
    assert len(stage.membership.said) == 1


def test_a_pause_ends_when_the_process_shall_stop() -> None:
    stage = Stage(answer(Phase.TRAINING))
    stage.stop.set()
    with pytest.raises(StopRequested):
        stage.control.back_off("no session")
    assert stage.events == [("retry", {"reason": "no session"})]


def test_a_pause_says_the_same_once() -> None:
    stage = Stage(answer(Phase.TRAINING))
    for why in ("one", "one", "other", "one"):
        stage.control.back_off(why)
    assert [facts["reason"] for _, facts in stage.events] == ["one", "other", "one"]


def test_who_is_asked_to_stop_leaves_before_its_next_step() -> None:
    stage = Stage(answer(Phase.TRAINING))
    stage.facts.entered(ASSIGNMENT)
    assert stage.control.may_step() and not stage.beat().asked_to_stop
    stage.asked.set()
    with pytest.raises(StopRequested):
        stage.control.may_step()
    assert stage.membership.beats == 1, "the coordinator may say that the job ends"
    assert stage.beat().asked_to_stop


@pytest.mark.parametrize("end", [answer(Phase.TRAINING, stopping=True), answer(Phase.DRAINING), answer(Phase.STOPPED)])
def test_who_is_asked_to_stop_stays_for_the_end_of_the_job(end: Answer) -> None:
    stage = Stage(end)
    stage.facts.entered(ASSIGNMENT)
    stage.asked.set()
    assert stage.control.may_step() is (end.instructions.phase is Phase.TRAINING)


def test_who_is_asked_to_stop_does_not_wait_for_a_view() -> None:
    for phase in (Phase.FORMING, Phase.PREPARING):
        stage = Stage(answer(phase), answer(phase))
        stage.asked.set()
        with pytest.raises(StopRequested):
            stage.control.await_view()


def test_who_is_asked_to_stop_does_not_wait_for_a_coordinator() -> None:
    stage = Stage(answer(Phase.FORMING))
    stage.membership.unreachable = True
    stage.asked.set()
    with pytest.raises(StopRequested):
        stage.control.await_view()


def test_a_job_that_was_stopped_is_over() -> None:
    stage = Stage(answer(Phase.STOPPED))
    assert stage.control.await_end(ASSIGNMENT) is Ending.OVER


@pytest.mark.parametrize(("mode", "prepares"), [("async", False), ("async", True), ("sync", False), ("bounded", True)])
def test_a_worker_without_a_session_ends_where_others_wait_for_it(
    mode: str, prepares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("psruntime.rpc.worker.worker_control.time.monotonic", lambda: now_s[0])
    settings: dict[str, Any] = {"mode": mode, "lease_s": 4.0, **({"bound": 1} if mode == "bounded" else {})}
    stage = Stage(answer(Phase.PREPARING if prepares else Phase.TRAINING), **settings)
    assignment = Assignment(VIEW, 9, prepare=prepares)

    def fail() -> None:
        stage.control.no_session(assignment, "ps 1 is not reached")

    fail()
    assert stage.beat().stats.waiting == f"no session on view {VIEW.number}: ps 1 is not reached"
    now_s[0] += 11.0
    fail()
    stage.control.entered(assignment)
    fail()  # the time begins anew
    now_s[0] += 11.9
    fail()
    now_s[0] += 0.1
    said = f"no session on view {VIEW.number} for 12 s: ps 1 is not reached; are the ps reached from this machine?"
    if mode == "async" and not prepares:
        fail()
    else:
        with pytest.raises(UnreachableError) as raised:
            fail()
        assert str(raised.value) == said


def test_says_what_it_does_as_chief() -> None:
    stage = Stage(answer(Phase.PREPARING, chief=True, admitted_by_ps=True))
    assert stage.beat().prepares == 0
    stage.control.await_view()
    assert stage.beat().prepares == VIEW.number
    stage.control.entered(ASSIGNMENT)
    stage.control.saves(True)
    assert stage.beat().saves
    stage.control.saves(False)
    assert not stage.beat().saves


def test_a_checkpoint_that_somebody_waits_for_is_told_at_once() -> None:
    stage = Stage(answer(Phase.TRAINING))
    stage.control.saved(7)
    assert stage.membership.beats == 0
    stage = Stage(answer(Phase.TRAINING, save=True))
    assert stage.control.wants_checkpoint()
    stage.control.saved(7)
    assert stage.membership.beats == 1
