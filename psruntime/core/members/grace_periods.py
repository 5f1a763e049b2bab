"""Who is gone and may return, and for how long that is waited for.

A lost ps has `ps_timeout_s`.  A lost worker has a lease: so long nobody concludes from those that are left that all
have stopped.  Nor right after the start: the workers of a coordinator that died come back one by one.
"""

from __future__ import annotations

from collections.abc import Iterable

from psruntime.config import JobConfig
from psruntime.core.members.judged_clock import JudgedClock
from psruntime.core.members.membership import Member, Role


class GracePeriods:
    """Times are judged time, in seconds."""

    def __init__(self, job: JobConfig, clock: JudgedClock) -> None:
        self._job = job
        self._clock = clock
        self._began_s = clock.now_s
        self._ps_since_s: dict[int, float] = {}  # index of a lost ps -> when
        self._workers_until_s = clock.now_s + job.lease_s

    def lost(self, member: Member) -> None:
        if member.role is Role.PS:
            self._ps_since_s[member.index] = self._clock.now_s
        else:
            self._workers_until_s = self._clock.now_s + self._job.lease_s

    def expect(self, ps: Iterable[int]) -> None:
        """These ps were there before the coordinator started, which is when their time began."""
        for index in ps:
            self._ps_since_s.setdefault(index, self._began_s)

    def back(self, member: Member) -> None:
        if member.role is Role.PS:
            self._ps_since_s.pop(member.index, None)

    @property
    def settled(self) -> bool:
        """Whether no worker is expected back."""
        return self._clock.now_s >= self._workers_until_s

    def overdue(self) -> list[int]:
        """Indices of the ps that are gone for too long."""
        now_s, limit_s = self._clock.now_s, self._job.ps_timeout_s
        return sorted(index for index, since_s in self._ps_since_s.items() if now_s - since_s > limit_s)
