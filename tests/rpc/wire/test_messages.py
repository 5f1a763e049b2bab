"""Wire <-> core: round trips, and whatever comes in is a valid dataclass or a UsageError that names the field."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psruntime.config import JobConfig
from psruntime.config.job_settings import BATCH_POLICIES, ON_NAN, PLANS, SUMMARY_WORKERS
from psruntime.config.schedule import MODES
from psruntime.core import fields
from psruntime.core.clocks.clocks import ClockAnswer, ClockReport
from psruntime.core.members.job_status import JobStatus, MemberStatus, PsTraffic, WorkerTraffic
from psruntime.core.members.membership import Member, Role, tag_of
from psruntime.core.members.messages import (
    NOT_JOINED,
    Answer,
    BytesMoved,
    FailedSaves,
    GpuMemory,
    HeldOut,
    Instructions,
    Join,
    LeaveKind,
    Machine,
    Measurements,
    NotYet,
    PsBeat,
    PsStats,
    RowCounts,
    WorkerBeat,
    WorkerStats,
)
from psruntime.core.members.view import Past, Phase, PsEntry, View
from psruntime.core.plan.buckets import AGGREGATIONS, DTYPE_BYTES, TRAINED_DTYPES, DynamicRows, VariableSpec
from psruntime.core.plan.identity import ModelIdentity
from psruntime.core.steering.commands import Command, Kind, Outcome, Overrides, Reply, SteeringStatus
from psruntime.errors import UsageError
from psruntime.rpc.wire.codec import duration, from_wire, seconds, to_wire
from psruntime.rpc.wire.messages import (
    ChiefReport,
    ControlRequest,
    Heartbeat,
    JoinResult,
    Leave,
    Model,
    job_from_wire,
    job_to_wire,
)
from psruntime.v1 import coordination_pb2 as pb
from psruntime.versions import is_repeated
from tests.support.messages import messages
from tests.support.selection import examples

relaxed = settings(deadline=None)  # the machine may be busy with other tests
counts = st.integers(0, fields.COUNT_LIMIT - 1)
indices = st.integers(0, fields.INDEX_LIMIT - 1)
incarnations = st.integers(1, fields.INCARNATION_LIMIT - 1)
spans = st.integers(0, 10**15).map(lambda ns: ns / 10**9)  # seconds, in nanoseconds that a float still tells apart
printable = st.characters(exclude_categories=("C", "Z"), include_characters=" ")  # as str.isprintable
words = st.text(printable, max_size=60)  # for people
names = st.text(printable, min_size=1, max_size=20)
identities = st.builds(
    ModelIdentity,
    st.dictionaries(words, words).map(lambda facts: tuple(facts.items())),
    words,
    words,
)
addresses = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=fields.ADDRESS_CHARS)
tags = incarnations.map(tag_of)
specs = st.builds(
    lambda name, shape, dtype, sparse, trainable, whole, group, dynamic, aggregation: VariableSpec(
        name,
        shape,
        dtype,
        sparse and shape != (),
        trainable and dtype in TRAINED_DTYPES,
        whole,
        group,
        dynamic
        if sparse and trainable and dtype in TRAINED_DTYPES and group and len(shape) > 1 and all(shape)
        else None,
        "" if (trainable and dtype in TRAINED_DTYPES) or (sparse and shape != ()) else aggregation,
    ),
    names,
    st.lists(counts, max_size=4).map(tuple),
    st.sampled_from(sorted(DTYPE_BYTES)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31 - 1),
    st.none() | st.builds(DynamicRows, st.integers(1, fields.COUNT_LIMIT - 1), counts),
    st.sampled_from(["", *AGGREGATIONS]),
)
models = st.lists(specs, max_size=4, unique_by=lambda spec: spec.name).map(tuple)
views = st.builds(View, counts, st.lists(st.builds(PsEntry, indices, addresses, incarnations), max_size=3).map(tuple))
by_worker = st.dictionaries(indices, counts, max_size=3)
sums = st.integers(0, fields.BYTES_LIMIT - 1)
moved = st.none() | st.builds(BytesMoved, sums, sums)
amounts = st.floats(0, 1e300)
ps_stats = st.builds(
    PsStats,
    *[counts] * 4,
    dropped=st.dictionaries(words, counts, max_size=3),
    max_staleness=counts,
    pending=counts,
    rolled_back=counts,
    down_weighted=counts,
    received_of=by_worker,
    moved=moved,
    row_counts=st.lists(st.builds(RowCounts, names, *[counts] * 6), max_size=2).map(tuple),
)
gpus = st.builds(GpuMemory, indices, names, counts, counts)
worker_stats = st.builds(
    WorkerStats,
    *[counts] * 3,
    amounts,
    st.none() | st.floats(allow_nan=False),
    words,
    counts,
    moved=moved,
    step_tensors=st.none() | counts,
    skipped=counts,
    staleness_counts=st.just(()) | st.lists(counts, min_size=13, max_size=13).map(tuple),
    gpus=st.lists(gpus, max_size=2).map(tuple),
)
modes = st.sampled_from(["", *MODES])
steered = st.builds(
    Overrides, counts, counts, st.none() | counts, st.floats(1e-30, 1e30), st.booleans(), modes, st.booleans()
)
instructions = st.builds(
    Instructions,
    st.sampled_from(Phase),
    words,
    views,
    chief=st.booleans(),
    restore=st.booleans(),
    admitted_by_ps=st.booleans(),
    close=st.booleans(),
    admitted=st.lists(st.tuples(indices, incarnations), max_size=3).map(tuple),
    fence_revision=counts,
    clock=counts,
    report_every_s=spans,
    max_staleness=st.none() | counts,
    saved_step=st.none() | counts,
    seen_step=counts,
    stopping=st.booleans(),
    save=st.booleans(),
    leave=st.booleans(),
    settings=steered,
    pause_epoch=counts,
    pause_reason=words,
    identity=st.none() | identities,
)
answers = st.builds(Answer, incarnations, instructions, st.integers(1, fields.COUNT_LIMIT - 1))
job_ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
joins = st.builds(
    Join,
    st.just(Role.WORKER),
    indices,
    addresses,
    addresses,
    st.text(min_size=1, max_size=64),
    job_ids,
    spans,
    models,
    st.builds(Past, st.booleans(), counts, st.none() | counts, counts, steered, st.none() | identities),
    identities,
    st.none() | st.builds(Machine, st.text(max_size=256), st.integers(1, 2**31 - 1), st.text(max_size=64)),
    counts,
)
measured = st.builds(
    HeldOut,
    counts,
    st.dictionaries(names, st.floats(allow_nan=False), max_size=3),
)
held_out = st.builds(Measurements, st.none() | measured, st.none() | measured)
failed_saves = st.builds(FailedSaves, counts, words)
beats = st.builds(
    Heartbeat,
    st.just(Role.PS),
    indices,
    incarnations,
    st.builds(PsBeat, counts, counts, counts, ps_stats, st.booleans(), spans),
    counts,
    spans,
) | st.builds(
    Heartbeat,
    st.just(Role.WORKER),
    indices,
    incarnations,
    st.builds(
        WorkerBeat,
        counts,
        counts,
        counts,
        st.booleans(),
        worker_stats,
        counts,
        st.none() | counts,
        st.booleans(),
        counts,
        st.booleans(),
        counts,
        st.lists(spans, max_size=50).map(tuple),
        stood_still_s=spans,
        held_out=held_out,
        early_stop=words,
        failed_saves=failed_saves,
    ),
    counts,
    spans,
)
leaves = st.builds(
    Leave,
    st.sampled_from(Role),
    indices,
    st.just(NOT_JOINED) | incarnations,
    st.sampled_from(LeaveKind),
    words,
)
_place = {"index": indices, "address": addresses, "health_address": addresses, "incarnation": tags}
_times = {"admitted_s": spans, "silent_s": spans}
ps_traffic = st.builds(PsTraffic, amounts, amounts, st.none() | st.floats(0, 1), st.booleans())
members = st.builds(
    MemberStatus,
    role=st.just(Role.PS),
    **_place,
    **_times,
    ps_stats=st.none() | ps_stats,
    ps_traffic=st.none() | ps_traffic,
) | st.builds(
    MemberStatus,
    role=st.just(Role.WORKER),
    **_place,
    **_times,
    chief=st.booleans(),
    stopped=st.booleans(),
    clock=counts,
    lead=counts,
    worker_stats=st.none() | worker_stats,
    worker_traffic=st.none() | st.builds(WorkerTraffic, amounts, amounts),
    share=counts,
)
job_statuses = st.builds(
    JobStatus,
    st.sampled_from(Phase),
    words,
    st.builds(View, counts, st.lists(st.builds(PsEntry, indices, addresses, st.just(0)), max_size=3).map(tuple)),
    counts,
    counts,
    counts,
    st.lists(members, max_size=3).map(tuple),
    counts,
    st.booleans(),
    by_worker,
    steering=st.builds(SteeringStatus, steered, st.lists(words, max_size=3).map(tuple), words, words),
    saved_step=st.none() | counts,
    saved_ago_s=st.none() | spans,
    held_out=held_out,
    failed_saves=failed_saves,
)
clock_reports = st.builds(ClockReport, indices, incarnations, counts.map(lambda n: n + (n == 0)), counts, counts, spans)
_of_every_mode = {  # unless the next say otherwise
    "min_workers": st.integers(1, 8),
    "top_k": st.none() | st.floats(0, 1, exclude_min=True, exclude_max=True),
}
_of_mode = {  # settings that belong to one mode, and what does not go with them
    "async": {"max_staleness": st.none() | counts, "staleness_lr": st.sampled_from(["", "inverse", "exponential:0.5"])},
    "bounded": {"bound": counts},
    "sync": {
        "rounds_log": words,
        "backup_workers": st.integers(0, 1),
        "min_workers": st.integers(2, 8),
        "top_k": st.none(),
    },
}
jobs = (
    st.sampled_from(MODES).flatmap(
        lambda mode: st.builds(
            JobConfig,
            job_id=st.just("") | job_ids,
            mode=st.just(mode),
            ps=st.integers(1, 2**31 - 1),
            max_workers=st.integers(8, 2**31 - 1),
            train_steps=st.none() | st.integers(1, fields.COUNT_LIMIT - 1),
            epochs=st.none() | st.integers(1, fields.COUNT_LIMIT - 1),
            checkpoint_dir=st.text(min_size=1, max_size=60),
            keep_best=st.sampled_from(["loss", "max:accuracy"]),
            eval_every=counts,
            patience=st.none() | st.integers(1, fields.COUNT_LIMIT - 1),
            warm_start=st.just("/earlier"),
            warm_start_vars=st.sampled_from(["", "hidden/.*"]),
            warm_start_names=st.sampled_from(["", "new=old"]),
            save_steps=st.integers(100, fields.COUNT_LIMIT - 1),
            delta_every=st.integers(0, 99),
            save_secs=spans,
            start_over=st.sampled_from(["off", "on"]),
            keep=st.integers(1, 2**31 - 1),
            summary_steps=counts,
            trace_steps=st.just("") | st.sampled_from(["1:2", "100:200"]),
            summary_workers=st.sampled_from(SUMMARY_WORKERS),
            slice_bytes=st.integers(1, fields.COUNT_LIMIT - 1),
            min_ps_bytes=st.integers(0, fields.COUNT_LIMIT - 1),
            plan=st.sampled_from(PLANS),
            on_nan=st.sampled_from(ON_NAN),
            round_warn_s=spans,
            lease_s=spans.map(lambda s: 0.5 + s / 10**6).map(lambda s: round(s, 9)),
            ps_timeout_s=spans.map(lambda s: 20.0 + s),
            drain_timeout_s=spans.map(lambda s: 1.0 + s),
            link_timeout_s=spans.map(lambda s: 1.0 + s),
            linger_s=spans,
            stop_grace_s=spans,
            **{**_of_every_mode, **_of_mode[mode]},
        )
    )
    | st.builds(JobConfig, mode=st.just("sync"), batch_policy=st.sampled_from(BATCH_POLICIES))
    | st.builds(JobConfig, mode=st.just("bounded"), bound=st.sampled_from(["auto:0-1", "auto:2-999999"]))
    | st.builds(JobConfig, schedule=st.sampled_from(["bounded 3:9, sync", "sync:1,async:2,  bounded 0"]))
)


request_ids = st.text(printable, min_size=1, max_size=60)
controls = st.builds(
    ControlRequest,
    st.builds(Command, st.sampled_from([Kind.PAUSE, Kind.RESUME, Kind.SAVE, Kind.DRAIN]), request_ids)
    | st.builds(Command, st.just(Kind.BOUND), request_ids, bound=counts)
    | st.builds(Command, st.just(Kind.LEARNING_RATE_SCALE), request_ids, scale=st.floats(1e-30, 1e30))
    | st.builds(Command, st.just(Kind.DRAIN_WORKER), request_ids, worker=indices)
    | st.builds(Command, st.just(Kind.MODE), request_ids, mode=st.sampled_from(["async", "sync"]))
    | st.builds(Command, st.just(Kind.MODE), request_ids, mode=st.just("bounded"), bound=counts)
    | st.builds(Command, st.sampled_from([Kind.MODE, Kind.BOUND]), request_ids, automatic=st.just(True)),
    spans,
)


@relaxed
@given(joins)
def test_a_join_comes_back(join):
    assert from_wire(Join, to_wire(join, pb.JoinRequest)) == join


def test_the_model_that_all_workers_send_is_read_once():
    model = VariableSpec("w", (3, 4), "float32"), VariableSpec("b", (4,), "float32")

    def read(index, variables):
        join = Join(Role.WORKER, index, "", "", "id", "job", variables=variables)
        return from_wire(Join, to_wire(join, pb.JoinRequest)).variables

    first = read(0, model)
    assert first == model
    assert read(1, model) is first
    assert read(2, model[:1]) == model[:1]
    for _ in range(2):
        with pytest.raises(UsageError, match="variables must differ in name"):
            read(3, (model[0], model[0]))


@relaxed
@given(answers)
def test_an_answer_comes_back(answer):
    wire = to_wire(JoinResult(answer), pb.JoinResponse)
    assert from_wire(JoinResult, wire).result == answer


@relaxed
@given(words, incarnations)
def test_not_yet_comes_back_without_the_holder(reason, incarnation):
    holder = Member(Role.WORKER, 0, "10.0.0.1:1", "10.0.0.1:2", "secret", incarnation, 0.0, 0.0, 0.0)
    wire = to_wire(JoinResult(NotYet(reason, holder.tag, holder)), pb.JoinResponse)
    assert from_wire(JoinResult, wire).result == NotYet(reason, tag_of(incarnation))


@relaxed
@given(beats)
def test_a_heartbeat_comes_back(beat):
    assert from_wire(Heartbeat, to_wire(beat, pb.HeartbeatRequest)) == beat


@relaxed
@given(clock_reports, counts, words)
def test_a_clock_report_and_its_answer_come_back(report, steps, reason):
    assert from_wire(ClockReport, to_wire(report, pb.ReportClockRequest)) == report
    floor = ClockAnswer(steps, reason)
    assert from_wire(ClockAnswer, to_wire(floor, pb.ReportClockResponse)) == floor


@relaxed
@given(controls)
def test_a_command_comes_back_without_its_caller(request):
    known = replace(request, command=replace(request.command, by="10.0.0.1:5"))
    assert from_wire(ControlRequest, to_wire(known, pb.ControlRequest)) == request


@relaxed
@given(st.builds(Reply, st.sampled_from(Outcome), counts, words))
def test_what_became_of_a_command_comes_back(reply):
    assert from_wire(Reply, to_wire(reply, pb.ControlResponse)) == reply


def test_a_loss_that_is_not_a_number_is_a_fact():
    stats = from_wire(WorkerStats, to_wire(WorkerStats(loss=math.nan), pb.WorkerStats))
    assert stats.loss is not None
    assert math.isnan(stats.loss)


def test_staleness_is_counted_within_the_limits_that_both_know():
    wire = to_wire(WorkerStats(staleness_counts=(1, 2)), pb.WorkerStats)
    with pytest.raises(UsageError, match="13 numbers or none, got 2"):
        from_wire(WorkerStats, wire)


@relaxed
@given(leaves)
def test_a_leave_comes_back(leave):
    assert from_wire(Leave, to_wire(leave, pb.LeaveRequest)) == leave


@relaxed
@given(job_statuses)
def test_a_status_comes_back(status):
    assert from_wire(JobStatus, to_wire(status, pb.JobStatus)) == status


@relaxed
@given(job_statuses, views)
def test_a_status_tells_no_incarnation(status, view):
    back = from_wire(JobStatus, to_wire(replace(status, view=view), pb.JobStatus))
    assert [(e.index, e.address, e.incarnation) for e in back.view.ps] == [(e.index, e.address, 0) for e in view.ps]


@relaxed
@given(jobs)
def test_the_settings_come_back_to_the_digit(job):
    back = job_from_wire(job_to_wire(job))
    for name in (f.name for f in dataclasses.fields(job)):
        exact = getattr(job, name)
        assert getattr(back, name) == (pytest.approx(exact, abs=1e-9) if isinstance(exact, float) else exact), name


@pytest.mark.parametrize("value_s", [0.1, 0.3, 0.7, 1.1, 3.3333, 10.0, 86399.9])
def test_a_time_as_a_user_writes_it_comes_back_equal(value_s):
    assert seconds("lease", duration(value_s)) == value_s


def test_every_setting_has_a_field_on_the_wire():
    wire = {field.name for field in pb.JobSettings.DESCRIPTOR.fields}
    assert wire == {field.name.removesuffix("_s") for field in dataclasses.fields(JobConfig)}


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (pb.Role, [role.name for role in Role]),
        (pb.Phase, [phase.name for phase in Phase]),
        (pb.LeaveKind, [kind.name for kind in LeaveKind]),
        (pb.Mode, [mode.upper() for mode in MODES]),
        (pb.SummaryWorkers, [choice.upper() for choice in SUMMARY_WORKERS]),
        (pb.OnNan, [choice.upper() for choice in ON_NAN]),
        (pb.ControlCommand, [kind.name for kind in Kind]),
        (pb.ControlOutcome, [outcome.name for outcome in Outcome]),
    ],
)
def test_every_word_is_on_the_wire_and_no_other(wire, words):
    prefix = wire.Name(0).removesuffix("UNSPECIFIED")
    assert sorted(wire.keys()) == sorted(prefix + word for word in ["UNSPECIFIED", *words])


def test_a_setting_too_large_for_its_field_is_named():
    with pytest.raises(UsageError, match="train_steps must be from 0 to"):
        job_to_wire(JobConfig(train_steps=2**60))


def test_what_is_sent_is_cut_and_made_unicode():
    leave = Leave(Role.PS, 0, 1, LeaveKind.ERROR, "bad file \udcff " + "x" * 10_000)
    wire = to_wire(leave, pb.LeaveRequest)
    assert wire.reason.startswith("bad file ? xx")
    assert len(wire.reason) == fields.TEXT_CHARS


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[31mred", "nul\0", "\u202egnal"])
def test_what_people_read_is_one_line_that_can_be_seen(text):
    leave = from_wire(Leave, to_wire(Leave(Role.PS, 0, 1, LeaveKind.ERROR, text), pb.LeaveRequest))
    assert leave.reason.isprintable()
    assert len(leave.reason) == len(text)


INCOMING = {
    pb.JoinRequest: Join,
    pb.JoinResponse: JoinResult,
    pb.Answer: Answer,
    pb.HeartbeatRequest: Heartbeat,
    pb.ReportPreparedRequest: ChiefReport,
    pb.ReportFinishedRequest: ChiefReport,
    pb.ReportClockRequest: ClockReport,
    pb.ReportClockResponse: ClockAnswer,
    pb.LeaveRequest: Leave,
    pb.JobSettings: JobConfig,
    pb.JobStatus: JobStatus,
    pb.ControlRequest: ControlRequest,
    pb.ControlResponse: Reply,
    pb.SteeringStatus: SteeringStatus,
    pb.Model: Model,
}


@pytest.mark.parametrize("kind", INCOMING, ids=lambda kind: kind.__name__)
def test_random_values_give_a_dataclass_or_a_usage_error(kind):
    wanted = INCOMING[kind]
    read = job_from_wire if wanted is JobConfig else partial(from_wire, wanted)

    @settings(relaxed, max_examples=examples(60))
    @given(messages(kind))
    def check(wire):
        try:
            assert isinstance(read(wire), wanted)
        except UsageError as error:
            assert str(error)

    check()
    with pytest.raises(UsageError):
        read(with_negative_numbers(kind))


def with_negative_numbers(kind):
    """A message in which every whole number is one, also in those that it is made of."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if field.containing_oneof and message.WhichOneof(field.containing_oneof.name):
            continue
        held = getattr(message, field.name)
        if field.message_type is None and field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64):
            held.append(-1) if is_repeated(field) else setattr(message, field.name, -1)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            inner = with_negative_numbers(field.message_type._concrete_class)
            held.append(inner) if is_repeated(field) else held.CopyFrom(inner)
    return message


@pytest.mark.parametrize(
    ("cls", "kind", "line"),
    [
        (PsEntry, pb.Departure, "psruntime.v1.Departure has no field for PsEntry.address"),
        (PsEntry, pb.MemberStatus, "PsEntry has no field for admitted, chief, clock, health_address, lead"),
    ],
)
def test_no_field_is_forgotten_in_the_dataclass_or_in_the_proto(cls, kind, line):
    with pytest.raises(TypeError) as refused:
        from_wire(cls, kind())
    assert str(refused.value).startswith(line)
