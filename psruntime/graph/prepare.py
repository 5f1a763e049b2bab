"""What the chief does before a view may be used: initialise, restore or adopt its variables.

    every ps fresh                 restore the newest checkpoint, or initialise
    every ps prepared              adopt: live variables are never rolled back
    some fresh (a ps was replaced) all back to the newest checkpoint, or all anew without one

A ps is prepared when it carries the marker of the plan, which is written last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.errors import JobFailedError
from psruntime.graph.checkpoint import Checkpoints
from psruntime.graph.devices import worker_device
from psruntime.graph.store import RESTORE_LEAP
from psruntime.graph.training import TrainGraph


class Preparation:
    """The operations of the chief, in the training graph."""

    def __init__(self, graph: TrainGraph, checkpoints: Checkpoints, index: int, log: Callable[..., None]) -> None:
        self._graph = graph
        self._checkpoints = checkpoints
        self._log = log
        every_ps = range(graph.plan.num_ps)
        with graph.graph.as_default(), tf1.device(worker_device(index)):
            controls = graph.controls
            self._markers = [c.prepared.read_value() for c in controls]
            self._sizes = [c.bytes_held.assign(_bytes_on(graph, ps), read_value=False) for ps, c in enumerate(controls)]
            self._mark = [c.prepared.assign(graph.plan.marker, read_value=False) for c in controls]
            self._unmark = [c.prepared.assign(0, read_value=False) for c in controls]
            self._new_books = {ps: [v.initializer for s in graph.stores_on(ps) for v in s.books] for ps in every_ps}
            self._leap = {
                ps: [s.version.assign_add(RESTORE_LEAP, read_value=False) for s in graph.stores_on(ps)]
                for ps in every_ps
            }
            self._initialise = [graph.global_step.master.initializer, *_initial_values(graph), *_new_slots(graph)]
            self._global_step = graph.global_step.master.read_value()[0]

    def run(self, session: Any) -> int:
        """Prepares the view of `session`; returns the global step that its variables hold.

        Raises:
            JobFailedError: a ps holds the variables of another plan.
            CheckpointError: the folder cannot be written, or its checkpoint does not fit.
        """
        self._checkpoints.check_folder()
        markers = [int(marker) for marker in session.run(self._markers)]
        for ps, marker in enumerate(markers):
            if marker not in (0, self._graph.plan.marker):
                raise JobFailedError(f"ps {ps} holds the variables of another plan; restart it to begin anew")
        fresh = [ps for ps, marker in enumerate(markers) if marker == 0]
        if not fresh:
            return self._report("adopted", session)
        session.run(self._unmark)
        session.run([self._new_books[ps] if ps in fresh else self._leap[ps] for ps in range(len(markers))])
        path = self._checkpoints.latest()
        if path:
            self._checkpoints.restore(session, path)
        else:
            session.run(self._initialise)
        session.run(self._sizes)
        session.run(self._mark)
        if path:
            return self._report("restored", session, checkpoint=path, fresh_ps=len(fresh))
        return self._report("initialised", session, fresh_ps=len(fresh))

    def _report(self, event: str, session: Any, **facts: object) -> int:
        global_step = int(session.run(self._global_step))
        self._log(event, global_step=global_step, **facts)
        return global_step


def _initial_values(graph: TrainGraph) -> list[Any]:
    """Assigns each master its part of the model's own initial value; run together, so each is drawn once."""
    operations = []
    for spec in graph.plan.specs:
        flat = tf1.reshape(graph.model.initial_values[spec.name], [-1])
        for bucket in graph.plan.of(spec.name):
            piece = flat[bucket.start : bucket.start + bucket.size]
            operations.append(graph.model.stores[bucket.name].master.assign(piece, read_value=False))
    return operations


def _new_slots(graph: TrainGraph) -> list[Any]:
    return [v.initializer for variables in graph.optimizer_variables.values() for v in variables]


def _bytes_on(graph: TrainGraph, ps: int) -> int:
    """Bytes of all variables of a ps: masters, the optimizer's own, books."""
    stores = graph.stores_on(ps)
    own = [v for s in stores for v in graph.optimizer_variables.get(s.bucket.name, [])]
    variables = [*graph.controls[ps].variables, *own, *(v for s in stores for v in s.variables)]
    return sum(v.shape.num_elements() * v.dtype.size for v in variables)
