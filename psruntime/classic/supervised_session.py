"""The session that a Supervisor gives: one tf.Session for the script, whatever sessions follow each other behind it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.classic.counting import StepCounting
from psruntime.classic.script_session import CLEAN_ENDS, ScriptSession


class SupervisedSession(tf1.Session):  # type: ignore[misc]
    """A run is a step if it counts the global step, as in a MonitoredTrainingSession; it is of any thread.

    `close`, or the end of the script, leaves the job: it waits until all other workers have stopped.
    """

    def __init__(self, monitored: ScriptSession, counting: StepCounting) -> None:
        self._monitored, self._counting = monitored, counting
        self._session = None  # TensorFlow's own, of which this has none
        self._graph, self._add_shapes = tf1.get_default_graph(), False
        self._default_graph_context_manager: Any = None  # as tf.Session enters and leaves them
        self._default_session_context_manager: Any = None
        self._closed = self._is_exiting = False
        self._closing = threading.Lock()
        self._closes_in: int | None = None  # the thread that was the first to leave
        atexit.register(self._exit)

    def __del__(self) -> None:
        pass  # there is nothing of TensorFlow's to delete

    @property
    def is_closed(self) -> bool:
        """Whether this worker has left the job."""
        return self._closed

    @property
    def sess_str(self) -> Any:
        return self._monitored.with_raw(lambda session: session.sess_str)

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """As tf.Session."""
        return self._monitored.run(fetches, feed_dict, options, run_metadata)

    def make_callable(
        self, fetches: Any, feed_list: Sequence[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """As tf.Session; what is no step runs without the hooks."""
        feeds = list(feed_list or ())
        if accept_options or self._counting.reads(fetches):

            def step(*values: Any, **options: Any) -> Any:
                return self.run(fetches, dict(zip(feeds, values, strict=True)), **options)

            return step
        made: dict[Any, Any] = {}  # the newest session, and what it has made

        def call(*values: Any) -> Any:
            def of(session: Any) -> Any:
                made_now = made.get(session)
                if made_now is None:
                    made_now = session.make_callable(fetches, feed_list)
                    made.clear()
                    made[session] = made_now
                return made_now(*values)

            return self._monitored.with_raw(of)

        return call

    def list_devices(self) -> Any:
        """As tf.Session."""
        return self._monitored.with_raw(lambda session: session.list_devices())

    def partial_run_setup(self, fetches: Any, feeds: Any = None) -> Any:
        """As tf.Session, in the session of now; a lost one ends it."""
        return self._monitored.with_raw(lambda session: session.partial_run_setup(fetches, feeds))

    def partial_run(self, handle: Any, fetches: Any, feed_dict: Any = None) -> Any:
        """As tf.Session."""
        return self._monitored.with_raw(lambda session: session.partial_run(handle, fetches, feed_dict))

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the chief now."""
        return self._monitored.is_chief

    def should_stop(self) -> bool:
        """Whether the job takes no further step."""
        return self._closed or self._monitored.should_stop()

    def serve(self) -> None:
        """Lets the services of the chief do what is due."""
        self._monitored.serve(self._counting.global_step)

    def close(self) -> None:
        """Waits for the other workers, then leaves the job.  May be repeated; another thread waits for the first."""
        if self._is_first_to_leave():
            self._monitored.close()
        elif self._closes_in != threading.get_ident():
            self._monitored.await_left()

    def fail(self, error: BaseException) -> None:
        """Leaves the job because of an error: at once, and without holding the others up."""
        if self._is_first_to_leave():
            self._monitored.__exit__(type(error), error, error.__traceback__)

    def _is_first_to_leave(self) -> bool:
        with self._closing:
            is_first, self._closed = not self._closed, True
            if is_first:
                self._closes_in = threading.get_ident()
        return is_first

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._default_session_context_manager.__exit__(kind, value, trace)
        self._default_graph_context_manager.__exit__(kind, value, trace)
        self._default_session_context_manager = self._default_graph_context_manager = None
        if kind in CLEAN_ENDS or value is None:
            self.close()
        else:
            self.fail(value)

    def _exit(self) -> None:
        """The script ends, and has not closed this, or does so in another thread.  Python passes over what an exit
        function raises."""
        if self._is_exiting or self._monitored.has_left:
            return
        self._is_exiting = True
        error = getattr(sys, "last_value", None)  # what Python has printed at its end
        try:
            if error is None:
                self.close()
            else:
                self.fail(error)
        except SystemExit as ending:
            code = int(ending.code or 0)
        except BaseException:  # noqa: BLE001 - as that of a last checkpoint, by which the script has failed
            traceback.print_exc()
            code = 1
        else:
            return
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)
