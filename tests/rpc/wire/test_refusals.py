"""A malformed request is refused in a line that begins with the field's name."""

from __future__ import annotations

import math

import pytest

from psruntime.core.members.job_status import JobStatus
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import MOST_CAUSES, SPECS, Join, LeaveKind, PsStats, WorkerBeat
from psruntime.core.plan.buckets import VariableSpec
from psruntime.errors import UsageError
from psruntime.rpc.wire.codec import from_wire, to_wire
from psruntime.rpc.wire.messages import ChiefReport, Heartbeat, JoinResult, Leave
from psruntime.v1 import coordination_pb2 as pb

A_JOIN = Join(Role.WORKER, 1, "127.0.0.1:1", "127.0.0.1:2", "id", "job", 0.5, (VariableSpec("w", (2,), "float32"),))
A_BEAT = Heartbeat(Role.WORKER, 1, 7, WorkerBeat())
A_LEAVE = Leave(Role.WORKER, 1, 7, LeaveKind.ASKED, "")


def _join(**changes):
    wire = to_wire(A_JOIN, pb.JoinRequest)
    wire.MergeFrom(pb.JoinRequest(**changes))
    return Join, wire


def _beat(**changes):
    wire = to_wire(A_BEAT, pb.HeartbeatRequest)
    wire.MergeFrom(pb.HeartbeatRequest(**changes))
    return Heartbeat, wire


def _leave(**changes):
    wire = to_wire(A_LEAVE, pb.LeaveRequest)
    wire.MergeFrom(pb.LeaveRequest(**changes))
    return Leave, wire


def _without(call, field):
    kind, wire = call
    wire.ClearField(field)
    return kind, wire


MANY = [pb.VariableSpec(name=str(i), dtype="float32") for i in range(SPECS + 1)]


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (_join(role=9), "role must be one of ROLE_PS, ROLE_WORKER, got 9"),
        (_without(_join(), "role"), "role must be one of"),
        (_join(role="ROLE_PS"), "variables must be empty for a ps"),
        (_join(index=-1), "index must be from 0 to 2147483647, got -1"),
        (_join(address="x" * 257), "address must have 0 to 256 characters, got 257"),
        (_join(join_id="x" * 65), "join_id must have 1 to 64 characters"),
        (_without(_join(), "join_id"), "join_id must have 1 to 64 characters, got 0"),
        (_join(job_id="a b"), "job_id must be 1 to 64 letters, digits, '.', '_' or '-'"),
        (_join(job_id="x" * 65), "job_id must be 1 to 64 letters"),
        (_without(_join(), "job_id"), "job_id must be 1 to 64 letters"),
        (_join(waited={"seconds": -1}), "waited must be from 0"),
        (_join(waited={"nanos": 2**31 - 1}), "waited must be from 0"),
        (_join(variables=[pb.VariableSpec(name="v", dtype="int32")]), "variables.dtype of v must be one of float16"),
        (_join(variables=[pb.VariableSpec(name="v", dtype="float32", sparse=True)]), "variables.sparse of v must be"),
        (_join(variables=[pb.VariableSpec(name="v", shape=[-1], dtype="float32")]), "variables.shape of v must"),
        (_join(variables=[pb.VariableSpec(name="v", shape=[2**53], dtype="float32")]), "variables.shape of v must"),
        (_join(variables=[pb.VariableSpec(name="v", shape=[1] * 255, dtype="float32")]), "variables.shape of v must"),
        (_join(variables=[pb.VariableSpec(dtype="float32")]), "variables.name must have 1 to"),
        *[
            (
                _join(variables=[pb.VariableSpec(name="v", dtype="float32", **kinds)]),
                "variables.aggregation of v must be one",
            )
            for kinds in ({"aggregation": "SUM"}, {"aggregation": "ALL", "trainable": False})
        ],
        (_join(variables=[pb.VariableSpec(name="w", dtype="float32")]), "variables must differ in name"),
        (_join(variables=MANY), "variables must be at most 100000"),
        (_without(_beat(), "worker"), "beat must be ps or worker, got none"),
        (_beat(ps=pb.PsBeat()), "beat must be that of a worker"),
        (_without(_beat(), "incarnation"), "incarnation must be from 1"),
        (_beat(incarnation=-5), "incarnation must be from 1"),
        (_beat(seen_revision=-1), "seen_revision must be from 0"),
        (_beat(max_wait={"seconds": 2**62}), "max_wait must be from 0"),
        (_beat(worker={"steps": -1}), "worker.steps must be from 0"),
        (_beat(worker={"steps": 2**60}), "worker.steps must be from 0"),
        (_beat(worker={"stats": {"examples_per_s": math.inf}}), "worker.stats.examples_per_s must be a finite number"),
        (_beat(worker={"stats": {"waiting": "x" * 5000}}), "worker.stats.waiting must have 0 to 4096 characters"),
        (_beat(worker={"stats": {"moved": {"sent": -1}}}), "worker.stats.moved.sent must be from 0"),
        (_beat(worker={"stats": {"moved": {"received": -1}}}), "worker.stats.moved.received must be from 0"),
        (_beat(worker={"stats": {"step_tensors": -1}}), "worker.stats.step_tensors must be from 0"),
        (_beat(worker={"stats": {"gpus": [{"index": -1}]}}), "worker.stats.gpus.index must be from 0"),
        (_beat(worker={"stats": {"gpus": [{}]}}), "worker.stats.gpus.name must have 1 to 1024 characters, got 0"),
        (
            _beat(worker={"stats": {"gpus": [{"name": "x" * 1025}]}}),
            "worker.stats.gpus.name must have 1 to 1024 characters",
        ),
        (
            _beat(worker={"stats": {"gpus": [{"name": "x", "held_bytes": -1}]}}),
            "worker.stats.gpus.held_bytes must be from 0",
        ),
        (
            _beat(worker={"stats": {"gpus": [{"name": "x", "total_bytes": -1}]}}),
            "worker.stats.gpus.total_bytes must be from",
        ),
        (_beat(worker={"stats": {"gpus": [{"name": "x"}] * 65}}), "worker.stats.gpus must be at most 64, got 65"),
        (_leave(kind=7), "kind must be one of LEAVE_KIND_OVER"),
        (_leave(reason="x" * 5000), "reason must have 0 to 4096 characters"),
        ((JoinResult, pb.JoinResponse()), "result must be admitted or not_yet"),
        (
            (ChiefReport, pb.ReportPreparedRequest(incarnation=1)),
            "view must be from 1",
        ),
    ],
)
def test_a_malformed_request_is_refused_by_name(call, line):
    kind, wire = call
    with pytest.raises(UsageError) as refused:
        from_wire(kind, wire)
    assert str(refused.value).startswith(line)


