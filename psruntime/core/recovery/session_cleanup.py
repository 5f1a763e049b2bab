"""Workers that are gone, as a ps sees it: for how long it keeps what belongs to them.

A worker that was paused may still have a push under way, which is to be counted as fenced; one that was killed leaves a
session behind that costs memory.  So what is left of a worker stays for a while, and is cleared then.
"""

from __future__ import annotations

from collections.abc import Collection

KEPT_LEASES = 6  # after that a paused worker's push is no longer counted: it has no session to arrive in


class Departed:
    """Invariant: whoever is in it is not admitted.  Times are those of the caller, in seconds."""

    def __init__(self, lease_s: float) -> None:
        self._kept_s = KEPT_LEASES * lease_s
        self._admitted: frozenset[int] = frozenset()
        self._since_s: dict[int, float] = {}  # worker index -> when it was no longer admitted

    def look(self, admitted: Collection[int], now_s: float) -> None:
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
