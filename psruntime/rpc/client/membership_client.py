"""A process's membership: joins the job, renews the lease with heartbeats, and leaves."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace

from psruntime.config import JobConfig
from psruntime.core.members.membership import Role, tag_of
from psruntime.core.members.messages import Answer, Assignment, LeaveKind, Prepared, PsBeat, WorkerBeat
from psruntime.core.members.view import Past, over_error
from psruntime.errors import (
    CredentialsError,
    IndexHeldError,
    PsRuntimeError,
    ReplacedError,
    StopRequested,
    UnreachableError,
)
from psruntime.rpc.client.coordinator_client import ClientContext
from psruntime.rpc.client.join import Registration, join_until_admitted, retrying
from psruntime.rpc.client.latest_answer import LatestAnswer
from psruntime.rpc.wire.messages import ChiefReport, Heartbeat, Leave

LEAVE_S = 2.0  # in all; who stops has only a few seconds, and the lease does the same later
FRESH_S = 1.0  # how old the global step is at most that the coordinator knows, in mode async and bounded
PULSES = 10  # in a lease: how often it is looked whether Python runs
SHORTEST_POLL = 0.5  # of the longest: the polls of all members spread over half of it, for a third more heartbeats


def a_poll_s(job: JobConfig, role: Role, index: int) -> float:
    """How long the next heartbeat may wait for news: a different time for each member.

    News for all members ends all polls in the same moment; with equal times they would end together ever after.  Ps 0
    has the global step, and is beside the coordinator: the status has a step of the last second.
    """
    longest_s = min(job.heartbeat_s, FRESH_S) if (role, index) == (Role.PS, 0) else job.heartbeat_s
    return longest_s * random.uniform(SHORTEST_POLL, 1.0)


def now_with_suspension_s() -> float:
    """Monotonic, and counts the time for which the machine was suspended, in seconds."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former is Linux's
    return time.clock_gettime(clock)


def _why_still(late_s: float, used_s: float, lease_s: float) -> str:
    """used_s: processor time of the process meanwhile."""
    computing = "native code computed with Python's lock (GIL)"
    waiting = "native code waited with Python's lock (GIL), or the process or its machine was stopped"
    return (
        f"Python did not run in this process for {late_s:.1f} s: {computing if used_s > late_s / 2 else waiting}; "
        f"no heartbeat left it meanwhile, and after {lease_s:g} s (--lease) a process is lost: release the lock there, "
        "or give a longer --lease"
    )