@pytest.mark.parametrize(
    ("role", "facts", "line"),
    [
        ("ROLE_PS", {"ps_traffic": {"sent_per_s": -1}}, "members.ps_traffic.sent_per_s must be"),
        ("ROLE_PS", {"ps_traffic": {"received_per_s": math.inf}}, "members.ps_traffic.received_per_s"),
        ("ROLE_PS", {"ps_traffic": {"share": 1.5}}, "members.ps_traffic.share must be from 0 to 1"),
        ("ROLE_PS", {"ps_traffic": {"share": math.nan}}, "members.ps_traffic.share must be from 0 to 1"),
        ("ROLE_PS", {"worker_traffic": {}}, "members.traffic must be that of a ps"),
        ("ROLE_WORKER", {"ps_traffic": {}}, "members.traffic must be that of a worker"),
        ("ROLE_WORKER", {"worker_traffic": {"sent_per_step": math.nan}}, "members.worker_traffic.sent_per_step"),
        ("ROLE_WORKER", {"worker_traffic": {"received_per_step": -1}}, "members.worker_traffic.received_per_step"),
        ("ROLE_WORKER", {"share": -1}, "members.share must be from 0"),
    ],
)
def test_a_malformed_traffic_or_share_of_a_member_is_refused_by_name(role, facts, line):
    member = pb.MemberStatus(role=role, incarnation="0123456789", **facts)
    with pytest.raises(UsageError) as refused:
        from_wire(JobStatus, pb.JobStatus(phase="PHASE_TRAINING", members=[member]))
    assert str(refused.value).startswith(line)


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"role": 0}, "departures.role must be one of"),
        ({"index": -1}, "departures.index must be from 0"),
        ({"incarnation": "0123456789a"}, "departures.incarnation must have 0 to 10 characters"),
        (
            {"kind": 17},
            "departures.kind must be one of LEAVE_KIND_OVER, LEAVE_KIND_ASKED",
        ),
        ({"kind": 0}, "departures.kind must be one of"),
        ({"reason": "x" * 4097}, "departures.reason must have 0 to 4096"),
        ({"ago": {"seconds": -1}}, "departures.ago must be from 0"),
    ],
)
def test_a_malformed_departure_is_refused_by_name(facts, line):
    departure = pb.Departure(**{"role": "ROLE_WORKER", **facts})
    with pytest.raises(UsageError) as refused:
        from_wire(JobStatus, pb.JobStatus(phase="PHASE_TRAINING", departures=[departure]))
    assert str(refused.value).startswith(line)


def test_what_a_departed_member_said_is_one_line():
    departure = pb.Departure(role="ROLE_WORKER", kind="LEAVE_KIND_ERROR", reason="two\nlines\x1b[31m")
    status = from_wire(JobStatus, pb.JobStatus(phase="PHASE_TRAINING", departures=[departure]))
    assert status.departures[0].reason == "two lines [31m"


def test_at_most_so_many_causes():
    stats = pb.PsStats(dropped={str(i): 1 for i in range(MOST_CAUSES + 1)})
    with pytest.raises(UsageError, match=r"stats\.dropped must have at most 64"):
        from_wire(PsStats, stats, "stats")
