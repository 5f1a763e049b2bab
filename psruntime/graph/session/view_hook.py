"""The first hook around every run of a session: ends one whose view was replaced, and has the global step."""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import Session
from psruntime.graph.session.session import ViewSessionCreator
from psruntime.graph.session.worker_run import WorkerRun


class ViewHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Ends a session whose view was replaced, and has the global step that this worker last read.

    takes_copies: whether the worker copies are those on the ps of the session, where these were restored.
    """

    def __init__(self, run: WorkerRun, creator: ViewSessionCreator, takes_copies: bool = True) -> None:
        self._takes_copies = takes_copies
        self._graph = run.graph
        self._creator = creator
        self._control_plane = run.control_plane
        self._log = run.log
        self._global_step = 0
        self._stepped = False  # in the newest session

    @property
    def global_step(self) -> int:
        """The global step that this worker last read."""
        return self._global_step

    @property
    def incarnation(self) -> int:
        """This worker's, in the newest session."""
        return self._creator.assignment.incarnation

    def after_create_session(self, session: Session, coord: tf1.train.Coordinator) -> None:  # noqa: ARG002
        if self._takes_copies:
            self._graph.model.worker_copies.take(session)
        self._global_step = int(session.run(self._graph.read_step))
        self._stepped = False

    def before_run(self, run_context: tf1.train.SessionRunContext) -> None:  # noqa: ARG002
        if not self._control_plane.is_current(self._creator.assignment):
            raise tf1.errors.AbortedError(None, None, "the view or this worker's incarnation was replaced")

    def raise_global_step(self, global_step: int) -> None:
        """Raises the global step to this one; concurrent steps may end in another order than they were counted in."""
        self._global_step = max(self._global_step, global_step)

    def saw(self, global_step: int) -> None:
        """A step ended."""
        self.raise_global_step(global_step)
        if not self._stepped:
            self._stepped = True
            self._log("first_step", global_step=self._global_step)
