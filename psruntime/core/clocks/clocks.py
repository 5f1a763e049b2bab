"""Clocks in mode bounded: the steps that each worker has completed in this view, who may start another, and when a
worker reports its clock.

Clocks, floor and bound count training steps.  Pure state: the caller locks and waits; this file only decides.

Law: a worker starts a step only while its clock is at most `bound` above the floor.
Law: the floor, the slowest live clock, never falls; so a floor that a worker remembers is safe.

The time that a worker leaves between two reports is not in the coordinator's answer.  The coordinator may want a report
sooner while none is under way, so that interval is one of the member's instructions, which a heartbeat brings at once.
The coordinator has to answer the reports of all workers, so it sets the interval of each worker between two reports
for which no other waits.  A worker that falls behind is a straggler: faster ones come near their bound, and only
its reports let them continue.  So its interval becomes as short as there is room for at once, before another waits
for it.

Law: a worker that is more than half of the bound behind the furthest, by their reports, is a straggler.
Law: with a bound of LEAST_BOUND or more, stragglers together make about REPORTS_PER_S of the reports for which no
other worker waits, as all workers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psruntime.core.fields import Incarnation, Positive, Words
from psruntime.core.members.messages import Assignment


@dataclass(frozen=True)
class ClockReport:
    """The steps that a worker has completed in a view, under an incarnation.

    wanted_floor: the floor at which it may step, 0 if it need not wait.  max_wait_s: how long the answer may take
    until the floor is there.
    """

    worker_index: int
    incarnation: Incarnation
    view: Positive
    steps: int
    wanted_floor: int = 0
    max_wait_s: float = 0.0


@dataclass(frozen=True)
class ClockAnswer:
    """The floor of the view, and the reason to wait, which names a worker; empty: none.

    For another view than the present one the floor is 0, which is safe in any.  The interval between two reports is
    among the member's instructions instead: the coordinator may want a report sooner while none is under way.
    """

    floor: int
    reason: Words = ""


UNBOUNDED = None  # async


def within(bound: int | None, clock: int, floor: int) -> bool:
    """Whether a worker at this clock may start a step.  An older answer's floor will do."""
    return bound is None or clock - floor <= bound


@dataclass(frozen=True)
class MayStart:
    """Answer to "may this worker start a step?", with the reason that an operator reads."""

    allowed: bool
    reason: str


class ClockTable:
    """Completed steps per live worker.  One table belongs to one view.

    Invariant: every clock is at or above the floor, and one is at it as soon as anybody is live.
    """

    def __init__(self, bound: int | None) -> None:
        if bound is not None and bound < 0:
            raise ValueError(f"bound must be >= 0 steps or None, got {bound}")
        self.bound = bound
        self._clocks: dict[int, int] = {}
        self._floor = 0
        self._furthest = 0

    @property
    def floor(self) -> int:
        return self._floor

    @property
    def furthest(self) -> int:
        """The largest live clock."""
        return self._furthest

    @property
    def clocks(self) -> dict[int, int]:
        """A copy: worker index -> clock."""
        return dict(self._clocks)

    def clock(self, worker: int) -> int:
        return self._clocks[worker]

    def admit(self, worker: int) -> int:
        """Starts a worker's clock at the floor, so a newcomer never holds the others back; returns it."""
        if worker in self._clocks:
            raise ValueError(f"worker {worker} is already in the clock table")
        self._clocks[worker] = self._floor
        return self._floor

    def report(self, worker: int, clock: int) -> None:
        """Takes a worker's clock; a repeated or late report, being lower, changes nothing."""
        before = self._clocks[worker]
        if clock > before:
            self._clocks[worker] = clock
            self._furthest = max(self._furthest, clock)
            if before == self._floor:  # else another worker is the slowest, as before
                self._raise_floor()

    def remove(self, worker: int) -> None:
        """Drops a worker that takes no further step; the floor may rise, which releases others."""
        if self._clocks.pop(worker) == self._furthest:
            self._furthest = max(self._clocks.values(), default=self._floor)
        self._raise_floor()

    def raise_floor(self, clock: int) -> None:
        """The floor is at this clock, or stays where it is if that is higher; no worker is live."""
        self._floor = max(self._floor, clock)
        self._furthest = self._floor

    def lead(self, worker: int) -> int:
        """Steps that a worker is ahead of the slowest live one."""
        return self._clocks[worker] - self._floor

    def may_start(self, worker: int) -> MayStart:
        """Whether the worker may start its next step now."""
        lead = self.lead(worker)
        if self.bound is None:
            return MayStart(True, f"{lead} steps ahead, no bound")
        if within(self.bound, self._clocks[worker], self._floor):
            return MayStart(True, f"{lead} steps ahead, bound {self.bound}")
        slowest = min(self._clocks, key=lambda w: (self._clocks[w], w))
        return MayStart(False, f"{lead} steps ahead of worker {slowest}, bound {self.bound}")

    def _raise_floor(self) -> None:
        if self._clocks:
            self._floor = max(self._floor, min(self._clocks.values()))


