"""The gate: a worker starts a step only while it is at most `bound` steps ahead of the floor.  Mode bounded only.

The worker's step thread makes no call here: it compares its clock with the last known floor, which is safe since
the floor of a view never falls.  A thread of the gate, the reporter, tells the coordinator the clock and hears the
floor: one call at a time, with what is newest, held by the coordinator while the worker has to wait.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

from psruntime.config import JobConfig
from psruntime.core.clocks import within
from psruntime.core.facts import Assignment
from psruntime.errors import PsRuntimeError, ReplacedError, UnreachableError
from psruntime.rpc.client import CoordinatorClient
from psruntime.rpc.convert_clock import ClockReport, Floor

REPORT_S = 0.010  # between two reports for which nobody can wait; 100 calls a second from each worker at most
FIRST_HOLD_S = 0.5  # of the first call of a wait, whose answer says for whom; after a second people can read it
PAUSE_S = 0.2  # before a call is repeated that failed, or was answered although the floor is not there
MARGIN_S = 2.0  # of a call's deadline over the time for which it may be held


class Gate:
    """`at` and `opens` are called by the step thread, `close` by any.

    Law: `floor` is at most the coordinator's floor of the view, so the lead is at least the true one.
    `max_lead`: the largest lead, in steps over the floor known here, with which a step was started.
    """

    def __init__(
        self, job: JobConfig, index: int, client: CoordinatorClient, stop: threading.Event, log: Callable[..., None]
    ) -> None:
        assert job.bound is not None
        self.max_lead = 0
        self.reason = ""  # for whom the worker waits, for people
        self._bound = job.bound
        self._index = index
        self._hold_s = job.heartbeat_s
        self._client = client
        self._stop = stop
        self._log = log
        self._changed = threading.Condition()  # guards what follows
        self._assignment: Assignment | None = None
        self._clock = 0
        self._floor = 0
        self._reported = -1  # the latest clock that the coordinator has heard
        self._short = -1  # the clock for which the latest answer was not enough
        self._urgent = False  # others may wait for the next report
        self._not_before_s = 0.0  # of the next call
        self._closed = False
        self._defect: PsRuntimeError | None = None
        self._reporter: threading.Thread | None = None

    def at(self, assignment: Assignment, steps: int) -> None:
        """Where the worker is: the steps that it has completed under this assignment."""
        with self._changed:
            entered = not _same(self._assignment, assignment)
            if entered:
                self._assignment = assignment
                self._clock = self._floor = assignment.clock  # it enters at the floor, which rises only with it
                self._reported, self._short = assignment.clock, -1
                self._not_before_s = 0.0
                self.reason = ""
            before, self._clock = self._clock, assignment.clock + steps
            self._urgent = self._clock > before == self._floor or self._is_shut()
            if entered or self._urgent or before <= self._reported:  # else the reporter is awake, or will be
                self._changed.notify_all()
        if self._reporter is None:
            self._reporter = threading.Thread(target=self._keep, name="clock-reports", daemon=True)
            self._reporter.start()

    def opens(self, within_s: float, under_way: int = 0) -> bool:
        """Whether the worker may start a step now, or within so many seconds; now if steps of its own are under way.

        Raises:
            PsRuntimeError: the reporter ended by a defect, so the floor would never rise.
        """
        with self._changed:
            if self._is_shut() and not under_way:
                self._changed.wait(within_s)
            if self._defect:
                raise self._defect
            if self._is_shut(under_way):
                return False
            self.max_lead = max(self.max_lead, self._clock + under_way - self._floor)
            return True

    def close(self) -> None:
        """Ends the reporter; takes at most about 1 s.  May be repeated."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._reporter is not None:
            self._reporter.join(1.0)

    def _is_shut(self, under_way: int = 0) -> bool:
        return not within(self._bound, self._clock + under_way, self._floor)

    # In the reporter.

    def _keep(self) -> None:
        failing = False
        try:
            while (order := self._next()) is not None:
                try:
                    answer = self._send(*order)
                    failing = False
                except (ReplacedError, UnreachableError):
                    answer = None  # the heartbeats find the same, say it and act on it
                except PsRuntimeError as error:
                    if not failing:
                        self._log("report_failed", reason=error)
                    answer, failing = None, True
                self._take(*order, answer)
        except Exception as error:  # noqa: BLE001 - the step thread waits, and has to hear of it
            self._log("defect", where="gate", traceback="".join(traceback.format_exception(error)))
            with self._changed:
                self._defect = PsRuntimeError(f"the reports of the clock ended: {type(error).__name__}: {error}")
                self._changed.notify_all()

    def _next(self) -> tuple[Assignment, int, ClockReport] | None:
        """Waits until there is something to tell: (assignment, clock, report); None when the gate is closed."""
        with self._changed:
            while not self._closed and not self._stop.is_set():
                wait_s = None
                if self._assignment is not None and (self._clock > self._reported or self._is_shut()):
                    now_s = time.monotonic()
                    wait_s = self._not_before_s - now_s
                    if wait_s <= 0 or self._urgent:
                        self._urgent = False
                        self._not_before_s = now_s + REPORT_S
                        return self._assignment, self._clock, self._report(self._assignment)
                self._changed.wait(wait_s)
            return None

    def _report(self, assignment: Assignment) -> ClockReport:
        wanted, hold_s = 0, 0.0
        if self._is_shut():
            wanted = self._clock - self._bound
            hold_s = self._hold_s if self._short == self._clock else min(FIRST_HOLD_S, self._hold_s)
        steps = self._clock - assignment.clock
        return ClockReport(self._index, assignment.incarnation, assignment.view.number, steps, wanted, hold_s)

    def _send(self, assignment: Assignment, clock: int, report: ClockReport) -> Floor | None:
        """The answer; None when nobody needs it any more."""

        def is_wanted() -> bool:
            with self._changed:
                gone = self._closed or self._stop.is_set() or not _same(self._assignment, assignment)
                return not gone and (report.wanted_floor == 0 or self._clock == clock)

        return self._client.report_clock(report, is_wanted, report.max_wait_s + max(MARGIN_S, self._hold_s))

    def _take(self, assignment: Assignment, clock: int, report: ClockReport, answer: Floor | None) -> None:
        with self._changed:
            if not _same(self._assignment, assignment):
                return
            if answer is not None:
                self._reported = max(self._reported, clock)
                self._floor = max(self._floor, answer.steps)
                self.reason = answer.reason
                self._short = clock if answer.steps < report.wanted_floor else -1
            if answer is None or answer.steps < report.wanted_floor:
                self._not_before_s += PAUSE_S  # counted from the call, so nothing after one that was held
                self._urgent = False
            self._changed.notify_all()


def _same(one: Assignment | None, other: Assignment) -> bool:
    """Whether steps under both count together: the same incarnation in the same view."""
    return one is not None and (one.view, one.incarnation) == (other.view, other.incarnation)
