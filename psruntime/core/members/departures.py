"""Who is no member any more, and why: for an operator who asks where a worker is.

A member that leaves because the job is over is of no interest: the phase says it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from psruntime.core.members.membership import Member, Role
from psruntime.core.members.messages import Departure, LeaveKind

KEPT = 16  # the latest; older ones are in the log of ps 0
NAMED = 3  # in one line of the status


@dataclass(frozen=True)
class _Gone:
    member: Member
    kind: LeaveKind | None
    reason: str
    at_s: float


class Departures:
    """The latest ones.  Times are those of the coordinator, in seconds."""

    def __init__(self) -> None:
        self._gone: deque[_Gone] = deque(maxlen=KEPT)

    def add(self, member: Member, now_s: float, reason: str, kind: LeaveKind | None = None) -> None:
        """A member is gone; without a `kind` it said nothing."""
        if kind is not LeaveKind.OVER:
            self._gone.append(_Gone(member, kind, reason, now_s))

    def at(self, now_s: float) -> tuple[Departure, ...]:
        """All that are kept, the latest last."""
        return tuple(
            Departure(g.member.role, g.member.index, g.member.tag, g.kind, g.reason, max(0.0, now_s - g.at_s))
            for g in self._gone
        )


def missing(departures: Iterable[Departure], role: Role, live: Collection[int]) -> list[str]:
    """What there is to say of those whose index nobody has now, the latest first, as far as a line has room."""
    latest: dict[int, str] = {}
    for departure in departures:
        if departure.role is role and departure.index not in live:
            latest.pop(departure.index, None)
            latest[departure.index] = str(departure)
    return list(reversed(latest.values()))[:NAMED]
