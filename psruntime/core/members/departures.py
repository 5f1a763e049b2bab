"""Who is no member: gone, or expected back.

A lost ps has `ps_timeout_s`.  A lost worker has a lease: so long it is not concluded from those that are left that all
have stopped.  Nor right after the start: the workers of a coordinator that died come back one by one.

A member that leaves because the job is over is not kept: the phase shows that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace

from psruntime.config import JobConfig
from psruntime.core.members.job_status import Departure
from psruntime.core.members.judged_clock import JudgedClock
from psruntime.core.members.membership import Member, Role
from psruntime.core.members.messages import LeaveKind


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


KEPT = 16  # the latest; older ones are in the log of ps 0
NAMED = 3  # in one line of the status


class Departures:
    """The latest ones.  Times are those of the coordinator, in seconds."""

    def __init__(self) -> None:
        self._gone: deque[tuple[float, Departure]] = deque(maxlen=KEPT)  # (when, with no time since)

    def add(self, role: Role, index: int, tag: str, now_s: float, reason: str, kind: LeaveKind | None = None) -> None:
        """Keeps the departure of a process; without a `kind` it was lost."""
        if kind is not LeaveKind.OVER:
            self._gone.append((now_s, Departure(role, index, tag, kind, reason, 0.0)))

    def explain(self, role: Role, index: int, since_s: float, why: str) -> None:
        """Adds why a process was silent to the reason for which it was lost, if it was lost since then."""
        for place, (when_s, gone) in enumerate(self._gone):
            if (gone.role, gone.index, gone.kind) == (role, index, None) and when_s > since_s:
                self._gone[place] = when_s, replace(gone, reason=f"{gone.reason}: {why}")

    def at(self, now_s: float) -> tuple[Departure, ...]:
        """All that are kept, the latest last."""
        return tuple(replace(departure, ago_s=max(0.0, now_s - when_s)) for when_s, departure in self._gone)


def missing(departures: Iterable[Departure], role: Role, live: Collection[int]) -> list[str]:
    """The departures whose index is free now, the latest first, in at most one line; for people."""
    latest: dict[int, str] = {}
    for departure in departures:
        if departure.role is role and departure.index not in live:
            latest.pop(departure.index, None)
            latest[departure.index] = str(departure)
    return list(reversed(latest.values()))[:NAMED]
