"""Sessions that are open, and ready, before they are wanted: beside the steps of another graph."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import tensorflow.compat.v1 as tf1

from psruntime.core.members.view import View
from psruntime.graph.base.types import Graph, Session
from psruntime.graph.session.session import WorkerServer, open_session

WarmUp = Callable[[Session], None]


class WarmSessions:
    """At most one for the steps of a graph, and one to prepare a view.  `warm` is called by one thread, others by any.

    steps, preparation: run in a session what it will be wanted for, so that nothing is changed.
    """

    def __init__(self, graph: Graph, steps: WarmUp, preparation: WarmUp) -> None:
        self._graph = graph
        self._warm_up = {False: steps, True: preparation}
        self._lock = threading.Lock()  # guards the next
        self._kept: dict[bool, tuple[View, Session]] = {}  # by whether it is to prepare a view

    def warm(self, server: WorkerServer, view: View, prepares: bool) -> None:
        """Opens those on the view that are not there, the one to prepare it only if this worker may have to.

        A failure, as of a lost ps, is left to the next call that opens a session.
        """
        with suppress(tf1.errors.OpError):
            for each in (False, True) if prepares else (False,):
                session = self._pop(view, each) or self._warmed(server, view, each)
                if not self._keep(view, each, session):
                    _end(session)

    def open(self, server: WorkerServer, is_left: Callable[[], bool], view: View, prepares: bool) -> Session:
        """A session on the view, which the caller closes; a warm one if there is one.

        is_left: whether steps are to be taken in another graph.  Then what is closed is kept for the way back.  So is
        a warm session that has prepared a view: to close it takes time without steps.
        """
        warm = self._pop(view, prepares)
        session = warm or open_session(server, self._graph, view, runs_once=prepares)

        def takes_back(closed: Session) -> bool:
            wanted = warm is not None if prepares else is_left()
            return wanted and self._keep(view, prepares, closed)

        return session.lend(takes_back)

    @property
    def keeps_any(self) -> bool:
        return bool(self._kept)

    def close(self) -> None:
        """They are not wanted any more."""
        with self._lock:
            kept = [session for _, session in self._kept.values()]
            self._kept.clear()
        for session in kept:
            _end(session)

    def _pop(self, view: View, prepares: bool) -> Session:
        """The one that is kept, if it is on the ps of this view."""
        with self._lock:
            on, session = self._kept.pop(prepares, (view, None))
        if on.ps != view.ps:
            _end(session)
            return None
        return session

    def _warmed(self, server: WorkerServer, view: View, prepares: bool) -> Session:
        session = open_session(server, self._graph, view, runs_once=prepares)
        try:
            self._warm_up[prepares](session)
        except BaseException:
            _end(session)
            raise
        return session

    def _keep(self, view: View, prepares: bool, session: Session) -> bool:
        """Unless there is one."""
        with self._lock:
            return self._kept.setdefault(prepares, (view, session))[1] is session


def _end(session: Session) -> None:
    with suppress(tf1.errors.OpError):  # its ps may be lost
        session.close()
