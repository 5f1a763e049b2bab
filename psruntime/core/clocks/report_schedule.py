"""When a worker reports its clock, and what it asks then: the decisions behind the gate.  Mode bounded only.

The owner tells each step with `at`, makes one call at a time, the one that `begin` says once `wait_s` is over, and
tells its answer with `end`.  Times are of one monotonic clock, in seconds.

Law: `floor` is at most the coordinator's floor of the view, so the lead is at least the true one.
Law: a worker that is the slowest as far as it knows, or that has to wait itself, reports at once.
Law: where others may come to wait, there are REPORT_S between two reports at most: in the upper half of the bound, when
a quarter of the bound is not reported yet, and when the coordinator says so.  It may want more time between the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.core.clocks.clocks import within

REPORT_S = 0.010  # between two reports for which nobody can wait; 100 calls a second from each worker at most
FIRST_HOLD_S = 0.5  # of the first call of a wait, whose answer says for whom; after a second people can read it
PAUSE_S = 0.2  # before a call is repeated that failed, or was answered although the floor is not there


@dataclass(frozen=True)
class Report:
    """The worker's clock; the steps in it that it made itself; the floor that it waits for, and for how long."""

    clock: int
    steps: int
    wanted_floor: int = 0
    hold_s: float = 0.0


class Reporting:
    """One worker in one view.  `entry`: its clock when it entered; `hold_s`: the longest that a call is held."""

    def __init__(self, bound: int, entry: int, hold_s: float) -> None:
        self.clock = self.floor = entry  # it enters at the floor, which rises only with it
        self._bound = bound
        self._entry = entry
        self._hold_s = hold_s
        self._every_s = REPORT_S
        self._reported = entry  # the latest clock that the coordinator has heard
        self._short = -1  # the clock for which the floor was not there yet when the coordinator answered
        self._urgent = False  # until the next call: others may wait for it, or the worker itself
        self._began_s: float | None = None  # of the latest call
        self._pause_s = 0.0  # after it

    @property
    def lead(self) -> int:
        """In steps over the floor as it is known here."""
        return self.clock - self.floor

    @property
    def is_shut(self) -> bool:
        """Whether the worker has to wait before its next step."""
        return not within(self._bound, self.clock, self.floor)

    def at(self, steps: int) -> bool:
        """The worker has completed so many steps; whether `wait_s` is to be asked anew."""
        before, was_pressing = self.clock, self._is_pressing
        self.clock = self._entry + steps
        self._urgent |= self.clock > before == self.floor or self.is_shut
        return self._urgent or before <= self._reported or self._is_pressing > was_pressing

    def space(self, every_s: float) -> bool:
        """The coordinator wants this time between two reports; whether `wait_s` is to be asked anew."""
        before, self._every_s = self._every_s, max(REPORT_S, every_s)
        return self._every_s < before

    def wait_s(self, now_s: float) -> float | None:
        """For how long to wait before the next call, at most 0 if that is due; None while there is nothing to tell."""
        if self.clock <= self._reported and not self.is_shut:
            return None
        if self._urgent or self._began_s is None:
            return 0.0
        every_s = REPORT_S if self._is_pressing else self._every_s
        return self._began_s + every_s + self._pause_s - now_s

    def begin(self, now_s: float) -> Report:
        """What the next call says, which is made now."""
        self._urgent = False
        self._began_s, self._pause_s = now_s, 0.0
        steps = self.clock - self._entry
        if not self.is_shut:
            return Report(self.clock, steps)
        hold_s = self._hold_s if self._short == self.clock else min(FIRST_HOLD_S, self._hold_s)
        return Report(self.clock, steps, self.clock - self._bound, hold_s)

    def end(self, report: Report, floor: int | None) -> None:
        """The floor that the call was answered; None: it failed, or nobody needed it any more."""
        if floor is not None:
            self._reported = max(self._reported, report.clock)
            self.floor = max(self.floor, floor)
            self._short = report.clock if floor < report.wanted_floor else -1
        if floor is None or floor < report.wanted_floor:
            self._pause_s = PAUSE_S  # counted from the call, so nothing after one that was held
            self._urgent = False

    @property
    def _is_pressing(self) -> bool:
        """Whether others may soon wait for what is not reported yet, or the worker for them."""
        return 2 * self.lead > self._bound or 4 * (self.clock - self._reported) >= self._bound
