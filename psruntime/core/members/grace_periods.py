"""Who is gone and may return, and for how long that is waited for.

A lost ps has `ps_timeout_s`.  A lost worker has a lease: so long nobody concludes from those that are left that all
have stopped.  Nor right after the start: the workers of a coordinator that died come back one by one.
"""

from __future__ import annotations

from collections.abc import Iterable

from psruntime.config import JobConfig
from psruntime.core.members.membership import Member, Role


class GracePeriods:
    """settled: no worker is expected back.  Times are those of the coordinator, in seconds."""

    def __init__(self, job: JobConfig, now_s: float) -> None:
        self.settled = False
        self._job = job
        self._began_s = now_s
        self._ps_since_s: dict[int, float] = {}  # index of a lost ps -> when
        self._workers_until_s = now_s + job.lease_s

    def lost(self, member: Member, now_s: float) -> None:
        if member.role is Role.PS:
            self._ps_since_s[member.index] = now_s
        else:
            self._workers_until_s, self.settled = now_s + self._job.lease_s, False

    def expect(self, ps: Iterable[int]) -> None:
        """These ps were there before the coordinator started, which is when their time began."""
        for index in ps:
            self._ps_since_s.setdefault(index, self._began_s)

    def back(self, member: Member) -> None:
        if member.role is Role.PS:
            self._ps_since_s.pop(member.index, None)

    def advance(self, now_s: float, pause_s: float) -> None:
        """Advances the time.  `pause_s` of it, when the coordinator did not run, does not count."""
        self._began_s += pause_s
        self._ps_since_s = {index: since_s + pause_s for index, since_s in self._ps_since_s.items()}
        self._workers_until_s += pause_s
        self.settled = now_s >= self._workers_until_s

    def overdue(self, now_s: float) -> list[int]:
        """Indices of the ps that are gone for too long."""
        return sorted(i for i, since_s in self._ps_since_s.items() if now_s - since_s > self._job.ps_timeout_s)