REPORTS_PER_S = 500  # of all workers together, and of the stragglers; one core answers 1,000 to 3,000 small calls
SPREAD = 0.25  # of the time between two reports
GOLDEN = 0.618  # its multiples are spread evenly over 0 to 1
LEAST_BOUND = 8  # steps; a smaller bound is used up so soon that every report counts


def spacing_s(bound: int | None, workers: int, worker: int) -> float:
    """Seconds between two reports of one of so many workers, for which no other waits.

    It goes in powers of two, so that one worker more or less is seldom news for all others.  Each has somewhat less of
    it, by its index: those that began to step in the same moment do not report in the same one for long.
    """
    every_s = REPORT_S
    while every_s < workers / REPORTS_PER_S and bound is not None and bound >= LEAST_BOUND:
        every_s *= 2
    return every_s if every_s == REPORT_S else round(every_s * (1 - SPREAD * (GOLDEN * worker % 1)), 3)


class Stragglers:
    """The workers, by index, that have fallen behind in the current view."""

    def __init__(self, bound: int | None) -> None:
        self._bound = bound
        self._behind: set[int] = set()
        self._news: list[int] = []

    def rebound(self, bound: int | None) -> None:
        """Another bound, None for none; who is behind by it shows with the next clock."""
        self._bound = bound

    def __contains__(self, worker: int) -> bool:
        return worker in self._behind

    def __len__(self) -> int:
        return len(self._behind)

    def entered(self, worker: int, clock: int, furthest: int) -> None:
        """A worker joins at the floor, which may be far behind; the answer to its join says so."""
        if self._bound is not None and 2 * (furthest - clock) > self._bound:
            self._behind.add(worker)

    def progressed(self, worker: int, clock: int, furthest: int) -> None:
        """A worker has reported a clock.  Within a quarter of the bound it has caught up."""
        if self._bound is not None and 4 * (furthest - clock) <= self._bound:
            self._behind.discard(worker)

    def update(self, clocks: Mapping[int, int], floor: int, furthest: int) -> None:
        """The furthest clock has risen: finds who is behind it now."""
        if self._bound is None or 2 * (furthest - floor) <= self._bound:
            return
        news = [w for w, clock in clocks.items() if 2 * (furthest - clock) > self._bound and w not in self._behind]
        self._behind.update(news)
        self._news += news

    def remove(self, worker: int) -> None:
        """It takes no further step in this view."""
        self._behind.discard(worker)

    def take_news(self) -> list[int]:
        """The stragglers since the last call."""
        news, self._news = self._news, []
        return news


REPORT_S = 0.010  # between two reports for which no worker can wait; 100 calls a second from each worker at most
FIRST_POLL_S = 0.5  # of the first call of a wait, whose answer says for whom; after a second people can read it
RETRY_S = 0.2  # before a call is repeated that failed, or was answered although the floor is not there


