"""Workers that may not be chief, each with what it said: they cannot see the newest checkpoint, for example.

Law: a worker that was relieved stays relieved for as long as it is a member.
"""

from __future__ import annotations

from psruntime.core.members.membership import Member

NAMED = 3  # in one line


class Reliefs:
    """Times are those of the coordinator, in seconds."""

    def __init__(self) -> None:
        self._why: dict[int, str] = {}  # by incarnation; the text names the worker
        self._since_s = 0.0  # of the latest

    def add(self, worker: Member, reason: str, now_s: float) -> None:
        """This worker is not chief again."""
        self._why[worker.incarnation] = f"{worker.name}: {reason}"
        self._since_s = now_s

    def forget(self, incarnation: int) -> None:
        """The worker is gone."""
        self._why.pop(incarnation, None)

    def advance(self, now_s: float, pause_s: float) -> None:  # noqa: ARG002 - as all that is timed
        """Does not count `pause_s`, during which the coordinator itself was not running."""
        self._since_s += pause_s

    def bars(self, worker: Member) -> bool:
        return worker.incarnation in self._why

    def waited_s(self, now_s: float) -> float:
        """Time since the latest."""
        return now_s - self._since_s if self._why else 0.0

    def __str__(self) -> str:
        """Of each what it said, as far as a line has room."""
        more = f"; and {len(self._why) - NAMED} more" if len(self._why) > NAMED else ""
        return "; ".join(list(self._why.values())[:NAMED]) + more
