"""What a training loop asks of the coordinator and reports to it; rpc/worker/worker_control.py has the real one."""

from __future__ import annotations

from typing import Protocol

from psruntime.core.members.messages import Assignment, Prepared, Rest
from psruntime.core.rounds.round_messages import Done, Turn


class ControlPlane(Protocol):
    """The job, as one worker sees it and takes part in it.

    Every method may raise StopRequested, or the error that ended the membership or the job.
    """

    def await_view(self) -> Assignment:
        """Blocks until the view is prepared and every ps accepts this worker, or until it shall prepare it."""

    def report_prepared(self, assignment: Assignment, prepared: Prepared) -> None:
        """The chief has prepared the view."""

    def entered(self, assignment: Assignment) -> None:
        """This worker has a session on the view: its steps count from 0 there, once in each view and incarnation."""

    def holds(self, assignment: Assignment) -> bool:
        """Whether view and incarnation are still those of the assignment."""

    def is_chief(self) -> bool:
        """Whether this worker is the chief."""

    def may_step(self, under_way: int = 0) -> bool:
        """Whether training goes on; False once the job drains.  In mode bounded it blocks while others are behind.

        under_way: steps of this worker that were begun and not told as completed.  If there are any it does not block,
        but is False while others are behind: the bound is for the step that would begin.
        """

    def next_turn(self, assignment: Assignment, done: Done | None) -> Turn | None:
        """Mode sync: says what was done, and blocks until there is something to do; None: no rounds any more."""

    def pushes(self) -> None:
        """A push is about to be sent; whether it arrives is another matter."""

    def stepped(self, global_step: int) -> None:
        """One more step was completed; `global_step` as read after it."""

    def rest(self, assignment: Assignment) -> Rest:
        """Says that this worker has stopped, and blocks until it is clear what comes next."""

    def closed_part(self) -> None:
        """One more part of the end is done, the last checkpoint or a batch of the evaluation: this worker gets on."""

    def report_finished(self, assignment: Assignment) -> None:
        """The chief has written the last checkpoint."""

    def pause(self, why: str) -> None:
        """Waits a moment before another try, and lets the operator read why."""
