"""Steps of the sync mode: a worker carries out actions.  It keeps a gradient, pushes it, and closes the round before.

A batch is drawn for a round and kept until another round asks for another one.  A contribution is repeated
with what was kept when the attempt became void, or computed again from the same batch in a new view, unless
its round turned out to be closed.  Until it is, the batch of the next one waits.  A contribution is sent to an attempt
once: one that is cut off makes the attempt void.

With backup workers a gradient is only kept at first, and contributed when the coordinator says that it is among the
first of the round.  One that is not is dropped, and its batch with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import SentUpdate, UpdateOutcome, contribution, too_late, word_of
from psruntime.core.members.messages import Assignment
from psruntime.core.rounds.contribution import BucketOutcome, Kept, Use, has_closed, use_of
from psruntime.core.rounds.round_messages import (
    Action,
    ActionKind,
    Applied,
    Broken,
    Complete,
    Computed,
    CutOff,
    Pushed,
    Report,
    Starved,
    Taken,
)
from psruntime.errors import UserCodeError
from psruntime.graph.base.errors import failed_operation
from psruntime.graph.base.graphs import ancestors
from psruntime.graph.base.types import Feed, Session
from psruntime.graph.loop.local_training import LocalRounds
from psruntime.graph.loop.round_runs import (
    Batch,
    NoBatchError,
    RoundBatches,
    RoundRuns,
    are_accepted,
    outcomes_of,
    positions,
    sent_once,
)
from psruntime.graph.loop.step_runner import Ran, StepRunner
from psruntime.graph.session.session import ViewSessionCreator
from psruntime.graph.session.worker_run import StepResult, WorkerRun, require_finite
from psruntime.graph.step.train_graph import RoundGraph
from psruntime.observe.meter import ROUND


@dataclass(frozen=True, kw_only=True)
class _Kept(Kept):
    """A gradient in the worker's variables, and what it is of.

    weight: of its batch, 0 if it does not count.  divisor: what it was divided by.  taken: as in Pushed.
    loss: of its batch.
    """

    assignment: Assignment
    batch: Batch
    weight: float
    divisor: int
    taken: Taken | None
    loss: float


class RoundLoop:
    """Carries out a worker's actions in the rounds of the job.

    A step that failed in the user's code is repeated (input/batches.py), in the next attempt if it may have pushed.
    Instead of a batch that is given up the next one takes part in the same round.

    on_step: called with the result of every contribution.  has_stopped: as in AsyncLoop.  An update is the gradient
        in a round.  local: for local rounds; None: the job has none.
    """

    def __init__(
        self,
        run: WorkerRun,
        creator: ViewSessionCreator,
        runner: StepRunner,
        on_step: Callable[[StepResult], None],
        has_stopped: Callable[[], bool],
        local: LocalRounds | None = None,
    ) -> None:
        assert run.graph.rounds is not None
        self._graph = run.graph
        self._rounds: RoundGraph = run.graph.rounds
        self._inputs = run.inputs
        self._control_plane = run.control_plane
        self._index = run.index
        self._stop_on_nan = run.job.stops_on_nan
        self._only_keeps = run.job.backup_workers > 0  # what a step does with its gradient
        self._data_errors = run.data_errors
        self._creator = creator
        self._runner = runner
        self._runs = RoundRuns(run, runner)
        self._local = local
        self._on_step = on_step
        self._has_stopped = has_stopped
        self._batches = RoundBatches(run.inputs, run.job.has_shares)
        self._kept: _Kept | None = None
        self._failed: tuple[Batch, int] | None = None  # a batch that was cut off, and how often it has failed
        self._on_update = run.observers.on_update
        self._buckets = sum(len(rounds.sums) for rounds in run.graph.rounds.sections) - 1  # without the global step's
        self._waited_s = 0.0  # for actions, since the last update was recorded
        self._waits_s: float | None = None  # since when for the next action with a batch, in s since 1970

    def run(self, session: Session) -> None:
        """Carries out actions until no rounds run; a worker that has stopped takes part in no further round.

        Raises:
            JobFailedError: the loss is not finite, and that ends the job.
        """
        report: Report | None = None
        while True:
            assignment = self._creator.assignment
            came_s = time.monotonic()
            self._waits_s = self._waits_s or time.time()
            action = self._control_plane.next_action(assignment, report, self._starved(assignment))
            self._waited_s += time.monotonic() - came_s
            if action is None:
                return
            if action.kind is ActionKind.WAIT:
                continue  # there may be a batch again
            stops = self._has_stopped() and self._needs_gradient(assignment, action)
            if stops and action.closes is None:
                return
            try:
                if action.closes and (stops or action.kind is ActionKind.APPLY):
                    report = self._runs.close(session, assignment, action.closes)
                elif action.local:
                    report = self._train_alone(session, assignment, action)
                elif action.kind is ActionKind.COMPUTE:
                    report = self._keep(session, assignment, action)
                else:
                    report = self._contribute(session, assignment, action)
            except NoBatchError:
                report = None  # the next request for an action reports that
                if self._kept and self._kept.assignment != assignment:
                    self._kept = None  # it is not wanted any more, so that was no reason to take part
            if self._creator.assignment != assignment:
                report = None  # it was pushed to ps that are no longer those of the view

    def leave(self) -> None:
        """The batch of a gradient that no round took is the next one."""
        self._batches.leave()
        if self._kept and not self._kept.pushed:
            self._inputs.give_back(self._kept.batch.arrays)
        self._kept = None

    def _starved(self, assignment: Assignment) -> Starved | None:
        """Whether there is a batch for rounds after the one of which a gradient is kept."""
        kept = self._kept
        if kept and (kept.assignment != assignment or not kept.pushed):
            return None  # its batch is still wanted, or may be
        return self._batches.starved(kept.opened if kept else 0)

    def _needs_gradient(self, assignment: Assignment, action: Action) -> bool:
        return action.kind.is_of_gradient and self._use_of_kept(assignment, action) is not Use.AGAIN

    def _use_of_kept(self, assignment: Assignment, action: Action) -> Use:
        is_of_view = self._kept is not None and self._kept.assignment == assignment
        return use_of(self._kept, is_of_view, action, self._only_keeps)

    def _keep(self, session: Session, assignment: Assignment, action: Action) -> Report | None:
        """Keeps a gradient for the round, which is not pushed yet."""
        if self._needs_gradient(assignment, action):
            outcomes = self._compute(session, assignment, action)
            assert outcomes is not None, "a step that only keeps its gradient is repeated"
            if action.closes and not has_closed(outcomes, action.closes):
                return self._runs.close(session, assignment, action.closes)  # then the batch is computed again
        kept = self._kept
        assert kept is not None
        return Computed(action.round, action.opened, kept.batch.number, kept.weight)

    def _contribute(self, session: Session, assignment: Assignment, action: Action) -> Report | None:
        compute = self._needs_gradient(assignment, action)
        outcomes = (self._compute if compute else self._contribute_again)(session, assignment, action)
        if outcomes is None:
            return CutOff(action.round, action.attempt)
        if action.closes and not has_closed(outcomes, action.closes):
            return self._why_not_closed(session, assignment, action, action.closes)
        if not are_accepted(outcomes):
            return None  # void or fenced: the next action follows from that
        kept = self._kept
        assert kept is not None
        if self._creator.assignment == assignment:  # else it was pushed to ps that are no longer those of the view
            self._kept = replace(kept, pushed=action.attempt)
        self._record_update(kept, action.round, action.attempt, contribution(self._buckets, kept.weight > 0))
        apart = self._graph.model.spec.clip_norm is not None
        batch = kept.batch
        return Pushed(
            action.round,
            action.attempt,
            batch.number,
            kept.weight,
            apart,
            kept.taken,
            batch.of,
            kept.divisor,
            positions(outcomes),
        )

    def _train_alone(self, session: Session, assignment: Assignment, action: Action) -> Report | None:
        """What this worker has come to by itself, where the round is local."""
        assert self._local is not None
        if self._use_of_kept(assignment, action) is Use.SPENT:
            self._kept = None  # later actions name this round as the last that counts
        report = self._local.contribute(session, assignment, action, self._runs)
        self._waits_s = None
        if isinstance(report, Pushed) and self._on_update:
            waited_s, self._waited_s = self._waited_s, 0.0
            view, trained = word_of(assignment.view), self._local.trained
            assert trained is not None
            outcome = contribution(self._buckets, trained.weight > 0)
            self._on_update(
                SentUpdate(action.attempt, view, action.round, outcome, trained.loss, trained.examples, waited_s)
            )
        return report

    def _record_update(self, kept: _Kept, number: int, attempt: int, outcome: UpdateOutcome) -> None:
        if self._on_update:
            waited_s, self._waited_s = self._waited_s, 0.0
            view, examples = word_of(kept.assignment.view), self._inputs.examples(kept.batch.arrays)
            self._on_update(SentUpdate(attempt, view, number, outcome, kept.loss, examples, waited_s))

    def _why_not_closed(
        self, session: Session, assignment: Assignment, action: Action, closes: Complete
    ) -> Broken | None:
        """The report of a step that pulled a bucket without the round before; None: this worker is fenced."""
        found = self._runs.close(session, assignment, closes)
        if isinstance(found, Applied):  # by now; but the gradient may be in the sums of this round, which others know
            return Broken(
                action.round, action.attempt, f"a bucket was pulled while round {closes.round} was applied to it"
            )
        return found

    def _compute(self, session: Session, assignment: Assignment, action: Action) -> list[BucketOutcome] | None:
        """Closes the round before, contributes the gradient of a batch, and keeps it; the outcomes.

        None: it was cut off, and is to be computed again.
        """
        began_s = time.monotonic()
        requests = {
            self._graph.request.fed: self._graph.request.values(
                self._runs.push_id(assignment, action.attempt), is_chief=self._control_plane.is_chief()
            ),
            self._rounds.request.fed: self._runs.close_request(assignment, action.closes),
        }
        divisor = 1
        if self._graph.mean_divisor is not None:
            divisor = action.closes.members if action.closes else 1  # as many as now, unless some came or went
            requests[self._graph.mean_divisor] = divisor
        use = self._use_of_kept(assignment, action)
        if use is Use.LATE and self._kept:
            self._record_update(self._kept, self._kept.round, self._kept.opened, too_late(self._buckets))
        draws_s = time.time()
        stepped = self._step(session, self._batch_for(use, action), requests, action.share)
        if stepped is None:
            return None
        batch, ran = stepped
        fetched, times = ran.fetched, ran.times(ROUND, self._waits_s or draws_s, draws_s)
        self._waits_s = None
        taken = replace(batch.taken, seconds=time.monotonic() - began_s) if batch.taken else None
        outcomes = outcomes_of(fetched["outcomes"])
        read = (float(fetched["loss"]), bool(fetched["finite"]), int(fetched["global_step"]))
        dropped = len(outcomes) if use is Use.LATE else 0
        result = StepResult(*read, self._inputs.examples(batch.arrays), staleness=0, dropped=dropped, times=times)
        closed = action.closes is None or has_closed(outcomes, action.closes)
        if closed:
            weight = float(fetched["examples"])
            self._kept = _Kept(
                round=action.round, opened=action.opened, assignment=assignment, batch=batch, weight=weight,
                divisor=divisor, taken=taken, loss=result.loss,
            )  # fmt: skip
        elif self._kept is None or batch is not self._kept.batch:
            self._batches.keep(batch)
        self._control_plane.stepped(result.global_step)
        self._on_step(result)
        if self._stop_on_nan and closed:  # else it may be of parameters that were applied in part
            if action.closes and not result.finite:  # there is no contribution that would tell of it
                self._control_plane.next_action(
                    assignment, Applied(action.closes.round, action.closes.attempt, action.closes.round)
                )
            require_finite(result)
        return outcomes

    def _step(self, session: Session, batch: Batch, requests: Feed, share: int) -> tuple[Batch, Ran] | None:
        """Runs the step with a batch, or with the next if that is given up; (the one that worked, its results).

        None: it was cut off; unless the batch is given up, it is the next one.
        """
        failures = self._failed[1] if self._failed and self._failed[0] is batch else 0
        self._failed = None
        while True:
            if self._graph.model.spec.examples is None and (refusal := self._inputs.miscounted(batch.arrays)):
                trained = self._runner.global_step > 0  # in another mode, for example: it is saved before the job ends
                self._data_errors.skip(UserCodeError(str(refusal)) if trained else refusal)
                self._batches.pass_over(batch)
                batch, failures = self._batches.next(share), 0
                continue
            feed = {**requests, **dict(zip(self._graph.model.batch, batch.arrays, strict=True))}
            try:
                ran: Ran | None = session.run_step_fn(self._with(feed))
            except tf1.errors.OpError as error:
                failures += 1
                gives_up = self._data_errors.step_failed(error, self._graph.graph, failures)
                if gives_up:
                    self._batches.pass_over(batch)
                    if self._kept and self._kept.batch is batch:
                        self._kept = None
                if self._may_have_pushed(error):
                    if not gives_up:
                        self._keep_next(batch, failures)
                    return None
                if gives_up:
                    batch, failures = self._batches.next(share), 0
                continue
            if ran is None:
                self._keep_next(batch, failures)
                return None
            self._data_errors.succeeded()
            return batch, ran

    def _keep_next(self, batch: Batch, failures: int) -> None:
        """Keeps the batch of a step that was cut off for the next one.  failures: of the step with it."""
        self._failed = batch, failures
        if self._kept is None or batch is not self._kept.batch:
            self._batches.keep(batch)

    def _may_have_pushed(self, error: tf1.errors.OpError) -> bool:
        """Whether a step that failed may have contributed: not if it failed in what every push waits for."""
        failed = failed_operation(error, self._graph.graph)
        return not self._only_keeps and failed not in ancestors([self._graph.step["finite"]])

    def _with(self, feed: Feed) -> Callable[[Any], Ran | None]:
        def start() -> Callable[[], Ran]:
            started = self._runner.start(feed)
            if not self._only_keeps:
                self._control_plane.count_push()

            def send() -> Ran:
                ran = started.run()
                return ran._replace(fetched=self._runner.finish(started, ran))

            return send

        return (lambda _: start()()) if self._only_keeps else sent_once(start)

    def _batch_for(self, use: Use, action: Action) -> Batch:
        """The next, unless the one of the kept gradient is wanted.  One that no round has is read again, by shards."""
        kept = self._kept
        if kept and use is Use.ANEW:
            return kept.batch
        if kept and use in (Use.LATE, Use.UNUSED) and kept.batch.of:
            self._batches.put_back(kept.batch)
            self._kept = None
        return self._batches.next(action.share)

    def _contribute_again(self, session: Session, assignment: Assignment, action: Action) -> list[BucketOutcome] | None:
        """What was kept, because the attempt was void; the outcomes, None if it was cut off."""
        assert self._kept is not None
        return self._runs.contribute(session, assignment, action, self._kept.weight * self._kept.divisor)
