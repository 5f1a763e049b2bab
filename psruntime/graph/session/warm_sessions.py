"""Sessions that are opened, and made ready, before they are wanted: beside the steps of another graph."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.members.view import View
from psruntime.graph.session.session import WorkerServer, open_session

WarmUp = Callable[[Any], None]


class WarmSessions:
    """At most one for the steps of a graph, and one to prepare a view.  `warm` is called by one thread, others by any.

    steps, preparation: run in a session what it will be wanted for, so that nothing is changed.
    """

    def __init__(self, graph: Any, steps: WarmUp, preparation: WarmUp) -> None:
        self._graph = graph
        self._warm_up = {False: steps, True: preparation}
        self._lock = threading.Lock()  # guards the next
        self._open: dict[bool, tuple[View, Any]] = {}  # by whether it is to prepare a view

    def warm(self, server: WorkerServer, view: View, prepares: bool) -> None:
        """Opens them on the view, that to prepare one only if this worker may have to.

        What fails, as where a ps is lost, is left to whoever opens a session then.
        """
        self.close()
        with suppress(tf1.errors.OpError):
            for each in (False, True) if prepares else (False,):
                self._keep(each, view, open_session(server, self._graph, view, runs_once=each))

    def open(self, server: WorkerServer, view: View, prepares: bool) -> Any:
        """A session on the view, warm if there is one; whoever opens it closes it."""
        with self._lock:
            on, session = self._open.pop(prepares, (View(), None))
        if session and on.ps != view.ps:
            session.close()
            session = None
        return session or open_session(server, self._graph, view, runs_once=prepares)

    def close(self) -> None:
        """They are not wanted any more."""
        with self._lock:
            sessions = [session for _, session in self._open.values()]
            self._open.clear()
        for session in sessions:
            session.close()

    def _keep(self, prepares: bool, view: View, session: Any) -> None:
        try:
            self._warm_up[prepares](session)
        except BaseException:
            session.close()
            raise
        with self._lock:
            self._open[prepares] = view, session
