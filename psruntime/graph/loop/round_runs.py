"""The batches of a worker in mode sync, and the runs of a round that need none.

With data shards there may be none: others have the end of the epoch.  A round must not wait for that, because those
others may wait for the round.  So a worker without a batch says so instead, and takes no part in rounds until it has
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from psruntime.core.accounting.accounts import REPEATED, are_final
from psruntime.core.members.messages import Assignment
from psruntime.core.rounds.contribution import BucketOutcome, SectionState, torn
from psruntime.core.rounds.round_messages import Action, Applied, Broken, Complete, Starved, Taken
from psruntime.core.shards.shard_messages import ShardBatch
from psruntime.errors import JobFailedError
from psruntime.graph.base.types import Array, Session
from psruntime.graph.input.batches import Examples
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.input.shard_reader import DrawnBatch
from psruntime.graph.loop.step_runner import StepRunner
from psruntime.graph.session.worker_run import WorkerRun

Sent = TypeVar("Sent")


def sent_once(start: Callable[[], Callable[[], Sent]]) -> Callable[[object], Sent | None]:
    """What `run_step_fn` is to run of a contribution: None where a session was lost after it was sent.

    Some sections may have counted it, and others not, and where an operation failed a sum may have it uncounted: a
    repeat in the next session would add it once more.  start: makes ready what sends it; nothing is sent if that fails.
    """
    was_sent = False

    def step(step_context: object) -> Sent | None:  # noqa: ARG001
        nonlocal was_sent
        if was_sent:
            return None
        send = start()
        was_sent = True
        return send()

    return step


@dataclass(frozen=True)
class Batch:
    """The `number`-th that the worker took, from 0, in whatever mode.

    taken: of which examples, in 0 s; None if the input made it.
    """

    number: int
    arrays: list[Array]
    taken: Taken | None = None

    @property
    def of(self) -> tuple[ShardBatch, ...]:
        """Of which data shards it is; none without any."""
        return self.arrays.of if isinstance(self.arrays, DrawnBatch) else ()


class NoBatchError(Exception):
    """There is no batch now."""


class RoundBatches:
    """Batches of `inputs`, in order.

    shares: whether a batch has as many examples as the action has, instead of its own batch size; not for data shards.
    """

    def __init__(self, inputs: InputStream, shares: bool = False) -> None:
        self._inputs = inputs
        self._examples = Examples(inputs.draw_endlessly, inputs.name) if shares else None
        self._number = inputs.drawn  # batches of shares, and those that steps of another mode drew
        self._ahead: Batch | None = None
        self._is_idle = False  # there was none when one was drawn last

    def next(self, share: int) -> Batch:
        """The next one.  share: its number of examples; 0: the batch size of the input.

        Raises:
            NoBatchError: there is none now.
            UsageError: the input has no batch, or one that cannot be cut.
            UserCodeError: it failed.
        """
        if self._ahead is None and self._examples:
            self._ahead = self._cut(self._examples, share)
        elif self._ahead is None:
            self._draw()
        batch, self._ahead = self._ahead, None
        if batch is None:
            raise NoBatchError
        return batch

    def keep(self, batch: Batch) -> None:
        """It was drawn too early: it is the next one."""
        self._ahead = batch

    def pass_over(self, batch: Batch) -> None:
        """It was given up, and counts as read."""
        self._inputs.applied(batch.arrays)

    def put_back(self, batch: Batch) -> None:
        """It is not in the variables, and will not be as it was computed."""
        self._inputs.put_back(batch.arrays)

    def leave(self) -> None:
        """Gives the input back: another loop continues with it."""
        if self._ahead:
            self._inputs.give_back(self._ahead.arrays)
            self._ahead = None

    def starved(self, since: int) -> Starved | None:
        """What to say while there is no batch, None while there may be one.  Does not wait.  since: as in Starved."""
        while self._inputs.shards and self._ahead is None and self._inputs.is_ready:
            self._draw()
            if self._is_idle:
                break
        if self._inputs.shards is None or self._ahead or not self._is_idle:
            return None
        return Starved(since, self._inputs.why_none, lambda: self._inputs.is_ready)

    def _draw(self) -> None:
        arrays = self._inputs.draw_if_any()
        self._is_idle = arrays is None
        if arrays is not None:
            self._ahead = Batch(self._inputs.drawn - 1, arrays)

    def _cut(self, examples: Examples, share: int) -> Batch:
        own, first = examples.batch_size, examples.taken
        size = share or own
        batch = Batch(self._number, examples.take(size), Taken(first, size, own, seconds=0.0))
        self._number += 1
        return batch


class RoundRuns:
    """Those of one worker."""

    def __init__(self, run: WorkerRun, runner: StepRunner) -> None:
        assert run.graph.rounds is not None
        self._rounds = run.graph.rounds
        self._clip_norm = run.graph.model.spec.clip_norm
        self._stop_on_nan = run.job.stops_on_nan
        self._control_plane = run.control_plane
        self._index = run.index
        self._runner = runner

    def push_id(self, assignment: Assignment, attempt: int) -> tuple[int, int, int, int]:
        """As PushRequest.values takes it."""
        return self._index, assignment.incarnation, attempt, assignment.incarnation

    def close_request(self, assignment: Assignment, closes: Complete | None, factor: float | None = None) -> Array:
        """The header, int64 [size], of a run that closes this round, or none.  factor: by default, that of the mean."""
        if closes is None:
            return self._rounds.request.nothing
        push_id = self.push_id(assignment, closes.attempt)
        factor = 1.0 / closes.examples if factor is None else factor
        request = self._rounds.request.values(push_id, closes.round - 1, members=closes.members, factor=factor)
        if (odd := self._rounds.request.odd_rate) and factor > 0 and not closes.local:
            raise JobFailedError(f"{odd}, so round {closes.round} was not applied, and none could be after it")
        return request

    def contribute(
        self, session: Session, assignment: Assignment, action: Action, scale: float
    ) -> list[BucketOutcome] | None:
        """Pushes what is kept; the outcomes, of each bucket.  None: it was cut off.

        scale: multiply what is kept by it to get the sum over its examples; 0: it does not count.
        """
        push_id = self.push_id(assignment, action.attempt)
        is_chief = self._control_plane.is_chief()
        request = self._rounds.request.values(
            push_id, action.round - 1, finite=scale > 0, scale=scale, is_chief=is_chief
        )

        def start() -> Callable[[], list[Array]]:
            run = self._runner.round_run("contribute")
            self._control_plane.count_push()
            return lambda: run(request)

        outcomes: list[Array] | None = session.run_step_fn(sent_once(start))
        return None if outcomes is None else outcomes_of(outcomes)

    def close(self, session: Session, assignment: Assignment, closes: Complete) -> Applied | Broken | None:
        """Applies the round by itself, also one that another worker began to apply; None: this worker is fenced.

        Raises:
            JobFailedError: the norm of the gradient is not finite, or no batch of a local round counts.
        """
        factor = self._factor(session, closes)
        request = self.close_request(assignment, closes, factor)
        run = ("close_local", request, [closes.round]) if closes.local else ("close", request)
        states = [SectionState(*row) for of_ps in self._run(session, *run) for row in of_ps.tolist()]
        if reason := torn(states, closes):
            return Broken(closes.round, closes.attempt, reason)
        if any(section.applied != closes.attempt for section in states):
            return None  # fenced: another incarnation is at work
        return Applied(closes.round, closes.attempt, closes.round if factor > 0 else closes.round - 1)

    def _factor(self, session: Session, closes: Complete) -> float:
        """What makes the joint gradient of the sum: the mean over all examples, within clip_norm.  0: apply nothing.

        Of a local round it makes the mean change, which has no limit: without one the job could not continue after it.
        """
        if closes.examples == 0 and closes.local:
            raise JobFailedError(
                f"no batch of the local stage to global step {closes.round} had a finite loss and a weight above 0"
            )
        if closes.examples == 0:
            return 0.0
        if self._clip_norm is None or closes.local:
            return 1.0 / closes.examples
        squares = self._run(session, "squares")
        norm = math.sqrt(sum(map(float, squares))) / closes.examples
        if not math.isfinite(norm):
            if self._stop_on_nan:
                raise JobFailedError(f"the norm of the gradient of round {closes.round} is {norm}; it was not applied")
            return 0.0
        return self._clip_norm / max(norm, self._clip_norm) / closes.examples

    def _run(self, session: Session, name: str, *fed: Array) -> Any:
        def run(step_context: object) -> Any:  # noqa: ARG001
            return self._runner.round_run(name)(*fed)

        return session.run_step_fn(run)


def are_accepted(outcomes: Sequence[BucketOutcome]) -> bool:
    """Whether every bucket took the contribution."""
    return are_final(outcome.verdict for outcome in outcomes)


def positions(outcomes: Sequence[BucketOutcome]) -> tuple[int, ...]:
    """As in Pushed, of one that was accepted; none where a bucket had taken an earlier try of it."""
    if any(outcome.verdict == REPEATED for outcome in outcomes):
        return ()
    of_buckets = tuple(outcome.position for outcome in outcomes)
    return of_buckets[:1] if len(set(of_buckets)) == 1 else of_buckets


def outcomes_of(fetched: Sequence[Array]) -> list[BucketOutcome]:
    """fetched: of each ps, int64 [buckets, 3]."""
    return [BucketOutcome(*row) for of_ps in fetched for row in of_ps.tolist()]
