"""The coordinator as a gRPC service: translates, calls the state machine, answers.

All calls of the state machine are made in the event loop's thread and none of them waits, so there is no
lock.  This is where the coordinator's clock is read and its incarnation numbers are drawn.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc

from psruntime.config import JobConfig
from psruntime.core.clocks.clocks import ClockReport
from psruntime.core.coordinator.answers import job_status
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.fields import INDEX_LIMIT, Whole
from psruntime.core.members import messages
from psruntime.core.members.membership import Member, Role
from psruntime.core.members.messages import Answer, NotYet
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.rounds.round_messages import ActionKind
from psruntime.core.rounds.sync_rounds import Record
from psruntime.core.shards.shard_messages import ShardRequest
from psruntime.core.steering.commands import Outcome
from psruntime.errors import UsageError
from psruntime.network.hosts import Probes
from psruntime.rpc.server.polls import AGAIN_S, FRESH_S, SOON_S, ChangePolls, ClockPolls, HeartbeatPolls, Watchers
from psruntime.rpc.wire import statuses
from psruntime.rpc.wire.codec import from_wire, to_wire
from psruntime.rpc.wire.messages import (
    ActionRequest,
    ChiefReport,
    ControlRequest,
    Heartbeat,
    JoinResult,
    Leave,
    Model,
    job_to_wire,
)
from psruntime.v1 import coordination_pb2 as pb
from psruntime.v1 import coordination_pb2_grpc as pb_grpc

LOOK_S = 0.05  # between two looks whether all who watch have heard of the end
NEXT_BEAT_S = 1.0  # a live member sends its next heartbeat some milliseconds after an answer, or after the fence
FORGETS = 64  # addresses of members that have left, beside as many as there are members
# A lost member is noticed within 1.1 leases; fewer than 3 would look like a coordinator at a standstill.
TICKS_PER_LEASE = 10

T = TypeVar("T")
Request = TypeVar("Request")
Response = TypeVar("Response")


def _rpc(
    handler: Callable[[CoordinationServicer, Request], Awaitable[Response]],
) -> Callable[[CoordinationServicer, Request, Any], Awaitable[Response]]:
    """Makes a handler's errors the statuses of the table, and a defect INTERNAL with its details in the log only."""

    @_rpc_from
    @functools.wraps(handler)
    async def answer(self: CoordinationServicer, request: Request, _peer: Callable[[], str]) -> Response:
        return await handler(self, request)

    return answer


def _rpc_from(
    handler: Callable[[CoordinationServicer, Request, Callable[[], str]], Awaitable[Response]],
) -> Callable[[CoordinationServicer, Request, Any], Awaitable[Response]]:
    """As `_rpc`, of a handler that also receives its caller."""

    @functools.wraps(handler)
    async def answer(self: CoordinationServicer, request: Request, context: Any) -> Response:
        try:
            return await handler(self, request, context.peer)
        except Exception as error:  # noqa: BLE001 - the boundary: no exception may pass as a gRPC UNKNOWN
            refusal = self.refusal(handler.__name__, error)
        await context.abort(*refusal)
        raise AssertionError("abort raises")

    return answer


def caller_of(peer: str) -> str:
    """The address as people write it, of a peer as gRPC does: `ipv4:10.0.0.1:5`, `ipv6:%5B::1%5D:5`, `unix:`."""
    family, _, address = unquote(peer).partition(":")
    return address if family in ("ipv4", "ipv6") else peer


