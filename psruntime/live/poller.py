"""Asks for the status of a job once a second, in a thread of its own, whoever looks at the answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from psruntime.config import JobConfig
from psruntime.core.members.messages import JobStatus
from psruntime.errors import PsRuntimeError

EVERY_S = 1.0
END_S = 10.0  # for its thread to end: an answer that is under way has less

Ask = Callable[[], tuple[JobStatus, JobConfig]]
Hear = Callable[[JobStatus, JobConfig, float], None]
Miss = Callable[[str, float], None]


class Poller:
    """Calls `hear` with each answer, and `miss` with the reason for each failure, both with the time of day.

    ask: raises PsRuntimeError if there is no answer, within its own deadline.  It is asked again for ever: a
    coordinator may come back.
    """

    def __init__(self, ask: Ask, hear: Hear, miss: Miss, every_s: float = EVERY_S) -> None:
        self._ask, self._hear, self._miss = ask, hear, miss
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status-poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Asks no more; whoever closes what `ask` calls first is not kept waiting for its deadline."""
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
                self._miss(str(error), time.time())
        else:
            self._hear(*answer, time.time())
