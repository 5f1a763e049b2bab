"""A process's membership: takes a place in the job, keeps it with heartbeats, and leaves it."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Callable

from psruntime.config import JobConfig
from psruntime.core.members.membership import Role, tag_of
from psruntime.core.members.messages import Answer, Assignment, Join, LeaveKind, Prepared, PsBeat, WorkerBeat
from psruntime.core.members.view import over_error
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.rounds.round_messages import Done, Turn
from psruntime.errors import (
    CredentialsError,
    IndexHeldError,
    PsRuntimeError,
    ReplacedError,
    StopRequested,
    UnreachableError,
)
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.join import join_until_admitted
from psruntime.rpc.client.latest_answer import LatestAnswer
from psruntime.rpc.client.retry import retrying
from psruntime.rpc.wire.heartbeat_messages import Heartbeat
from psruntime.rpc.wire.member_messages import Leave, Report
from psruntime.rpc.wire.turn_messages import TurnRequest

LEAVE_S = 2.0  # in all; who stops has only a few seconds, and the lease does the same later
MARGIN_S = 2.0  # of a call's deadline over the time for which it may be held
QUICK_MARGIN_S = 0.4  # of one that cannot be called off
SHORTEST_HOLD = 0.5  # of the longest: the holds of all spread over half of it, for a third more heartbeats


def a_hold_s(job: JobConfig) -> float:
    """For how long the next heartbeat may be held: not for the same time as those of all others.

    News for all ends all holds in the same moment; without this they would end together ever after.
    """
    return job.heartbeat_s * random.uniform(SHORTEST_HOLD, 1.0)


class Seat:
    """One process's membership.  Its methods may be called from any thread.

    beat: the facts for the next heartbeat.  on_answer: called in the heartbeat thread with every new answer,
    the one to the join included, before the next heartbeat; so what it does is done when `beat` is asked again.
    on_end: called there, once, when the job is over or the seat has failed, with the error that says so.
    stop: ends every wait.  `take` comes first, `leave` last.

    A seat whose incarnation was replaced or lost joins again by itself, as a new incarnation.  It fails, and
    every wait then raises why, when the coordinator is gone for `ps_timeout_s` or has become that of another job,
    or when the job or the place in it is gone.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        job: JobConfig,
        role: Role,
        index: int,
        address: str,
        health_address: str,
        specs: tuple[VariableSpec, ...],
        beat: Callable[[], PsBeat | WorkerBeat],
        on_answer: Callable[[Answer], None],
        log: Callable[..., None],
        stop: threading.Event,
        on_end: Callable[[PsRuntimeError], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._job = job
        self._place = Join(role, index, address, health_address, join_id="", job_id=job.job_id, specs=specs)
        self._beat = beat
        self._on_answer = on_answer
        self._on_end = on_end
        self._ended = False  # whether `on_end` was called
        self._log = log
        self._stop = stop
        self._latest = LatestAnswer()
        self._handed: Answer | None = None  # the last one that `on_answer` was given
        self._thread: threading.Thread | None = None
        self._departure: tuple[LeaveKind, str] | None = None
        self._departing = threading.Lock()  # guards the step from None
        self._leaving = threading.Event()  # set after `_departure`

    @property
    def answer(self) -> Answer:
        """The latest one; raises what the seat failed with."""
        return self._latest.get()

    @property
    def incarnation(self) -> int:
        """The latest one, also of a seat that failed."""
        return self._latest.last().incarnation

    def take(self, connect_timeout_s: float) -> Answer:
        """Joins, waiting for an index that may become free, and begins to send heartbeats.

        Raises:
            As join_until_admitted.
        """
        answer = self._join(connect_timeout_s, "--connect-timeout", self._stop)
        self._thread = threading.Thread(target=self._keep, name="heartbeat", daemon=True)
        self._thread.start()
        return answer

    def wait_until(self, predicate: Callable[[Answer], bool], timeout_s: float | None) -> Answer | None:
        """The first answer for which the predicate holds; None after `timeout_s` (None: no limit).

        Raises:
            StopRequested: `stop` was set, or this process has left.
            What the seat failed with.
        """
        return self._latest.wait_until(predicate, timeout_s, self._stop)

    def beat_now(self) -> Answer:
        """Sends the facts at once; returns the latest answer.

        Raises:
            ReplacedError, UnreachableError: the heartbeat thread deals with the same.
        """
        self._send_beat(self._latest.last(), hold_s=0.0)
        return self._latest.last()

    def report_prepared(self, assignment: Assignment, prepared: Prepared) -> Answer:
        """As chief: the variables of the view are prepared.  May be repeated.

        Raises:
            ReplacedError: the incarnation of the assignment is not a member, or not the chief.
            UnreachableError: not told within `ps_timeout_s`.
        """
        report = Report(self._place.index, assignment.incarnation, assignment.view.number, prepared)
        return self._report(lambda: self._client.report_prepared(report))

    def report_finished(self, assignment: Assignment) -> Answer:
        """As chief: the last checkpoint of the view is written.  Otherwise as `report_prepared`."""
        report = Report(self._place.index, assignment.incarnation, assignment.view.number)
        return self._report(lambda: self._client.report_finished(report))

    def take_turn(
        self, assignment: Assignment, done: Done | None, max_wait_s: float, is_wanted: Callable[[], bool] | None
    ) -> Turn | None:
        """Mode sync: says what was done, and waits for something to do; None once that is not wanted any more.

        is_wanted: None for a wait so short that it need not be called off; if there is no answer soon after, the
            coordinator counts as not reached.

        Raises:
            ReplacedError: the incarnation of the assignment is not a member.
            UnreachableError: try again.
        """
        request = TurnRequest(self._place.index, assignment.incarnation, assignment.view.number, done, max_wait_s)
        margin_s = self._margin_s if is_wanted else QUICK_MARGIN_S
        return self._client.take_turn(request, is_wanted, max_wait_s + margin_s)

    def leave(self, kind: LeaveKind, reason: str) -> None:
        """Gives the place up and ends the heartbeats.  Never raises; takes at most about 2 s; may be repeated."""
        until_s = time.monotonic() + LEAVE_S
        with self._departing:
            if self._departure is not None:
                return
            self._departure = (kind, reason)
        self._leaving.set()
        self._latest.fail(StopRequested("this process has left the job"))
        if self._thread is None:
            return
        self._say_goodbye(LEAVE_S / 2)
        if self._thread is not threading.current_thread():
            self._thread.join(max(0.0, until_s - time.monotonic()))

    # In the heartbeat thread.

    def _keep(self) -> None:
        try:
            while not self._leaving.is_set():
                self._turn()
        except StopRequested:
            return  # `leave` was called
        except PsRuntimeError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - from `beat` or `on_answer`; who waits has to hear of it
            reason = f"{type(error).__name__}: {error}"
            self._log("defect", where="heartbeat", reason=reason, traceback="".join(traceback.format_exception(error)))
            self._fail(PsRuntimeError(f"the heartbeats of {self._name} ended: {type(error).__name__}: {error}"))

    def _fail(self, error: PsRuntimeError) -> None:
        self._latest.fail(error)
        self._end(error)

    def _end(self, error: PsRuntimeError) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(error)

    def _turn(self) -> None:
        """Hands over what is new, then waits for more."""
        answer = self._latest.last()
        if answer != self._handed:
            self._on_answer(answer)
            self._handed = answer
        over = answer.standing.phase.over
        if over:
            self._end(over_error(answer.standing.phase, answer.standing.reason))
        try:
            retrying(
                lambda: self._send_beat(answer, a_hold_s(self._job)),
                0.0 if over else self._job.ps_timeout_s,
                self._leaving,
                self._client.name,
                self._log,
                "--ps-timeout",
            )
        except (ReplacedError, UnreachableError, CredentialsError) as error:
            if self._leaving.is_set():
                return
            if over:  # the coordinator may go now, and one that comes after it is of another job
                raise over_error(answer.standing.phase, answer.standing.reason) from error
            if not isinstance(error, ReplacedError):
                raise
            self._rejoin(error)

    def _rejoin(self, why: ReplacedError) -> None:
        self._log("rejoining", reason=why)
        try:
            self._join(self._job.ps_timeout_s, "--ps-timeout", self._leaving)
        except IndexHeldError as error:
            raise ReplacedError(f"{self._name} lost its place: {error}") from error
        if self._leaving.is_set():  # `leave` may have spoken for the incarnation before
            self._say_goodbye(LEAVE_S / 2)

    # In any thread.

    @property
    def _margin_s(self) -> float:
        return max(MARGIN_S, self._job.lease_s / 3)

    @property
    def _name(self) -> str:
        return f"{self._place.role} {self._place.index}"

    def _join(self, for_s: float, setting: str, stop: threading.Event) -> Answer:
        answer = join_until_admitted(self._client, self._place, for_s, setting, stop, self._log)
        self._latest.admit(answer)
        self._log("joined", incarnation=tag_of(answer.incarnation), phase=answer.standing.phase)
        return answer

    def _send_beat(self, seen: Answer, hold_s: float) -> None:
        """Held only while there is nothing newer than `seen`, which other threads may have heard of since."""
        place = self._place
        heartbeat = Heartbeat(place.role, place.index, seen.incarnation, self._beat(), seen.revision, hold_s)
        self._latest.offer(self._client.heartbeat(heartbeat, hold_s + self._margin_s))

    def _report(self, call: Callable[[], Answer]) -> Answer:
        answer = retrying(call, self._job.ps_timeout_s, self._stop, self._client.name, self._log, "--ps-timeout")
        self._latest.offer(answer)
        return answer

    def _say_goodbye(self, deadline_s: float) -> None:
        assert self._departure is not None
        leave = Leave(self._place.role, self._place.index, self._latest.last().incarnation, *self._departure)
        try:
            self._client.leave(leave, deadline_s)
        except PsRuntimeError as error:
            self._log("leave_unheard", reason=error)