class CoordinationServicer(pb_grpc.CoordinationServiceServicer):
    """See the module.  All of it runs in one event loop.

    `make(now_s)` makes the state machine; `log(event, **facts)` logs what happened; `now` is a monotonic
    clock in seconds; `record` keeps the record of the rounds, before the answer to the report that one is closed.

    Raises:
        UsageError: a setting of the job does not fit its field on the wire.
    """

    name = pb.DESCRIPTOR.services_by_name["CoordinationService"].full_name

    def __init__(
        self,
        make: Callable[[float], Coordinator],
        job: JobConfig,
        log: Callable[..., None],
        now: Callable[[], float] = time.monotonic,
        record: Callable[[Record], None] = lambda _: None,
        fresh_s: float = FRESH_S,
        is_hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        """fresh_s: while the status is read, the largest age of a member's last heartbeat.

        is_hurried: whether it is to end soon, also if a watcher has not received the end of the job.
        """
        self._is_hurried = is_hurried
        self._job = job
        self._record = record
        self._settings = job_to_wire(job)
        self._coordinator = make(now())
        self._log = log
        self._now = now
        self._heartbeat_polls = HeartbeatPolls(self._coordinator.answer, fresh_s)
        self._action_polls = ChangePolls()
        self._shard_polls = ChangePolls()
        self._control_polls = ChangePolls()
        self._clock_polls = ClockPolls()
        self._probes = Probes()
        self._watchers = Watchers()
        self._hosts: dict[int, str] = {}  # by incarnation: from where it has joined
        self._ticking: asyncio.Task[None] | None = None
        self._model: tuple[tuple[VariableSpec, ...] | None, pb.GetModelResponse] = None, pb.GetModelResponse()

    def add_to(self, server: Any) -> None:
        """Registers the RPCs with a grpc.aio server that has not started."""
        pb_grpc.add_CoordinationServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    def open(self) -> None:
        """Begins to move the coordinator's time on."""
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def close(self) -> None:
        """Answers the long polls, lets who watches hear that the job is over, and ends what runs in the background."""
        for polls in (self._action_polls, self._shard_polls, self._control_polls):
            polls.close()
        self._heartbeat_polls.close()
        self._clock_polls.close()
        within_s = SOON_S if self._is_hurried() else AGAIN_S
        while self._coordinator.state.phase.over and self._watchers.are_to_hear(self._now(), within_s):
            await asyncio.sleep(LOOK_S)
        await self._probes.close()
        if self._ticking:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)

    @_rpc
    async def GetJob(self, request: pb.GetJobRequest) -> pb.GetJobResponse:
        if request.HasField("worker_index"):
            index = Whole(0, INDEX_LIMIT)("worker_index", request.worker_index)
            self._act(lambda now_s: self._coordinator.starts(index, now_s))
        return pb.GetJobResponse(job=self._settings)

    @_rpc_from
    async def Join(self, request: pb.JoinRequest, peer: Callable[[], str]) -> pb.JoinResponse:
        join = from_wire(messages.Join, request)
        result = self._join(join)
        if isinstance(result, NotYet) and result.holder and await self._is_gone(result.holder, join):
            incarnation = result.holder.incarnation
            self._act(lambda now_s: self._coordinator.confirm_lost(incarnation, now_s))
            result = self._join(join)
        if isinstance(result, Answer):
            self._note_host(result.incarnation, caller_of(peer()).rpartition(":")[0].strip("[]"))
        return to_wire(JoinResult(result), pb.JoinResponse)

    @_rpc
    async def Heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        beat = from_wire(Heartbeat, request)
        who = (beat.role, beat.index, beat.incarnation)
        answer = self._act(lambda now_s: self._coordinator.heartbeat(*who, beat.beat, now_s))
        if answer.revision == beat.seen_revision:
            max_wait_s = min(beat.max_wait_s, self._job.heartbeat_s)
            answer = await self._heartbeat_polls.news(*who, beat.seen_revision, max_wait_s)
        return pb.HeartbeatResponse(answer=to_wire(answer, pb.Answer))

    @_rpc
    async def ReportClock(self, request: pb.ReportClockRequest) -> pb.ReportClockResponse:
        report = from_wire(ClockReport, request)
        answer = self._act(lambda now_s: self._coordinator.report_clock(report, now_s))
        if report.wanted_floor > answer.floor and self._coordinator.state.trains_in(report.view):
            await self._clock_polls.reached(report.wanted_floor, min(report.max_wait_s, self._job.heartbeat_s))
            answer = self._act(lambda now_s: self._coordinator.report_clock(report, now_s))
        return to_wire(answer, pb.ReportClockResponse)

    @_rpc
    async def GetModel(self, _request: pb.GetModelRequest) -> pb.GetModelResponse:
        specs = self._coordinator.state.specs
        if self._model[0] is not specs:  # 100,000 variables take 0.2 s
            model = None if specs is None else to_wire(Model(specs), pb.Model)
            self._model = specs, pb.GetModelResponse(model=model)
        return self._model[1]

    @_rpc
    async def ReportPrepared(self, request: pb.ReportPreparedRequest) -> pb.ReportPreparedResponse:
        report = from_wire(ChiefReport, request)
        chief, prepared = (report.worker_index, report.incarnation), report.prepared
        if report.obstacle:
            answer = self._act(
                lambda now_s: self._coordinator.report_obstacle(*chief, report.view, report.obstacle, now_s)
            )
        elif prepared is None:
            raise UsageError("prepared must be given where there is no obstacle")
        else:
            answer = self._act(lambda now_s: self._coordinator.report_prepared(*chief, report.view, prepared, now_s))
        return pb.ReportPreparedResponse(answer=to_wire(answer, pb.Answer))

    @_rpc
    async def ReportFinished(self, request: pb.ReportFinishedRequest) -> pb.ReportFinishedResponse:
        report = from_wire(ChiefReport, request)
        chief = (report.worker_index, report.incarnation)
        answer = self._act(lambda now_s: self._coordinator.report_finished(*chief, report.view, now_s))
        return pb.ReportFinishedResponse(answer=to_wire(answer, pb.Answer))

    @_rpc
    async def NextAction(self, request: pb.NextActionRequest) -> pb.NextActionResponse:
        asked = from_wire(ActionRequest, request)
        worker = (asked.worker_index, asked.incarnation)
        action = self._act(
            lambda now_s: self._coordinator.next_action(*worker, asked.view, asked.report, now_s, asked.starved_since)
        )
        if action.kind is ActionKind.WAIT:
            max_wait_s = min(asked.max_wait_s, self._job.heartbeat_s)
            action = await self._action_polls.news(
                lambda: self._coordinator.action_of(*worker),
                lambda action: action.kind is not ActionKind.WAIT,
                max_wait_s,
            )
        return pb.NextActionResponse(action=to_wire(action, pb.Action))

    @_rpc
    async def TakeShard(self, request: pb.TakeShardRequest) -> pb.TakeShardResponse:
        asked = from_wire(ShardRequest, request)
        answer = self._act(lambda now_s: self._coordinator.take_shard(asked, now_s))
        if answer.shard is None:
            phase, max_wait_s = self._coordinator.state.phase, min(asked.max_wait_s, self._job.heartbeat_s)
            answer = await self._shard_polls.news(
                lambda: self._coordinator.shard(asked),
                lambda answer: answer.shard is not None or self._coordinator.state.phase is not phase,
                max_wait_s,
            )
        return to_wire(answer, pb.TakeShardResponse)

    @_rpc
    async def GetPosition(self, _request: pb.GetPositionRequest) -> pb.GetPositionResponse:
        return pb.GetPositionResponse(position=to_wire(self._coordinator.state.shards.position, pb.Position))

    @_rpc
    async def Leave(self, request: pb.LeaveRequest) -> pb.LeaveResponse:
        leave = from_wire(Leave, request)
        who = (leave.role, leave.index, leave.incarnation)
        self._act(lambda now_s: self._coordinator.leave(*who, leave.kind, leave.reason, now_s))
        return pb.LeaveResponse()

    @_rpc_from
    async def Control(self, request: pb.ControlRequest, peer: Callable[[], str]) -> pb.ControlResponse:
        asked = from_wire(ControlRequest, request)
        command = replace(asked.command, by=caller_of(peer()))
        reply = self._act(lambda now_s: self._coordinator.control(command, now_s))
        if reply.outcome is Outcome.PENDING:
            reply = await self._control_polls.news(
                lambda: self._coordinator.control_reply(command.request_id),
                lambda reply: reply.outcome is not Outcome.PENDING,
                min(asked.max_wait_s, self._job.heartbeat_s),
            )
        return to_wire(reply, pb.ControlResponse)

    @_rpc_from
    async def GetStatus(self, request: pb.GetStatusRequest, peer: Callable[[], str]) -> pb.GetStatusResponse:
        self._heartbeat_polls.watch()
        if request.watches:
            self._watchers.ask(peer(), self._coordinator.state.phase.over, self._now())
        status = job_status(self._coordinator.state, self._now())
        return pb.GetStatusResponse(status=to_wire(status, pb.JobStatus), job=self._settings)

    def refusal(self, rpc: str, error: Exception) -> tuple[Any, str, tuple[tuple[str, str], ...]]:
        """Status, details and trailing metadata that an error travels as; logs a defect."""
        refusal = statuses.refusal(error)
        if refusal is None:
            self._defect(rpc, error)
            return grpc.StatusCode.INTERNAL, f"{rpc} failed in the coordinator; the log of ps 0 has the details", ()
        return refusal

    def _defect(self, where: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        self._log("defect", where=where, reason=reason, traceback="".join(traceback.format_exception(error)))

    def _join(self, join: messages.Join) -> Answer | NotYet:
        number = secrets.randbelow(1 << 62) + 1  # positive in an int64, where TensorFlow keeps it
        return self._act(lambda now_s: self._coordinator.join(join, number, now_s))

    def _note_host(self, incarnation: int, host: str) -> None:
        """A member has joined from there."""
        self._hosts[incarnation] = host
        members = self._coordinator.state.members
        if len(self._hosts) > 2 * sum(members.count(role) for role in Role) + FORGETS:
            live = {member.incarnation for role in Role for member in members.live(role)}
            self._hosts = {each: where for each, where in self._hosts.items() if each in live}

    def members_by_host(self) -> Counter[str]:
        """Address -> members that have joined from it, and some that have left.  From any thread."""
        return Counter(list(self._hosts.values()))

    def _act(self, decide: Callable[[float], T]) -> T:
        """Gives the coordinator one input, then publishes what it means for others."""
        try:
            return decide(self._now())
        finally:
            self._publish()

    def _publish(self) -> None:
        effects, state = self._coordinator.take_effects(), self._coordinator.state
        for event in effects.events:
            self._log(event.name, **event.facts)
        for record in effects.records:
            self._record(record)
        if effects.news:
            self._heartbeat_polls.wake_soon()
        if effects.stragglers:
            self._heartbeat_polls.wake_workers(effects.stragglers)
        self._action_polls.update(effects.actions_revision)
        self._shard_polls.update(effects.shards_revision)
        self._control_polls.update(state.steering.revision)
        self._clock_polls.update(state.pace.floor, (state.view.number, state.phase))

    async def _is_gone(self, holder: Member, join: messages.Join) -> bool:
        """Whether the process that holds the claimed index is certainly dead.

        A member whose heartbeat waits here is not, whatever its health address says.  One whose health
        address the claimant listens at itself is: no two processes share a port.  But a claimant may lie, so
        a holder gets the time for its next heartbeat.
        """
        if holder.health_address != join.health_address:
            host = self._hosts.get(holder.incarnation, "")  # a member cannot make this process call another machine
            gone = await self._probes.nothing_listens(holder.incarnation, holder.health_address, host)
            return gone and not self._heartbeat_polls.has(holder.incarnation)
        if self._heartbeat_polls.has(holder.incarnation):
            return False
        await asyncio.sleep(min(NEXT_BEAT_S, self._job.heartbeat_s))
        silent = self._coordinator.state.members.holder(holder.role, holder.index) == holder
        return silent and not self._heartbeat_polls.has(holder.incarnation)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._job.lease_s / TICKS_PER_LEASE)
            try:
                self._act(self._coordinator.advance)
                self._heartbeat_polls.wake_soon()
            except Exception as error:  # noqa: BLE001 - leases must continue to end
                self._defect("tick", error)
