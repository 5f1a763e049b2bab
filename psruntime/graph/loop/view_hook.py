"""What holds for every run of a session on a view, and which runs are training steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.loop.control_plane import Place
from psruntime.graph.loop.session import ViewSessionCreator
from psruntime.graph.step.train_graph import TrainGraph


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

    def before_run(self, run_context: Any) -> None:  # noqa: ARG002
        assignment = self._creator.assignment
        if assignment is None or not self._place.holds(assignment):
            raise tf1.errors.AbortedError(None, None, "the view or this worker's incarnation was replaced")

    def saw(self, global_step: int) -> None:
        """A step ended; steps that ran beside each other may end in another order than they were counted in."""
        self._global_step = max(self._global_step, global_step)
        if not self._stepped:
            self._stepped = True
            self._log("first_step", global_step=self._global_step)


def is_step(run_context: Any, graph: TrainGraph) -> bool:
    """Whether this run is a training step; anything else pushes nothing and counts for nothing."""
    return run_context.original_args.fetches is graph.step


def step_reader(graph: TrainGraph) -> Any:
    """The global step, as a tensor."""
    with graph.graph.as_default():
        return graph.global_step.master.read_value()[0]
