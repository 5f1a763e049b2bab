"""The way into a job: calls that are repeated until the coordinator is reached, the job's settings, and the join.

A process asks until it is admitted or it is clear that it will not be, and reports an end before that.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from psruntime.config import JobConfig
from psruntime.config.job import contradictions
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import NOT_JOINED, Answer, Join, LeaveKind, Machine, NotYet
from psruntime.core.members.view import UNKNOWN, Past
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.identity import UNSAID, ModelIdentity
from psruntime.errors import (
    EXIT_USAGE,
    CredentialsError,
    IndexHeldError,
    JobFailedError,
    JobOverError,
    OtherJobError,
    PsRuntimeError,
    StopRequested,
    UnreachableError,
    UsageError,
)
from psruntime.observe.log import first_line_of
from psruntime.rpc.client.coordinator_client import ClientContext, CoordinatorClient
from psruntime.rpc.wire.messages import Leave
from psruntime.rpc.wire.security import Security

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 1.0  # a coordinator that is back is found within it
LOOK_S = 0.1  # how often a wait looks at the stop event

T = TypeVar("T")


def retrying(
    call: Callable[[], T],
    for_s: float,
    stop: threading.Event,
    what: str,
    log: Callable[..., None],
    setting: str = "--connect-timeout",
) -> T:
    """Makes the call until it is answered, with growing delays.  Logs when it begins to wait and when that ends.

    `what` is whom the call reaches, `setting` the flag that sets `for_s`, both for people.

    Raises:
        UnreachableError: not answered within `for_s` seconds.
        StopRequested: `stop` was set.
        Other errors of the call, at once.
    """
    began_s = time.monotonic()
    delay_s = FIRST_DELAY_S
    waits = False
    while True:
        if stop.is_set():
            raise StopRequested(f"asked to stop while {what} was not reached")
        try:
            result = call()
        except UnreachableError as error:
            left_s = began_s + for_s - time.monotonic()
            if left_s <= 0:
                raise UnreachableError(
                    f"{what} was not reached for {for_s:g} s; is ps 0 running there? ({setting}) last try: {error}"
                ) from None
            if not waits:
                log("unreachable", what=what, error=str(error), gives_up_after_s=for_s)
            waits = True
            delay(stop, min(left_s, delay_s * random.uniform(0.5, 1.0)))  # apart, so that callers do not come at once
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)
            continue
        except PsRuntimeError:  # an answer, if not a welcome one
            _note_reached(waits, what, began_s, log)
            raise
        _note_reached(waits, what, began_s, log)
        return result


def _note_reached(waited: bool, what: str, began_s: float, log: Callable[..., None]) -> None:
    if waited:
        log("reached", what=what, after_s=time.monotonic() - began_s)


def delay(stop: threading.Event, for_s: float) -> None:
    """Sleeps, or until `stop` is set.

    It looks at the event instead of waiting for it: a signal handler that sets the event while the same
    thread is inside `Event.wait` may find the event's lock taken, and would block for ever.
    """
    until_s = time.monotonic() + for_s
    while not stop.is_set() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, LOOK_S))


def fetch_job(
    client: CoordinatorClient,
    given: dict[str, Any],
    connect_timeout_s: float,
    stop: threading.Event,
    log: Callable[..., None],
    worker: int | None = None,
) -> JobConfig:
    """The job's settings; waits for the coordinator to appear.

    worker: index of the worker that asks, which joins later; None: another process asks.

    Raises:
        UsageError: it did not within `connect_timeout_s`, or a setting of `given`, this process's own
            flags, contradicts the job's; OtherJobError if that is the job's id.
    """
    try:
        job = retrying(client.get_job, connect_timeout_s, stop, client.name, log)
    except UnreachableError as error:
        raise UsageError(str(error)) from error
    log("job", id=job.job_id, mode=job.mode, coordinator=client.address)
    wrong = contradictions(given, job)
    if wrong:
        kind = OtherJobError if given.get("job_id", job.job_id) != job.job_id else UsageError
        raise kind(f"flags contradict the job's settings: {'; '.join(wrong)}; leave them out, ps 0 sets them")
    if worker is not None:
        with suppress(UnreachableError):  # its join finds out
            client.get_job(worker=worker)  # it belongs to this job, and joins when it is built
    return job


ASK_AGAIN_S = 0.3  # a lost holder is replaced this much later; the coordinator may probe its address each time
REPORT_S = 2.0  # for the report of an end before the join
# Causes outside the worker: the job has ended, another process has the index, no coordinator answers.
NOT_OF_THE_WORKER = (
    CredentialsError, IndexHeldError, JobFailedError, JobOverError, OtherJobError, StopRequested, UnreachableError,
)  # fmt: skip


@dataclass(frozen=True)
class Registration:
    """What a process registers as: its role and index, where it is reached, and a worker's variables.

    address: of TensorFlow's server.  health_address: of grpc.health.v1.
    identity: of a ps, its versions.  Others: as in Join.
    """

    role: Role
    index: int
    address: str
    health_address: str
    specs: tuple[VariableSpec, ...] = ()
    past: Past = UNKNOWN
    identity: ModelIdentity = UNSAID
    machine: Machine | None = None
    began_at: int = 0

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"


@contextmanager
def end_reported(client: CoordinatorClient, worker: int) -> Iterator[None]:
    """Reports to the coordinator what ends a worker within the block, before its join, and raises it.

    The coordinator then does not wait for a worker that is not started again.  One try, of at most REPORT_S.
    """
    try:
        yield
    except NOT_OF_THE_WORKER:
        raise
    except Exception as error:
        is_usage = isinstance(error, PsRuntimeError) and error.exit_code == EXIT_USAGE
        reason = str(error) if isinstance(error, PsRuntimeError) else first_line_of(error)
        _report_end(client, worker, LeaveKind.USAGE if is_usage else LeaveKind.ERROR, reason)
        raise


def report_usage(coordinator: str, security: Security, worker: int, reason: str) -> None:
    """Reports to the coordinator at this address that a worker ends because it is used wrongly, as `_report_end`."""
    client = CoordinatorClient(coordinator, security)
    _report_end(client, worker, LeaveKind.USAGE, reason)
    client.close()


def _report_end(client: CoordinatorClient, worker: int, kind: LeaveKind, reason: str) -> None:
    """Reports that a worker ends before its join.  Never raises; takes at most REPORT_S."""
    with suppress(PsRuntimeError):
        client.leave(Leave(Role.WORKER, worker, NOT_JOINED, kind, reason), REPORT_S)


def join_until_admitted(context: ClientContext, registration: Registration, for_s: float, setting: str) -> Answer:
    """The first answer as a member.

    `for_s` limits the time without the coordinator.  It does not limit the time for which another process has the
    index: a lease ends that.

    Raises:
        UnreachableError: the coordinator was not reached for `for_s` seconds; `setting` is the flag for it.
        StopRequested: `stop` was set.
        IndexHeldError, OtherJobError, UsageError, JobDoneError, JobStoppedError, JobFailedError: as
            Coordinator.join.
    """
    client, me = context.client, registration
    join = Join(
        me.role,
        me.index,
        me.address,
        me.health_address,
        secrets.token_hex(16),
        context.job.job_id,
        variables=me.specs,
        past=me.past,
        identity=me.identity,
        machine=me.machine,
        began_at=me.began_at,
    )
    asked_s: float | None = None  # when the first try that was answered was made: before it no coordinator was asked
    logged = ""  # the tag of the holder that the log has named

    def ask() -> tuple[Answer | NotYet, float]:
        now_s = time.monotonic()
        waited_s = 0.0 if asked_s is None else now_s - asked_s
        return client.join(replace(join, waited_s=waited_s)), now_s

    while True:
        result, at_s = retrying(ask, for_s, context.stop, client.name, context.log, setting)
        if isinstance(result, Answer):
            if result.remark:
                context.log("model_differs", reason=result.remark)
            return result
        asked_s = at_s if asked_s is None else asked_s
        if result.tag != logged:  # the text of the reason tells ages, so it changes all the time
            context.log("join_waits", reason=result.reason)
        logged = result.tag
        delay(context.stop, ASK_AGAIN_S)
