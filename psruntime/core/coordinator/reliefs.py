"""Workers that may not be chief for a while, each with what it said, for example that it does not see the checkpoint.

What is in the way may pass: a file system may be away for a moment.

Law: a worker that was relieved is not chief for AGAIN_S.  Then it may be asked again, after all that were not asked or
were longer ago.
Law: the time that counts is from the first relief since a view was prepared.
"""

from __future__ import annotations

from psruntime.core.members.membership import Member

NAMED = 3  # in one line
AGAIN_S = 10.0


class Reliefs:
    """Times are those of the coordinator, in seconds."""

    def __init__(self) -> None:
        self._why: dict[int, str] = {}  # by incarnation; the text names the worker
        self._at_s: dict[int, float] = {}  # by incarnation: the latest
        self._since_s = self._now_s = 0.0

    def add(self, worker: Member, reason: str, now_s: float) -> None:
        """This worker is not chief for a while."""
        if not self._why:
            self._since_s = now_s
        self._why[worker.incarnation] = f"{worker.name}: {reason}"
        self._at_s[worker.incarnation] = now_s

    def forget(self, incarnation: int) -> None:
        """The worker is gone."""
        self._why.pop(incarnation, None)
        self._at_s.pop(incarnation, None)

    def forget_all(self) -> None:
        """A view is prepared: nothing is in the way any more."""
        self._why, self._at_s = {}, {}

    def advance(self, now_s: float, pause_s: float) -> None:
        """Moves the time on.  Does not count `pause_s`, during which the coordinator itself was not running."""
        self._now_s = max(self._now_s, now_s)
        self._since_s += pause_s
        self._at_s = {who: at_s + pause_s for who, at_s in self._at_s.items()}

    def bars(self, worker: Member) -> bool:
        return worker.incarnation in self._at_s and self._now_s < self._at_s[worker.incarnation] + AGAIN_S

    def turn(self, worker: Member) -> tuple[float, int]:
        """By which workers are asked: the lowest index of those that were not, then who was longest ago."""
        return self._at_s.get(worker.incarnation, 0.0), worker.index

    def waited_s(self, now_s: float) -> float:
        """Time since the first; 0 if there is none."""
        return now_s - self._since_s if self._why else 0.0

    def __str__(self) -> str:
        """Of each what it said last, as far as a line has room."""
        more = f"; and {len(self._why) - NAMED} more" if len(self._why) > NAMED else ""
        return "; ".join(list(self._why.values())[:NAMED]) + more
