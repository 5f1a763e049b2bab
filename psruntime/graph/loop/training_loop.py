"""The training loop of a worker: steps while the job trains, stops when it drains, closes the job as the chief."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import tensorflow.compat.v1 as tf1

from psruntime.core.members.messages import Assignment, Ending
from psruntime.errors import CheckpointError, JobFailedError, PassingError, ReplacedError
from psruntime.graph.base.errors import LOST_SESSION, first_line
from psruntime.graph.base.failed_operation import users_errors
from psruntime.graph.base.types import Session, Tensor
from psruntime.graph.session.session import ModeChangedError, ViewSessionCreator
from psruntime.graph.session.worker_run import WorkerRun


class Steps(Protocol):
    """How a mode trains."""

    def run(self, session: Session) -> None:
        """Takes steps until training stops."""

    def leave(self) -> None:
        """Gives the batches back that no step took: another loop goes on with the input."""


class TrainingLoop:
    """Runs `run()` once, in a thread of its own.

    closing: a fetch, the global step, int64 []; running it saves the last checkpoint.
    close: called by the chief with the last global step, between the last checkpoint and the end of the job.
    leave: called when another loop goes on.
    """

    def __init__(
        self,
        run: WorkerRun,
        creator: ViewSessionCreator,
        steps: Steps,
        hooks: list[tf1.train.SessionRunHook],
        closing: Tensor,
        close: Callable[[int], None],
        leave: Callable[[], None],
    ) -> None:
        self._graph = run.graph
        self._creator = creator
        self._control_plane = run.control_plane
        self._steps = steps
        self._hooks = hooks
        self._closing = closing
        self._close = close
        self._leave = leave
        self._failure: JobFailedError | None = None  # for which the job ends, once it is saved

    def run(self) -> None:
        """Returns when the job is done.

        Raises:
            ModeChangedError: the job goes on in a mode for which there has to be another loop.
            StopRequested: the process was asked to stop.
            PsRuntimeError: the job failed, or this worker cannot go on.  Where what failed here ends the job, what was
                trained was saved before.
        """
        try:
            self._train()
        except ModeChangedError:
            self._leave()
            raise
        except JobFailedError as error:
            raise self._failure or error from None  # of which every other process has the text alone
        if self._failure:
            raise self._failure

    def _train(self) -> None:
        with (
            users_errors(self._graph.graph),
            self._graph.graph.as_default(),
            tf1.train.MonitoredSession(session_creator=self._creator, hooks=self._hooks) as session,
        ):
            while True:
                self._take_steps(session)
                assignment = self._creator.assignment
                assert assignment is not None
                ending = self._control_plane.await_end(assignment)
                if ending is Ending.OVER:
                    return
                if ending is Ending.RESUME:
                    session.run(self._graph.read_step)  # opens a session on the new view
                else:
                    self._finish(session, assignment)

    def _take_steps(self, session: Session) -> None:
        """Until training stops.  After an error that ends the job this worker takes none, and helps to save."""
        if self._failure:
            return
        try:
            self._steps.run(session)
        except (PassingError, CheckpointError):
            raise
        except JobFailedError as error:
            self._failure = error
            self._control_plane.fails(str(error))

    def _finish(self, session: Session, assignment: Assignment) -> None:
        """Writes the last checkpoint and evaluates.  The control plane says what comes next if something is lost."""
        try:
            global_step = int(session.run(self._closing))
            self._control_plane.closed_part()
            if not self._control_plane.is_current(assignment):
                return
            self._close(global_step)
            self._control_plane.report_finished(assignment)
        except ReplacedError as error:
            self._control_plane.back_off(str(error))
        except LOST_SESSION as error:
            self._control_plane.back_off(f"a ps was lost while the job ended: {first_line(error)}")
