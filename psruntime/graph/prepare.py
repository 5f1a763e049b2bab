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
from psruntime.graph.checkpoint import Checkpoints, Moved
from psruntime.graph.devices import worker_device
from psruntime.graph.markers import Markers
from psruntime.graph.reach import ancestors
from psruntime.graph.round_store import APPLIED_ATTEMPT, ATTEMPT, BOOKS_SIZE, INTENT, RoundStore
from psruntime.graph.store import RESTORE_LEAP, BucketStore
from psruntime.graph.training import TrainGraph


class Preparation:
    """The operations of worker `index` as the chief, in the training graph."""

    def __init__(self, graph: TrainGraph, checkpoints: Checkpoints, index: int, log: Callable[..., None]) -> None:
        self._graph = graph
        self._checkpoints = checkpoints
        self._log = log
        every_ps = range(graph.plan.num_ps)
        with graph.graph.as_default(), tf1.device(worker_device(index)):
            sizes = [_bytes_on(graph, ps) for ps in every_ps]
            self._markers = Markers(graph.controls, graph.plan.marker, sizes, index)
            self._new_books = {ps: [v.initializer for v in _books(graph, ps)] for ps in every_ps}
            self._seal = [r.seal() for r in _rounds(graph)]
            self._round_books = [r.books.read_value() for r in _rounds(graph)]
            self._attempt = tf1.placeholder(tf1.int64, [], name="attempt")
            nothing_pending = tf1.stack([self._attempt, 0, self._attempt, self._attempt])
            self._no_round = [r.books.assign(nothing_pending, read_value=False) for r in _rounds(graph)]
            self._leap = {ps: [op for s in graph.stores_on(ps) for op in _leap(s)] for ps in every_ps}
            self._initialise = [[graph.global_step.master.initializer, *_new_slots(graph)], *_initial_values(graph)]
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
        markers = self._markers.read(session)
        self._markers.write(session, incarnation, [self._new_books[p] for p, m in enumerate(markers) if m == 0])
        self._markers.write(session, incarnation, self._seal)
        attempt = self._last_attempt(session)
        obstacle = self._obstacle(session, markers, assignment.restore)
        if not obstacle:
            return self._report("adopted", session), attempt
        path = self._checkpoints.latest()
        self._markers.begin(session, incarnation)
        self._markers.write(session, incarnation, [self._leap[p] for p, m in enumerate(markers) if m != 0])
        self._markers.write(session, incarnation, self._no_round, {self._attempt: attempt})
        if path:
            self._markers.require_admitted(session, incarnation)
            event = "restored"
            moved: Moved | None = self._checkpoints.restore(session, path)
        else:
            for operations in self._initialise:
                self._markers.write(session, incarnation, operations)
            event = "initialised"
            moved = self._checkpoints.save(session, 0)
        self._graph.model.copies.restored(session)
        self._markers.finish(session, incarnation)
        facts = {"checkpoint": moved.path, "sharded": moved.sharded} if moved else {"checkpoint": None}
        return self._report(event, session, **facts, fresh_ps=markers.count(0), reason=obstacle), attempt

    def require(self, session: Any) -> None:
        """UnavailableError unless every ps of the session is prepared."""
        self._markers.require(session)

    def _obstacle(self, session: Any, markers: list[int], restore: bool) -> str:
        """Why what the ps hold cannot be adopted; empty if it can."""
        obstacle = self._markers.obstacle(markers)
        if obstacle:
            return obstacle
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

    def _report(self, event: str, session: Any, **facts: object) -> int:
        global_step = int(session.run(self._global_step))
        self._log(event, global_step=global_step, **facts)
        return global_step


def _initial_values(graph: TrainGraph) -> list[list[Any]]:
    """Operations that assign every master and home the model's own initial value, in groups to be run in order.

    What is in one group is run together, so that a random value which two variables share is drawn once.  A value
    that is computed from other variables is in a later group than these.  A table's is computed on its ps.
    """
    levels = _levels(graph)
    groups: list[list[Any]] = [[] for _ in range(max(levels.values(), default=0) + 1)]
    for name, value in graph.model.initial_values.items():
        groups[levels[name]] += _assigned(graph, name, value)
    return groups


def _levels(graph: TrainGraph) -> dict[str, int]:
    """Variable -> how many others have to be initialised one after the other before it."""
    levels: dict[str, int] = {}
    sources = {view.source.op: name for name, view in graph.model.views.items()}
    for name, value in graph.model.initial_values.items():  # in the order in which they were made
        read = [levels[sources[op]] for op in ancestors([value]) if op in sources]
        levels[name] = max(read, default=-1) + 1
    return levels


def _assigned(graph: TrainGraph, name: str, value: Any) -> list[Any]:
    home = graph.model.homes.variables.get(name)
    buckets = graph.plan.of(name)
    if home is not None or buckets[0].is_table:
        variable = home if home is not None else graph.model.stores[name].master
        with tf1.device(variable.device):
            return [variable.assign(value, read_value=False)]
    flat = tf1.reshape(value, [-1])
    return [
        graph.model.stores[bucket.name].master.assign(
            tf1.reshape(flat[bucket.start : bucket.start + bucket.size], bucket.master_shape), read_value=False
        )
        for bucket in buckets
    ]


def _rounds(graph: TrainGraph) -> list[RoundStore]:
    return graph.rounds.stores if graph.rounds else []


def _rounds_on(graph: TrainGraph, ps: int) -> list[RoundStore]:
    return [r for r in _rounds(graph) if r.store.bucket.ps == ps]


def _books(graph: TrainGraph, ps: int) -> list[Any]:
    """What accounts for updates and restores on a ps, and what rounds are summed in."""
    books = [v for s in graph.stores_on(ps) for v in s.books] + ([graph.model.homes.stamp] if ps == 0 else [])
    return books + [v for r in _rounds_on(graph, ps) for v in r.variables]


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
    variables += [graph.model.homes.variables[home.name] for home in graph.plan.homes if home.ps == ps]
    return sum((v.shape.num_elements() or 0) * v.dtype.size for v in variables)
