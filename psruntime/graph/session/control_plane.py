"""What a training loop asks of the coordinator and reports to it; rpc/worker/worker_control.py has the real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from psruntime.core.members.messages import Assignment, Ending, Prepared
from psruntime.core.rounds.round_messages import Action, Report, Starved
from psruntime.core.shards.shard_messages import Position
from psruntime.graph.input.shard_reader import ShardSource


class Shards(ShardSource, Protocol):
    """The data shards of the job."""

    def position(self) -> Position:
        """How far the job is with them.  What is done by then is in what is read of the variables after it.

        Raises:
            CheckpointError: it is not known.
        """


class ControlPlane(Protocol):
    """The job, as one worker sees it and takes part in it.

    Every method may raise StopRequested, or the error that ended the membership or the job.
    """

    @property
    def shards(self) -> Shards:
        """The data shards; for an input that is read by them."""

    @property
    def mode(self) -> str:
        """The mode in force."""

    @property
    def bound(self) -> int | None:
        """The bound in force; None unless the mode is bounded."""

    @property
    def learning_rate_scale(self) -> float:
        """By which every learning rate is multiplied."""

    def await_view(self) -> Assignment:
        """Blocks until the view is prepared and every ps accepts this worker, or until it shall prepare it."""

    def report_prepared(self, assignment: Assignment, prepared: Prepared) -> None:
        """Reports, as the chief, that the view is prepared."""

    def report_obstacle(self, assignment: Assignment, obstacle: str) -> None:
        """Reports, as the chief, why this worker cannot prepare the view: another one becomes chief."""

    def no_session(self, assignment: Assignment, why: str) -> None:
        """Reports that no session on the view came about, and waits a moment before another try.

        One that has not come about for long although its view is that of the others ends this worker, where they wait
        for it.
        """

    def entered(self, assignment: Assignment) -> None:
        """Reports that this worker has a session on the view.  Its steps count from 0 in each view and incarnation."""

    def is_current(self, assignment: Assignment) -> bool:
        """Whether view and incarnation are still those of the assignment."""

    def is_chief(self) -> bool:
        """Whether this worker is the chief."""

    def wants_checkpoint(self) -> bool:
        """Whether a checkpoint is due at once: a ps is about to leave, or an operator wants it."""

    def while_paused(self, act: Callable[[], None]) -> None:
        """`act` is called now and then by the thread that steps, while no step may begin because of a hold."""

    def may_step(self, under_way: int = 0) -> bool:
        """Whether a step may begin; False once the job drains.  It blocks during a hold, and in mode bounded while
        others are behind.

        under_way: steps of this worker that were begun and not reported as completed.  If there are any it does not
        block, but is False during a hold or while others are behind: the bound is for the step that would begin.
        """

    def waits_for_shard(self, reason: str, no_step_under_way: bool = False) -> None:
        """Shows why there is no batch, and so no step, at the moment; empty: there is one, and a step begins.

        no_step_under_way: no step is under way.
        """

    def next_action(
        self, assignment: Assignment, report: Report | None, starved: Starved | None = None
    ) -> Action | None:
        """Mode sync: reports what was done, and blocks until there is something to do; None: no rounds any more.

        idle: this worker has no batch, so it has nothing to do but to close rounds, and to push again what it kept;
        once that is over the answer is a turn of the duty WAIT, and `done` is to be reported again.
        """

    def count_push(self) -> None:
        """Counts a push that is about to be sent, whether it arrives or not."""

    def stepped(self, global_step: int) -> None:
        """Counts a step that was completed; `global_step` as read after it."""

    def fails(self, reason: str) -> None:
        """The job ends for what failed here, once it is saved: `await_end` is to follow, and raises when it has."""

    def await_end(self, assignment: Assignment) -> Ending:
        """Reports that this worker has stopped, and blocks until it is clear what comes next."""

    def saves(self, under_way: bool) -> None:
        """Says that a checkpoint is being written, or no longer."""

    def saved(self, global_step: int) -> None:
        """Reports, as the chief, that a checkpoint of this global step is written."""

    def closed_part(self, doing: str = "") -> None:
        """Reports progress of the shutdown, the last checkpoint or a batch evaluated; resets the drain timeout.

        doing: what the status says that this worker does.
        """

    def closes(self, doing: str) -> None:
        """Lets the status say what this worker does for the end of the job, without progress."""

    def report_finished(self, assignment: Assignment) -> None:
        """Reports, as the chief, that the last checkpoint is written."""

    def back_off(self, why: str) -> None:
        """Waits a moment before another try; the status shows why."""
