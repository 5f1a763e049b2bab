"""Processes that fail again and again while the job gets nowhere, and workers that have ended for good.

Whatever starts the first would do so for ever; the job would wait for the others for ever.
"""

from __future__ import annotations

from psruntime.core.members.judged_clock import JudgedClock
from psruntime.core.members.membership import Role

LIMIT = 10  # failures of one process
ALONE_S = 20.0  # with too few workers, when no other is expected
FIRST_S = 50.0  # the same before the training has begun: a person corrects a command line and repeats it


class RepeatedFailures:
    """Since the global step last changed.  Times are judged time, in seconds.

    patience_s: for how long it may stay the same, however often a process fails.
    """

    def __init__(self, patience_s: float, clock: JudgedClock) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._first_s = clock.now_s
        self._step = 0
        self._counts: dict[str, int] = {}  # by the name of the process
        self._reasons: dict[str, str] = {}
        # Index of a worker that is not live -> why it ended for good; empty: it may come.
        self._gone: dict[int, str] = {}
        self._unjoined: set[int] = set()  # of those, the ones that ended for good since they were a member, if ever
        self._latest = -1  # index of the worker that went last
        # When a worker last went, was started, joined, or first ended for good before its join.
        self._since_s = clock.now_s

    def trained(self, global_step: int) -> None:
        """The job is at this step."""
        if global_step != self._step:
            self._step = global_step
            self._counts, self._reasons = {}, {}

    def add(self, name: str, reason: str) -> None:
        """The process of this name ended because of an error."""
        if not self._counts:
            self._first_s = self._clock.now_s
        self._counts[name] = self._counts.get(name, 0) + 1
        self._reasons[name] = reason

    def starts(self, index: int) -> None:
        """The worker of this index, which is no member, is started: it may come."""
        self._gone[index] = ""
        self._renew(index)

    def joined(self, index: int) -> None:
        """The worker of this index is a member."""
        self._renew(index)
        self._gone.pop(index, None)
        self._unjoined.discard(index)

    def left(self, role: Role, index: int, reason: str, for_good: bool) -> None:
        """A member is gone; without `for_good` whatever starts it may start it again."""
        if role is Role.WORKER:
            self._gone[index] = reason if for_good else ""
            self._latest, self._since_s = index, self._clock.now_s

    def ended(self, index: int, reason: str) -> None:
        """The worker of this index, which is no member, has ended for good, or its join was refused."""
        self._renew(index)
        self._unjoined.add(index)
        self._gone[index], self._latest = reason, index

    def _renew(self, index: int) -> None:
        """Others may follow this worker.  One that ends for good whenever it is started does not put the end off."""
        if index not in self._unjoined:
            self._since_s = self._clock.now_s

    def why_too_few(self, live: int, needed: int, begun: bool) -> str:
        """Why fewer workers than are needed can come, of a job with too few for a while; empty while enough may come.

        live: workers that are members.  begun: whether the training has.
        """
        ended, known = [index for index, why in self._gone.items() if why], live + len(self._gone)
        is_late = self._clock.now_s - self._since_s >= (ALONE_S if begun else FIRST_S)
        if not (is_late and known - len(ended) < needed <= known):
            return ""
        left = f"{live} of at least {needed} workers are left" if live else "no worker is left"
        latest = self._latest if self._latest in ended else ended[-1]
        return f"{left}: worker {latest} has ended for good: {self._gone[latest]}"

    def why_hopeless(self) -> str:
        """Why a restart of a process does not help this job, for people; empty while it may."""
        for_s, name = self._clock.now_s - self._first_s, max(self._counts, key=self._counts.__getitem__, default="")
        if not name or self._counts[name] < LIMIT or for_s < self._patience_s:
            return ""
        times = f"{self._counts[name]} times in {for_s:.0f} s"
        return f"{name} failed {times} at global step {self._step}, the last time: {self._reasons[name]}"
