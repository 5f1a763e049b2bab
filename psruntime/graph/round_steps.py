"""Steps of the sync mode: a worker takes turns.  It keeps a gradient and contributes it; the chief closes.

A batch is drawn for a round and kept until another round asks for another one.  A contribution is repeated
with what was kept when the attempt became void, or computed again from the same batch in a new view, unless
its round turned out to be closed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from psruntime.core.facts import Assignment
from psruntime.core.ledger import NOT_FINITE, PENDING, REPEATED
from psruntime.core.rounds import Closed, Contribution, Done, Duty, Torn, Turn
from psruntime.errors import JobFailedError
from psruntime.graph.close import torn
from psruntime.graph.inputs import InputStream
from psruntime.graph.place import Place
from psruntime.graph.round_graph import RoundGraph
from psruntime.graph.round_store import APPLIED_ATTEMPT
from psruntime.graph.session import ViewSessionCreator
from psruntime.graph.step_runner import StepRunner
from psruntime.graph.steps import StepResult, require_finite
from psruntime.graph.training import TrainGraph

ACCEPTED = (PENDING, NOT_FINITE, REPEATED)  # repeated: a session was lost after the ps had taken the first try


@dataclass(frozen=True)
class _Kept:
    """A gradient in the worker's variables, and what it is of.  pushed: a contribution of it was accepted."""

    assignment: Assignment
    round: int
    opened: int
    weight: float
    pushed: bool = False


class RoundSteps:
    """Worker `index`.  on_step: called with the result of every contribution.  has_stopped: as of PushSteps."""

    def __init__(
        self,
        graph: TrainGraph,
        inputs: InputStream,
        place: Place,
        creator: ViewSessionCreator,
        runner: StepRunner,
        index: int,
        stop_on_nan: bool,
        on_step: Callable[[StepResult], None],
        has_stopped: Callable[[], bool],
    ) -> None:
        assert graph.rounds is not None
        self._graph = graph
        self._rounds: RoundGraph = graph.rounds
        self._inputs = inputs
        self._place = place
        self._creator = creator
        self._runner = runner
        self._index = index
        self._stop_on_nan = stop_on_nan
        self._on_step = on_step
        self._has_stopped = has_stopped
        self._batch: list[Any] | None = None
        self._batch_number = -1  # of `_batch` in the input, from 0
        self._kept: _Kept | None = None

    def run(self, session: Any) -> None:
        """Takes turns until no rounds are held; one that has stopped takes part in no further round.

        Raises:
            JobFailedError: the loss is not finite, and that ends the job.
        """
        done: Done | None = None
        while True:
            assignment = self._creator.assignment
            assert assignment is not None
            turn = self._place.next_turn(assignment, done)
            if turn is None or (self._has_stopped() and self._needs_gradient(assignment, turn)):
                return
            done = (self._close if turn.duty is Duty.CLOSE else self._contribute)(session, assignment, turn)
            if self._creator.assignment != assignment:
                done = None  # it was said to ps that are no longer those of the view

    def _needs_gradient(self, assignment: Assignment, turn: Turn) -> bool:
        kept = self._kept
        held = kept is not None and (kept.assignment, kept.opened) == (assignment, turn.opened)
        return turn.duty is Duty.CONTRIBUTE and not held

    def _contribute(self, session: Any, assignment: Assignment, turn: Turn) -> Contribution | None:
        compute = self._needs_gradient(assignment, turn)
        outcomes = (self._compute if compute else self._contribute_again)(session, assignment, turn)
        if not np.isin(outcomes[:, 0], ACCEPTED).all():
            return None  # void or fenced: the next turn says what follows
        kept = self._kept
        assert kept is not None
        self._kept = replace(kept, pushed=True)
        return Contribution(turn.round, turn.attempt, self._batch_number, kept.weight)

    def _compute(self, session: Any, assignment: Assignment, turn: Turn) -> Any:
        """Contributes the gradient of the batch, and keeps it; the outcomes.

        Draws a batch unless that of a round in an earlier view is still wanted.  It is not if it was pushed and the
        round is behind: that closed, also where nobody heard of it.
        """
        kept = self._kept
        same_batch = (
            kept is not None and kept.assignment != assignment and not (kept.pushed and kept.round < turn.round)
        )
        if self._batch is None or not same_batch:
            self._batch = self._inputs.draw_endlessly()
            self._batch_number += 1
        feed = dict(zip(self._graph.model.batch, self._batch, strict=True))
        feed[self._graph.header.fed] = self._graph.header.values(self._push_id(assignment, turn))

        def step(step_context: Any) -> dict[str, Any]:  # noqa: ARG001
            started = self._runner.start(feed)
            self._place.pushes()
            return self._runner.finish(started, started.run())

        fetched = session.run_step_fn(step)
        result = StepResult(
            float(fetched["loss"]), int(fetched["global_step"]), self._inputs.examples(self._batch), 0, 0
        )
        self._kept = _Kept(assignment, turn.round, turn.opened, float(fetched["examples"]))
        self._place.stepped(result.global_step)
        self._on_step(result)
        if self._stop_on_nan:
            require_finite(result.loss, result.global_step)
        return np.concatenate(fetched["outcomes"])

    def _contribute_again(self, session: Any, assignment: Assignment, turn: Turn) -> Any:
        """What was kept, because the attempt was void; the outcomes."""
        assert self._kept is not None
        push_id = self._push_id(assignment, turn)
        header = self._rounds.header.values(push_id, turn.round - 1, finite=self._kept.weight > 0)

        def contribute(step_context: Any) -> list[Any]:  # noqa: ARG001
            run = self._runner.round_run("contribute")
            self._place.pushes()
            outcomes: list[Any] = run(header)
            return outcomes

        return np.concatenate(session.run_step_fn(contribute))

    def _close(self, session: Any, assignment: Assignment, turn: Turn) -> Closed | Torn | None:
        """Applies the round, also one that a chief before began to apply."""
        factor = self._factor(session, turn)
        push_id = self._push_id(assignment, turn)
        header = self._rounds.header.values(push_id, turn.round - 1, members=turn.members, factor=factor)
        books = np.concatenate(self._run(session, "close", header))
        if reason := torn(books, turn):
            return Torn(turn.round, turn.attempt, reason)
        if not (books[:, APPLIED_ATTEMPT] == turn.attempt).all():
            return None  # fenced: another chief is at work
        return Closed(turn.round, turn.attempt, turn.round if factor > 0 else turn.round - 1)

    def _factor(self, session: Any, turn: Turn) -> float:
        """What makes the joint gradient of the sum: the mean over all examples, within clip_norm.  0: apply nothing."""
        if turn.examples == 0:
            return 0.0
        clip_norm = self._graph.model.spec.clip_norm
        if clip_norm is None:
            return 1.0 / turn.examples
        squares = self._run(session, "squares")
        norm = math.sqrt(sum(map(float, squares))) / turn.examples
        if not math.isfinite(norm):
            if self._stop_on_nan:
                raise JobFailedError(f"the norm of the gradient of round {turn.round} is {norm}; it was not applied")
            return 0.0
        return clip_norm / max(norm, clip_norm) / turn.examples

    def _run(self, session: Any, name: str, *header: Any) -> Any:
        def run(step_context: Any) -> Any:  # noqa: ARG001
            return self._runner.round_run(name)(*header)

        return session.run_step_fn(run)

    def _push_id(self, assignment: Assignment, turn: Turn) -> tuple[int, int, int, int]:
        return self._index, assignment.incarnation, turn.attempt, assignment.incarnation
