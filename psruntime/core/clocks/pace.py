"""The pace of a view: the clocks of its workers, and the largest staleness of an update under the bound.

Steps are counted by the workers themselves, from 0 in each view and incarnation; a clock is those steps plus
the clock at which the incarnation entered the view.

Law: an incarnation enters at the floor, so with a lead of 0, and the floor of a view never falls.
Law: a stopped worker has no clock until the next view, so no worker waits for it.
Law: a starved worker, which has no batch, has no clock meanwhile.  It returns at the floor, or at its former clock if
    that is higher: so its clock never falls, and between a pull of another worker and its push it applies no more
    updates than one that steps all the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from psruntime.config import JobConfig
from psruntime.config.schedule import BOUNDED
from psruntime.core.clocks.clocks import UNBOUNDED, ClockTable, Stragglers, spacing_s
from psruntime.core.members.membership import JudgedClock, Member

# Far below the 2**32 by which a restore raises every version: updates from before it stay out in any case.
LARGEST_STALENESS = 2**31 - 1


@dataclass
class _Gone:
    """A worker that left or was lost: it counts for a lease, and until each worker of that time has made progress.

    may_meet: incarnation of a worker that may have pulled before -> reports of progress still to come from it.
    """

    until_s: float
    may_meet: dict[int, int]

    def note_step(self, incarnation: int) -> None:
        """A worker has completed a step."""
        left = self.may_meet.pop(incarnation, 0) - 1
        if left > 0:
            self.may_meet[incarnation] = left


class Pace:
    """The clocks of the current view, by incarnation.  Times are judged time, in seconds."""

    def __init__(self, job: JobConfig, clock: JudgedClock) -> None:
        self._job = job
        self._clock = clock
        self._bound = job.bound if job.mode == BOUNDED else UNBOUNDED
        self.clocks = ClockTable(self._bound)
        self.stragglers = Stragglers(self._bound)
        self.max_lead = 0  # see `report`; over all views
        # Of these reports of progress after a loss the first may have been under way before it; each further one tells
        # of a step that ended after it was answered, so then all steps during the loss are over.
        self._steps_since = 1 + job.pipeline
        self._base: dict[int, int] = {}  # worker that steps -> its clock when it entered the view
        self._starved: dict[int, tuple[int, int]] = {}  # starved worker -> (the same, its clock)
        self._starve_counts: dict[int, int] = {}  # worker -> its highest reported `starve_count`
        self._gone: list[_Gone] = []

    @property
    def floor(self) -> int:
        return self.clocks.floor

    def rebound(self, bound: int | None) -> None:
        """Sets another bound, None for none, while no worker is in a step that began under the one before.

        Who is further ahead than a smaller one allows waits until the floor is there, so between a pull of a worker and
        its push the others still apply at most 2s+1 updates each.
        """
        if self._bound is None and bound is not None:
            self.max_lead = 0  # a lead without a bound is not one under this bound
        self._bound = self.clocks.bound = bound
        self.stragglers.rebound(bound)

    def level(self, workers: Iterable[Member]) -> None:
        """Sets all clocks to the furthest one, while no worker is in a step: steps without a bound are no lead.

        So the floor rises, and with it the clocks at which they entered.
        """
        for worker in workers:
            if worker.incarnation in self._base:
                behind = self.clocks.furthest - self.clocks.clock(worker.index)
                self._base[worker.incarnation] += behind
                self.clocks.report(worker.index, self.clocks.furthest)
                self.stragglers.progressed(worker.index, self.clocks.furthest, self.clocks.furthest)

    def begin(self, workers: Iterable[Member]) -> None:
        """A new view, in which all start at 0."""
        self.clocks = ClockTable(self._bound)
        self.stragglers = Stragglers(self._bound)
        self._base, self._starved, self._starve_counts = {}, {}, {}
        for gone in self._gone:
            gone.may_meet = {}  # what was pulled in the view before is refused
        for worker in workers:
            self.admit(worker)

    def admit(self, worker: Member) -> None:
        """A worker that joins the view enters at the floor."""
        self._base[worker.incarnation] = clock = self.clocks.admit(worker.index)
        self.stragglers.entered(worker.index, clock, self.clocks.furthest)

    def entered_at(self, incarnation: int) -> int:
        """The clock at which an incarnation entered the view, or would have, to stand where it does now; 0 without a
        view, or once it has stopped."""
        return self._base.get(incarnation, self._starved.get(incarnation, (0, 0))[0])

    def report_every_s(self, worker: Member) -> float:
        """Seconds between two reports of a worker for which no other waits; 0 in other modes."""
        if self._bound is None:
            return 0.0
        share = len(self.stragglers) if worker.index in self.stragglers else len(self._base)
        return spacing_s(self._bound, share, worker.index)

    def report(self, worker: Member, steps: int, stopped: bool = False) -> None:
        """Takes the steps that a worker has completed in this view; `stopped`: it takes no further one there.

        A report is fresh: a worker that is further ahead by its reports had started its last step when the reporter
        had no more steps than it reports now.  The largest such lead is `max_lead`, a lower bound of the true one.
        """
        if worker.incarnation in self._base:
            clock = self._base[worker.incarnation] + steps
            if clock > self.clocks.clock(worker.index):
                furthest = self.clocks.furthest
                self.clocks.report(worker.index, clock)
                self.stragglers.progressed(worker.index, clock, self.clocks.furthest)
                if self.clocks.furthest > furthest:
                    self.stragglers.update(self.clocks.clocks, self.clocks.floor, self.clocks.furthest)
                for gone in self._gone:
                    gone.note_step(worker.incarnation)
                self.max_lead = max(self.max_lead, self.clocks.furthest - 1 - clock)
            if stopped:
                self._retire(worker)

    def set_starved(self, worker: Member, steps: int, number: int) -> None:
        """Takes a worker's `starve_count`, which is odd while it is starved; a lower one than before is out of date.

        steps: that it has completed in this view.  A worker that reports to be starved has no step under way, and
        begins none before it has reported the end of that and has the answer.
        """
        incarnation = worker.incarnation
        if number <= self._starve_counts.get(incarnation, 0):
            return
        self._starve_counts[incarnation] = number
        if number % 2 and incarnation in self._base:
            base = self._base[incarnation]
            self._retire(worker)
            self._starved[incarnation] = base, base + steps
            if not self._base:  # no worker is in a step; with a smaller bound one could not take its next batch
                self.clocks.raise_floor(max(clock for _, clock in self._starved.values()))
        elif number % 2 == 0 and incarnation in self._starved:
            clock = max(self._starved.pop(incarnation)[1], self.clocks.floor)
            self._base[incarnation] = clock - steps
            self.clocks.admit(worker.index)
            self.clocks.report(worker.index, clock)
            self.stragglers.entered(worker.index, clock, self.clocks.furthest)

    def waits_for(self, worker: Member) -> str:
        """Why the worker may not start its next step, naming the slowest one; empty if it may, or before any view."""
        if worker.incarnation not in self._base:
            return ""
        decision = self.clocks.may_start(worker.index)
        return "" if decision.allowed else decision.reason

    def remove(self, worker: Member) -> None:
        """A worker left or was lost: the floor may rise."""
        self._retire(worker)
        until_s = self._clock.now_s + self._job.lease_s
        self._gone.append(_Gone(until_s, dict.fromkeys(self._base, self._steps_since)))

    def _retire(self, worker: Member) -> None:
        """It takes no further step in this view."""
        for gone in self._gone:
            gone.may_meet.pop(worker.incarnation, None)
        self._starved.pop(worker.incarnation, None)
        if self._base.pop(worker.incarnation, None) is not None:
            self.clocks.remove(worker.index)
            self.stragglers.remove(worker.index)

    def forget_gone(self) -> None:
        """Forgets the gone workers that do not count any more."""
        self._gone = [gone for gone in self._gone if gone.until_s > self._clock.now_s or gone.may_meet]

    def max_staleness(self, live: int) -> int | None:
        """What the ps let pass with so many live workers, in versions; None: anything.

        With bound s and W incarnations live at any time between a worker's pull and its push, each of the
        others applies at most 2s+1 updates between them.  Who is gone still counts while an update that was
        pulled before may be under way, which a lower limit would refuse.  With a pipeline of D steps the worker's own
        steps from D-1 before to D-1 after this one may be applied as well, or s, if that is less.
        """
        if self._bound is None:
            return self._job.max_staleness
        others = max(0, live + len(self._gone) - 1)
        own = 2 * min(self._job.pipeline - 1, self._bound)
        return min((2 * self._bound + 1) * others + own, LARGEST_STALENESS)
