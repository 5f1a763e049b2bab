"""The coordinator's time, in which its own pauses (a stopped process, a suspended machine) do not count.

Law: judged time stands while the coordinator does not run; no time goes back.
"""

from __future__ import annotations

import math
from typing import Generic, TypeVar

T = TypeVar("T")


class JudgedClock:
    """The time that the coordinator's callers bring, in seconds of their monotonic clock.

    now_s: judged time, by which leases and limits end.
    real_s: the same with all pauses, for ages, and for what other processes measure.
    """

    def __init__(self, now_s: float, longest_gap_s: float = math.inf) -> None:
        """longest_gap_s: from one call of `advance` to the next; a longer one is a pause."""
        self.now_s = self.real_s = now_s
        self._longest_gap_s = longest_gap_s

    def advance(self, now_s: float) -> None:
        """It is `now_s`; an earlier time than before changes nothing."""
        gap_s = now_s - self.real_s
        if 0 < gap_s <= self._longest_gap_s:
            self.now_s += gap_s
        self.real_s = max(now_s, self.real_s)


class Since(Generic[T]):
    """How long a value has been the same, in judged time."""

    def __init__(self, clock: JudgedClock) -> None:
        self.what: T | None = None  # the value; None for none
        self._clock = clock
        self._since_s = clock.now_s

    def update(self, what: T | None) -> None:
        """Sets the present value."""
        if what != self.what:
            self.begin(what)

    def begin(self, what: T | None) -> None:
        """Sets the value and restarts the time, also if the value is the same."""
        self.what, self._since_s = what, self._clock.now_s

    @property
    def for_s(self) -> float:
        """Seconds; 0 if there is no value."""
        return 0.0 if self.what is None else self._clock.now_s - self._since_s
