"""Asks for the status of a job once a second, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from psruntime.config import JobConfig
from psruntime.core.members.job_status import JobStatus
from psruntime.errors import PsRuntimeError

EVERY_S = 1.0
END_S = 10.0  # for its thread to end: a call in progress has a shorter deadline

Ask = Callable[[], tuple[JobStatus, JobConfig]]
OnAnswer = Callable[[JobStatus, JobConfig, float], None]
OnFailure = Callable[[str, float], None]


class Poller:
    """Calls `on_answer` with each answer, and `on_failure` with the reason for each failure, both with the time of day.

    ask: raises PsRuntimeError if there is no answer, within its own deadline.  It is called again for ever: a
    coordinator may be restarted.
    """

    def __init__(self, ask: Ask, on_answer: OnAnswer, on_failure: OnFailure, every_s: float = EVERY_S) -> None:
        self._ask, self._on_answer, self._on_failure = ask, on_answer, on_failure
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status-poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops asking.  Close the client of `ask` first to end a call in progress before its deadline."""
        self._stop.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._stop.is_set():
            self._look()
            due_s = max(due_s + self._every_s, time.monotonic())
            self._stop.wait(max(0.0, due_s - time.monotonic()))

    def _look(self) -> None:
        try:
            answer = self._ask()
        except PsRuntimeError as error:
            if not self._stop.is_set():
                self._on_failure(str(error), time.time())
        else:
            self._on_answer(*answer, time.time())
