"""Sessions on a view: our SessionCreator inside MonitoredSession.

It opens a session only while the coordinator's last word is that the view is prepared and this worker is
admitted, so nobody polls for 30 s and a replaced process does not steal its successor's place; and it uses
the session only if every ps says so too, since that word may be older than the loss of a ps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow.compat.v1 as tf1

from psruntime.core.facts import Assignment
from psruntime.core.view import View
from psruntime.errors import ReplacedError
from psruntime.graph.place import Place

LOST_SESSION = (tf1.errors.AbortedError, tf1.errors.UnavailableError)


class ViewSession(tf1.Session):  # type: ignore[misc]
    """A session whose every end by a lost ps is one of `LOST_SESSION`, which MonitoredSession recovers from."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().run(*args, **kwargs)
        except (tf1.errors.CancelledError, tf1.errors.DeadlineExceededError) as error:
            raise tf1.errors.UnavailableError(error.node_def, error.op, error.message) from error
        except UnicodeDecodeError as error:  # a session that another process took over may fail with raw bytes
            raise tf1.errors.UnavailableError(None, None, "TensorFlow failed with a text that is not UTF-8") from error


class Preparing(Protocol):
    """What the creator needs of a Preparation."""

    def run(self, session: Any, assignment: Assignment) -> tuple[int, int]:
        """Prepares the view of the session; (its global step, its last attempt).  ReplacedError: another does."""

    def require(self, session: Any) -> None:
        """UnavailableError unless every ps of the session is prepared."""


class ViewSessionCreator(tf1.train.SessionCreator):  # type: ignore[misc]
    """Opens sessions on the current view; prepares it first when this worker is asked to.

    `assignment` is that of the newest session.
    """

    def __init__(
        self,
        target: str,
        address: str,
        index: int,
        graph: Any,
        place: Place,
        preparation: Preparing,
        log: Callable[..., None],
    ) -> None:
        self.assignment: Assignment | None = None
        self._target = target
        self._worker = (index, address)
        self._graph = graph
        self._place = place
        self._preparation = preparation
        self._log = log
        with graph.as_default():
            self._local_init = tf1.group(tf1.local_variables_initializer(), tf1.tables_initializer())

    def create_session(self) -> Any:
        """A session on a prepared view.  Tries until there is one; the place ends the wait."""
        while True:
            assignment = self._place.await_view()
            session = open_session(self._target, self._graph, assignment.view, self._worker)
            try:
                if assignment.prepare:
                    self._place.report_prepared(assignment, *self._preparation.run(session, assignment))
                    session.close()
                    continue
                self._preparation.require(session)
                session.run(self._local_init)
            except (*LOST_SESSION, ReplacedError) as error:
                session.close()
                self._place.pause(f"no session on view {assignment.view.number}: {first_line(error)}")
                continue
            except BaseException:
                session.close()
                raise
            self.assignment = assignment
            self._place.entered(assignment)
            self._log("session", view=assignment.view.number)
            return session


def open_session(target: str, graph: Any, view: View, worker: tuple[int, str]) -> Any:
    """A session on `target`, this process's own server, in which the graph's ps are those of the view."""
    config = tf1.ConfigProto(allow_soft_placement=True)
    config.gpu_options.allow_growth = True
    config.experimental.share_session_state_in_clusterspec_propagation = True
    ps_job = config.cluster_def.job.add(name="ps")
    for entry in view.ps:
        ps_job.tasks[entry.index] = entry.address
    index, address = worker
    config.cluster_def.job.add(name="worker").tasks[index] = address
    return ViewSession(target, graph=graph, config=config)


def first_line(error: Exception) -> str:
    """What an error of TensorFlow says, without its heading and the rest of its story."""
    lines = (line.strip() for line in str(getattr(error, "message", error)).splitlines())
    return next((line for line in lines if line not in ("", "Graph execution error:")), type(error).__name__)
