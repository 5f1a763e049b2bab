"""The chief, which prepares a view and saves what is trained: whether it is late, and who may be chief.

A chief can be stuck while its heartbeats continue: in its input, in a step of its own, on a disk that hangs.  When it
is late, and another worker may be chief, it is cut off (lifecycle.py decides on it).  One that cannot prepare, for
example because it does not see the checkpoint, is relieved.  What is in the way may pass: a file system may be away for
a moment.

Law: between two tasks that were done, no worker is cut off twice, and each has twice the time of the one before; so a
preparation or a checkpoint that takes long is not restarted for ever.
Law: a worker that was relieved is not chief for AGAIN_S.  Then it may be asked again, after all that were not asked or
were longer ago.
Law: the time that counts is from the first relief since a view was prepared.
"""

from __future__ import annotations

import math

from psruntime.config import JobConfig
from psruntime.core.members.membership import JudgedClock, Member, Since
from psruntime.core.members.messages import WorkerBeat
from psruntime.errors import some

NAMED = 3  # reliefs in one line
AGAIN_S = 10.0
BEGIN_LEASES = 3  # for a chief to begin with its task
INTERVALS = 2  # by which a checkpoint may be overdue
STEPS = 2  # of the longest that was seen, for a chief to end one


class ChiefProgress:
    """Times are judged time, in seconds; steps are global steps, but for those of `stepped`.

    preparing: which worker prepares which view, and whether it has begun; a change is progress.
    due: without a value while no checkpoint is.
    """

    def __init__(self, job: JobConfig, clock: JudgedClock) -> None:
        self._job = job
        self._clock = clock
        self.preparing: Since[object] = Since(clock)
        # Step of the checkpoint from which the next one is counted; without a value while nothing is to be saved.
        self._saved: Since[int] = Since(clock)
        self.due: Since[int] = Since(clock)  # the next one
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

    def prepared(self, global_step: int) -> None:
        """The view is prepared; from this step on there is something to save."""
        self._done(global_step)

    def is_late_to_prepare(self, at_it: bool) -> bool:
        """Whether the chief has had its time; `at_it`: it has begun, or has to build first."""
        return self.preparing.what is not None and self.preparing.for_s >= self._limit_s(at_it)

    # Saving.

    def saved(self, global_step: int) -> None:
        """A checkpoint of this step is written."""
        if self._saved.what is not None and global_step > self._saved.what:
            self._done(global_step)

    def trains(self, global_step: int, chief: int, beat: WorkerBeat) -> None:
        """The job has trained so far, under the chief of this incarnation with this latest heartbeat."""
        saved_step = global_step if self._saved.what is None else self._saved.what
        self._saved.update(saved_step)
        steps = global_step - saved_step
        in_time = self._job.save_secs == 0 or self._saved.for_s < self._job.save_secs
        if steps >= self._job.save_steps or (steps > 0 and not in_time):
            self.due.update(saved_step)
        due = self.due.what is not None
        self._owes.update((saved_step, chief) if due else None)
        self._silent.update((saved_step, chief, beat.steps, beat.saves) if due else None)

    def reset(self) -> None:
        """Nothing is to be saved now."""
        for since in (self._saved, self.due, self._owes, self._silent):
            since.update(None)

    def pauses(self) -> None:
        """The job is paused on command: the time until the next step is not the length of a step."""
        self.reset()
        self._stepped = {who: (steps, self._clock.now_s) for who, (steps, _) in self._stepped.items()}

    def is_overdue(self, global_step: int) -> bool:
        """Whether the next checkpoint has been due for too long."""
        if self._saved.what is None or self.due.what is None:
            return False
        steps, due_s = global_step - self._saved.what, self.due.for_s
        intervals = steps >= (1 + INTERVALS) * self._job.save_steps or 0 < INTERVALS * self._job.save_secs <= due_s
        return intervals and due_s >= BEGIN_LEASES * self._job.lease_s

    def is_late_to_save(self, beat: WorkerBeat) -> bool:
        """Whether the chief, by this latest heartbeat, has made no progress for too long, or has failed for longer."""
        at_it = beat.saves or not beat.steps
        return self._silent.for_s >= self._limit_s(at_it) or self._owes.for_s >= self._limit_s(at_it=True)

    def is_news(self) -> bool:
        """Whether this is the first call since the latest checkpoint."""
        reported, self._reported = self._reported, self._saved.what
        return reported != self._reported

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
        self.reset()
        self._saved.begin(global_step)
        self._passed_over, self._patience = set(), 1


class Reliefs:
    """Times are judged time, in seconds."""

    def __init__(self, clock: JudgedClock) -> None:
        self._clock = clock
        self._latest: dict[int, tuple[float, str]] = {}  # incarnation -> when, and why, with the name of the worker
        self._first_s = clock.now_s

    def add(self, worker: Member, reason: str) -> None:
        """This worker is not chief for a while."""
        if not self._latest:
            self._first_s = self._clock.now_s
        self._latest[worker.incarnation] = self._clock.now_s, f"{worker.name}: {reason}"

    def forget(self, incarnation: int) -> None:
        """The worker is gone."""
        self._latest.pop(incarnation, None)

    def forget_all(self) -> None:
        """A view is prepared: nothing is in the way any more."""
        self._latest = {}

    def bars(self, worker: Member) -> bool:
        at_s, _ = self._latest.get(worker.incarnation, (-math.inf, ""))
        return self._clock.now_s < at_s + AGAIN_S

    def order(self, worker: Member) -> tuple[float, int]:
        """By which workers are asked: the lowest index of those that were not, then who was longest ago."""
        return self._latest.get(worker.incarnation, (0.0, ""))[0], worker.index

    @property
    def waited_s(self) -> float:
        """Time since the first; 0 if there is none."""
        return self._clock.now_s - self._first_s if self._latest else 0.0

    def __str__(self) -> str:
        """The latest reason of each, in at most one line; for people."""
        return some([why for _, why in self._latest.values()], NAMED, "; ")
