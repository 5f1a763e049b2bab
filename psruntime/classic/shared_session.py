"""The session of now, which all threads of a script share.  The first thread that finds it lost replaces it.

It is in place of what TensorFlow's MonitoredSession has within it, which is for one thread: there each thread that
finds a session lost closes the session that another one has opened meanwhile.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.classic.hooked_session import HookedSession
from psruntime.graph.base.errors import LOST_SESSION, is_closed, or_lost

_OF_A_QUEUE = re.compile(r"(En|De)queue operation was cancelled|Queue '.*' is closed")


@dataclass(frozen=True)
class Opened:
    """A session on a view.  hooked: runs what the script runs.  served: runs what the services run."""

    session: Any
    coord: Any
    hooked: Any
    served: Any


class SharedSession:
    """Opens sessions by `session_creator`, in the default graph of the thread that makes this.

    hooks: of all sessions.  of_runs, of_services: those of them that act in a run of the script, and of a service.
    starts_queues: whether each session starts the queue runners of the graph.
    """

    def __init__(
        self,
        session_creator: Any,
        hooks: Sequence[Any],
        of_runs: Sequence[Any],
        of_services: Sequence[Any],
        grace_s: float,
        starts_queues: bool = True,
    ) -> None:
        self.tf_sess: Any = None  # as TensorFlow's MonitoredSession reads and clears them
        self.coord: Any = None
        self._graph = tf1.get_default_graph()
        self._creator, self._hooks, self._grace_s = session_creator, hooks, grace_s
        self._of_runs, self._of_services, self._starts_queues = of_runs, of_services, starts_queues
        self._opening = threading.RLock()
        self._changing = threading.Lock()
        self._opened: Opened | None = None
        self._closed = False

    def create_session(self) -> SharedSession:
        """Itself, once a session is open."""
        self._current()
        return self

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """As tf.train.MonitoredSession."""
        return self._on_session(lambda opened: opened.hooked.run(fetches, feed_dict, options, run_metadata))

    def run_step_fn(self, step_fn: Any, raw_session: Any, run_with_hooks: Any) -> Any:  # noqa: ARG002
        """As tf.train.MonitoredSession."""
        context = tf1.train.MonitoredSession.StepContext
        return self._on_session(lambda opened: step_fn(context(opened.session, opened.hooked.run)))

    def serve(self, fetches: Any) -> None:
        """Runs these with the hooks of the services."""
        self._on_session(lambda opened: opened.served.run(fetches))

    def with_raw(self, use: Callable[[Any], Any]) -> Any:
        """What `use` gives for TensorFlow's session of now; used again if that is lost."""
        return self._on_session(lambda opened: or_lost(use, opened.session))

    def should_stop(self) -> bool:
        """Whether a hook or a queue runner asked to stop."""
        opened = self._opened
        if opened is None:
            return self._closed
        try:
            opened.coord.raise_requested_exception()
            stops = bool(opened.coord.should_stop() or opened.hooked.should_stop())
        except LOST_SESSION:
            self._leave(opened)
        except Exception:  # noqa: BLE001 - raised when the session is closed
            return True
        return self._closed if self._opened is not opened else stops

    def close(self) -> None:
        """Ends the queue runners and closes the session.  Raises the error of a queue runner, if one had any."""
        with self._changing:
            self._closed = True
            opened, self._opened = self._opened, None
        if opened is None:
            return
        opened.coord.request_stop()
        try:
            opened.coord.join(stop_grace_period_secs=self._grace_s, ignore_live_threads=True)
        except LOST_SESSION:
            pass  # it is closed now
        finally:
            _close(opened.session)

    def _on_session(self, call: Callable[[Opened], Any]) -> Any:
        while True:
            opened = self._current()
            try:
                return call(opened)
            except Exception as error:
                cause = error.__cause__
                if isinstance(cause, tf1.errors.CancelledError) and _OF_A_QUEUE.search(str(cause.message)):
                    raise cause from None  # another thread has closed a queue, not the session
                if not self._is_lost(opened, error):
                    raise
            self._leave(opened)

    def _is_lost(self, opened: Opened, error: Exception) -> bool:
        """Whether the session is: by the error, by another thread, or by a queue runner."""
        if isinstance(error, LOST_SESSION) or is_closed(error):
            return True
        if self._opened is not opened:
            return not self._closed
        try:
            opened.coord.raise_requested_exception()
        except LOST_SESSION:
            return True
        except Exception:  # noqa: BLE001 - the run's own error is raised
            return False
        return False

    def _current(self) -> Opened:
        if (opened := self._opened) is not None:
            return opened
        with self._opening:
            while True:
                if (opened := self._opened) is not None:
                    return opened
                if self._closed:
                    raise RuntimeError("the session is closed")
                with suppress(*LOST_SESSION):
                    opened = self._open()
                    with self._changing:
                        if not self._closed:
                            self._opened = opened
                            return opened
                    opened.coord.request_stop()
                    _close(opened.session)

    def _open(self) -> Opened:
        with self._graph.as_default():
            session = self._creator.create_session()
            coord = tf1.train.Coordinator(clean_stop_exception_types=[])
            self.tf_sess, self.coord = session, coord
            if self._starts_queues and tf1.get_collection(tf1.GraphKeys.QUEUE_RUNNERS):
                tf1.train.start_queue_runners(sess=session, coord=coord)
            for hook in self._hooks:
                hook.after_create_session(session, coord)
            return Opened(
                session, coord, HookedSession(session, self._of_runs), HookedSession(session, self._of_services)
            )

    def _leave(self, opened: Opened) -> None:
        """Closes a lost session unless another thread does.  It is closed first, so that it closes no queue."""
        with self._changing:
            if self._opened is not opened:
                return
            self._opened = None
        _close(opened.session)
        opened.coord.request_stop()
        with suppress(Exception):
            opened.coord.join(stop_grace_period_secs=self._grace_s, ignore_live_threads=True)


def _close(session: Any) -> None:
    with suppress(Exception):  # it may be lost already
        session.close()
