"""A caller of the coordinator: typed, synchronous, every call with a deadline; and what callers of a process share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from psruntime.config import JobConfig
from psruntime.core.clocks.clocks import ClockAnswer, ClockReport
from psruntime.core.members.job_status import JobStatus
from psruntime.core.members.messages import Answer, Join, NotYet
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.rounds.round_messages import Action
from psruntime.core.shards.shard_messages import Position, ShardAnswer, ShardRequest
from psruntime.core.steering.commands import Reply
from psruntime.errors import CredentialsError, PsRuntimeError, UnreachableError, UsageError
from psruntime.network.hosts import require_own_listener, require_private
from psruntime.rpc.wire import job_token, statuses
from psruntime.rpc.wire.channel_options import CALLER_OPTIONS
from psruntime.rpc.wire.codec import from_wire, to_wire
from psruntime.rpc.wire.messages import (
    ActionRequest,
    ChiefReport,
    ControlRequest,
    Heartbeat,
    JoinResult,
    Leave,
    Model,
    job_from_wire,
)
from psruntime.rpc.wire.security import OPEN, Security
from psruntime.rpc.wire.tls_faults import why_refused
from psruntime.v1 import coordination_pb2 as pb
from psruntime.v1 import coordination_pb2_grpc as pb_grpc

LOOK_S = 0.1  # how often a call that may be called off asks whether it is still wanted
PROBE_S = 2.0  # at most, of a call's time, to find out whether TLS is why it failed
DEADLINE_S = 5.0  # an answer takes milliseconds; this leaves room for a machine that is busy with training


class _TokenRefused(CredentialsError):
    """The coordinator does not know the token."""


class CoordinatorClient:
    """Calls the coordinator at `address`.  May be used by several threads at once.

    Each method makes one try that ends within `deadline_s` seconds, and raises what its RPC states in
    protos/psruntime/v1, as the errors of statuses.py; UnreachableError where a repeat may help, CredentialsError
    where both ends do not agree on certificates or the token.
    """

    def __init__(self, address: str, security: Security = OPEN) -> None:
        self.address = address
        self._security = security
        self._opening = threading.Lock()  # guards the next
        self._channels: list[Any] = []  # the newest last; the one before it may have calls in progress
        self._is_member = False  # whether a call to join has succeeded
        self._in_clear = bool(security.tokens) and not (security.tls or security.insecure)
        if self._in_clear:
            require_private(address)
        self._open()

    def _open(self) -> None:
        self._tls = tls = self._security.tls
        if tls:
            channel = grpc.secure_channel(self.address, tls.channel_credentials(), options=CALLER_OPTIONS)
        else:
            channel = grpc.insecure_channel(self.address, options=CALLER_OPTIONS)
        self._stub: Any = pb_grpc.CoordinationServiceStub(channel)  # type: ignore[no-untyped-call]
        for old in self._channels[:-1]:
            old.close()
        self._channels = [*self._channels[-1:], channel]

    def _current(self) -> Any:
        """The stub of a channel with the newest certificate."""
        with self._opening:
            if self._tls is not self._security.tls and self._channels:
                self._open()
            return self._stub

    @property
    def name(self) -> str:
        """Whom it calls, for messages."""
        return f"coordinator {self.address}"

    def get_job(self, deadline_s: float = DEADLINE_S, worker: int | None = None) -> JobConfig:
        """worker: index of the worker that asks, which joins later; None: another process asks."""
        return job_from_wire(self._call("GetJob", pb.GetJobRequest(worker_index=worker), deadline_s).job)

    def join(self, join: Join, deadline_s: float = DEADLINE_S) -> Answer | NotYet:
        result = from_wire(JoinResult, self._call("Join", to_wire(join, pb.JoinRequest), deadline_s)).result
        self._is_member = True
        return result

    def heartbeat(self, heartbeat: Heartbeat, deadline_s: float = DEADLINE_S) -> Answer:
        """The deadline has to be longer than `heartbeat.max_wait_s`."""
        response = self._call("Heartbeat", to_wire(heartbeat, pb.HeartbeatRequest), deadline_s)
        return from_wire(Answer, response.answer)

    def report_clock(
        self, report: ClockReport, is_wanted: Callable[[], bool], deadline_s: float = DEADLINE_S
    ) -> ClockAnswer | None:
        """None once the answer is not wanted any more.  The deadline has to be longer than `report.max_wait_s`."""
        response = self._call("ReportClock", to_wire(report, pb.ReportClockRequest), deadline_s, is_wanted)
        return None if response is None else from_wire(ClockAnswer, response)

    def get_model(self, deadline_s: float = DEADLINE_S) -> tuple[VariableSpec, ...] | None:
        """The variables of the job; None while no worker has joined."""
        response = self._call("GetModel", pb.GetModelRequest(), deadline_s)
        return from_wire(Model, response.model).variables if response.HasField("model") else None

    def report_prepared(self, report: ChiefReport, deadline_s: float = DEADLINE_S) -> Answer:
        response = self._call("ReportPrepared", to_wire(report, pb.ReportPreparedRequest), deadline_s)
        return from_wire(Answer, response.answer)

    def report_finished(self, report: ChiefReport, deadline_s: float = DEADLINE_S) -> Answer:
        response = self._call("ReportFinished", to_wire(report, pb.ReportFinishedRequest), deadline_s)
        return from_wire(Answer, response.answer)

    def next_action(
        self, request: ActionRequest, is_wanted: Callable[[], bool] | None, deadline_s: float = DEADLINE_S
    ) -> Action | None:
        """None once the answer is not wanted any more.  The deadline has to be longer than `request.max_wait_s`.

        is_wanted: None for a call that cannot be called off, which costs less: grpc starts a thread for one that can.
        """
        response = self._call("NextAction", to_wire(request, pb.NextActionRequest), deadline_s, is_wanted)
        return None if response is None else from_wire(Action, response.action, "action")

    def take_shard(
        self, request: ShardRequest, is_wanted: Callable[[], bool], deadline_s: float = DEADLINE_S
    ) -> ShardAnswer | None:
        """None once it is not wanted any more.  The deadline has to be longer than `request.max_wait_s`."""
        response = self._call("TakeShard", to_wire(request, pb.TakeShardRequest), deadline_s, is_wanted)
        return None if response is None else from_wire(ShardAnswer, response)

    def get_position(self, deadline_s: float = DEADLINE_S) -> Position:
        response = self._call("GetPosition", pb.GetPositionRequest(), deadline_s)
        return from_wire(Position, response.position, "position")

    def leave(self, leave: Leave, deadline_s: float = DEADLINE_S) -> None:
        self._call("Leave", to_wire(leave, pb.LeaveRequest), deadline_s)

    def control(self, request: ControlRequest, deadline_s: float = DEADLINE_S) -> Reply:
        """The deadline has to be longer than `request.max_wait_s`."""
        return from_wire(Reply, self._call("Control", to_wire(request, pb.ControlRequest), deadline_s))

    def get_status(self, deadline_s: float = DEADLINE_S, watches: bool = False) -> tuple[JobStatus, JobConfig]:
        """watches: whether the caller asks again every second; then it hears of the end of the job, too."""
        response = self._call("GetStatus", pb.GetStatusRequest(watches=watches), deadline_s)
        return from_wire(JobStatus, response.status), job_from_wire(response.job)

    def close(self) -> None:
        """Ends the calls that are under way; later ones raise UnreachableError.  May be repeated."""
        with self._opening:
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    def _call(self, rpc: str, request: Any, deadline_s: float, is_wanted: Callable[[], bool] | None = None) -> Any:
        """The response; None once it is not wanted any more.

        A token that the coordinator refuses may have been replaced there already: the next one is sent then.
        """
        until_s = time.monotonic() + deadline_s
        *first, last = self._security.tokens or ("",)
        for token in first:
            try:
                return self._send(rpc, request, token, until_s, is_wanted)
            except _TokenRefused:
                continue
        try:
            return self._send(rpc, request, last, until_s, is_wanted)
        except CredentialsError as error:  # of a member: a change of certificates or tokens is in progress
            raise (UnreachableError if self._is_member else CredentialsError)(str(error)) from None

    def _send(
        self, rpc: str, request: Any, token: str, until_s: float, is_wanted: Callable[[], bool] | None
    ) -> Any:  # fmt: skip
        if self._in_clear:
            require_own_listener(self.address)
        metadata, call = job_token.metadata(token), getattr(self._current(), rpc)
        deadline_s = until_s - time.monotonic()
        try:
            if is_wanted is None:
                return call(request, timeout=deadline_s, metadata=metadata)
            future = call.future(request, timeout=deadline_s, metadata=metadata)
            while is_wanted():
                with suppress(grpc.FutureTimeoutError):
                    return future.result(timeout=LOOK_S)
            future.cancel()
            return None
        except grpc.FutureCancelledError:  # by closing our channel
            raise UnreachableError(f"{self.name}: the call was cancelled") from None
        except grpc.RpcError as error:
            raise self._error(error, until_s) from None
        except ValueError as error:  # how grpc refuses a call on a closed channel
            raise UnreachableError(f"{self.name}: {error}") from None

    def _error(self, error: Any, until_s: float) -> PsRuntimeError:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            left_s = min(PROBE_S, until_s - time.monotonic())
            fault = why_refused(self.name, self.address, self._security.tls, left_s)
            if fault:
                return CredentialsError(fault)
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            return _TokenRefused(statuses.one_line(error.details() or ""))
        cause = dict(error.trailing_metadata() or ()).get(statuses.CAUSE_KEY, "")
        found = statuses.error_of(error.code(), cause, statuses.one_line(error.details() or ""), self.name)
        if error.code() is grpc.StatusCode.UNIMPLEMENTED and self._in_clear and not self._is_member:
            return UsageError(f"{found}; it has received the token without TLS: replace it unless the server is yours")
        return found


MARGIN_S = 2.0  # at least


@dataclass(frozen=True)
class ClientContext:
    """asked, stop: as in Process; `stop` ends every wait.  log(event, **facts): takes what operators want to read."""

    client: CoordinatorClient
    job: JobConfig
    stop: threading.Event
    log: Callable[..., None]
    asked: threading.Event = field(default_factory=threading.Event)

    @property
    def margin_s(self) -> float:
        """Of a call's deadline over the time for which the coordinator may keep it waiting."""
        return max(MARGIN_S, self.job.heartbeat_s)
