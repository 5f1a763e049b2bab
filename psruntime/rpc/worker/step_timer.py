"""How long the steps of a worker take by themselves: from the end of one to the end of the next, less what it waited
for others before it might begin one.
"""

from __future__ import annotations


class StepTimer:
    """Of one session after the other.  Times are monotonic seconds."""

    def __init__(self) -> None:
        self._ended_s: float | None = None  # of the last step; None: the next one is the first of its session
        self._waited_s = 0.0  # since then

    def restart(self) -> None:
        """A session is open: its first step is slower than the others, and not measured."""
        self._ended_s = None

    def waited(self, seconds: float) -> None:
        """So long the worker waited for others."""
        self._waited_s += seconds

    def ended(self, now_s: float) -> float | None:
        """A step has ended; returns how long it took, None for the first."""
        before_s, waited_s = self._ended_s, self._waited_s
        self._ended_s, self._waited_s = now_s, 0.0
        return None if before_s is None else max(0.0, now_s - before_s - waited_s)
