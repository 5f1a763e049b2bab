"""Session hooks of the training loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.facts import Assignment
from psruntime.errors import CheckpointError
from psruntime.graph.checkpoint import Checkpoints
from psruntime.graph.place import Place
from psruntime.graph.session import LOST_SESSION, ViewSessionCreator, first_line
from psruntime.graph.training import TrainGraph


class ViewHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Ends a session whose view was replaced, and knows the global step as this worker last saw it."""

    def __init__(self, graph: TrainGraph, creator: ViewSessionCreator, place: Place, log: Callable[..., None]) -> None:
        self._graph = graph
        self._creator = creator
        self._place = place
        self._log = log
        self._read_step = _step_reader(graph)
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

    MonitoredSession repeats a step that a lost session interrupted.  The repeat carries the same sequence
    number, so a bucket that had already taken the first try counts the second as repeated.
    """

    def __init__(
        self, graph: TrainGraph, creator: ViewSessionCreator, place: Place, log: Callable[..., None], index: int
    ) -> None:
        super().__init__(graph, creator, place, log)
        self._index = index
        self._sequence = 1

    def after_run(self, run_context: Any, run_values: Any) -> None:
        super().after_run(run_context, run_values)
        if is_step(run_context, self._graph):
            self._sequence += 1

    def _feed(self, assignment: Assignment) -> dict[Any, Any]:
        push_id = [self._index, assignment.incarnation, self._sequence]
        feed: dict[Any, Any] = dict.fromkeys(self._graph.push_ids, push_id)
        feed.update(self._graph.learning_rates_at(self._global_step))
        return feed


class CheckpointHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """While this worker is the chief: saves every `save_steps` global steps, and when `closing` is run.

    closing: a fetch, the global step; running it saves what the ps hold.  A lost session interrupts it like
    a step: it is repeated in the next one.
    saved: called with each checkpoint that is written here, and its global step.

    A periodic save that fails is reported and tried again a tenth of `save_steps` later.  One that fails
    while closing is the job's failure.
    """

    def __init__(
        self,
        graph: TrainGraph,
        checkpoints: Checkpoints,
        save_steps: int,
        is_chief: Callable[[], bool],
        saved: Callable[[str, int], None] | None,
        log: Callable[..., None],
    ) -> None:
        self._graph = graph
        self.closing = _step_reader(graph)
        self._checkpoints = checkpoints
        self._save_steps = save_steps
        self._is_chief = is_chief
        self._saved = saved
        self._log = log
        self._saved_at = 0

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        self._saved_at = int(session.run(self.closing))

    def before_run(self, run_context: Any) -> Any:
        if not is_step(run_context, self._graph):
            return None
        return tf1.train.SessionRunArgs(self._graph.step["global_step"])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        session = run_context.session
        if run_context.original_args.fetches is self.closing:
            self._save(session, int(session.run(self.closing)))
        elif is_step(run_context, self._graph):
            global_step = int(run_values.results)
            if global_step - self._saved_at >= self._save_steps and self._is_chief():
                self._save_in_passing(session, global_step)

    def _save_in_passing(self, session: Any, global_step: int) -> None:
        """The step is done and counted, so nothing that goes wrong here may make MonitoredSession repeat it."""
        try:
            self._save(session, global_step)
        except CheckpointError as error:
            self._log("checkpoint_failed", reason=error)
            self._saved_at += max(1, self._save_steps // 10)
        except LOST_SESSION as error:
            self._log("checkpoint_failed", reason=first_line(error))  # the next step finds the session lost

    def _save(self, session: Any, global_step: int) -> None:
        spoilt = self._graph.model.copies.bring(session)
        if spoilt:
            self._log("not_finite", variables=" ".join(spoilt), reason="the checkpoint has their last finite values")
        saved = self._checkpoints.save(session, global_step)
        self._saved_at = global_step
        if saved:
            self._log("checkpoint", path=saved.path, sharded=saved.sharded)
            if self._saved:
                self._saved(saved.path, global_step)


def is_step(run_context: Any, graph: TrainGraph) -> bool:
    """Whether this run is a training step; anything else pushes nothing and counts for nothing."""
    return run_context.original_args.fetches is graph.step


def _step_reader(graph: TrainGraph) -> Any:
    with graph.graph.as_default():
        return graph.global_step.master.read_value()[0]
