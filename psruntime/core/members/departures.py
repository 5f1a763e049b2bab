"""Who is no member any more, and why: for an operator who asks where a worker is.

A member that leaves because the job is over is not kept: the phase shows that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace

from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Departure, LeaveKind

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
