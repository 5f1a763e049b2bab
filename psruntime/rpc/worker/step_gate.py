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
from psruntime.core.clocks.report_schedule import Report, Reporting
from psruntime.core.members.messages import Assignment
from psruntime.errors import PsRuntimeError, ReplacedError, UnreachableError
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.wire.clock_messages import ClockReport, Floor

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
        self._reports = Reporting(job.bound, 0, job.heartbeat_s)  # of the assignment
        self._every_s = 0.0  # what `space` was told
        self._closed = False
        self._defect: PsRuntimeError | None = None
        self._reporter: threading.Thread | None = None

    def at(self, assignment: Assignment, steps: int) -> None:
        """Where the worker is: the steps that it has completed under this assignment."""
        with self._changed:
            entered = not _same(self._assignment, assignment)
            if entered:
                self._assignment = assignment
                self._reports = Reporting(self._bound, assignment.clock, self._hold_s)
                self._reports.space(self._every_s)
                self.reason = ""
            if self._reports.at(steps) or entered:  # else the reporter is awake, or will be
                self._changed.notify_all()
        if self._reporter is None:
            self._reporter = threading.Thread(target=self._keep, name="clock-reports", daemon=True)
            self._reporter.start()

    def space(self, every_s: float) -> None:
        """The coordinator wants so much time between two reports for which nobody can wait.  From any thread."""
        with self._changed:
            self._every_s = every_s
            if self._reports.space(every_s):
                self._changed.notify_all()

    def opens(self, within_s: float, under_way: int = 0) -> bool:
        """Whether the worker may start a step now, or within so many seconds; now if steps of its own are under way.

        Raises:
            PsRuntimeError: the reporter ended by a defect, so the floor would never rise.
        """
        with self._changed:
            if self._reports.is_shut and not under_way:
                self._changed.wait(within_s)
            if self._defect:
                raise self._defect
            lead = self._reports.lead + under_way
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
            reason = f"{type(error).__name__}: {error}"
            self._log("defect", where="gate", reason=reason, traceback="".join(traceback.format_exception(error)))
            with self._changed:
                self._defect = PsRuntimeError(f"the reports of the clock ended: {type(error).__name__}: {error}")
                self._changed.notify_all()

    def _next(self) -> tuple[Assignment, Report] | None:
        """Waits until there is something to tell; None when the gate is closed."""
        with self._changed:
            while not self._closed and not self._stop.is_set():
                now_s = time.monotonic()
                wait_s = None if self._assignment is None else self._reports.wait_s(now_s)
                if self._assignment is not None and wait_s is not None and wait_s <= 0:
                    return self._assignment, self._reports.begin(now_s)
                self._changed.wait(wait_s)
            return None

    def _send(self, assignment: Assignment, report: Report) -> Floor | None:
        """The answer; None when nobody needs it any more."""

        def is_wanted() -> bool:
            with self._changed:
                gone = self._closed or self._stop.is_set() or not _same(self._assignment, assignment)
                return not gone and (report.wanted_floor == 0 or self._reports.clock == report.clock)

        whose = (self._index, assignment.incarnation, assignment.view.number)
        wire = ClockReport(*whose, report.steps, report.wanted_floor, report.hold_s)
        return self._client.report_clock(wire, is_wanted, report.hold_s + max(MARGIN_S, self._hold_s))

    def _take(self, assignment: Assignment, report: Report, answer: Floor | None) -> None:
        with self._changed:
            if not _same(self._assignment, assignment):
                return
            self._reports.end(report, None if answer is None else answer.steps)
            if answer is not None:
                self.reason = answer.reason
            self._changed.notify_all()


def _same(one: Assignment | None, other: Assignment) -> bool:
    """Whether steps under both count together: the same incarnation in the same view."""
    return one is not None and (one.view, one.incarnation) == (other.view, other.incarnation)
