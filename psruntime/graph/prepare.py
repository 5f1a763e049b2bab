"""What the chief does before a view may be used: initialise, restore or adopt its variables.

    every ps fresh                 restore the newest checkpoint, or initialise
    every ps prepared              adopt: live variables are never rolled back
    some fresh (a ps was replaced) all back to the newest checkpoint, or all anew without one

A ps is prepared when it carries the marker of the plan, which is written last.

In mode sync live variables are adopted only if all buckets hold the same rounds: the view may have ended while
one was being applied.  They are sealed first: what a session of an earlier view still has under way cannot
close a round any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.facts import Assignment
from psruntime.errors import JobFailedError, ReplacedError
from psruntime.graph.checkpoint import Checkpoints
from psruntime.graph.devices import worker_device
from psruntime.graph.round_store import APPLIED_ATTEMPT, ATTEMPT, BOOKS_SIZE, INTENT, RoundStore
from psruntime.graph.store import RESTORE_LEAP, BucketStore
from psruntime.graph.training import TrainGraph


class Preparation:
    """The operations of worker `index` as the chief, in the training graph.

    A marker is 0 on a fresh ps, the plan's marker on a prepared one, and its negative on one whose
    preparation began: its books are live, its variables may be anything.
    """

    def __init__(self, graph: TrainGraph, checkpoints: Checkpoints, index: int, log: Callable[..., None]) -> None:
        self._graph = graph
        self._checkpoints = checkpoints
        self._log = log
        marker = graph.plan.marker
        every_ps = range(graph.plan.num_ps)
        with graph.graph.as_default(), tf1.device(worker_device(index)):
            controls = graph.controls
            self._markers = [c.prepared.read_value() for c in controls]
            self._admitted = [c.admitted.sparse_read(index) for c in controls]
            self._sizes = [c.bytes_held.assign(_bytes_on(graph, ps), read_value=False) for ps, c in enumerate(controls)]
            self._mark = [c.prepared.assign(marker, read_value=False) for c in controls]
            self._unmark = [c.prepared.assign(-marker, read_value=False) for c in controls]
            self._new_books = {ps: [v.initializer for v in _books(graph, ps)] for ps in every_ps}
            self._seal = [r.seal() for r in _rounds(graph)]
            self._round_books = [r.books.read_value() for r in _rounds(graph)]
            self._attempt = tf1.placeholder(tf1.int64, [], name="attempt")
            nothing_pending = tf1.stack([self._attempt, 0, self._attempt, self._attempt])
            self._no_round = [r.books.assign(nothing_pending, read_value=False) for r in _rounds(graph)]
            self._leap = {ps: [op for s in graph.stores_on(ps) for op in _leap(s)] for ps in every_ps}
            self._initialise = [graph.global_step.master.initializer, *_initial_values(graph), *_new_slots(graph)]
            self._global_step = graph.global_step.master.read_value()[0]

    def run(self, session: Any, assignment: Assignment) -> tuple[int, int]:
        """Prepares the view of `session`.

        Returns:
            (global step that its variables hold, highest attempt that it has seen; 0 but in mode sync).

        Raises:
            JobFailedError: a ps holds the variables of another plan.
            CheckpointError: the folder cannot be written, or its checkpoint does not fit.
            ReplacedError: a ps no longer admits this incarnation, so another chief is at work.
        """
        self._checkpoints.check_folder()
        incarnation = assignment.incarnation
        markers = [int(marker) for marker in session.run(self._markers)]
        for ps, marker in enumerate(markers):
            if marker not in (0, self._graph.plan.marker, -self._graph.plan.marker):
                raise JobFailedError(f"ps {ps} holds the variables of another plan; restart it to begin anew")
        self._write(session, incarnation, [self._new_books[p] for p, m in enumerate(markers) if m == 0])
        self._write(session, incarnation, self._seal)
        attempt = self._last_attempt(session)
        obstacle = self._obstacle(session, markers, assignment.restore)
        if not obstacle:
            return self._report("adopted", session), attempt
        path = self._checkpoints.latest()
        self._write(session, incarnation, self._unmark)
        self._write(session, incarnation, [self._leap[p] for p, m in enumerate(markers) if m != 0])
        self._write(session, incarnation, self._no_round, {self._attempt: attempt})
        if path:
            self._require_admitted(session, incarnation)
            self._checkpoints.restore(session, path)
            event = "restored"
        else:
            self._write(session, incarnation, self._initialise)
            path = self._checkpoints.save(session, 0)
            event = "initialised"
        self._write(session, incarnation, [self._sizes])
        self._write(session, incarnation, self._mark)
        return self._report(event, session, checkpoint=path, fresh_ps=markers.count(0), reason=obstacle), attempt

    def require(self, session: Any) -> None:
        """Makes sure that every ps of the session is prepared: one may have been replaced a moment ago.

        Raises:
            UnavailableError: one is not.
        """
        markers = [int(marker) for marker in session.run(self._markers)]
        missing = [ps for ps, marker in enumerate(markers) if marker != self._graph.plan.marker]
        if missing:
            raise tf1.errors.UnavailableError(None, None, f"ps {', '.join(map(str, missing))} is not prepared")

    def _obstacle(self, session: Any, markers: list[int], restore: bool) -> str:
        """Why what the ps hold cannot be adopted; empty if it can."""
        if not any(markers):
            return "no ps holds anything"
        if set(markers) != {self._graph.plan.marker}:
            return "not every ps holds its variables"
        if restore:
            return "a round was torn"
        return "" if self._same_rounds(session) else "the buckets hold different rounds"

    def _same_rounds(self, session: Any) -> bool:
        """Whether no round was cut off while it was applied."""
        books = np.array(session.run(self._round_books), np.int64).reshape(-1, BOOKS_SIZE)
        return len(np.unique(books[:, [INTENT, APPLIED_ATTEMPT]])) <= 1

    def _last_attempt(self, session: Any) -> int:
        books = np.array(session.run(self._round_books), np.int64).reshape(-1, BOOKS_SIZE)
        return int(books[:, ATTEMPT].max(initial=0))

    def _write(self, session: Any, incarnation: int, operations: list[Any], feed: Any = None) -> None:
        self._require_admitted(session, incarnation)
        session.run(operations, feed)

    def _require_admitted(self, session: Any, incarnation: int) -> None:
        """A chief that was paused meanwhile must not write over what its successor prepared."""
        for ps, admitted in enumerate(session.run(self._admitted)):
            if admitted != incarnation:
                raise ReplacedError(f"ps {ps} does not admit incarnation {incarnation:x}: another chief may be at work")

    def _report(self, event: str, session: Any, **facts: object) -> int:
        global_step = int(session.run(self._global_step))
        self._log(event, global_step=global_step, **facts)
        return global_step


def _initial_values(graph: TrainGraph) -> list[Any]:
    """Assigns each master its part of the model's own initial value; run together, so each is drawn once.

    A table's is computed on its ps.
    """
    operations = []
    for spec in graph.plan.specs:
        if spec.sparse:
            master = graph.model.stores[spec.name].master
            with tf1.device(master.device):
                operations.append(master.assign(graph.model.initial_values[spec.name], read_value=False))
            continue
        flat = tf1.reshape(graph.model.initial_values[spec.name], [-1])
        for bucket in graph.plan.of(spec.name):
            piece = flat[bucket.start : bucket.start + bucket.size]
            operations.append(graph.model.stores[bucket.name].master.assign(piece, read_value=False))
    return operations


def _rounds(graph: TrainGraph) -> list[RoundStore]:
    return graph.rounds.stores if graph.rounds else []


def _rounds_on(graph: TrainGraph, ps: int) -> list[RoundStore]:
    return [r for r in _rounds(graph) if r.store.bucket.ps == ps]


def _books(graph: TrainGraph, ps: int) -> list[Any]:
    """What accounts for updates on a ps, and what rounds are summed in."""
    return [v for s in graph.stores_on(ps) for v in s.books] + [v for r in _rounds_on(graph, ps) for v in r.variables]


def _leap(store: BucketStore) -> list[Any]:
    """Makes every push from before refused: the version leaps, so it is stale; and no number counts as applied."""
    return [store.version.assign_add(RESTORE_LEAP, read_value=False), store.pushed.initializer]


def _new_slots(graph: TrainGraph) -> list[Any]:
    return [v.initializer for variables in graph.optimizer_variables.values() for v in variables]


def _bytes_on(graph: TrainGraph, ps: int) -> int:
    """Bytes of all variables of a ps: masters, the optimizer's own, books, dense sums of rounds."""
    stores = graph.stores_on(ps)
    own = [v for s in stores for v in graph.optimizer_variables.get(s.bucket.name, [])]
    variables = [*graph.controls[ps].variables, *own, *(v for s in stores for v in s.variables)]
    variables += [v for r in _rounds_on(graph, ps) for v in r.variables]
    return sum((v.shape.num_elements() or 0) * v.dtype.size for v in variables)
