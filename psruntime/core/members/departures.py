"""Who is no member: gone, expected back, or failing again and again while the job gets nowhere.

A lost ps has `ps_timeout_s`.  A lost worker has as long as a lease: until then it is not concluded from the others
that all have stopped.  Nor right after the start: the workers of a coordinator that died come back one by one.

A member that leaves because the job is over is not kept: the phase shows that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace

from psruntime.config import JobConfig
from psruntime.core.members.job_status import Departure
from psruntime.core.members.membership import JudgedClock, Member, Role
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


LIMIT = 10  # failures of one process
ALONE_S = 20.0  # with too few workers, when no other is expected
FIRST_S = 50.0  # the same before the training has begun: a person corrects a command line and repeats it


class RepeatedFailures:
    """Processes that fail again and again since the global step last changed, and workers that have ended for good.

    Whatever starts the first would do so for ever; the job would wait for the others for ever.  Times are judged time,
    in seconds.

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


KEPT_LEASES = 6  # after that the push of a process that stood still is not counted: it has no session to arrive in


class SessionCleanup:
    """Workers that are gone, as a ps sees it: for how long it keeps what belongs to them.

    A worker that stood still may have a push under way, which is to be counted as fenced; one that was killed
    leaves a session behind that costs memory.  So what is left of a worker stays for a while, and is cleared then.

    Invariant: no worker in it is admitted.  Times are those of the caller, in seconds.
    """

    def __init__(self, lease_s: float) -> None:
        self._kept_s = KEPT_LEASES * lease_s
        self._admitted: frozenset[int] = frozenset()
        self._since_s: dict[int, float] = {}  # worker index -> when it was no longer admitted

    def update(self, admitted: Collection[int], now_s: float) -> None:
        """These worker indices are admitted now."""
        for index in sorted(self._admitted.difference(admitted)):
            self._since_s[index] = now_s
        for index in admitted:
            self._since_s.pop(index, None)
        self._admitted = frozenset(admitted)

    def take_overdue(self, now_s: float) -> int | None:
        """The one that has been gone for longest, if its time is over; each once, and one at a time: to clear what is
        left of it holds a heartbeat up."""
        index = next(iter(self._since_s), None)
        if index is None or now_s - self._since_s[index] < self._kept_s:
            return None
        del self._since_s[index]
        return index
