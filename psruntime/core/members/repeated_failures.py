"""Processes that fail again and again while the job gets nowhere, and workers of which none comes back.

Whatever starts the first would do so for ever; the ps would wait for the others for ever.
"""

from __future__ import annotations

from psruntime.core.members.membership import Member, Role

LIMIT = 10  # failures of one process
ALONE_S = 20.0  # without a worker, when none is expected back


class RepeatedFailures:
    """Since the global step last changed.  Times are those of the coordinator, in seconds.

    patience_s: for how long it may stay the same, however often a process fails.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._now_s = self._first_s = 0.0
        self._step = 0
        self._counts: dict[str, int] = {}  # by the name of the process
        self._reasons: dict[str, str] = {}
        # Index of a worker that is not live -> why it ended for good; empty: it did not.
        self._gone: dict[int, str] = {}
        self._latest = -1  # index of the worker that went last
        self._alone_since_s = 0.0

    def advance(self, now_s: float, pause_s: float) -> None:
        """Moves the time on.  Does not count `pause_s`, during which the coordinator itself was not running."""
        self._now_s = max(self._now_s, now_s)
        self._first_s += pause_s
        self._alone_since_s += pause_s

    def trained(self, global_step: int) -> None:
        """The job is at this step."""
        if global_step != self._step:
            self._step = global_step
            self._counts, self._reasons = {}, {}

    def add(self, member: Member, reason: str) -> None:
        """This process left because of an error."""
        if not self._counts:
            self._first_s = self._now_s
        self._counts[member.name] = self._counts.get(member.name, 0) + 1
        self._reasons[member.name] = reason

    def joined(self, worker: Member) -> None:
        """A process has this worker's index."""
        self._gone.pop(worker.index, None)

    def left(self, member: Member, reason: str, for_good: bool) -> None:
        """A member is gone; without `for_good` whatever starts it may start it again."""
        if member.role is Role.WORKER:
            self._gone[member.index] = reason if for_good else ""
            self._latest, self._alone_since_s = member.index, self._now_s

    def refused(self, index: int, reason: str) -> None:
        """The worker of this index came again, and its join was refused: it has ended for good, if it was a member."""
        if index in self._gone:
            self._gone[index], self._latest = reason, index

    def why_nobody_comes(self) -> str:
        """Why no worker comes any more, of a job that has had none for a while; empty while one may come."""
        if not self._gone or not all(self._gone.values()) or self._now_s - self._alone_since_s < ALONE_S:
            return ""
        return f"no worker is left: worker {self._latest} has ended for good: {self._gone[self._latest]}"

    def why_hopeless(self) -> str:
        """What to say of a job that starting a process anew does not help; empty while it may."""
        for_s, name = self._now_s - self._first_s, max(self._counts, key=self._counts.__getitem__, default="")
        if not name or self._counts[name] < LIMIT or for_s < self._patience_s:
            return ""
        times = f"{self._counts[name]} times in {for_s:.0f} s"
        return f"{name} failed {times} at global step {self._step}, the last time: {self._reasons[name]}"
