"""Session hooks of the training loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.errors import CheckpointError
from psruntime.graph.checkpoint import Checkpoints
from psruntime.graph.place import Place
from psruntime.graph.session import ViewSessionCreator
from psruntime.graph.training import TrainGraph


class PushHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Gives every push its identity and learning rate, and ends a session whose view was replaced.

    MonitoredSession repeats a step that a lost session interrupted.  The repeat carries the same sequence
    number, so a bucket that had already taken the first try counts the second as repeated.
    """

    def __init__(
        self,
        graph: TrainGraph,
        index: int,
        creator: ViewSessionCreator,
        place: Place,
        learning_rate: Callable[[], float],
    ) -> None:
        self._graph = graph
        self._index = index
        self._creator = creator
        self._place = place
        self._learning_rate = learning_rate
        self._sequence = 1

    def before_run(self, run_context: Any) -> Any:  # noqa: ARG002
        assignment = self._creator.assignment
        if assignment is None or not self._place.holds(assignment):
            raise tf1.errors.AbortedError(None, None, "the view or this worker's incarnation was replaced")
        push_id = [self._index, assignment.incarnation, self._sequence]
        feed: dict[Any, Any] = dict.fromkeys(self._graph.push_ids, push_id)
        feed.update(dict.fromkeys(self._graph.learning_rates, self._learning_rate()))
        return tf1.train.SessionRunArgs(None, feed_dict=feed)

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002
        self._sequence += 1


class CheckpointHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """While this worker is the chief: saves at the start of a folder and every `save_steps` global steps.

    A periodic save that fails is reported and tried again after the next step; the last one failing is
    the job's failure, and is not this hook's business.
    """

    def __init__(
        self,
        graph: TrainGraph,
        checkpoints: Checkpoints,
        save_steps: int,
        is_chief: Callable[[], bool],
        log: Callable[..., None],
    ) -> None:
        self._step_tensor = graph.step["global_step"]
        with graph.graph.as_default():
            self._read_step = graph.global_step.master.read_value()[0]
        self._checkpoints = checkpoints
        self._save_steps = save_steps
        self._is_chief = is_chief
        self._log = log
        self._saved_at = 0

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        self._saved_at = int(session.run(self._read_step))
        if self._is_chief() and self._checkpoints.latest() is None:
            self._note(self._checkpoints.save(session, self._saved_at))

    def before_run(self, run_context: Any) -> Any:  # noqa: ARG002
        return tf1.train.SessionRunArgs(self._step_tensor)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        global_step = int(run_values.results)
        if global_step - self._saved_at < self._save_steps or not self._is_chief():
            return
        try:
            self._note(self._checkpoints.save(run_context.session, global_step))
            self._saved_at = global_step
        except CheckpointError as error:
            self._log("checkpoint_failed", reason=error)
            self._saved_at += max(1, self._save_steps // 10)

    def save_last(self, session: Any) -> int:
        """Saves what the ps hold now, and returns its global step; everybody else has stopped."""
        global_step = int(session.run(self._read_step))
        self._note(self._checkpoints.save(session, global_step))
        return global_step

    def _note(self, path: str | None) -> None:
        if path:
            self._log("checkpoint", path=path)
