"""The control plane as a worker's training loop sees it; graph/loop/control_plane.py defines each method."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from psruntime.config import JobConfig
from psruntime.core.members.messages import Answer, Assignment, Prepared, Rest, Standing, WorkerBeat, WorkerStats
from psruntime.core.members.view import Phase, over_error
from psruntime.core.rounds.round_messages import Done, Duty, Turn
from psruntime.errors import ReplacedError, StopRequested, UnreachableError
from psruntime.rpc.client.membership_client import Seat
from psruntime.rpc.worker.step_gate import Gate

PAUSE_S = 0.3  # between two tries to open a session: a ps that comes back is noticed at once all the same
LOOK_S = 0.1  # how often a worker at its bound looks whether it shall still wait
QUICK_S = 0.1  # a wait that is not worth calling off
TELL_AFTER_S = 1.0  # a wait shorter than this is not worth a line in the log
WORK_S = 10.0  # a step, a batch or a checkpoint that takes longer is worth a word in the status


class WorkerPlace:
    """Wraps a seat.  Construct it first, give `beat` and `hear` to the seat, then `attach` the seat.

    `stats(waiting)` are the worker's own measurements, but for the pushes that are told here.  `gate` is for mode
    bounded, whoever made it closes it.
    """

    def __init__(
        self,
        job: JobConfig,
        stats: Callable[[str], WorkerStats],
        stop: threading.Event,
        log: Callable[..., None],
        gate: Gate | None = None,
    ) -> None:
        self._job = job
        self._stats = stats
        self._stop = stop
        self._log = log
        self._gate = gate
        self._gate_told = ""  # what the log has of the latest wait at the gate
        self._lock = threading.Lock()  # guards the facts of the next heartbeat
        self._entered: Assignment | None = None
        self._steps = 0
        self._pushes = 0
        self._global_step = 0
        self._stopped = False
        self._closed_parts = 0
        self._waiting = "starting"
        self._works_since_s = 0.0  # while there is no reason to wait; monotonic
        self._told = ""
        self._turns_are_quick = False  # mode sync: whether the last was there at once

    def attach(self, seat: Seat) -> None:
        self._seat = seat

    def beat(self) -> WorkerBeat:
        """The facts for the next heartbeat."""
        with self._lock:
            stats = self._stats(self._waiting or self._works())
            stats = replace(stats, pushes=stats.pushes + self._pushes)
            if self._gate is not None:
                stats = replace(stats, max_lead=self._gate.max_lead)
            if self._entered is None or self._entered.incarnation != self._seat.incarnation:
                return WorkerBeat(stats=stats)  # what an earlier incarnation did does not count for this one
            facts = (self._steps, self._global_step, self._stopped, stats, self._closed_parts)
            return WorkerBeat(self._entered.view.number, *facts)

    def hear(self, answer: Answer) -> None:
        """Takes what the gate has to know of a new answer."""
        if self._gate is not None:
            self._gate.space(answer.standing.report_every_s)

    def await_view(self) -> Assignment:
        self._ask()
        answer = self._wait(_can_open)
        self._raise_if_over(answer)
        prepare = answer.standing.phase is Phase.PREPARING
        standing = answer.standing
        return Assignment(standing.view, answer.incarnation, prepare, standing.restore, standing.clock)

    def report_prepared(self, assignment: Assignment, prepared: Prepared) -> None:
        """The coordinator may be another one than before: what this worker saw last tells what was lost with it."""
        lost = max(prepared.steps_lost, self._global_step - prepared.global_step)
        self._seat.report_prepared(assignment, replace(prepared, steps_lost=lost))

    def entered(self, assignment: Assignment) -> None:
        """In the same view and incarnation the steps go on: a session was lost, not what was done in it.

        A step that a lost session interrupted is repeated in the next one without another `may_step`.  The bound
        holds all the same: here its clock is as it was, and a floor never falls; elsewhere the lead is 0.
        """
        last = self._entered
        with self._lock:
            if last is None or (last.view, last.incarnation) != (assignment.view, assignment.incarnation):
                self._steps = 0
                self._global_step = 0
            self._entered = assignment
            self._stopped = False
        self._pass_on(assignment)

    def holds(self, assignment: Assignment) -> bool:
        return _is_of(self._seat.answer, assignment)

    def is_chief(self) -> bool:
        return self._seat.answer.standing.chief

    def may_step(self, under_way: int = 0) -> bool:
        began_s = time.monotonic()
        while True:
            if self._stop.is_set():
                raise StopRequested("asked to stop")
            answer = self._seat.answer
            phase = answer.standing.phase
            if phase is Phase.FAILED:
                self._raise_if_over(answer)
            ends = phase in (Phase.DRAINING, Phase.DONE)
            if ends or self._gate is None or self._is_lost(answer) or self._gate.opens(LOOK_S, under_way):
                if self._gate is not None:
                    self._note_gate("")
                self._works_since_s = time.monotonic()
                return not ends
            if under_way:
                return False
            if time.monotonic() - began_s >= TELL_AFTER_S:
                self._note_gate(self._gate.reason)

    def next_turn(self, assignment: Assignment, done: Done | None) -> Turn | None:
        began_s, hold_s = time.monotonic(), min(TELL_AFTER_S, self._job.heartbeat_s)

        def is_wanted() -> bool:
            return not self._stop.is_set() and self.holds(assignment)

        while self.may_step() and self.holds(assignment):
            quick, self._turns_are_quick = self._turns_are_quick, False
            try:
                if quick:
                    turn = self._seat.take_turn(assignment, done, QUICK_S, None)
                else:
                    turn = self._seat.take_turn(assignment, done, hold_s, is_wanted)
            except (ReplacedError, UnreachableError) as error:
                if not quick:  # else it is asked at once again, in a call that may be called off
                    self._hold_on(error)
                continue
            done = None
            if turn is None:
                continue
            if turn.duty in (Duty.CONTRIBUTE, Duty.CLOSE):
                self._note_waiting("")
                self._turns_are_quick = time.monotonic() - began_s < QUICK_S / 2
                return turn
            if turn.duty is Duty.NONE:
                self._tell()  # the answer says what has become of the view
            elif time.monotonic() - began_s >= hold_s:
                self._note_waiting(turn.reason)
                hold_s = self._job.heartbeat_s
        return None

    def pushes(self) -> None:
        with self._lock:
            self._pushes += 1

    def stepped(self, global_step: int) -> None:
        with self._lock:
            self._steps += 1
            self._global_step = global_step
        self._pass_on(self._entered)
        limit = self._job.train_steps
        if limit is not None and global_step >= limit:
            self._tell()

    def pause(self, why: str) -> None:
        self._log("retry", reason=why)
        if self._stop.wait(PAUSE_S):
            raise StopRequested("asked to stop")

    def rest(self, assignment: Assignment) -> Rest:
        with self._lock:
            self._stopped = True
        self._tell()
        answer = self._wait(
            lambda a: (
                a.standing.close
                or not a.standing.phase.prepared
                or (a.standing.view, a.incarnation) != (assignment.view, assignment.incarnation)
            )
        )
        if answer.standing.phase is Phase.DONE:
            return Rest.OVER
        self._raise_if_over(answer)
        return Rest.CLOSE if answer.standing.close and self.holds(assignment) else Rest.RESUME

    def closed_part(self) -> None:
        with self._lock:
            self._closed_parts += 1

    def report_finished(self, assignment: Assignment) -> None:
        self._seat.report_finished(assignment)

    def _pass_on(self, assignment: Assignment | None) -> None:
        if self._gate is not None and assignment is not None:
            self._gate.at(assignment, self._steps)

    def _is_lost(self, answer: Answer) -> bool:
        """Whether there is nothing to wait for: the session finds out, and is opened anew, with a lead of 0."""
        return self._entered is None or not _is_of(answer, self._entered)

    def _ask(self) -> None:
        """Gets the coordinator's word of now: the last one may be from before this process was paused."""
        while True:
            try:
                self._seat.beat_now()
                return
            except (ReplacedError, UnreachableError) as error:
                self._hold_on(error)

    def _hold_on(self, error: ReplacedError | UnreachableError) -> None:
        """Before a call is repeated: the heartbeats find the same, and act on it."""
        self._raise_if_over(self._seat.answer)  # which raises what the seat failed with, too
        self._note_waiting(str(error))
        if self._stop.wait(PAUSE_S):
            raise StopRequested("asked to stop") from error

    def _tell(self) -> None:
        """Reports at once instead of with the next heartbeat; that one repairs it when this fails."""
        try:
            self._seat.beat_now()
        except (ReplacedError, UnreachableError) as error:
            self._log("report_failed", reason=error)

    def _wait(self, ready: Callable[[Answer], bool]) -> Answer:
        """Waits for an answer; from the second second on the log and the status say for what."""
        while True:
            answer = self._seat.wait_until(ready, TELL_AFTER_S)
            if answer is not None:
                self._note_waiting("")
                return answer
            self._note_waiting(self._what_for(self._seat.answer.standing))

    def _what_for(self, standing: Standing) -> str:
        if (standing.phase.prepared or standing.chief) and not standing.fenced_in:
            return "every ps to admit this worker"
        if self._stopped and standing.phase is Phase.TRAINING:
            return "the others to stop"
        return f"{standing.phase}: {standing.reason}"

    def _works(self) -> str:
        """What this worker is at, if that takes long; it is asked for here because nothing tells from outside."""
        work_s = time.monotonic() - self._works_since_s
        return f"its own work, for {work_s:.0f} s" if work_s >= WORK_S else ""

    def _note_gate(self, reason: str) -> None:
        """As `_note_waiting`, but one slow worker is one line in the log, however often it is waited for."""
        self._set_waiting(reason)
        if reason and reason != self._gate_told:
            self._log("waiting", reason=reason)
            self._gate_told = reason

    def _note_waiting(self, reason: str) -> None:
        self._set_waiting(reason)
        if reason and reason != self._told:
            self._log("waiting", reason=reason)
        self._told = reason

    def _set_waiting(self, reason: str) -> None:
        """For the status.  Without a reason this worker goes on with its own work: a step, its input, a checkpoint."""
        with self._lock:
            self._waiting = reason
            self._works_since_s = time.monotonic()

    @staticmethod
    def _raise_if_over(answer: Answer) -> None:
        if answer.standing.phase.over:
            raise over_error(answer.standing.phase, answer.standing.reason)


def _is_of(answer: Answer, assignment: Assignment) -> bool:
    """Whether the assignment's view is prepared, and the view and incarnation are those of the answer."""
    standing = answer.standing
    return standing.phase.prepared and standing.view == assignment.view and answer.incarnation == assignment.incarnation


def _can_open(answer: Answer) -> bool:
    """Whether there is a view to open a session on, or to prepare, or no hope for one."""
    standing = answer.standing
    usable = standing.phase.prepared or (standing.phase is Phase.PREPARING and standing.chief)
    return (usable and standing.fenced_in) or standing.phase.over
