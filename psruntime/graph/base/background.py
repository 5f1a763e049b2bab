"""Work beside the training steps, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import tensorflow.compat.v1 as tf1

from psruntime.errors import PsRuntimeError
from psruntime.graph.base.errors import first_line

T = TypeVar("T")
LOG_AFTER_S = 1.0  # a wait shorter than this is not worth a line in the log


class Background(threading.Thread, Generic[T]):
    """Starts `work` at once.  When it has ended there is its result, or why it failed.

    A PsRuntimeError, an error of TensorFlow, or a session that was closed is a failure; anything else is a defect, and
    ends the thread with a traceback.
    """

    def __init__(self, name: str, work: Callable[[], T]) -> None:
        super().__init__(name=name, daemon=True)
        self.result: T | None = None
        self.failure = f"the {name} was not completed"
        self._work = work
        self._began_s = time.monotonic()
        self.start()

    @property
    def age_s(self) -> float:
        """Seconds since it started."""
        return time.monotonic() - self._began_s

    def run(self) -> None:
        try:
            self.result = self._work()
        except PsRuntimeError as error:
            self.failure = str(error)
        except (tf1.errors.OpError, RuntimeError) as error:
            self.failure = first_line(error)


def await_end(thread: threading.Thread, reason: str, log: Callable[..., None], within_s: float | None = None) -> None:
    """Waits until the thread has ended, at most `within_s`; logs `waiting` if that takes more than a second."""
    until_s = None if within_s is None else time.monotonic() + within_s
    thread.join(LOG_AFTER_S if within_s is None else min(LOG_AFTER_S, within_s))
    if thread.is_alive():
        log("waiting", reason=reason)
        thread.join(None if until_s is None else max(0.0, until_s - time.monotonic()))
