"""What every part of one worker's training has in common: the coordinator, the results of steps, the run.

The coordinator is a ControlPlane: that of the job, or one for a worker that trains by itself for a while."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from psruntime.config import JobConfig
from psruntime.core.accounting.accounts import SentUpdate
from psruntime.core.members.messages import Assignment, Ending, Prepared
from psruntime.core.members.view import View
from psruntime.core.rounds.round_messages import Action, Report, Starved
from psruntime.core.shards.shard_messages import Position
from psruntime.errors import JobFailedError
from psruntime.graph.base.summary_writer import SummaryWriter
from psruntime.graph.input.batches import DataErrors
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.input.shard_reader import ShardSource
from psruntime.graph.step.train_graph import TrainGraph
from psruntime.observe.meter import StepTimes


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
        """Sets a callback that the thread of the steps calls now and then during a pause."""

    def may_step(self, under_way: int = 0) -> bool:
        """Whether a step may begin; False once the job drains.  Blocks during a pause, and in mode bounded while other
        workers are too far behind.

        under_way: steps of this worker that were begun and not reported as completed.  With any of them the call does
        not block, and is False during a pause or while others are too far behind.
        """

    def waits_for_shard(self, reason: str, no_step_under_way: bool = False) -> None:
        """Sets the reason why there is no batch, for people; empty: there is one, and a step begins.

        no_step_under_way: no step is under way.
        """

    def next_action(
        self, assignment: Assignment, report: Report | None, starved: Starved | None = None
    ) -> Action | None:
        """Mode sync: sends a report, and blocks until there is a next action; None: no rounds run any more.

        starved: this worker has no batch, so its actions are only to close rounds and to push again what it kept.  Once
        there may be a batch again the action is of the kind WAIT, and `report` is to be sent again.
        """

    def count_push(self) -> None:
        """Counts a push that is about to be sent, whether it arrives or not."""

    def stepped(self, global_step: int) -> None:
        """Counts a step that was completed; `global_step` as read after it."""

    def fails(self, reason: str) -> None:
        """Ends the job, once it is saved, for this failure; `await_end` is to follow, and raises at the end."""

    def await_end(self, assignment: Assignment) -> Ending:
        """Reports that this worker has stopped, and blocks until the coordinator decides how the view ends."""

    def saves(self, under_way: bool) -> None:
        """Reports whether a checkpoint is being written."""

    def saved(self, global_step: int) -> None:
        """Reports, as the chief, that a checkpoint of this global step is written."""

    def save_failed(self, cause: str) -> None:
        """Reports, as the chief, that a checkpoint could not be written."""

    def closed_part(self, doing: str = "") -> None:
        """Reports progress of the shutdown, the last checkpoint or a batch evaluated; resets the drain timeout.

        doing: the activity that the status shows.
        """

    def closes(self, doing: str) -> None:
        """Sets the activity that the status shows at the end of the job, without progress."""

    def report_finished(self, assignment: Assignment) -> None:
        """Reports, as the chief, that the last checkpoint is written."""

    def back_off(self, why: str) -> None:
        """Waits a moment before another try; the status shows the reason."""


@dataclass(frozen=True)
class StepResult:
    """The result of one step.

    finite: whether loss and gradient are.  staleness: the largest of the applied updates, in versions; None if there
    are none.  dropped: buckets that refused theirs.  counted: whether every bucket applied it or refused it for
    a final cause.  times: when it did what.  weight: of the batch, where a step returns it.
    """

    loss: float
    finite: bool
    global_step: int
    examples: int
    staleness: int | None
    dropped: int
    counted: bool = True
    times: StepTimes | None = None
    weight: float = 0.0


def require_finite(result: StepResult) -> None:
    """Raises JobFailedError unless loss and gradient of a step are finite numbers."""
    if not result.finite:
        at = f"at global step {result.global_step}"
        if math.isfinite(result.loss):
            what = f"the gradient is not finite {at}, though the loss is {result.loss:g}; it was not applied"
        else:
            what = f"the loss is {result.loss} {at}; its gradient was not applied"
        raise JobFailedError(f"{what} (--on-nan continue passes over such batches)")


@dataclass(frozen=True)
class Observers:
    """What is called with the results of the training.

    on_step: with the result of every step.  on_checkpoint: with the seconds that it took to copy and write one.
    on_saved: with the path of each checkpoint that is written here, and its global step.
    on_update: with every update and what became of it; None: updates are not recorded.
    summaries: the writer of the summaries; None: there are none.
    """

    on_step: Callable[[StepResult], None] = lambda _: None
    on_checkpoint: Callable[[float], None] = lambda _: None
    on_saved: Callable[[str, int], None] = lambda *_: None
    on_update: Callable[[SentUpdate], None] | None = None
    summaries: SummaryWriter | None = None


@dataclass(frozen=True)
class WorkerRun:
    """The training of worker `index`.

    inputs: its batches.  control_plane: the job, as the coordinator has it.  log: writes an event with its facts.
    data_errors: what becomes of a step that fails in the user's code.
    """

    graph: TrainGraph
    inputs: InputStream
    control_plane: ControlPlane
    job: JobConfig
    index: int
    log: Callable[..., None]
    data_errors: DataErrors = field(default_factory=DataErrors)
    observers: Observers = field(default_factory=Observers)


class TrainsNoMoreError(Exception):
    """The job does not train any more, or not in the view in which a worker began to train by itself."""


class AloneControl:
    """Of steps on ps of the worker's own, which it prepares itself, with no bound and without the others.

    The worker steps while the job trains in the view in which this began.  steps_left: that it has still to take.

    job: the control plane of the job.  Each method as in ControlPlane.
    """

    def __init__(self, job: ControlPlane) -> None:
        self.steps_left = 0
        self._job = job
        self._in_job: Assignment | None = None
        self._own: Assignment | None = None
        self._is_prepared = False
        self._global_step = 0  # of the job, which stays as it is

    def begin(self, in_job: Assignment, view: View, global_step: int, end: int) -> None:
        """Steps are to be taken from `global_step` to `end` on the ps of `view`, while `in_job` holds."""
        self._in_job, self._global_step, self.steps_left = in_job, global_step, end - global_step
        self._own, self._is_prepared = Assignment(view, in_job.incarnation, prepare=False), False

    @property
    def shards(self) -> Shards:
        return self._job.shards

    @property
    def mode(self) -> str:
        return "async"

    @property
    def bound(self) -> int | None:
        return None

    @property
    def learning_rate_scale(self) -> float:
        return self._job.learning_rate_scale

    def await_view(self) -> Assignment:
        """Raises TrainsNoMoreError."""
        if not self._goes_on:
            raise TrainsNoMoreError
        assert self._own is not None
        return Assignment(self._own.view, self._own.incarnation, prepare=not self._is_prepared)

    def report_prepared(self, assignment: Assignment, prepared: Prepared) -> None:  # noqa: ARG002
        self._is_prepared = True

    def report_obstacle(self, assignment: Assignment, obstacle: str) -> None:  # noqa: ARG002
        raise AssertionError(f"nothing keeps a worker from its own ps: {obstacle}")

    def no_session(self, assignment: Assignment, why: str) -> None:
        self._job.back_off(f"no session on view {assignment.view.number} of this worker's own: {why}")

    def is_current(self, assignment: Assignment) -> bool:
        return self._own is not None and assignment.view == self._own.view

    def is_chief(self) -> bool:
        return True

    def wants_checkpoint(self) -> bool:
        return False

    def may_step(self, under_way: int = 0) -> bool:
        return self.steps_left > under_way and self._goes_on

    @property
    def _goes_on(self) -> bool:
        assert self._in_job is not None
        return self._job.is_current(self._in_job) and self._job.may_step()

    def waits_for_shard(self, reason: str, no_step_under_way: bool = False) -> None:
        self._job.waits_for_shard(reason, no_step_under_way)

    def next_action(
        self,
        assignment: Assignment,  # noqa: ARG002
        report: Report | None,  # noqa: ARG002
        starved: Starved | None = None,  # noqa: ARG002
    ) -> Action | None:
        return None

    def stepped(self, global_step: int) -> None:  # noqa: ARG002
        self.steps_left -= 1
        self._job.stepped(self._global_step)

    def await_end(self, assignment: Assignment) -> Ending:  # noqa: ARG002
        return Ending.OVER

    def _ignored(self, *_args: object, **_kwargs: object) -> None:
        """The job does not learn of it."""

    entered = while_paused = count_push = fails = saves = saved = save_failed = closed_part = closes = (
        report_finished
    ) = _ignored

    def back_off(self, why: str) -> None:
        self._job.back_off(why)
