"""The step gate: a worker starts a step only while it is at most `bound` steps ahead of the floor.  Mode bounded only.

The worker's step thread makes no call here: it compares its clock with the last known floor, which is safe since
the floor of a view never falls.  A thread of the gate, the reporter, reports the clock and receives the floor: one
call at a time, always with the newest clock.  While the worker has to wait, that call is a long poll.
"""

from __future__ import annotations

import threading
import time
import traceback

from psruntime.core.clocks.clocks import ClockAnswer, ClockReport, ReportSchedule
from psruntime.core.members.messages import Assignment
from psruntime.errors import PsRuntimeError, ReplacedError, UnreachableError
from psruntime.rpc.client.coordinator_client import ClientContext


class StepTimer:
    """The seconds of a worker's steps: from the end of one to the end of the next, less the wait for others before it.

    Of one session after the other; times are monotonic seconds.
    """

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


class Gate:
    """`completed` and `opens` are called by the step thread, `space` and `close` by any.

    Law: the floor known here is at most the coordinator's floor of the view, so the lead is at least the true one.
    `max_lead`: the largest lead, in steps over the floor known here, with which a step was started.
    """

    def __init__(self, context: ClientContext, worker: int) -> None:
        self.max_lead = 0
        self.reason = ""  # for whom the worker waits, for people
        self._bound = context.job.bound or 0  # in another mode 0 until it is instructed
        self._worker = worker
        self._longest_poll_s, self._margin_s = context.job.heartbeat_s, context.margin_s
        self._client, self._stop, self._log = context.client, context.stop, context.log
        self._changed = threading.Condition()  # guards what follows
        self._schedule: ReportSchedule | None = None  # of the present assignment
        self._every_s = 0.0  # the latest of `space`
        self._closed = False
        self._defect: PsRuntimeError | None = None
        self._reporter: threading.Thread | None = None

    def completed(self, assignment: Assignment, steps: int) -> None:
        """The worker has completed so many steps under this assignment."""
        with self._changed:
            schedule, entered = self._schedule, False
            if schedule is None or not schedule.serves(assignment):
                schedule, entered = self._schedule_of(assignment, steps), True
                schedule.space(self._every_s)
                self._schedule, self.reason = schedule, ""
            if schedule.completed(steps) or entered:  # else the reporter is awake, or will be
                self._changed.notify_all()
        if self._reporter is None:
            self._reporter = threading.Thread(target=self._keep, name="clock-reports", daemon=True)
            self._reporter.start()

    def _schedule_of(self, assignment: Assignment, steps: int) -> ReportSchedule:
        return ReportSchedule(self._bound, self._worker, assignment, self._longest_poll_s, steps)

    def space(self, every_s: float) -> None:
        """The coordinator wants so much time between two reports for which no other worker can wait."""
        with self._changed:
            self._every_s = every_s
            if self._schedule is not None and self._schedule.space(every_s):
                self._changed.notify_all()

    def rebound(self, bound: int | None) -> None:
        """The bound is another one now; None: as it was."""
        if bound is not None and bound != self._bound:
            with self._changed:
                self._bound = bound
                if self._schedule is not None:
                    self._schedule.rebound(bound)
                self._changed.notify_all()

    def reset(self) -> None:
        """Nothing is to be reported until the next `completed`, at which the worker stands at the floor: the mode is
        another one, or was."""
        with self._changed:
            self._schedule = None
            self._changed.notify_all()

    def opens(self, within_s: float, under_way: int = 0) -> bool:
        """Whether the worker may start a step now, or within so many seconds; now if steps of its own are under way.

        Raises:
            PsRuntimeError: the reporter ended by a defect, so the floor would never rise.
        """
        with self._changed:
            assert self._schedule is not None, "`completed` comes first"
            if self._schedule.is_shut and not under_way:
                self._changed.wait(within_s)
            if self._defect:
                raise self._defect
            lead = self._schedule.lead + under_way
            if lead > self._bound:
                return False
            self.max_lead = max(self.max_lead, lead)
            return True

    def close(self) -> None:
        """Ends the reporter; takes at most about 1 s.  May be repeated."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._reporter is not None:
            self._reporter.join(1.0)

    # In the reporter.

    def _keep(self) -> None:
        failing = False
        try:
            while (due := self._next()) is not None:
                schedule, report = due
                try:
                    answer = self._send(schedule, report)
                    failing = False
                except (ReplacedError, UnreachableError):
                    answer = None  # the heartbeats find the same, log it and act on it
                except PsRuntimeError as error:
                    if not failing:
                        self._log("report_failed", reason=error)
                    answer, failing = None, True
                self._take(schedule, report, answer)
        except Exception as error:  # noqa: BLE001 - the step thread waits, and has to raise it
            reason = f"{type(error).__name__}: {error}"
            self._log("defect", where="gate", reason=reason, traceback="".join(traceback.format_exception(error)))
            with self._changed:
                self._defect = PsRuntimeError(f"the reports of the clock ended: {reason}")
                self._changed.notify_all()

    def _next(self) -> tuple[ReportSchedule, ClockReport] | None:
        """Waits until a report is due; None when the gate is closed."""
        with self._changed:
            while not self._is_over:
                now_s = time.monotonic()
                wait_s = None if self._schedule is None else self._schedule.wait_s(now_s)
                if self._schedule is not None and wait_s is not None and wait_s <= 0:
                    return self._schedule, self._schedule.begin(now_s)
                self._changed.wait(wait_s)
            return None

    def _send(self, schedule: ReportSchedule, report: ClockReport) -> ClockAnswer | None:
        """The answer; None once it is not needed any more."""
        clock = schedule.clock_of(report)

        def is_wanted() -> bool:
            with self._changed:
                gone = self._is_over or self._schedule is not schedule
                return not gone and (report.wanted_floor == 0 or schedule.clock == clock)

        return self._client.report_clock(report, is_wanted, report.max_wait_s + self._margin_s)

    def _take(self, schedule: ReportSchedule, report: ClockReport, answer: ClockAnswer | None) -> None:
        with self._changed:
            if self._schedule is not schedule:
                return
            schedule.end(report, answer)
            if answer is not None:
                self.reason = answer.reason
            self._changed.notify_all()

    @property
    def _is_over(self) -> bool:
        return self._closed or self._stop.is_set()
