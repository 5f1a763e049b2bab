"""A worker's place in the job, as its training loop sees it (graph/place.py says what each method means)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from psruntime.config import JobConfig
from psruntime.core.facts import Answer, Assignment, Rest, WorkerBeat, WorkerStats
from psruntime.core.view import Phase, over_error
from psruntime.errors import ReplacedError, StopRequested, UnreachableError
from psruntime.rpc.seat import Seat

PAUSE_S = 0.3  # between two tries to open a session: a ps that comes back is noticed at once all the same
TELL_AFTER_S = 1.0  # a wait shorter than this is not worth a line in the log


class WorkerPlace:
    """Wraps a seat.  Construct it first, give `beat` to the seat, then `attach` the seat.

    `stats(waiting)` are the worker's own measurements.
    """

    def __init__(
        self, job: JobConfig, stats: Callable[[str], WorkerStats], stop: threading.Event, log: Callable[..., None]
    ) -> None:
        self._job = job
        self._stats = stats
        self._stop = stop
        self._log = log
        self._lock = threading.Lock()  # guards the facts of the next heartbeat
        self._entered: Assignment | None = None
        self._steps = 0
        self._global_step = 0
        self._stopped = False
        self._waiting = "starting"
        self._told = ""

    def attach(self, seat: Seat) -> None:
        self._seat = seat

    def beat(self) -> WorkerBeat:
        """The facts for the next heartbeat."""
        with self._lock:
            stats = self._stats(self._waiting)
            if self._entered is None or self._entered.incarnation != self._seat.incarnation:
                return WorkerBeat(stats=stats)  # what an earlier incarnation did does not count for this one
            return WorkerBeat(self._entered.view.number, self._steps, self._global_step, self._stopped, stats)

    def await_view(self) -> Assignment:
        self._ask()
        answer = self._wait(_can_open)
        self._raise_if_over(answer)
        prepare = answer.standing.phase is Phase.PREPARING
        return Assignment(answer.standing.view, answer.incarnation, prepare)

    def report_prepared(self, assignment: Assignment, global_step: int) -> None:
        self._seat.report_prepared(assignment, global_step)

    def entered(self, assignment: Assignment) -> None:
        with self._lock:
            self._entered = assignment
            self._steps = 0
            self._global_step = 0
            self._stopped = False

    def holds(self, assignment: Assignment) -> bool:
        answer = self._seat.answer
        standing = answer.standing
        return (
            standing.phase.prepared
            and standing.view == assignment.view
            and answer.incarnation == assignment.incarnation
        )

    def is_chief(self) -> bool:
        return self._seat.answer.standing.chief

    def may_step(self) -> bool:
        if self._stop.is_set():
            raise StopRequested("asked to stop")
        phase = self._seat.answer.standing.phase
        if phase is Phase.FAILED:
            self._raise_if_over(self._seat.answer)
        return phase not in (Phase.DRAINING, Phase.DONE)

    def stepped(self, global_step: int) -> None:
        with self._lock:
            self._steps += 1
            self._global_step = global_step
        if global_step >= self._job.train_steps:
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
                or a.standing.phase is not Phase.DRAINING
                or (a.standing.view, a.incarnation) != (assignment.view, assignment.incarnation)
            )
        )
        if answer.standing.phase is Phase.DONE:
            return Rest.OVER
        self._raise_if_over(answer)
        return Rest.CLOSE if answer.standing.close and self.holds(assignment) else Rest.RESUME

    def report_finished(self, assignment: Assignment) -> None:
        self._seat.report_finished(assignment)

    def _ask(self) -> None:
        """Gets the coordinator's word of now: the last one may be from before this process was paused."""
        while True:
            try:
                self._seat.beat_now()
                return
            except (ReplacedError, UnreachableError) as error:
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
            standing = self._seat.answer.standing
            self._note_waiting(f"{standing.phase}: {standing.reason}")

    def _note_waiting(self, reason: str) -> None:
        with self._lock:
            self._waiting = reason
        if reason and reason != self._told:
            self._log("waiting", reason=reason)
        self._told = reason

    @staticmethod
    def _raise_if_over(answer: Answer) -> None:
        if answer.standing.phase.over:
            raise over_error(answer.standing.phase, answer.standing.reason)


def _can_open(answer: Answer) -> bool:
    """Whether there is a view to open a session on, or to prepare, or no hope for one."""
    standing = answer.standing
    usable = standing.phase.prepared or (standing.phase is Phase.PREPARING and standing.chief)
    return (usable and standing.fenced_in) or standing.phase.over
