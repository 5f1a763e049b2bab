"""The progress of the chief, which prepares a view and saves what is trained.

A chief can be stuck while its heartbeats continue: in its input, in a step of its own, on a disk that hangs.  When it
is late, and another worker may be chief, it is cut off (lifecycle.py decides on it).

Law: between two tasks that were done, no worker is cut off twice, and each has twice the time of the one before; so a
preparation or a checkpoint that takes long is not restarted for ever.
"""

from __future__ import annotations

from psruntime.config import JobConfig
from psruntime.core.members.membership import Member
from psruntime.core.members.messages import WorkerBeat

BEGIN_LEASES = 3  # for a chief to begin with its task
INTERVALS = 2  # by which a checkpoint may be overdue
STEPS = 2  # of the longest that was seen, for a chief to end one


class Since:
    """A timer of how long a value has been the same, in seconds."""

    def __init__(self) -> None:
        self._what: object = None
        self._since_s = self._now_s = 0.0

    def advance(self, now_s: float, pause_s: float) -> None:
        self._now_s = max(self._now_s, now_s)
        self._since_s += pause_s

    def update(self, what: object) -> None:
        """Sets the present value, None for none."""
        if what != self._what:
            self._what, self._since_s = what, self._now_s

    def begin(self, what: object) -> None:
        """Sets the value and restarts the time, also if the value is the same."""
        self._what, self._since_s = what, self._now_s

    @property
    def is_so(self) -> bool:
        return self._what is not None

    @property
    def for_s(self) -> float:
        return self._now_s - self._since_s if self.is_so else 0.0


class ChiefProgress:
    """Times are those of the coordinator, in seconds; steps are global steps, but for those of `stepped`."""

    def __init__(self, job: JobConfig) -> None:
        self._job = job
        self._now_s = 0.0
        self._preparing = Since()  # who prepares which view, and whether it is at it
        self._saved: int | None = None  # step from which the next one is counted; None: nothing is to be saved now
        self._saved_at = Since()
        self._due = Since()  # the next one
        self._owes = Since()  # which chief it
        self._silent = Since()  # what that one does
        self._stepped: dict[int, tuple[int, float]] = {}  # by incarnation: steps in its view, and when they changed
        self._longest_step_s = 0.0
        self._reported: int | None = None  # the latest checkpoint after which the next was overdue
        self._passed_over: set[tuple[int, str]] = set()  # (worker index, address), since the latest task was done
        self._patience = 1  # times the limits

    def advance(self, now_s: float, pause_s: float) -> None:
        """Advances the time.  `pause_s` of it, when the coordinator did not run, does not count."""
        self._now_s = max(self._now_s, now_s)
        for clock in (self._preparing, self._saved_at, self._due, self._owes, self._silent):
            clock.advance(now_s, pause_s)
        if pause_s:
            self._stepped = {who: (steps, at_s + pause_s) for who, (steps, at_s) in self._stepped.items()}

    def stepped(self, incarnation: int, steps: int) -> None:
        """A worker has taken so many steps of its own in its view."""
        before, at_s = self._stepped.get(incarnation, (0, self._now_s))
        if steps > before > 0:
            self._longest_step_s = max(self._longest_step_s, self._now_s - at_s)
        if steps != before or not steps:
            self._stepped[incarnation] = (steps, self._now_s)

    def forget(self, incarnation: int) -> None:
        """The worker is gone."""
        self._stepped.pop(incarnation, None)

    # Preparing.

    def prepares(self, what: object) -> None:
        """Sets which worker prepares which view, and whether it has begun; None: none.  A change is progress."""
        self._preparing.update(what)

    def prepared(self, global_step: int) -> None:
        """The view is prepared; from this step on there is something to save."""
        self._done(global_step)

    @property
    def preparing_s(self) -> float:
        """Seconds since the last progress of the preparation."""
        return self._preparing.for_s

    def is_late_to_prepare(self, at_it: bool) -> bool:
        """Whether the chief has had its time; `at_it`: it has begun, or has to build first."""
        return self._preparing.is_so and self.preparing_s >= self._limit_s(at_it)

    # Saving.

    def saved(self, global_step: int) -> None:
        """A checkpoint of this step is written."""
        if self._saved is not None and global_step > self._saved:
            self._done(global_step)

    def trains(self, global_step: int, chief: int, beat: WorkerBeat) -> None:
        """The job has trained so far, under the chief of this incarnation with this latest heartbeat."""
        if self._saved is None:
            self._saved = global_step
        self._saved_at.update(self._saved)
        steps = global_step - self._saved
        in_time = self._job.save_secs == 0 or self._saved_at.for_s < self._job.save_secs
        if steps >= self._job.save_steps or (steps > 0 and not in_time):
            self._due.update(self._saved)
        due = self._due.is_so
        self._owes.update((self._saved, chief) if due else None)
        self._silent.update((self._saved, chief, beat.steps, beat.saves) if due else None)

    def reset(self) -> None:
        """Nothing is to be saved now."""
        self._saved = None
        for clock in (self._saved_at, self._due, self._owes, self._silent):
            clock.update(None)

    def pauses(self) -> None:
        """The job is paused on command: the time until the next step is not the length of a step."""
        self.reset()
        self._stepped = {who: (steps, self._now_s) for who, (steps, _) in self._stepped.items()}

    @property
    def due_s(self) -> float:
        """Seconds for which the next checkpoint has been due."""
        return self._due.for_s

    def is_overdue(self, global_step: int) -> bool:
        """Whether that is too long."""
        if self._saved is None or not self._due.is_so:
            return False
        steps, due_s = global_step - self._saved, self.due_s
        intervals = steps >= (1 + INTERVALS) * self._job.save_steps or 0 < INTERVALS * self._job.save_secs <= due_s
        return intervals and due_s >= BEGIN_LEASES * self._job.lease_s

    def is_late_to_save(self, beat: WorkerBeat) -> bool:
        """Whether the chief, by this latest heartbeat, has made no progress for too long, or has failed for longer."""
        at_it = beat.saves or not beat.steps
        return self._silent.for_s >= self._limit_s(at_it) or self._owes.for_s >= self._limit_s(at_it=True)

    def is_news(self) -> bool:
        """Whether this is the first call since the latest checkpoint."""
        reported, self._reported = self._reported, self._saved
        return reported != self._saved

    # Who was late.

    def pass_over(self, worker: Member) -> None:
        """This worker was late: others come first now."""
        self._passed_over.add((worker.index, worker.address))
        self._patience *= 2

    def avoids(self, worker: Member) -> bool:
        return (worker.index, worker.address) in self._passed_over

    def _limit_s(self, at_it: bool) -> float:
        """What a chief gets that is at it, or has not begun."""
        soon_s = max(BEGIN_LEASES * self._job.lease_s, STEPS * self._longest_step_s)
        return self._patience * (self._job.drain_timeout_s if at_it else min(soon_s, self._job.drain_timeout_s))

    def _done(self, global_step: int) -> None:
        self._saved = global_step
        self._saved_at.begin(global_step)
        for clock in (self._due, self._owes, self._silent):
            clock.update(None)
        self._passed_over, self._patience = set(), 1
