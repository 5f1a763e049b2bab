"""What a worker reports of its steps: what it waits for, and its figures."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from psruntime.core.clocks.adaptive_bound import STEPS
from psruntime.core.members.messages import Assignment, FailedSaves, GraphsBuilt, Measurements, WorkerBeat, WorkerStats

SAME_AGAIN_S = 60.0  # between two lines of the log that say the same of retries


class WaitingNotes:
    """Used by the thread that steps.  An empty reason: it does not wait any more."""

    def __init__(self, facts: WorkerFacts, log: Callable[..., None]) -> None:
        self._facts, self._log = facts, log
        self._logged = ""  # the reason that the log had last
        self._gate_logged = ""  # the same, of waits at the gate
        self._retried = ("", 0.0)  # what the log says of the latest retry, and since when

    def waits(self, reason: str) -> None:
        """The same reason again is news after another one, or after none."""
        self._facts.waits(reason)
        if reason and reason != self._logged:
            self._log("waiting", reason=reason)
        self._logged = reason

    def waits_at_gate(self, reason: str) -> None:
        """As `waits`, but one slow worker is one line in the log, however often it is waited for."""
        self._facts.waits(reason)
        if reason and reason != self._gate_logged:
            self._log("waiting", reason=reason)
            self._gate_logged = reason

    def retries(self, why: str) -> None:
        """Something is about to be tried again."""
        now_s = time.monotonic()
        if why != self._retried[0] or now_s - self._retried[1] >= SAME_AGAIN_S:
            self._log("retry", reason=why)
            self._retried = (why, now_s)


WORK_S = 10.0  # a step, a batch or a checkpoint that takes longer is worth a word in the status


class WorkerFacts:
    """May be used from any thread.

    stats(waiting): the worker's own measurements.  The pushes that `pushed` counts are added to theirs.
    asked: whether the process was asked to stop.  graphs: which graphs of steps it has now.
    """

    def __init__(
        self,
        stats: Callable[[str], WorkerStats],
        asked: threading.Event,
        graphs: Callable[[], GraphsBuilt] = GraphsBuilt,
    ) -> None:
        self._stats = stats
        self._asked = asked
        self._graphs = graphs
        self._lock = threading.Lock()  # guards what follows
        self._assignment: Assignment | None = None
        self._steps = 0
        self._global_step = 0
        self._stopped = False
        self._failure = ""
        self._closed_parts = 0
        self._saved_step: int | None = None  # of a checkpoint that was written under the assignment
        self._saves = False
        self._failed_saves = FailedSaves()
        self._held_out = Measurements()
        self._early_stop = ""
        self._prepares = (0, 0)  # view number and incarnation under which it does; 0: nothing
        self._pushes = 0
        self._max_lead = 0
        self._starve_count = 0  # as WorkerBeat.starve_count
        self._pause_epoch = (0, 0)  # incarnation with the instruction, and the epoch, 0 for none
        self._under_way = 0  # steps that were begun and have not ended
        self._step_s: deque[float] = deque(maxlen=STEPS)  # as WorkerBeat.step_times_s
        self._waiting = "starting"
        self._works_since_s = 0.0  # while there is no reason to wait; monotonic

    # Read by the heartbeats, and by the worker's metrics.

    @property
    def stats(self) -> WorkerStats:
        """Its measurements, of now."""
        with self._lock:
            return self._with_counts()

    def _with_counts(self) -> WorkerStats:
        stats = self._stats(self._waiting or self._long_work())
        return replace(stats, pushes=stats.pushes + self._pushes, max_lead=self._max_lead)

    def beat(self, incarnation: int) -> WorkerBeat:
        """The facts of this incarnation.  What an earlier one did does not count for it."""
        with self._lock:
            stats = self._with_counts()
            prepares = self._prepares[0] if self._prepares[1] == incarnation else 0
            if self._assignment is None or self._assignment.incarnation != incarnation:
                asked = self._asked.is_set()
                return WorkerBeat(
                    stats=stats, asked_to_stop=asked, prepares=prepares, paused_epoch=self._paused_epoch(incarnation),
                    graphs=self._graphs(), failure=self._failure, held_out=self._held_out,
                    early_stop=self._early_stop, failed_saves=self._failed_saves,
                )  # fmt: skip
            return WorkerBeat(
                self._assignment.view.number, self._steps, self._global_step, self._stopped, stats, self._closed_parts,
                self._saved_step, self._asked.is_set(), prepares, self._saves, self._paused_epoch(incarnation),
                tuple(self._step_s), self._graphs(), self._starve_count, self._failure, held_out=self._held_out,
                early_stop=self._early_stop, failed_saves=self._failed_saves,
            )  # fmt: skip

    # Read by the training, which alone changes them.

    @property
    def assignment(self) -> Assignment | None:
        """Under which the worker has a session, or had the last one."""
        return self._assignment

    @property
    def steps(self) -> int:
        """Completed under the assignment."""
        return self._steps

    @property
    def global_step(self) -> int:
        """The last one that was read under the assignment."""
        return self._global_step

    @property
    def is_starved(self) -> bool:
        """Whether it has no batch, and has reported that."""
        return self._starve_count % 2 == 1

    @property
    def has_stopped(self) -> bool:
        return self._stopped

    # The pause.  Law: a worker that reports an epoch has no step under way, and begins none before it gets another.

    def instructed(self, incarnation: int, pause_epoch: int) -> None:
        """Sets the pause of the latest answer.  Called by the heartbeats, before the next of them."""
        with self._lock:
            self._pause_epoch = (incarnation, pause_epoch)
            if pause_epoch:  # what comes next may be under another bound
                self._step_s.clear()

    @property
    def pause_epoch(self) -> int:
        """The epoch of the pause in this worker's instructions; 0: none."""
        return self._pause_epoch[1]

    @property
    def delays_pause(self) -> bool:
        """Whether all others wait until a step of this worker has ended."""
        return self._pause_epoch[1] != 0 and self._under_way > 0

    def has_under_way(self, steps: int) -> None:
        """Sets the number of steps that were begun and have not ended."""
        with self._lock:
            self._under_way = steps

    def begins(self, incarnation: int) -> bool:
        """Counts a step as begun and returns True, unless there is, or may be, a pause for this incarnation."""
        with self._lock:
            instructed, pause_epoch = self._pause_epoch
            if pause_epoch or instructed not in (0, incarnation):
                return False
            self._under_way += 1
            return True

    def _paused_epoch(self, incarnation: int) -> int:
        instructed, pause_epoch = self._pause_epoch
        return pause_epoch if instructed == incarnation and not self._under_way else 0

    # Written by the training.

    def entered(self, assignment: Assignment) -> None:
        """A session is open.  In the same view and incarnation the steps continue, in another they begin at 0.

        The global step that was read in the view holds for each incarnation: no update of it is undone.
        """
        last = self._assignment
        with self._lock:
            if last is None or (last.view, last.incarnation) != (assignment.view, assignment.incarnation):
                self._steps = 0
                self._saved_step = None
            if last is None or last.view != assignment.view:
                self._global_step = 0
            self._assignment = assignment
            self._stopped = False

    def set_starved(self, does: bool) -> bool:
        """Sets whether the worker is starved now; returns whether that has changed."""
        with self._lock:
            is_news = does != self.is_starved
            self._starve_count += is_news
        return is_news

    def stands_at(self, clock: int) -> None:
        """Sets the clock as if the worker had entered at `clock`: all have one clock now, or it was starved."""
        with self._lock:
            if self._assignment is not None:
                self._assignment = replace(self._assignment, clock=clock)

    def prepares(self, view: int, incarnation: int) -> None:
        """As chief, under this incarnation."""
        with self._lock:
            self._prepares = (view, incarnation)

    def saves(self, under_way: bool) -> None:
        """A checkpoint is being written, or no longer."""
        with self._lock:
            self._saves = under_way

    def stepped(self, global_step: int) -> None:
        with self._lock:
            self._steps += 1
            self._global_step = max(self._global_step, global_step)  # steps beside each other may end in another order
            self._under_way = max(0, self._under_way - 1)

    def took(self, step_s: float) -> None:
        """Keeps the seconds of a step without the wait for others."""
        with self._lock:
            self._step_s.append(step_s)

    def count_push(self) -> None:
        with self._lock:
            self._pushes += 1

    def stopped(self) -> None:
        with self._lock:
            self._stopped = True

    def fails(self, reason: str) -> None:
        """Sets the failure for which the job ends."""
        with self._lock:
            self._failure = reason

    def closed_part(self) -> None:
        with self._lock:
            self._closed_parts += 1

    def saved(self, global_step: int) -> None:
        """A checkpoint of this global step is written."""
        with self._lock:
            self._saved_step = global_step
            self._failed_saves = FailedSaves()

    def save_failed(self, cause: str) -> None:
        """A checkpoint could not be written."""
        with self._lock:
            self._failed_saves = FailedSaves(self._failed_saves.count + 1, cause)

    def measured(self, held_out: Measurements) -> None:
        with self._lock:
            self._held_out = held_out

    def stops_early(self, reason: str) -> None:
        """Sets why the job is to end before its limit."""
        with self._lock:
            self._early_stop = reason

    def led(self, max_lead: int) -> None:
        """The largest lead with which a step was started."""
        with self._lock:
            self._max_lead = max_lead

    def waits(self, reason: str) -> None:
        """Sets why the worker waits now; empty: it does its own work, a step, its input or a checkpoint."""
        with self._lock:
            self._waiting = reason
            self._works_since_s = time.monotonic()

    def goes_on(self) -> None:
        """The worker begins another piece of its own work."""
        self._works_since_s = time.monotonic()

    def _long_work(self) -> str:
        """The activity of a worker that takes long, for people: nothing else shows that it is busy."""
        work_s = time.monotonic() - self._works_since_s
        return f"its own work, for {work_s:.0f} s" if work_s >= WORK_S else ""
