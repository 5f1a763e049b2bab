"""The progress of the chief, which prepares a view and saves what is trained.

A chief can be stuck while its heartbeats continue: in its input, in a step of its own, on a disk that hangs.  When it
is late, and another worker may be chief, it is cut off (lifecycle.py decides on it).

Law: between two tasks that were done, no worker is cut off twice, and each has twice the time of the one before; so a
preparation or a checkpoint that takes long is not restarted for ever.
"""

from __future__ import annotations

from psruntime.config import JobConfig
from psruntime.core.members.judged_clock import JudgedClock, Since
from psruntime.core.members.membership import Member
from psruntime.core.members.messages import WorkerBeat

BEGIN_LEASES = 3  # for a chief to begin with its task
INTERVALS = 2  # by which a checkpoint may be overdue
STEPS = 2  # of the longest that was seen, for a chief to end one


class ChiefProgress:
    """Times are judged time, in seconds; steps are global steps, but for those of `stepped`."""

    def __init__(self, job: JobConfig, clock: JudgedClock) -> None:
        self._job = job
        self._clock = clock
        self._preparing: Since[object] = Since(clock)  # who prepares which view, and whether it is at it
        self._saved: int | None = None  # step from which the next one is counted; None: nothing is to be saved now
        self._saved_at: Since[int] = Since(clock)
        self._due: Since[int] = Since(clock)  # the next one
        self._owes: Since[tuple[int, int]] = Since(clock)  # which chief it
        self._silent: Since[object] = Since(clock)  # what that one does
        self._stepped: dict[int, tuple[int, float]] = {}  # by incarnation: steps in its view, and when they changed
        self._longest_step_s = 0.0
        self._reported: int | None = None  # the latest checkpoint after which the next was overdue
        self._passed_over: set[tuple[int, str]] = set()  # (worker index, address), since the latest task was done
        self._patience = 1  # times the limits

    def stepped(self, incarnation: int, steps: int) -> None:
        """A worker has taken so many steps of its own in its view."""
        before, at_s = self._stepped.get(incarnation, (0, self._clock.now_s))
        if steps > before > 0:
            self._longest_step_s = max(self._longest_step_s, self._clock.now_s - at_s)
        if steps != before or not steps:
            self._stepped[incarnation] = (steps, self._clock.now_s)

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
        return self._preparing.what is not None and self.preparing_s >= self._limit_s(at_it)

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
        due = self._due.what is not None
        self._owes.update((self._saved, chief) if due else None)
        self._silent.update((self._saved, chief, beat.steps, beat.saves) if due else None)

    def reset(self) -> None:
        """Nothing is to be saved now."""
        self._saved = None
        self._saved_at.update(None)
        self._owe_none()

    def pauses(self) -> None:
        """The job is paused on command: the time until the next step is not the length of a step."""
        self.reset()
        self._stepped = {who: (steps, self._clock.now_s) for who, (steps, _) in self._stepped.items()}

    @property
    def due_s(self) -> float:
        """Seconds for which the next checkpoint has been due."""
        return self._due.for_s

    def is_overdue(self, global_step: int) -> bool:
        """Whether that is too long."""
        if self._saved is None or self._due.what is None:
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
        self._owe_none()
        self._passed_over, self._patience = set(), 1

    def _owe_none(self) -> None:
        """No checkpoint is due."""
        self._due.update(None)
        self._owes.update(None)
        self._silent.update(None)
