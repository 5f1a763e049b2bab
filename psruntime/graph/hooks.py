"""Session hooks of the training loop."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.facts import Assignment
from psruntime.graph.place import Place
from psruntime.graph.session import ViewSessionCreator
from psruntime.graph.training import TrainGraph


class ViewHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Ends a session whose view was replaced, and knows the global step as this worker last saw it."""

    def __init__(self, graph: TrainGraph, creator: ViewSessionCreator, place: Place, log: Callable[..., None]) -> None:
        self._graph = graph
        self._creator = creator
        self._place = place
        self._log = log
        self._read_step = step_reader(graph)
        self._global_step = 0
        self._stepped = False  # in the newest session

    @property
    def global_step(self) -> int:
        """As this worker last saw it."""
        return self._global_step

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        self._graph.model.copies.take(session)
        self._global_step = int(session.run(self._read_step))
        self._stepped = False

    def before_run(self, run_context: Any) -> Any:
        assignment = self._creator.assignment
        if assignment is None or not self._place.holds(assignment):
            raise tf1.errors.AbortedError(None, None, "the view or this worker's incarnation was replaced")
        if not is_step(run_context, self._graph):
            return None
        return tf1.train.SessionRunArgs(self._graph.step["global_step"], feed_dict=self._feed(assignment))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not is_step(run_context, self._graph):
            return
        self._global_step = int(run_values.results)
        if not self._stepped:
            self._stepped = True
            self._log("first_step", global_step=self._global_step)

    def _feed(self, assignment: Assignment) -> dict[Any, Any]:  # noqa: ARG002
        """What a step is fed besides its batch."""
        return {}


class PushHook(ViewHook):
    """Gives every push its identity and learning rate.

    MonitoredSession repeats a step that a lost session interrupted.  The repeat carries the same origin and sequence
    number, also if this worker was admitted anew meanwhile, so a bucket that had already taken the first try counts
    the second as repeated.
    """

    def __init__(
        self, graph: TrainGraph, creator: ViewSessionCreator, place: Place, log: Callable[..., None], index: int
    ) -> None:
        super().__init__(graph, creator, place, log)
        self._index = index
        self._sequence = 1
        self._origin = secrets.randbits(62)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        super().after_run(run_context, run_values)
        if is_step(run_context, self._graph):
            self._sequence += 1

    def _feed(self, assignment: Assignment) -> dict[Any, Any]:
        self._place.pushes()
        push_id = [self._index, assignment.incarnation, self._sequence, self._origin]
        feed: dict[Any, Any] = dict.fromkeys(self._graph.push_ids, push_id)
        feed.update(self._graph.learning_rates_at(self._global_step))
        return feed


def is_step(run_context: Any, graph: TrainGraph) -> bool:
    """Whether this run is a training step; anything else pushes nothing and counts for nothing."""
    return run_context.original_args.fetches is graph.step


def step_reader(graph: TrainGraph) -> Any:
    """The global step, as a tensor."""
    with graph.graph.as_default():
        return graph.global_step.master.read_value()[0]
