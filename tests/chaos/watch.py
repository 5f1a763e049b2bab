"""Looks at a job all the time, from a thread of its own: that it goes on, and that nobody exceeds the bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from psruntime.core.members.job_status import JobStatus
from psruntime.core.members.view import Phase
from tests.chaos.storm import status_of
from tests.support.cluster import Cluster

LOOK_S = 0.1
STUCK_S = 120.0  # without any progress; recovery takes seconds


class Watch:
    """longest_s: the longest time without a step.  wrong: what must not be; empty if all was well.

    excused: nobody can expect a step now.
    """

    def __init__(self, job: Cluster, excused: Callable[[], bool]) -> None:
        self._excused = excused
        self.longest_s = 0.0
        self.wrong = ""
        self._job = job
        self._seen: tuple[int, int] | None = None  # view, global step
        self._since_s = time.monotonic()
        self._over = threading.Event()

    def check(self, told: Sequence[str]) -> None:
        """told: what was done to the job, for the message."""
        assert not self.wrong, f"{self.wrong}, after {told[-5:]}"

    def keep(self) -> None:
        """Until `end`."""
        try:
            while not self._over.wait(LOOK_S):
                self._look(status_of(self._job), time.monotonic())
        except Exception as error:  # noqa: BLE001 - told by `check`
            self.wrong = f"the status is wrong: {type(error).__name__}: {error}"

    def end(self) -> None:
        self._over.set()

    def _look(self, status: JobStatus | None, now_s: float) -> None:
        seen = (status.view.number, status.global_step) if status else self._seen
        self.longest_s = max(self.longest_s, now_s - self._since_s)
        if seen != self._seen or self._excused():
            self._seen, self._since_s = seen, now_s
        bound = self._job.settings.bound
        if status and status.phase is Phase.FAILED:
            self.wrong = f"the job failed: {status.reason}"
        elif status and bound is not None and status.max_lead > bound:
            self.wrong = f"a step was started {status.max_lead} steps ahead, bound {bound}"
        elif now_s - self._since_s > STUCK_S:
            self.wrong = f"no step for {STUCK_S:g} s: {status.reason if status else 'ps 0 is away'}"


@contextmanager
def watching(job: Cluster, excused: Callable[[], bool]) -> Iterator[Watch]:
    watch = Watch(job, excused)
    thread = threading.Thread(target=watch.keep, name="watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.end()
        thread.join()