class ReportSchedule:
    """When one worker under one assignment reports its clock, and what it asks then: what the step gate goes by.

    The owner passes every completed step to `completed`.  It makes one call at a time: once `wait_s` is over it sends
    what `begin` returns, and passes the answer to `end`.  Times are of one monotonic clock, in seconds.

    Law: `floor` is at most the coordinator's floor of the view, so the lead is at least the true one.
    Law: a worker that is the slowest by its last answer, or that has to wait itself, reports at once.
    Law: where another may soon have to wait, the next report comes within REPORT_S: when a quarter of the bound is not
    reported yet; and in the upper half of the bound, when an eighth of the steps that are left there is not.  Between
    other reports the coordinator may ask for more time.

    longest_poll_s: the longest that a call may wait.  steps: that it has completed when it enters.
    """

    def __init__(self, bound: int, worker: int, assignment: Assignment, longest_poll_s: float, steps: int = 0) -> None:
        self.assignment = assignment
        self.clock = self.floor = assignment.clock + steps  # it enters at the floor, which rises only with it
        self._bound = bound
        self._worker = worker
        self._longest_poll_s = longest_poll_s
        self._every_s = REPORT_S
        self._reported = self.clock  # the latest clock that the coordinator has
        self._short = -1  # the clock for which the floor was not there yet when the coordinator answered
        self._urgent = False  # until the next call: others may wait for it, or the worker itself
        self._began_s: float | None = None  # of the latest call
        self._delay_s = 0.0  # after it

    def serves(self, assignment: Assignment) -> bool:
        """Whether steps under this assignment count here: it has the same incarnation and view, and began at the same
        clock, which is another one once all workers of the view were set to one clock.
        """
        mine = self.assignment
        return (mine.view, mine.incarnation, mine.clock) == (assignment.view, assignment.incarnation, assignment.clock)

    @property
    def lead(self) -> int:
        """In steps over the floor of the last answer."""
        return self.clock - self.floor

    @property
    def is_shut(self) -> bool:
        """Whether the worker has to wait before its next step."""
        return not within(self._bound, self.clock, self.floor)

    def completed(self, steps: int) -> bool:
        """The worker has completed so many steps; returns whether `wait_s` may have changed."""
        before, was_pressing = self.clock, self._is_pressing
        self.clock = self.assignment.clock + steps
        self._urgent |= self.clock > before == self.floor or self.is_shut
        return self._urgent or before <= self._reported or self._is_pressing > was_pressing

    def space(self, every_s: float) -> bool:
        """The coordinator wants this time between two reports; returns whether `wait_s` may have changed."""
        before, self._every_s = self._every_s, max(REPORT_S, every_s)
        return self._every_s < before

    def rebound(self, bound: int) -> None:
        """Sets another bound; `wait_s` may have changed."""
        self._bound, self._short = bound, -1
        self._urgent |= self.is_shut

    def wait_s(self, now_s: float) -> float | None:
        """Time to wait before the next call, at most 0 if that is due; None while there is nothing to report."""
        if self.clock <= self._reported and not self.is_shut:
            return None
        if self._urgent or self._began_s is None:
            return 0.0
        every_s = REPORT_S if self._is_pressing else self._every_s
        return self._began_s + every_s + self._delay_s - now_s

    def begin(self, now_s: float) -> ClockReport:
        """The report of the next call, which is made now."""
        self._urgent = False
        self._began_s, self._delay_s = now_s, 0.0
        whose = (self._worker, self.assignment.incarnation, self.assignment.view.number)
        steps = self.clock - self.assignment.clock
        if not self.is_shut:
            return ClockReport(*whose, steps)
        longest_s = self._longest_poll_s
        poll_s = longest_s if self._short == self.clock else min(FIRST_POLL_S, longest_s)
        return ClockReport(*whose, steps, self.clock - self._bound, poll_s)

    def clock_of(self, report: ClockReport) -> int:
        """The worker's clock in a report of this schedule."""
        return self.assignment.clock + report.steps

    def end(self, report: ClockReport, answer: ClockAnswer | None) -> None:
        """Takes the answer to a report; None: the call failed, or was cancelled."""
        reported = self.clock_of(report)
        if answer is not None:
            self._reported = max(self._reported, reported)
            self.floor = max(self.floor, answer.floor)
            self._short = reported if answer.floor < report.wanted_floor else -1
        if answer is None or answer.floor < report.wanted_floor:
            self._delay_s = RETRY_S  # counted from the call, so nothing after a long poll
            self._urgent = False

    @property
    def _is_pressing(self) -> bool:
        """Whether others may soon wait for what is not reported yet, or the worker for them."""
        told_late = self.clock - self._reported
        steps_left = self._bound + 1 - self.lead
        return 4 * told_late >= self._bound or (2 * self.lead > self._bound and 8 * told_late >= steps_left)
