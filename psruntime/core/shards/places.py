"""A set of places, kept as ranges: in an order that is handed out from its beginning they are few."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Places:
    """Whole numbers from 0.

    Invariant: the ranges [first, end) are ascending, not empty, and apart from each other.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]] = ()) -> None:
        self._firsts = [first for first, _ in ranges]
        self._ends = [end for _, end in ranges]
        self._count = sum(self._ends) - sum(self._firsts)

    def __len__(self) -> int:
        return self._count

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self._firsts, self._ends, strict=True))

    def next_free(self, place: int) -> int:
        """The first place from this one on that is not in the set."""
        at = bisect_right(self._firsts, place) - 1
        return max(place, self._ends[at]) if at >= 0 else place

    def add(self, place: int) -> None:
        """Adds a place that is not in the set."""
        at = bisect_right(self._firsts, place)
        joins_before = at > 0 and self._ends[at - 1] == place
        joins_after = at < len(self._firsts) and self._firsts[at] == place + 1
        self._count += 1
        if joins_before and joins_after:
            self._ends[at - 1] = self._ends[at]
            del self._firsts[at], self._ends[at]
        elif joins_before:
            self._ends[at - 1] = place + 1
        elif joins_after:
            self._firsts[at] = place
        else:
            self._firsts.insert(at, place)
            self._ends.insert(at, place + 1)
