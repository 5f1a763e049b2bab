"""Without the certificate or the token every RPC is refused, tells nothing and changes nothing.

The requests are those of a member that knows everything about the job; from a member each of them does something.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from psruntime.config import JobConfig
from psruntime.core.clocks.clocks import ClockReport
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, LeaveKind, Prepared, PsBeat, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.core.rounds.round_messages import Pushed
from psruntime.core.shards.shard_messages import Sharding, ShardRequest
from psruntime.rpc.wire import job_token
from psruntime.rpc.wire.codec import to_wire
from psruntime.rpc.wire.messages import ActionRequest, ChiefReport, Leave
from psruntime.v1 import coordination_pb2 as pb
from tests.rpc.conftest import JOB_ID, LONG, Stage, a_beat, a_join
from tests.support.certificates import TOKEN, YESTERDAY, Authority

SERVICE = pb.DESCRIPTOR.services_by_name["CoordinationService"]
COMMON = {"job_id": JOB_ID, "ps": 1, "min_workers": 2, "train_steps": 10, "lease_s": LONG, "ps_timeout_s": LONG}
BOUNDED, SYNC = JobConfig(mode="bounded", bound=1, **COMMON), JobConfig(mode="sync", **COMMON)
NOW_S = 1000.0  # the coordinator's clock stands still, so nothing changes by itself

STRANGER = grpc.StatusCode.UNAVAILABLE  # what TLS refuses never becomes a call
NO_TOKEN = grpc.StatusCode.UNAUTHENTICATED


class Job:
    """A coordinator with TLS and a token, a ps and two workers; worker 0 is the chief.  Brought to a phase."""

    def __init__(self, stage: Stage, authority: Authority, job: JobConfig, phase: Phase) -> None:
        self.coordinator = Coordinator(job, NOW_S)
        security = authority.security(token=TOKEN)
        server = stage.coordinator(job, make=lambda _: self.coordinator, security=security, now=lambda: NOW_S)
        self.address = f"127.0.0.1:{server.port}"
        client = stage.client(server, security)
        self.ps = client.join(a_join(Role.PS, 0))
        self.workers = [client.join(a_join(Role.WORKER, index)) for index in range(2)]
        if phase is not Phase.PREPARING:
            client.report_prepared(ChiefReport(0, self.workers[0].incarnation, 1, Prepared(0)))
        if phase is Phase.DRAINING:
            last = WorkerBeat(1, steps=5, global_step=10, stopped=True)
            for index, answer in enumerate(self.workers):
                client.heartbeat(a_beat(answer, Role.WORKER, index, last))
        if job.mode == "sync":
            for index, answer in enumerate(self.workers):
                client.next_action(ActionRequest(index, answer.incarnation, 1), lambda: True)
        assert self.coordinator.state.phase is phase

    def state(self) -> bytes:
        """All that the coordinator knows."""
        return pickle.dumps(self.coordinator)


def heartbeat(job: Job) -> Any:
    return to_wire(
        a_beat(job.ps, Role.PS, 0, PsBeat(job.ps.instructions.fence_revision + 1, 1, 3)), pb.HeartbeatRequest
    )


def chief(job: Job) -> tuple[int, int]:
    answer: Answer = job.workers[0]
    return 0, answer.incarnation


def action(job: Job) -> Any:
    return to_wire(ActionRequest(*chief(job), 1, Pushed(1, 1, 0, 64.0)), pb.NextActionRequest)


@dataclass(frozen=True)
class Rpc:
    """A request, the phase in which it does most, and whether it changes anything."""

    request: Callable[[Job], Any]
    phase: Phase = Phase.TRAINING
    job: JobConfig = BOUNDED
    changes: bool = True


RPCS = {
    "GetJob": Rpc(lambda _: pb.GetJobRequest(), changes=False),
    "Join": Rpc(lambda _: to_wire(a_join(Role.WORKER, 2), pb.JoinRequest)),
    "Heartbeat": Rpc(heartbeat),
    "ReportClock": Rpc(lambda job: to_wire(ClockReport(*chief(job), 1, 1), pb.ReportClockRequest)),
    "GetModel": Rpc(lambda _: pb.GetModelRequest(), changes=False),
    "ReportPrepared": Rpc(
        lambda job: pb.ReportPreparedRequest(worker_index=0, incarnation=chief(job)[1], view=1, prepared={}),
        Phase.PREPARING,
    ),
    "ReportFinished": Rpc(
        lambda job: pb.ReportFinishedRequest(worker_index=0, incarnation=chief(job)[1], view=1),
        Phase.DRAINING,
    ),
    "NextAction": Rpc(action, job=SYNC),
    "TakeShard": Rpc(lambda job: to_wire(ShardRequest(*chief(job), Sharding(100, 10)), pb.TakeShardRequest)),
    "GetPosition": Rpc(lambda _: pb.GetPositionRequest(), changes=False),
    "Leave": Rpc(lambda job: to_wire(Leave(Role.WORKER, *chief(job), LeaveKind.FATAL, "bye"), pb.LeaveRequest)),
    "Control": Rpc(lambda _: pb.ControlRequest(command={"request_id": "one", "kind": "CONTROL_COMMAND_PAUSE"})),
    "GetStatus": Rpc(lambda _: pb.GetStatusRequest(), changes=False),
}


def call(address: str, name: str, request: Any, credentials: Any, token: str) -> Any:
    """The status code of a raw call, and its answer."""
    channel = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
    with channel:
        rpc = channel.unary_unary(f"/{SERVICE.full_name}/{name}")
        try:
            return grpc.StatusCode.OK, rpc(request.SerializeToString(), timeout=30, metadata=job_token.metadata(token))
        except grpc.RpcError as error:
            return error.code(), None


INTRUDERS: dict[str, tuple[Callable[[Authority, Authority], Any], str, Any]] = {
    "without TLS": (lambda *_: None, TOKEN, STRANGER),
    "without a certificate": (lambda a, _: grpc.ssl_channel_credentials(a.security().tls.ca), TOKEN, STRANGER),
    "with a certificate of another CA": (lambda a, b: mixed(a, b), TOKEN, STRANGER),
    "with an expired certificate": (
        lambda a, _: a.security(not_after=YESTERDAY).tls.channel_credentials(), TOKEN, STRANGER,
    ),
    "without the token": (lambda a, _: a.security().tls.channel_credentials(), "", NO_TOKEN),
    "with another token": (lambda a, _: a.security().tls.channel_credentials(), TOKEN.upper(), NO_TOKEN),
}  # fmt: skip


def mixed(authority: Authority, stranger: Authority) -> Any:
    """It trusts the job's CA and has a certificate of another."""
    own = stranger.security().tls
    return grpc.ssl_channel_credentials(authority.security().tls.ca, own.key, own.cert)


def test_every_rpc_is_here():
    assert list(RPCS) == [method.name for method in SERVICE.methods]


@pytest.mark.parametrize("name", RPCS)
def test_intruders_change_nothing_and_a_member_does(stage, authority, stranger, name):
    rpc = RPCS[name]
    job = Job(stage, authority, rpc.job, rpc.phase)
    request = rpc.request(job)
    before, said = job.state(), len(stage.events)
    for who, (make_credentials, token, code) in INTRUDERS.items():
        answered = call(job.address, name, request, make_credentials(authority, stranger), token)
        assert answered == (code, None), who
        assert job.state() == before, who
    assert {event for event, _ in stage.events[said:]} == {"refused"}
    code, answer = call(job.address, name, request, authority.security().tls.channel_credentials(), TOKEN)
    assert code is grpc.StatusCode.OK and answer is not None
    assert (job.state() != before) == rpc.changes
