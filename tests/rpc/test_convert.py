"""Wire <-> core: round trips, and whatever comes in is a valid dataclass or a UsageError that names the field."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psruntime.config import MODES, ON_NAN, JobConfig
from psruntime.core.facts import (
    Answer,
    JobStatus,
    Join,
    LeaveKind,
    MemberStatus,
    NotYet,
    PsBeat,
    PsStats,
    Standing,
    WorkerBeat,
    WorkerStats,
)
from psruntime.core.membership import Role
from psruntime.core.plan import DTYPE_BYTES, VariableSpec
from psruntime.core.view import Phase, PsEntry, View
from psruntime.errors import UsageError
from psruntime.rpc import checks, convert, convert_beat, convert_status
from psruntime.v1 import coordination_pb2 as pb
from tests.support.messages import messages

counts = st.integers(0, checks.COUNT_LIMIT - 1)
indices = st.integers(0, checks.INDEX_LIMIT - 1)
incarnations = st.integers(1, checks.INCARNATION_LIMIT - 1)
spans = st.integers(0, 10**16).map(lambda ns: ns / 10**9)  # seconds, in whole nanoseconds
texts = st.text(max_size=60)
addresses = st.text(max_size=checks.ADDRESS_CHARS)
specs = st.builds(
    VariableSpec,
    st.text(min_size=1, max_size=20),
    st.lists(counts, max_size=4).map(tuple),
    st.sampled_from(sorted(DTYPE_BYTES)),
)
models = st.lists(specs, max_size=4, unique_by=lambda spec: spec.name).map(tuple)
views = st.builds(View, counts, st.lists(st.builds(PsEntry, indices, addresses, incarnations), max_size=3).map(tuple))
ps_stats = st.builds(
    PsStats, counts, counts, counts, counts, st.dictionaries(st.text(max_size=64), counts, max_size=3), counts
)
worker_stats = st.builds(
    WorkerStats, counts, counts, counts, st.floats(0, 1e300), st.none() | st.floats(allow_nan=False), texts
)
standings = st.builds(
    Standing,
    st.sampled_from(Phase),
    texts,
    views,
    chief=st.booleans(),
    fenced_in=st.booleans(),
    close=st.booleans(),
    admitted=st.lists(st.tuples(indices, incarnations), max_size=3).map(tuple),
    fence_revision=counts,
)
answers = st.builds(Answer, incarnations, standings, st.integers(1, checks.COUNT_LIMIT - 1), counts)
joins = st.builds(
    Join, st.just(Role.WORKER), indices, addresses, addresses, st.text(min_size=1, max_size=64), spans, models
)
beats = st.builds(
    convert_beat.Heartbeat,
    st.just(Role.PS),
    indices,
    incarnations,
    st.builds(PsBeat, counts, counts, counts, ps_stats),
    counts,
    spans,
) | st.builds(
    convert_beat.Heartbeat,
    st.just(Role.WORKER),
    indices,
    incarnations,
    st.builds(WorkerBeat, counts, counts, counts, st.booleans(), worker_stats),
    counts,
    spans,
)
leaves = st.builds(convert.Leave, st.sampled_from(Role), indices, incarnations, st.sampled_from(LeaveKind), texts)
_place = {"index": indices, "address": addresses, "health_address": addresses, "incarnation": incarnations}
_times = {"admitted_s": spans, "silent_s": spans}
members = st.builds(MemberStatus, role=st.just(Role.PS), **_place, **_times, ps_stats=st.none() | ps_stats) | st.builds(
    MemberStatus,
    role=st.just(Role.WORKER),
    **_place,
    **_times,
    chief=st.booleans(),
    stopped=st.booleans(),
    clock=counts,
    lead=counts,
    worker_stats=st.none() | worker_stats,
)
job_statuses = st.builds(
    JobStatus, st.sampled_from(Phase), texts, views, counts, counts, counts, st.lists(members, max_size=3).map(tuple)
)
jobs = st.builds(
    JobConfig,
    mode=st.sampled_from(MODES),
    ps=st.integers(1, 2**31 - 1),
    min_workers=st.integers(1, 8),
    max_workers=st.integers(8, 2**31 - 1),
    train_steps=st.integers(1, checks.COUNT_LIMIT - 1),
    checkpoint_dir=texts,
    save_steps=st.integers(1, checks.COUNT_LIMIT - 1),
    keep=st.integers(1, 2**31 - 1),
    slice_bytes=st.integers(1, checks.COUNT_LIMIT - 1),
    max_staleness=st.none() | counts,
    on_nan=st.sampled_from(ON_NAN),
    lease_s=spans.map(lambda s: 0.5 + s / 10**6).map(lambda s: round(s, 9)),
    ps_timeout_s=spans.map(lambda s: 20.0 + s),
    ping_timeout_s=spans.map(lambda s: 1.0 + s),
    linger_s=spans,
)


@given(joins)
def test_a_join_comes_back(join):
    assert convert.join_from_wire(convert.join_to_wire(join)) == join


@given(answers)
def test_an_answer_comes_back(answer):
    wire = convert.join_result_to_wire(answer)
    assert convert.join_result_from_wire(wire) == answer


@given(texts, incarnations)
def test_not_yet_comes_back_without_the_address_to_probe(reason, holder):
    wire = convert.join_result_to_wire(NotYet(reason, holder, "10.0.0.1:1"))
    assert convert.join_result_from_wire(wire) == NotYet(reason, holder, "")


@given(beats)
def test_a_heartbeat_comes_back(beat):
    assert convert_beat.heartbeat_from_wire(convert_beat.heartbeat_to_wire(beat)) == beat


def test_a_loss_that_is_not_a_number_is_a_fact():
    stats = convert_beat.worker_stats_from_wire(convert_beat.worker_stats_to_wire(WorkerStats(loss=math.nan)))
    assert stats.loss is not None
    assert math.isnan(stats.loss)


@given(leaves)
def test_a_leave_comes_back(leave):
    assert convert.leave_from_wire(convert.leave_to_wire(leave)) == leave


@given(job_statuses)
def test_a_status_comes_back(status):
    assert convert_status.status_from_wire(convert_status.status_to_wire(status)) == status


@given(jobs)
def test_the_settings_come_back_to_the_digit(job):
    back = convert_status.job_from_wire(convert_status.job_to_wire(job))
    assert [(f.name, getattr(back, f.name)) for f in fields(job) if f.name[-2:] != "_s"] == [
        (f.name, getattr(job, f.name)) for f in fields(job) if f.name[-2:] != "_s"
    ]
    for name in ("lease_s", "ps_timeout_s", "ping_timeout_s", "linger_s"):
        assert getattr(back, name) == pytest.approx(getattr(job, name), abs=1e-9)


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.7, 1.1, 3.3333, 10.0, 86399.9])
def test_a_time_as_a_user_writes_it_comes_back_equal(seconds):
    assert checks.seconds("lease", checks.duration(seconds)) == seconds


def test_every_setting_has_a_field_on_the_wire():
    wire = {field.name for field in pb.JobSettings.DESCRIPTOR.fields}
    assert wire == {field.name.removesuffix("_s") for field in fields(JobConfig)}


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (pb.Role, [role.name for role in Role]),
        (pb.Phase, [phase.name for phase in Phase]),
        (pb.LeaveKind, [kind.name for kind in LeaveKind]),
        (pb.Mode, [mode.upper() for mode in MODES]),
        (pb.OnNan, [choice.upper() for choice in ON_NAN]),
    ],
)
def test_every_word_is_on_the_wire_and_no_other(wire, words):
    prefix = wire.Name(0).removesuffix("UNSPECIFIED")
    assert sorted(wire.keys()) == sorted(prefix + word for word in ["UNSPECIFIED", *words])


def test_a_setting_too_large_for_its_field_is_named():
    with pytest.raises(UsageError, match="train_steps must be from 0 to"):
        convert_status.job_to_wire(JobConfig(train_steps=2**60))


def test_what_is_sent_is_cut_and_made_unicode():
    leave = convert.Leave(Role.PS, 0, 1, LeaveKind.ERROR, "bad file \udcff " + "x" * 10_000)
    wire = convert.leave_to_wire(leave)
    assert wire.reason.startswith("bad file ? xx")
    assert len(wire.reason) == checks.TEXT_CHARS


A_JOIN = Join(Role.WORKER, 1, "127.0.0.1:1", "127.0.0.1:2", "id", 0.5, (VariableSpec("w", (2,), "float32"),))
A_BEAT = convert_beat.Heartbeat(Role.WORKER, 1, 7, WorkerBeat())
A_LEAVE = convert.Leave(Role.WORKER, 1, 7, LeaveKind.ASKED, "")


def _join(**changes):
    wire = convert.join_to_wire(A_JOIN)
    wire.MergeFrom(pb.JoinRequest(**changes))
    return convert.join_from_wire, wire


def _beat(**changes):
    wire = convert_beat.heartbeat_to_wire(A_BEAT)
    wire.MergeFrom(pb.HeartbeatRequest(**changes))
    return convert_beat.heartbeat_from_wire, wire


def _leave(**changes):
    wire = convert.leave_to_wire(A_LEAVE)
    wire.MergeFrom(pb.LeaveRequest(**changes))
    return convert.leave_from_wire, wire


def _without(call, field):
    from_wire, wire = call
    wire.ClearField(field)
    return from_wire, wire


MANY = [pb.VariableSpec(name=str(i), dtype="float32") for i in range(checks.SPECS + 1)]


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
        (_join(waited={"seconds": -1}), "waited must be from 0"),
        (_join(waited={"nanos": 2**31 - 1}), "waited must be from 0"),
        (_join(variables=[pb.VariableSpec(name="v", dtype="int32")]), "variables.dtype of v must be one of float16"),
        (_join(variables=[pb.VariableSpec(name="v", shape=[-1], dtype="float32")]), "variables.shape of v must"),
        (_join(variables=[pb.VariableSpec(name="v", shape=[1] * 255, dtype="float32")]), "variables.shape of v must"),
        (_join(variables=[pb.VariableSpec(dtype="float32")]), "variables.name must have 1 to"),
        (_join(variables=[pb.VariableSpec(name="w", dtype="float32")]), "variables must differ in name"),
        (_join(variables=MANY), "variables must be at most 100000"),
        (_without(_beat(), "worker"), "beat must be that of a worker, got none"),
        (_beat(ps=pb.PsBeat()), "beat must be that of a worker, got ps"),
        (_without(_beat(), "incarnation"), "incarnation must be from 1"),
        (_beat(incarnation=-5), "incarnation must be from 1"),
        (_beat(seen_revision=-1), "seen_revision must be from 0"),
        (_beat(max_wait={"seconds": 2**62}), "max_wait must be from 0"),
        (_beat(worker={"completed_steps": -1}), "worker.completed_steps must be from 0"),
        (_beat(worker={"completed_steps": 2**60}), "worker.completed_steps must be from 0"),
        (_beat(worker={"stats": {"examples_per_s": math.inf}}), "stats.examples_per_s must be a finite number"),
        (_beat(worker={"stats": {"waiting": "x" * 5000}}), "stats.waiting must have 0 to 4096 characters"),
        (_leave(kind=7), "kind must be one of LEAVE_KIND_OVER"),
        (_leave(reason="x" * 5000), "reason must have 0 to 4096 characters"),
        ((convert.join_result_from_wire, pb.JoinResponse()), "result must be admitted or not_yet"),
        ((convert.report_from_wire, pb.ReportPreparedRequest(incarnation=1)), "view_number must be from 1"),
    ],
)
def test_a_malformed_request_is_refused_by_name(call, line):
    from_wire, wire = call
    with pytest.raises(UsageError) as refused:
        from_wire(wire)
    assert str(refused.value).startswith(line)


def test_at_most_so_many_causes():
    stats = pb.PsStats(dropped={str(i): 1 for i in range(checks.CAUSES + 1)})
    with pytest.raises(UsageError, match=r"stats\.dropped must have at most 64"):
        convert_beat.ps_stats_from_wire(stats)


INCOMING = {
    pb.JoinRequest: (convert.join_from_wire, Join),
    pb.JoinResponse: (convert.join_result_from_wire, (Answer, NotYet)),
    pb.Answer: (convert.answer_from_wire, Answer),
    pb.HeartbeatRequest: (convert_beat.heartbeat_from_wire, convert_beat.Heartbeat),
    pb.ReportPreparedRequest: (convert.report_from_wire, convert.Report),
    pb.ReportFinishedRequest: (convert.report_from_wire, convert.Report),
    pb.LeaveRequest: (convert.leave_from_wire, convert.Leave),
    pb.JobSettings: (convert_status.job_from_wire, JobConfig),
    pb.JobStatus: (convert_status.status_from_wire, JobStatus),
    pb.Model: (lambda wire: convert.specs_from_wire(wire.variables), tuple),
}


@pytest.mark.parametrize("kind", INCOMING, ids=lambda kind: kind.__name__)
def test_random_values_give_a_dataclass_or_a_usage_error(kind):
    from_wire, wanted = INCOMING[kind]
    outcomes = set()

    @settings(max_examples=60, deadline=None)
    @given(messages(kind))
    def check(wire):
        try:
            assert isinstance(from_wire(wire), wanted)
            outcomes.add("valid")
        except UsageError as error:
            assert str(error)
            outcomes.add("refused")

    check()
    assert "refused" in outcomes
