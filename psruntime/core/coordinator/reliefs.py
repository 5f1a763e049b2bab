"""Workers that may not be chief for a while, each with its reason, for example that it does not see the checkpoint.

What is in the way may pass: a file system may be away for a moment.

Law: a worker that was relieved is not chief for AGAIN_S.  Then it may be asked again, after all that were not asked or
were longer ago.
Law: the time that counts is from the first relief since a view was prepared.
"""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.core.members.judged_clock import JudgedClock
from psruntime.core.members.membership import Member
from psruntime.errors import some

NAMED = 3  # in one line
AGAIN_S = 10.0


@dataclass(frozen=True)
class _Relief:
    why: str  # names the worker
    at_s: float


class Reliefs:
    """Times are judged time, in seconds."""

    def __init__(self, clock: JudgedClock) -> None:
        self._clock = clock
        self._latest: dict[int, _Relief] = {}  # by incarnation
        self._first_s = clock.now_s

    def add(self, worker: Member, reason: str) -> None:
        """This worker is not chief for a while."""
        if not self._latest:
            self._first_s = self._clock.now_s
        self._latest[worker.incarnation] = _Relief(f"{worker.name}: {reason}", self._clock.now_s)

    def forget(self, incarnation: int) -> None:
        """The worker is gone."""
        self._latest.pop(incarnation, None)

    def forget_all(self) -> None:
        """A view is prepared: nothing is in the way any more."""
        self._latest = {}

    def bars(self, worker: Member) -> bool:
        relief = self._latest.get(worker.incarnation)
        return relief is not None and self._clock.now_s < relief.at_s + AGAIN_S

    def turn(self, worker: Member) -> tuple[float, int]:
        """By which workers are asked: the lowest index of those that were not, then who was longest ago."""
        relief = self._latest.get(worker.incarnation)
        return relief.at_s if relief else 0.0, worker.index

    @property
    def waited_s(self) -> float:
        """Time since the first; 0 if there is none."""
        return self._clock.now_s - self._first_s if self._latest else 0.0

    def __str__(self) -> str:
        """The latest reason of each, in at most one line; for people."""
        return some([relief.why for relief in self._latest.values()], NAMED, "; ")
