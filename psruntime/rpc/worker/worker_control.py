"""The control plane as a worker's training loop sees it; graph/session/worker_run.py defines each method."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from psruntime.config.schedule import ASYNC, BOUNDED, SYNC
from psruntime.core.members.messages import (
    Answer,
    Assignment,
    Ending,
    Instructions,
    Measurements,
    Prepared,
    WorkerStats,
)
from psruntime.core.members.view import Phase, View, over_error
from psruntime.core.rounds.round_messages import Action, ActionKind, Report, Starved
from psruntime.errors import ReplacedError, StopRequested, UnreachableError
from psruntime.rpc.client.coordinator_client import ClientContext
from psruntime.rpc.client.membership_client import MembershipClient
from psruntime.rpc.wire.messages import ActionRequest
from psruntime.rpc.worker.shard_taker import ShardTaker
from psruntime.rpc.worker.step_gate import Gate, StepTimer
from psruntime.rpc.worker.worker_facts import WaitingNotes, WorkerFacts

RETRY_S = 0.3  # between two tries to open a session: a ps that comes back is noticed at once all the same
CHECK_S = 0.1  # how often a worker at its bound checks whether it shall still wait
# A wait that is not worth calling off: grpc starts a thread for each call that can be, and its answer took 1.2 ms
# instead of 0.8.
QUICK_S = 0.1
QUICK_MARGIN_S = 0.4  # of such a call's deadline over the wait
UNREACHED_LEASES = 3  # without a session on a view that the others have
LOG_AFTER_S = 1.0  # a wait shorter than this is not worth a line in the log


class WorkerControl:
    """Acts on the answers that the membership has, and writes the facts that its heartbeats send.

    `gate` is used in mode bounded; the caller closes it.  shards: for an input that is read shard by shard.
    """

    def __init__(
        self, context: ClientContext, membership: MembershipClient, facts: WorkerFacts, gate: Gate | None = None
    ) -> None:
        self._job, self._log = context.job, context.log
        self._asked, self._stop = context.asked, context.stop
        self._client, self._margin_s = context.client, context.margin_s
        self._membership = membership
        self._facts = facts
        self._gate = gate
        self.shards = ShardTaker(context, membership)
        self._notes = WaitingNotes(facts, context.log)
        self._without: tuple[View, float] | None = None  # the view without a session, and since when
        self._actions_are_quick = False  # mode sync: whether the last one was answered at once
        self._while_paused: Callable[[], None] = lambda: None
        self._timer = StepTimer()
        self._goes_by = ("", 0)  # the mode, and the clock at which this worker entered it or the view
        self._schedule, self._stage = self._job.mode_schedule, 0
        self._view: View | None = None  # of the newest session
        self._full: View | None = None  # in which this worker has read the last global step

    # The view.

    def await_view(self) -> Assignment:
        self._facts.set_starved(False)  # before a clock is reported
        self._refresh()
        if not _can_open(self._membership.answer):
            self._without = None  # a worker that waits for others has no trouble with its session
        answer = self._wait(_can_open)
        self._raise_if_over(answer)
        instructions = answer.instructions
        prepare = instructions.phase is Phase.PREPARING
        self._facts.prepares(instructions.view.number if prepare else 0, answer.incarnation)
        steps = (instructions.saved_step, instructions.seen_step)
        return Assignment(
            instructions.view, answer.incarnation, prepare, instructions.restore, instructions.clock, *steps
        )

    def report_prepared(self, assignment: Assignment, prepared: Prepared) -> None:
        """As in ControlPlane.  The steps lost are counted from the last global step that this worker read."""
        self._without = None
        lost = max(prepared.steps_lost, self._facts.global_step - prepared.global_step)
        self._membership.report_prepared(assignment, replace(prepared, steps_lost=lost))

    def report_obstacle(self, assignment: Assignment, obstacle: str) -> None:
        self._log("cannot_prepare", view=assignment.view.number, reason=obstacle)
        self._membership.report_obstacle(assignment, obstacle)

    def no_session(self, assignment: Assignment, why: str) -> None:
        """As in ControlPlane.  A worker without a session delays the rounds and the floor."""
        view, now_s = assignment.view, time.monotonic()
        if self._without is None or self._without[0] != view:
            self._without = (view, now_s)
        for_s = now_s - self._without[1]
        reason = f"no session on view {view.number}: {why}"
        if for_s >= UNREACHED_LEASES * self._job.lease_s:
            reason = f"no session on view {view.number} for {for_s:.0f} s: {why}; are the ps reached from this machine?"
            if assignment.prepare or self.mode != ASYNC or self._facts.delays_pause:
                raise UnreachableError(reason)
        self._facts.waits(reason)
        self.back_off(reason)

    def entered(self, assignment: Assignment) -> None:
        """In the same view and incarnation the steps continue: a session was lost, not what was done in it.

        A step that a lost session interrupted is repeated in the next one without another `may_step`.  The bound
        holds all the same: here its clock is as it was, and a floor never falls; elsewhere the lead is 0.
        """
        self._without, self._view = None, assignment.view
        self._timer.restart()
        self._facts.entered(assignment)
        mode = self.mode
        self._goes_by = (mode, assignment.clock)
        if mode != BOUNDED and self._gate is not None:
            self._gate.reset()
        self._pass_clock(mode)

    @property
    def stats(self) -> WorkerStats:
        """What the worker measures on itself, as the next heartbeat has it."""
        return self._facts.stats

    @property
    def mode(self) -> str:
        return self._mode_of(self._membership.answer)

    @property
    def bound(self) -> int | None:
        return self._membership.answer.instructions.settings.bound

    @property
    def learning_rate_scale(self) -> float:
        return self._membership.answer.instructions.settings.learning_rate_scale

    def _mode_of(self, answer: Answer) -> str:
        return answer.instructions.settings.mode or self._job.mode

    def is_current(self, assignment: Assignment) -> bool:
        return _is_of(self._membership.answer, assignment)

    def is_chief(self) -> bool:
        return self._membership.answer.instructions.chief

    def wants_checkpoint(self) -> bool:
        return self._membership.answer.instructions.save

    def back_off(self, why: str) -> None:
        self._notes.retries(why)
        if self._stop.wait(RETRY_S):
            raise StopRequested("asked to stop")

    def report_now(self) -> None:
        """Sends the facts at once, from any thread.  When that fails, the next heartbeat sends them."""
        try:
            self._membership.beat_now()
        except (ReplacedError, UnreachableError) as error:
            self._log("report_failed", reason=error)

    # Steps and rounds.

    def while_paused(self, act: Callable[[], None]) -> None:
        self._while_paused = act

    def may_step(self, under_way: int = 0) -> bool:
        began_s = time.monotonic()
        try:
            return self._may_step(under_way, began_s)
        finally:
            self._timer.waited(time.monotonic() - began_s)

    def _may_step(self, under_way: int, began_s: float) -> bool:
        reported = 0  # the epoch of the pause that the coordinator knows of
        self._facts.has_under_way(under_way)
        while True:
            if self._stop.is_set():
                raise StopRequested("asked to stop")
            self._leave_if_asked()
            answer = self._membership.answer
            if answer.instructions.phase is Phase.FAILED:
                self._raise_if_over(answer)
            gate = None  # another mode, or it is decided elsewhere
            if not self._is_decided_elsewhere(answer):
                if self._full == answer.instructions.view:  # the coordinator may not know it yet
                    if under_way:
                        return False
                    if time.monotonic() - began_s >= LOG_AFTER_S:
                        self._notes.waits("the coordinator to end the training")
                    self._membership.wait_until(self._is_decided_elsewhere, CHECK_S)
                    continue
                gate = self._gate_in(self._mode_of(answer), answer)
                if pause_epoch := self._facts.pause_epoch:
                    if under_way:
                        return False
                    reported = self._stay_paused(pause_epoch, reported)
                    continue
                if gate is not None and not gate.opens(CHECK_S, under_way):
                    if under_way:
                        return False
                    if time.monotonic() - began_s >= LOG_AFTER_S:
                        self._notes.waits_at_gate(gate.reason)
                    continue
                if not self._begins_under(answer, under_way):
                    continue
            if gate is not None:
                if not self._facts.is_starved:  # else it still waits for a shard
                    self._notes.waits_at_gate("")
                self._facts.led(gate.max_lead)
            elif reported:
                self._notes.waits("")
            self._facts.goes_on()
            return answer.instructions.phase.may_train

    def _is_decided_elsewhere(self, answer: Answer) -> bool:
        """Whether neither pause nor gate decides here on the next step.

        No step follows at the end of the training.  In mode sync the next action decides, which waits for the end of
        a pause.  With a lost view the step's session fails.
        """
        return not answer.instructions.phase.may_train or self._mode_of(answer) == SYNC or self._is_lost(answer)

    def _begins_under(self, answer: Answer, under_way: int) -> bool:
        """Counts a step as begun and returns True, unless a pause or a whole change came since this answer."""
        if not self._facts.begins(answer.incarnation):
            return False
        if _rules_of(self._membership.answer) == _rules_of(answer):
            return True
        self._facts.has_under_way(under_way)
        return False

    def _gate_in(self, mode: str, answer: Answer) -> Gate | None:
        """The gate if the mode is bounded.  Within a view the mode may have changed: then all have one clock."""
        goes_by = (mode, answer.instructions.clock)
        if goes_by != self._goes_by:
            if mode != self._goes_by[0]:
                self._log("mode", mode=mode, bound=answer.instructions.settings.bound)
            self._goes_by = goes_by
            self._facts.stands_at(answer.instructions.clock)
            if self._gate is not None:
                self._gate.reset()
            self._pass_clock(mode)
        return self._gate if mode == BOUNDED else None

    def _stay_paused(self, pause_epoch: int, reported: int) -> int:
        """Begins no step for a moment, and reports the epoch unless that is `reported`; returns the reported epoch."""
        self._notes.waits(self._membership.answer.instructions.pause_reason)
        if pause_epoch != reported:
            self.report_now()
        saves = self._membership.answer.instructions.save
        self._while_paused()
        self._membership.wait_until(
            lambda a: a.instructions.pause_epoch != pause_epoch or a.instructions.save is not saves, CHECK_S
        )
        return pause_epoch

    def waits_for_shard(self, reason: str, no_step_under_way: bool = False) -> None:
        """As in ControlPlane.  In mode bounded no worker waits for this one meanwhile."""
        self._facts.waits(f"a shard: {reason}" if reason else "")
        if reason and no_step_under_way and self.mode == BOUNDED and self._facts.set_starved(True):
            self.report_now()
        elif not reason and self._facts.set_starved(False):
            self._refresh()
            self._timer.restart()
            answer = self._membership.answer
            if not self._is_lost(answer):
                self._gate_in(self._mode_of(answer), answer)  # before a step is counted on the clock as it was

    def next_action(
        self, assignment: Assignment, report: Report | None, starved: Starved | None = None
    ) -> Action | None:
        began_s, poll_s = time.monotonic(), min(LOG_AFTER_S, self._job.heartbeat_s)
        worker = (self._membership.index, assignment.incarnation, assignment.view.number)
        if self._asked.is_set() and report is not None:
            with suppress(ReplacedError, UnreachableError):  # this worker leaves now, and its report shall count
                self._next_action(ActionRequest(*worker, report, QUICK_S))

        def is_over() -> bool:
            return starved is not None and starved.is_over()

        saved = False  # whether this worker has seen that a checkpoint is wanted in the pause

        def is_wanted() -> bool:
            instructions = self._membership.answer.instructions
            is_to_save = instructions.pause_epoch > 0 and instructions.save and not saved  # no action comes meanwhile
            return not self._stop.is_set() and self.is_current(assignment) and not is_over() and not is_to_save

        starved_since = starved.since if starved else None
        while self.may_step() and self.is_current(assignment):
            quick, self._actions_are_quick = self._actions_are_quick, False
            if self._membership.answer.instructions.pause_epoch:
                saved = self._membership.answer.instructions.save
                self._while_paused()
            try:
                request = ActionRequest(*worker, report, QUICK_S if quick else poll_s, starved_since)
                action = self._next_action(request, None if quick else is_wanted)
            except (ReplacedError, UnreachableError) as error:
                if not quick:  # else it is asked at once again, in a call that may be called off
                    self._retry_after(error)
                continue
            report = report if action is None else None
            if action is None:
                if is_over():
                    return Action(ActionKind.WAIT)
                continue
            if action.kind in (ActionKind.COMPUTE, ActionKind.PUSH, ActionKind.APPLY):
                self._notes.waits("")
                self._actions_are_quick = time.monotonic() - began_s < QUICK_S / 2
                return action
            if action.kind is ActionKind.NONE:
                self.report_now()  # the answer has the state of the view
            elif time.monotonic() - began_s >= poll_s:
                self._notes.waits(f"a shard: {starved.reason}" if starved else action.reason)
                poll_s = self._job.heartbeat_s
        return None

    def _next_action(self, request: ActionRequest, is_wanted: Callable[[], bool] | None = None) -> Action | None:
        """As CoordinatorClient.next_action.

        Without an answer soon after a wait that cannot be called off the coordinator counts as not reached.
        """
        margin_s = self._margin_s if is_wanted else QUICK_MARGIN_S
        action = self._client.next_action(request, is_wanted, request.max_wait_s + margin_s)
        if action is not None:
            self._membership.tried(action.attempt)
        return action

    def count_push(self) -> None:
        self._facts.count_push()

    def stepped(self, global_step: int) -> None:
        if self._job.bound_range and (step_s := self._timer.ended(time.monotonic())) is not None:
            self._facts.took(step_s)
        self._facts.stepped(global_step)
        self._pass_clock(self._goes_by[0])
        limit = self._job.train_steps
        is_full = limit is not None and global_step >= limit
        if is_full:
            self._full = self._view
        if is_full or self._is_another_stage(global_step):
            self.report_now()

    def _is_another_stage(self, global_step: int) -> bool:
        """Whether the schedule has another stage than at the last step: the coordinator waits for that report."""
        number = self._schedule.number_at(global_step) if self._schedule else 0
        before, self._stage = self._stage, number
        return number != before

    # The end.

    def fails(self, reason: str) -> None:
        self._facts.fails(reason)

    def await_end(self, assignment: Assignment) -> Ending:
        self._facts.stopped()
        self.report_now()
        answer = self._wait(
            lambda a: (
                a.instructions.close
                or not a.instructions.phase.prepared
                or (a.instructions.view, a.incarnation) != (assignment.view, assignment.incarnation)
            )
        )
        if answer.instructions.phase in (Phase.DONE, Phase.STOPPED):
            return Ending.OVER
        self._raise_if_over(answer)
        return Ending.CLOSE if answer.instructions.close and self.is_current(assignment) else Ending.RESUME

    def saves(self, under_way: bool) -> None:
        self._facts.saves(under_way)

    def saved(self, global_step: int) -> None:
        self._facts.saved(global_step)
        if self._membership.answer.instructions.save:
            self.report_now()  # a command waits for it

    def save_failed(self, cause: str) -> None:
        self._facts.save_failed(cause)
        if self._membership.answer.instructions.save:
            self.report_now()  # as after one that is written

    def measured(self, held_out: Measurements) -> None:
        self._facts.measured(held_out)
        self.report_now()

    def stops_early(self, reason: str) -> None:
        self._facts.stops_early(reason)
        self.report_now()

    def closed_part(self, doing: str = "") -> None:
        self._facts.closed_part()
        if doing:
            self.closes(doing)

    def closes(self, doing: str) -> None:
        self._facts.waits(doing)

    def report_finished(self, assignment: Assignment) -> None:
        self._membership.report_finished(assignment)

    # Reporting and waiting.

    def _pass_clock(self, mode: str) -> None:
        """The reporter of the gate tells the coordinator."""
        if mode == BOUNDED and self._gate is not None and self._facts.assignment is not None:
            self._gate.completed(self._facts.assignment, self._facts.steps)

    def _is_lost(self, answer: Answer) -> bool:
        """Whether there is nothing to wait for: the session finds out, and is opened anew, with a lead of 0."""
        assignment = self._facts.assignment
        return assignment is None or not _is_of(answer, assignment)

    def _refresh(self) -> None:
        """Gets a new answer from the coordinator: the last one may be from before this process stood still."""
        while True:
            try:
                self._membership.beat_now()
                return
            except (ReplacedError, UnreachableError) as error:
                self._retry_after(error)

    def _retry_after(self, error: ReplacedError | UnreachableError) -> None:
        """Waits before a call is repeated: the heartbeats find the same error, and act on it."""
        self._raise_if_over(self._membership.answer)  # which raises what the membership failed with, too
        self._notes.waits(str(error))
        if self._asked.is_set() or self._stop.wait(RETRY_S):  # no coordinator is there to report the end of the job
            raise StopRequested("asked to stop") from error

    def _wait(self, ready: Callable[[Answer], bool]) -> Answer:
        """Waits for an answer; after the first second the log and the status say for what."""
        while True:
            answer = self._membership.wait_until(ready, LOG_AFTER_S)
            if answer is not None:
                self._notes.waits("")
                return answer
            self._leave_if_asked()
            self._notes.waits(self._what_for(self._membership.answer.instructions))

    def _what_for(self, instructions: Instructions) -> str:
        usable = instructions.phase.prepared or (instructions.phase is Phase.PREPARING and instructions.chief)
        if usable and not instructions.admitted_by_ps:
            return "every ps to admit this worker"
        if self._facts.has_stopped and instructions.phase is Phase.TRAINING:
            return "the others to stop"
        return f"{instructions.phase}: {instructions.reason}"

    def _leave_if_asked(self) -> None:
        """Raises StopRequested if this process was asked to stop, unless the job ends and this worker with it."""
        if not self._asked.is_set():
            return
        if not _ends(self._membership.answer):
            self.report_now()  # if everybody was asked, this is what ends the job
        if not _ends(self._membership.answer):
            raise StopRequested("asked to stop")

    @staticmethod
    def _raise_if_over(answer: Answer) -> None:
        if answer.instructions.phase.over:
            raise over_error(answer.instructions.phase, answer.instructions.reason)


def _is_of(answer: Answer, assignment: Assignment) -> bool:
    """Whether the assignment's view is prepared, and the view and incarnation are those of the answer."""
    instructions = answer.instructions
    same = (instructions.view, answer.incarnation) == (assignment.view, assignment.incarnation)
    return instructions.phase.prepared and same


def _rules_of(answer: Answer) -> tuple[int, int]:
    """What a step goes by: the number of the settings, and the clock of this worker."""
    return answer.instructions.settings.revision, answer.instructions.clock


def _ends(answer: Answer) -> bool:
    """Whether the job ends, or is over."""
    instructions = answer.instructions
    return instructions.stopping or not instructions.phase.may_train


def _can_open(answer: Answer) -> bool:
    """Whether there is a view to open a session on, or to prepare, or no hope for one."""
    instructions = answer.instructions
    usable = instructions.phase.prepared or (instructions.phase is Phase.PREPARING and instructions.chief)
    return (usable and instructions.admitted_by_ps) or instructions.phase.over
