"""The newest answer that a process has from the coordinator, and waiting for one that will do.

The lock is held for a few lines only; predicates are evaluated outside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from psruntime.core.members.messages import Answer
from psruntime.errors import PsRuntimeError, StopRequested

LOOK_S = 0.2  # how often a wait looks at the stop event, which a signal handler sets without waking anybody


class LatestAnswer:
    """Written by the threads that talk to the coordinator, read by all.

    Invariant: within an incarnation (revision, floor) never falls, so a late answer changes nothing.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._answer: Answer | None = None
        self._error: PsRuntimeError | None = None

    def get(self) -> Answer:
        """The newest answer; raises what `fail` was given."""
        with self._changed:
            self._raise_error()
        return self.last()

    def last(self) -> Answer:
        """The newest answer, also after a failure.  Raises RuntimeError before the first admission."""
        with self._changed:
            if self._answer is None:
                raise RuntimeError("no answer yet: the seat has to be taken first")
            return self._answer

    def admit(self, answer: Answer) -> None:
        """The first answer of a new incarnation: those of the incarnation before count no more."""
        with self._changed:
            self._answer = answer
            self._changed.notify_all()

    def offer(self, answer: Answer) -> None:
        """An answer to a call of the current incarnation; kept if it is newer than what is there."""
        with self._changed:
            last = self._answer
            if last is None or answer.incarnation != last.incarnation:
                return
            if (answer.revision, answer.floor) > (last.revision, last.floor):
                self._answer = answer
                self._changed.notify_all()

    def fail(self, error: PsRuntimeError) -> None:
        """No answer will follow; every wait raises this error.  The first error stays."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def wait_until(
        self, predicate: Callable[[Answer], bool], timeout_s: float | None, stop: threading.Event
    ) -> Answer | None:
        """The first answer for which the predicate holds; None after `timeout_s` (None: no limit).

        Raises:
            The error given to `fail`.
            StopRequested: `stop` was set.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        seen: Answer | None = None
        while True:
            if stop.is_set():
                raise StopRequested("asked to stop while waiting for the coordinator")
            with self._changed:
                self._raise_error()
                answer = self._answer
            if answer is not None and answer is not seen and predicate(answer):
                return answer
            seen = answer
            left_s = LOOK_S if until_s is None else min(LOOK_S, until_s - time.monotonic())
            if left_s <= 0:
                return None
            with self._changed:
                if self._answer is seen and self._error is None:
                    self._changed.wait(left_s)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise type(self._error)(str(self._error)) from self._error
