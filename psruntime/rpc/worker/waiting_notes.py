"""Why a worker waits: for the status whenever it changes, and for the log where that is news."""

from __future__ import annotations

import time
from collections.abc import Callable

from psruntime.rpc.worker.worker_facts import WorkerFacts

SAME_AGAIN_S = 60.0  # between two lines of the log that say the same of retries


class WaitingNotes:
    """Used by the thread that steps.  An empty reason: it does not wait any more."""

    def __init__(self, facts: WorkerFacts, log: Callable[..., None]) -> None:
        self._facts, self._log = facts, log
        self._logged = ""  # the reason that the log had last
        self._gate_logged = ""  # the same, of waits at the gate
        self._retried = ("", 0.0)  # what the log says of the latest retry, and since when

    def waits(self, reason: str) -> None:
        """The same reason again is news after another one, or after none."""
        self._facts.waits(reason)
        if reason and reason != self._logged:
            self._log("waiting", reason=reason)
        self._logged = reason

    def waits_at_gate(self, reason: str) -> None:
        """As `waits`, but one slow worker is one line in the log, however often it is waited for."""
        self._facts.waits(reason)
        if reason and reason != self._gate_logged:
            self._log("waiting", reason=reason)
            self._gate_logged = reason

    def retries(self, why: str) -> None:
        """Something is about to be tried again."""
        now_s = time.monotonic()
        if why != self._retried[0] or now_s - self._retried[1] >= SAME_AGAIN_S:
            self._log("retry", reason=why)
            self._retried = (why, now_s)
