"""Joining: asks until the process is admitted or it is clear that it will not be, and reports an end before that."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from psruntime.core.members.membership import Role
from psruntime.core.members.messages import NOT_JOINED, Answer, Join, LeaveKind, Machine, NotYet
from psruntime.core.members.past import UNKNOWN, Past
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
)
from psruntime.observe.log import first_line_of
from psruntime.rpc.client.context import ClientContext
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.retry import pause, retrying
from psruntime.rpc.security.credentials import Security
from psruntime.rpc.wire.messages import Leave

ASK_AGAIN_S = 0.3  # a lost holder is replaced this much later; the coordinator may probe its address each time
REPORT_S = 2.0  # for the report of an end before the join
# Causes outside the worker: the job has ended, another process has the index, no coordinator answers.
NOT_OF_THE_WORKER = (
    CredentialsError, IndexHeldError, JobFailedError, JobOverError, OtherJobError, StopRequested, UnreachableError,
)  # fmt: skip


@dataclass(frozen=True)
class Registration:
    """What a process registers as: its role and index, where it is reached, and a worker's variables.

    address: of TensorFlow's server.  health_address: of grpc.health.v1.  Others: as in Join.
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
        pause(context.stop, ASK_AGAIN_S)