class MembershipClient:
    """One process's membership.  Its methods may be called from any thread; `start` comes first, `leave` last.

    beat(incarnation): the facts for the next heartbeat of this incarnation.
    on_answer: called in the heartbeat thread with every new answer, the one to the join included, before the next
        heartbeat; so what it does is done when `beat` is called again.
    on_end: called there, once, when the job is over or the membership has failed, with the error that says so.

    A process whose incarnation was replaced or lost joins again by itself, as a new incarnation.  The membership fails,
    and every wait then raises why, when the coordinator is gone for `ps_timeout_s` or has become that of another job,
    when another process has the index, or when the job is over and its coordinator gone.
    """

    def __init__(
        self,
        context: ClientContext,
        registration: Registration,
        beat: Callable[[int], PsBeat | WorkerBeat],
        on_answer: Callable[[Answer], None],
        on_end: Callable[[PsRuntimeError], None] = lambda _: None,
    ) -> None:
        self._context = context
        self._client, self._job, self._log = context.client, context.job, context.log
        self._me = registration
        self._beat = beat
        self._on_answer = on_answer
        self._on_end = on_end
        self._ended = False  # whether `on_end` was called
        self._latest = LatestAnswer()
        self._passed_on: Answer | None = None  # the last one that `on_answer` was given
        self._past = registration.past  # what the next coordinator receives
        self._learning = threading.Lock()  # guards its changes, and the next
        self._stood_still_s = 0.0  # the longest time for which no Python ran, which no heartbeat has reported yet
        self._thread: threading.Thread | None = None
        self._departure: tuple[LeaveKind, str] | None = None
        self._departing = threading.Lock()  # guards the step from None
        self._leaving = threading.Event()  # set after `_departure`

    @property
    def index(self) -> int:
        return self._me.index

    @property
    def answer(self) -> Answer:
        """The latest answer; raises what the membership failed with."""
        return self._latest.get()

    def start(self, connect_timeout_s: float) -> Answer:
        """Joins, waiting for an index that may become free, and begins to send heartbeats.

        Raises:
            As join_until_admitted.
        """
        answer = self._join(self._context, connect_timeout_s, "--connect-timeout")
        self._thread = threading.Thread(target=self._keep, name="heartbeat", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch_python, name="pulse", daemon=True).start()
        return answer

    def wait_until(self, predicate: Callable[[Answer], bool], timeout_s: float | None) -> Answer | None:
        """The first answer for which the predicate holds; None after `timeout_s` (None: no limit).

        Raises:
            StopRequested: `stop` was set, or this process has left.
            What the membership failed with.
        """
        return self._latest.wait_until(predicate, timeout_s, self._context.stop)

    def beat_now(self) -> Answer:
        """Sends the facts at once; returns the latest answer.

        Raises:
            ReplacedError, UnreachableError: the heartbeat thread deals with the same.
        """
        self._send_heartbeat(self._latest.last(), max_wait_s=0.0)
        return self._latest.last()

    def report_prepared(self, assignment: Assignment, prepared: Prepared) -> Answer:
        """As chief: the variables of the view are prepared.  May be repeated.

        Raises:
            ReplacedError: the incarnation of the assignment is not a member, or not the chief.
            UnreachableError: the coordinator was not reached within `ps_timeout_s`.
        """
        report = ChiefReport(self._me.index, assignment.incarnation, assignment.view.number, prepared)
        return self._report(lambda: self._client.report_prepared(report))

    def report_obstacle(self, assignment: Assignment, obstacle: str) -> Answer:
        """As chief: the view cannot be prepared by this worker.  Otherwise as `report_prepared`."""
        report = ChiefReport(self._me.index, assignment.incarnation, assignment.view.number, obstacle=obstacle)
        return self._report(lambda: self._client.report_prepared(report))

    def report_finished(self, assignment: Assignment) -> Answer:
        """As chief: the last checkpoint of the view is written.  Otherwise as `report_prepared`."""
        report = ChiefReport(self._me.index, assignment.incarnation, assignment.view.number)
        return self._report(lambda: self._client.report_finished(report))

    def tried(self, attempt: int) -> None:
        """This process has seen an attempt at a round, which the next coordinator has to know."""
        self._update_past(lambda past: past.tried(attempt))

    def leave(self, kind: LeaveKind, reason: str) -> None:
        """Leaves the job and ends the heartbeats.  Never raises; takes at most about 2 s; may be repeated."""
        until_s = time.monotonic() + LEAVE_S
        with self._departing:
            if self._departure is not None:
                return
            self._departure = (kind, reason)
        self._leaving.set()
        self._latest.fail(StopRequested("this process has left the job"))
        if self._thread is None:
            return
        self._send_leave(LEAVE_S / 2)
        if self._thread is not threading.current_thread():
            self._thread.join(max(0.0, until_s - time.monotonic()))

    def _watch_python(self) -> None:
        """Logs each time in which no Python ran in this process for more than half a lease, since no heartbeat left it.

        A lease that is kept by a thread without Python would hide a process whose Python is stuck for good.
        """
        lease_s = self._job.lease_s
        pause_s = lease_s / PULSES
        at_s, used_s = now_with_suspension_s(), time.process_time()
        while not self._leaving.wait(pause_s):
            was_s, at_s = at_s, now_with_suspension_s()
            before_s, used_s = used_s, time.process_time()
            late_s = at_s - was_s - pause_s
            if late_s > lease_s / 2:
                self._report_stood_still(late_s)
                self._log(
                    "python_stood_still",
                    seconds=round(late_s, 1),
                    reason=_why_still(late_s, used_s - before_s, lease_s),
                )

    # In the heartbeat thread.

    def _keep(self) -> None:
        try:
            while not self._leaving.is_set():
                self._exchange()
        except StopRequested:
            return  # `leave` was called
        except PsRuntimeError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - from `beat` or `on_answer`; every wait has to raise it
            reason = f"{type(error).__name__}: {error}"
            self._log("defect", where="heartbeat", reason=reason, traceback="".join(traceback.format_exception(error)))
            self._fail(PsRuntimeError(f"the heartbeats of {self._me.name} ended: {reason}"))

    def _fail(self, error: PsRuntimeError) -> None:
        self._latest.fail(error)
        self._end(error)

    def _end(self, error: PsRuntimeError) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(error)

    def _exchange(self) -> None:
        """Passes on what is new, then sends a heartbeat that waits for more."""
        answer = self._latest.last()
        if answer != self._passed_on:
            instructions = answer.instructions
            if not instructions.phase.over:
                self._update_past(
                    lambda past: (
                        past.after(instructions.phase.prepared, instructions.saved_step, instructions.seen_step)
                        .steered(instructions.settings)
                        .of_model(instructions.identity if self._me.role is Role.PS else self._me.identity)
                    )
                )
            self._on_answer(answer)
            self._passed_on = answer
        phase, reason = answer.instructions.phase, answer.instructions.reason
        if phase.over:
            self._end(over_error(phase, reason))
        try:
            retrying(
                lambda: self._send_heartbeat(answer, a_poll_s(self._job, self._me.role, self._me.index)),
                0.0 if phase.over else self._job.ps_timeout_s,
                self._leaving,
                self._client.name,
                self._log,
                "--ps-timeout",
            )
        except (ReplacedError, UnreachableError, CredentialsError) as error:
            if self._leaving.is_set():
                return
            if phase.over:  # the coordinator may go now, and one that comes after it is of another job
                raise over_error(phase, reason) from error
            if not isinstance(error, ReplacedError):
                raise
            self._rejoin(error)

    def _rejoin(self, why: ReplacedError) -> None:
        self._log("rejoining", reason=why)
        try:
            self._me = replace(self._me, past=self._past)
            self._join(replace(self._context, stop=self._leaving), self._job.ps_timeout_s, "--ps-timeout")
        except IndexHeldError as error:
            raise ReplacedError(f"{self._me.name} lost its place: {error}") from error
        if self._leaving.is_set():  # `leave` may have spoken for the incarnation before
            self._send_leave(LEAVE_S / 2)

    # In any thread.

    def _update_past(self, news: Callable[[Past], Past]) -> None:
        """What the next coordinator receives."""
        with self._learning:
            self._past = news(self._past)

    def _join(self, context: ClientContext, for_s: float, setting: str) -> Answer:
        answer = join_until_admitted(context, self._me, for_s, setting)
        self._latest.admit(answer)
        self._log("joined", incarnation=tag_of(answer.incarnation), phase=answer.instructions.phase)
        return answer

    def _send_heartbeat(self, seen: Answer, max_wait_s: float) -> None:
        """Waits at the coordinator only while it has nothing newer than `seen`; other threads may have newer by now."""
        me, beat = self._me, self._beat(seen.incarnation)
        self._update_past(lambda past: past.saw(beat.global_step))
        with self._learning:
            still_s, self._stood_still_s = self._stood_still_s, 0.0
        beat = replace(beat, stood_still_s=still_s)
        heartbeat = Heartbeat(me.role, me.index, seen.incarnation, beat, seen.revision, max_wait_s)
        try:
            answer = self._client.heartbeat(heartbeat, max_wait_s + self._context.margin_s)
        except PsRuntimeError:
            self._report_stood_still(still_s)
            raise
        self._latest.offer(answer)

    def _report_stood_still(self, still_s: float) -> None:
        """The next heartbeat reports it."""
        with self._learning:
            self._stood_still_s = max(self._stood_still_s, still_s)

    def _report(self, call: Callable[[], Answer]) -> Answer:
        stop = self._context.stop
        answer = retrying(call, self._job.ps_timeout_s, stop, self._client.name, self._log, "--ps-timeout")
        self._latest.offer(answer)
        return answer

    def _send_leave(self, deadline_s: float) -> None:
        assert self._departure is not None
        leave = Leave(self._me.role, self._me.index, self._latest.last().incarnation, *self._departure)
        try:
            self._client.leave(leave, deadline_s)
        except PsRuntimeError as error:
            self._log("leave_unheard", reason=error)
