"""The training loop of a worker: steps while the job trains, rests while it drains, closes it as the chief."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.facts import Assignment, Rest
from psruntime.errors import JobFailedError, ReplacedError
from psruntime.graph.hooks import CheckpointHook, PushHook
from psruntime.graph.inputs import InputStream, leading_dimension
from psruntime.graph.place import Place
from psruntime.graph.session import LOST_SESSION, ViewSessionCreator, first_line
from psruntime.graph.store import APPLIED
from psruntime.graph.training import TrainGraph


@dataclass(frozen=True)
class StepResult:
    """What one step brought.

    staleness: the largest of the applied updates, in versions.  dropped: buckets that refused theirs.
    """

    loss: float
    global_step: int
    examples: int
    staleness: int
    dropped: int


class TrainingLoop:
    """Runs `run()` once, in a thread of its own.

    on_step: called with the result of every step.  close: called by the chief with the last global step,
    between the last checkpoint and the end of the job.
    """

    def __init__(
        self,
        graph: TrainGraph,
        inputs: InputStream,
        creator: ViewSessionCreator,
        place: Place,
        checkpoint_hook: CheckpointHook,
        index: int,
        stop_on_nan: bool,
        on_step: Callable[[StepResult], None],
        close: Callable[[int], None],
        log: Callable[..., None],
    ) -> None:
        self._graph = graph
        self._inputs = inputs
        self._creator = creator
        self._place = place
        self._checkpoint_hook = checkpoint_hook
        self._stop_on_nan = stop_on_nan
        self._on_step = on_step
        self._close = close
        with graph.graph.as_default():
            self._nothing = tf1.no_op()
        self._hooks = [PushHook(graph, index, creator, place, log), checkpoint_hook]

    def run(self) -> None:
        """Returns when the job is done.

        Raises:
            StopRequested: the process was asked to stop.
            PsRuntimeError: the job failed, or this worker cannot go on.
        """
        with (
            self._graph.graph.as_default(),
            tf1.train.MonitoredSession(session_creator=self._creator, hooks=self._hooks) as session,
        ):
            while True:
                while self._place.may_step():
                    self._step(session)
                assignment = self._creator.assignment
                assert assignment is not None
                rest = self._place.rest(assignment)
                if rest is Rest.OVER:
                    return
                if rest is Rest.RESUME:
                    session.run(self._nothing)  # opens a session on the new view
                else:
                    self._finish(session, assignment)

    def _step(self, session: Any) -> None:
        batch = self._inputs.draw_endlessly()
        feed = dict(zip(self._graph.model.batch, batch, strict=True))
        result = _read(session.run(self._graph.step, feed_dict=feed), leading_dimension(batch))
        self._place.stepped(result.global_step)
        self._on_step(result)
        if self._stop_on_nan and not math.isfinite(result.loss):
            raise JobFailedError(
                f"the loss is {result.loss} at global step {result.global_step}; its gradient was not applied "
                "(--on-nan continue passes over such batches)"
            )

    def _finish(self, session: Any, assignment: Assignment) -> None:
        """Last checkpoint and evaluation.  Whatever is lost meanwhile: the place says what comes next."""
        global_step = int(session.run(self._checkpoint_hook.closing))
        if not self._place.holds(assignment):
            return
        try:
            self._close(global_step)
            self._place.report_finished(assignment)
        except ReplacedError as error:
            self._place.pause(str(error))
        except LOST_SESSION as error:
            self._place.pause(f"a ps was lost while the job ended: {first_line(error)}")


def _read(fetched: dict[str, Any], examples: int) -> StepResult:
    outcomes = np.concatenate(fetched["outcomes"])
    applied = outcomes[outcomes[:, 0] == APPLIED]
    return StepResult(
        loss=float(fetched["loss"]),
        global_step=int(fetched["global_step"]),
        examples=examples,
        staleness=int(applied[:, 1].max(initial=0)),
        dropped=len(outcomes) - len(applied),
    )
