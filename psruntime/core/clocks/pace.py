"""The pace of a view: whose clock stands where, and how stale an update can be while all keep to the bound.

Steps are counted by the workers themselves, from 0 in each view and incarnation; a clock is those steps plus
the clock at which the incarnation entered the view.

Law: an incarnation enters at the floor, so with a lead of 0, and the floor of a view never falls.
Law: nobody waits for a worker that has stopped; it has no clock until the next view.
Law: nobody waits for a worker that rests, since it has no batch.  It comes back at the floor, or where it stood if that
    is further: so its clock never falls, and between a pull of another worker and its push it applies no more updates
    than one that steps all the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from psruntime.config import JobConfig
from psruntime.core.clocks.clocks import UNBOUNDED, ClockTable
from psruntime.core.clocks.stragglers import Stragglers, spacing_s
from psruntime.core.members.membership import Member

# Far below the 2**32 by which a restore raises every version: updates from before it stay out in any case.
LARGEST_STALENESS = 2**31 - 1


@dataclass
class _Gone:
    """A worker that left or was lost: counted for a lease, and until whoever was there has gone on.

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
    """The clocks of the current view, by incarnation.  Times are those of the coordinator, in seconds."""

    def __init__(self, job: JobConfig) -> None:
        self._job = job
        self._bound = job.bound if job.mode == "bounded" else UNBOUNDED
        self.clocks = ClockTable(self._bound)
        self.stragglers = Stragglers(self._bound)
        self.max_lead = 0  # see `report`; over all views
        # Of these reports of progress after a loss the first may have been under way before it; each further one tells
        # of a step that ended after it was answered, so then all steps during the loss are over.
        self._steps_since = 1 + job.pipeline
        self._base: dict[int, int] = {}  # worker that steps -> its clock when it entered the view
        self._starved: dict[int, tuple[int, int]] = {}  # worker that rests -> (the same, its clock)
        self._starve_counts: dict[int, int] = {}  # worker -> the highest number of `rest` that was heard of it
        self._gone: list[_Gone] = []

    @property
    def floor(self) -> int:
        return self.clocks.floor

    def rebound(self, bound: int | None) -> None:
        """Another bound, None for none, while nobody is in a step that began under the one before.

        Who is further ahead than a smaller one allows waits until the floor is there, so between a pull of a worker and
        its push the others still apply at most 2s+1 updates each.
        """
        if self._bound is None and bound is not None:
            self.max_lead = 0  # what it was without a bound says nothing of this one
        self._bound = self.clocks.bound = bound
        self.stragglers.rebound(bound)

    def level(self, workers: Iterable[Member]) -> None:
        """All workers stand at the furthest clock, while nobody is in a step: what was done without a bound is no lead.

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
        """Time that a worker leaves between two reports for which nobody waits; 0 in other modes."""
        if self._bound is None:
            return 0.0
        share = len(self.stragglers) if worker.index in self.stragglers else len(self._base)
        return spacing_s(self._bound, share, worker.index)

    def report(self, worker: Member, steps: int, stopped: bool = False) -> None:
        """Takes the steps that a worker has completed in this view; `stopped`: it takes no further one there.

        A report is fresh: whoever is known to be further ahead had started its last step when the reporter had
        no more steps than it tells now.  The largest such lead is `max_lead`, a lower bound of the true one.
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
        """Takes whether a worker rests, which it does if the number is odd; a lower one than before was overtaken.

        steps: that it has completed in this view.  Who says that it rests has no step under way, and begins none before
        it has said that it goes on and knows the answer.
        """
        incarnation = worker.incarnation
        if number <= self._starve_counts.get(incarnation, 0):
            return
        self._starve_counts[incarnation] = number
        if number % 2 and incarnation in self._base:
            base = self._base[incarnation]
            self._retire(worker)
            self._starved[incarnation] = base, base + steps
            if not self._base:  # nobody is in a step; a smaller bound would keep one from its next batch
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

    def remove(self, worker: Member, now_s: float) -> None:
        """A worker left or was lost: the floor may rise."""
        self._retire(worker)
        self._gone.append(_Gone(now_s + self._job.lease_s, dict.fromkeys(self._base, self._steps_since)))

    def _retire(self, worker: Member) -> None:
        """It takes no further step in this view."""
        for gone in self._gone:
            gone.may_meet.pop(worker.incarnation, None)
        self._starved.pop(worker.incarnation, None)
        if self._base.pop(worker.incarnation, None) is not None:
            self.clocks.remove(worker.index)
            self.stragglers.remove(worker.index)

    def advance(self, now_s: float, pause_s: float) -> None:
        """Moves the time on; for `pause_s` of it nobody judged, so that counts for nothing."""
        for gone in self._gone:
            gone.until_s += pause_s
        self._gone = [gone for gone in self._gone if gone.until_s > now_s or gone.may_meet]

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
