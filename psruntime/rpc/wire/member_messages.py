"""Wire messages of the conversation <-> core dataclasses: joining, answers, reports, leaving.

Heartbeats are in heartbeat_messages.py, settings and status in status_messages.py.

`..._to_wire` trusts its argument.  `..._from_wire` gives a valid dataclass or raises UsageError with a line
that names the field; nothing else comes out of it, whatever was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from google.protobuf.message import Message

from psruntime.config.job import check_job_id
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import NOT_JOINED, Answer, Instructions, Join, LeaveKind, Machine, NotYet, Prepared
from psruntime.core.members.past import Past
from psruntime.core.members.view import Phase, PsEntry, View
from psruntime.core.plan.buckets import DynamicRows, VariableSpec
from psruntime.core.plan.identity import ModelIdentity
from psruntime.core.steering.overrides import UNCHANGED
from psruntime.errors import UsageError
from psruntime.rpc.wire import field_checks
from psruntime.rpc.wire.control_messages import overrides_from_wire, overrides_to_wire
from psruntime.rpc.wire.shard_messages import position_from_wire
from psruntime.v1 import coordination_pb2 as pb

ReadSpecs = Callable[[Iterable[pb.VariableSpec]], tuple[VariableSpec, ...]]


@dataclass(frozen=True)
class ChiefReport:
    """The chief's word on a view: prepared, finished (without `prepared`), or the obstacle to it."""

    worker_index: int
    incarnation: int
    view: int
    prepared: Prepared | None = None
    obstacle: str = ""


@dataclass(frozen=True)
class Leave:
    """A member goes, or a worker ends before its join."""

    role: Role
    index: int
    incarnation: int  # NOT_JOINED: of a worker that has not joined
    kind: LeaveKind
    reason: str


def optional_number(name: str, wire: Message, field: str) -> int | None:
    """A count from 0 of an optional field; None where it is absent."""
    return field_checks.number(name, getattr(wire, field)) if wire.HasField(field) else None


def role_to_wire(role: Role) -> str:
    return f"ROLE_{role.name}"


def role_from_wire(value: int) -> Role:
    return Role[field_checks.word("role", pb.Role, value)]


def phase_to_wire(phase: Phase) -> str:
    return f"PHASE_{phase.name}"


def phase_from_wire(value: int) -> Phase:
    return Phase[field_checks.word("phase", pb.Phase, value)]


def specs_to_wire(specs: Iterable[VariableSpec]) -> list[pb.VariableSpec]:
    return [
        pb.VariableSpec(
            name=s.name,
            shape=s.shape,
            dtype=s.dtype,
            sparse=s.sparse,
            fixed=not s.trainable,
            whole=s.whole,
            group=s.group,
            dynamic=_dynamic_to_wire(s.dynamic) if s.dynamic else None,
            aggregation=s.aggregation,
        )
        for s in specs
    ]


def _dynamic_to_wire(rows: DynamicRows) -> pb.DynamicRows:
    return pb.DynamicRows(admit_after=rows.admit_after, expire_after=rows.expire_after)


def specs_from_wire(wire: Iterable[pb.VariableSpec]) -> tuple[VariableSpec, ...]:
    specs = tuple(field_checks.variable("variables", _spec_from_wire(w)) for w in wire)
    if len(specs) > field_checks.SPECS:
        raise UsageError(f"variables must be at most {field_checks.SPECS}, got {len(specs)}")
    if len({spec.name for spec in specs}) < len(specs):
        raise UsageError("variables must differ in name")
    return specs


def _spec_from_wire(wire: pb.VariableSpec) -> VariableSpec:
    dynamic = DynamicRows(wire.dynamic.admit_after, wire.dynamic.expire_after) if wire.HasField("dynamic") else None
    first = wire.name, tuple(wire.shape), wire.dtype, wire.sparse, not wire.fixed
    return VariableSpec(*first, wire.whole, wire.group, dynamic, wire.aggregation)


class SpecsReader:
    """Reads the variables of models.  Those of the latest one again are the same tuple, at a tenth of the time."""

    def __init__(self) -> None:
        self._latest: tuple[bytes, tuple[VariableSpec, ...]] = b"", ()

    def read(self, wire: Iterable[pb.VariableSpec]) -> tuple[VariableSpec, ...]:
        """As specs_from_wire."""
        text = pb.Model(variables=wire).SerializeToString()
        if text != self._latest[0]:
            self._latest = text, specs_from_wire(wire)
        return self._latest[1]


def identity_to_wire(identity: ModelIdentity) -> pb.ModelIdentity:
    facts = [
        pb.ModelFact(name=field_checks.clipped(name, field_checks.NAME_CHARS), value=field_checks.clipped(value))
        for name, value in identity.facts
    ]
    return pb.ModelIdentity(facts=facts, file=field_checks.clipped(identity.file), text=identity.text)


def identity_from_wire(wire: pb.ModelIdentity) -> ModelIdentity:
    if len(wire.facts) > field_checks.FACTS:
        raise UsageError(f"identity.facts must be at most {field_checks.FACTS}, got {len(wire.facts)}")
    facts = tuple(
        (
            field_checks.words("identity.facts.name", fact.name, field_checks.NAME_CHARS),
            field_checks.words("identity.facts.value", fact.value),
        )
        for fact in wire.facts
    )
    if len(dict(facts)) < len(facts):
        raise UsageError("identity.facts must differ in name")
    text = field_checks.words("identity.text", wire.text, field_checks.NAME_CHARS)
    return ModelIdentity(facts, field_checks.words("identity.file", wire.file), text)


def _known_identity(wire: pb.Past | pb.Instructions) -> ModelIdentity | None:
    return identity_from_wire(wire.identity) if wire.HasField("identity") else None


def view_to_wire(view: View, secrets: bool = True) -> pb.View:
    """Without `secrets` the incarnations are left out."""
    entries = [
        pb.PsEntry(index=e.index, address=e.address, incarnation=e.incarnation if secrets else None) for e in view.ps
    ]
    return pb.View(number=view.number, ps=entries)


def view_from_wire(wire: pb.View) -> View:
    entries = tuple(
        PsEntry(
            field_checks.index("view.ps.index", e.index),
            field_checks.address("view.ps.address", e.address),
            field_checks.incarnation("view.ps.incarnation", e.incarnation) if e.HasField("incarnation") else 0,
        )
        for e in wire.ps
    )
    return View(field_checks.number("view.number", wire.number), entries)


def join_to_wire(join: Join) -> pb.JoinRequest:
    return pb.JoinRequest(
        role=role_to_wire(join.role),
        index=join.index,
        address=join.address,
        health_address=join.health_address,
        join_id=join.join_id,
        job_id=join.job_id,
        waited=field_checks.duration(join.waited_s),
        variables=specs_to_wire(join.specs),
        past=pb.Past(
            began=join.past.began,
            global_step=join.past.global_step,
            saved_step=join.past.saved_step,
            attempt=join.past.attempt,
            settings=overrides_to_wire(join.past.settings),
            identity=identity_to_wire(join.past.identity) if join.past.identity else None,
        ),
        identity=identity_to_wire(join.identity),
        machine=pb.Machine(**vars(join.machine)) if join.machine else None,
        began_at_step=join.began_at,
    )


def join_from_wire(wire: pb.JoinRequest, read_specs: ReadSpecs = specs_from_wire) -> Join:
    role = role_from_wire(wire.role)
    if role is Role.PS and wire.variables:
        raise UsageError(f"variables must be empty for a ps, got {len(wire.variables)}")
    return Join(
        role,
        field_checks.index("index", wire.index),
        field_checks.address("address", wire.address),
        field_checks.address("health_address", wire.health_address),
        field_checks.text("join_id", wire.join_id, field_checks.JOIN_ID_CHARS, least=1),
        check_job_id("job_id", wire.job_id),
        field_checks.seconds("waited", wire.waited),
        read_specs(wire.variables),
        Past(
            wire.past.began,
            field_checks.number("past.global_step", wire.past.global_step),
            optional_number("past.saved_step", wire.past, "saved_step"),
            field_checks.number("past.attempt", wire.past.attempt),
            overrides_from_wire(wire.past.settings) if wire.past.HasField("settings") else UNCHANGED,
            _known_identity(wire.past),
        ),
        identity_from_wire(wire.identity),
        _machine_from_wire(wire.machine) if wire.HasField("machine") else None,
        field_checks.number("began_at_step", wire.began_at_step),
    )


def _machine_from_wire(wire: pb.Machine) -> Machine:
    processor = field_checks.text("machine.processor", wire.processor, field_checks.ADDRESS_CHARS)
    threads = field_checks.number("machine.threads", wire.threads, least=1)
    return Machine(
        processor, threads, field_checks.text("machine.tensorflow", wire.tensorflow, field_checks.VERSION_CHARS)
    )


def join_result_to_wire(result: Answer | NotYet) -> pb.JoinResponse:
    if isinstance(result, Answer):
        return pb.JoinResponse(admitted=answer_to_wire(result))
    return pb.JoinResponse(not_yet=pb.NotYet(reason=result.reason, holder_tag=result.tag))


def join_result_from_wire(wire: pb.JoinResponse) -> Answer | NotYet:
    which = wire.WhichOneof("result")
    if which == "admitted":
        return answer_from_wire(wire.admitted)
    if which == "not_yet":
        return NotYet(
            wire.not_yet.reason,
            field_checks.text("not_yet.holder_tag", wire.not_yet.holder_tag, field_checks.TAG_CHARS),
        )
    raise UsageError("result must be admitted or not_yet, got none")


def answer_to_wire(answer: Answer) -> pb.Answer:
    instructions = answer.instructions
    return pb.Answer(
        incarnation=answer.incarnation,
        instructions=pb.Instructions(
            phase=phase_to_wire(instructions.phase),
            reason=instructions.reason,
            view=view_to_wire(instructions.view),
            chief=instructions.chief,
            fenced_in=instructions.fenced_in,
            close=instructions.close,
            restore=instructions.restore,
            admitted=[pb.AdmittedWorker(index=index, incarnation=number) for index, number in instructions.admitted],
            fence_revision=instructions.fence_revision,
            clock_steps=instructions.clock,
            report_interval=field_checks.duration(instructions.report_every_s)
            if instructions.report_every_s > 0
            else None,
            max_staleness=instructions.max_staleness,
            saved_step=instructions.saved_step,
            seen_step=instructions.seen_step,
            stopping=instructions.stopping,
            save=instructions.save,
            leave=instructions.leave,
            settings=overrides_to_wire(instructions.settings),
            pause_epoch=instructions.pause_epoch,
            pause_reason=field_checks.clipped(instructions.pause_reason),
            build_mode=instructions.build,
            build_number=instructions.build_number,
            identity=identity_to_wire(instructions.identity) if instructions.identity else None,
        ),
        revision=answer.revision,
        remark=field_checks.clipped(answer.remark),
    )


def answer_from_wire(wire: pb.Answer) -> Answer:
    instructions = wire.instructions
    admitted = tuple(
        (field_checks.index("admitted.index", w.index), field_checks.incarnation("admitted.incarnation", w.incarnation))
        for w in instructions.admitted
    )
    return Answer(
        field_checks.incarnation("incarnation", wire.incarnation),
        Instructions(
            phase_from_wire(instructions.phase),
            instructions.reason,
            view_from_wire(instructions.view),
            chief=instructions.chief,
            fenced_in=instructions.fenced_in,
            close=instructions.close,
            restore=instructions.restore,
            admitted=admitted,
            fence_revision=field_checks.number("fence_revision", instructions.fence_revision),
            clock=field_checks.number("clock_steps", instructions.clock_steps),
            report_every_s=field_checks.seconds("report_interval", instructions.report_interval),
            max_staleness=optional_number("max_staleness", instructions, "max_staleness"),
            saved_step=optional_number("saved_step", instructions, "saved_step"),
            seen_step=field_checks.number("seen_step", instructions.seen_step),
            stopping=instructions.stopping,
            save=instructions.save,
            leave=instructions.leave,
            settings=overrides_from_wire(instructions.settings) if instructions.HasField("settings") else UNCHANGED,
            pause_epoch=field_checks.number("pause_epoch", instructions.pause_epoch),
            pause_reason=field_checks.words("pause_reason", instructions.pause_reason),
            build=field_checks.words("build_mode", instructions.build_mode),
            build_number=field_checks.number("build_number", instructions.build_number),
            identity=_known_identity(instructions),
        ),
        field_checks.number("revision", wire.revision, least=1),
        field_checks.words("remark", wire.remark),
    )


def chief_report_from_wire(wire: pb.ReportPreparedRequest | pb.ReportFinishedRequest) -> ChiefReport:
    worker_index = field_checks.index("worker_index", wire.worker_index)
    incarnation = field_checks.incarnation("incarnation", wire.incarnation)
    view = field_checks.number("view_number", wire.view_number, least=1)
    if isinstance(wire, pb.ReportFinishedRequest):
        return ChiefReport(worker_index, incarnation, view)
    prepared = Prepared(
        field_checks.number("global_step", wire.global_step),
        field_checks.number("attempt", wire.attempt),
        field_checks.number("lost_steps", wire.lost_steps),
        optional_number("saved_step", wire, "saved_step"),
        position_from_wire(wire.position) if wire.HasField("position") else None,
    )
    return ChiefReport(worker_index, incarnation, view, prepared, field_checks.words("obstacle", wire.obstacle))


def leave_to_wire(leave: Leave) -> pb.LeaveRequest:
    return pb.LeaveRequest(
        role=role_to_wire(leave.role),
        index=leave.index,
        incarnation=leave.incarnation,
        kind=f"LEAVE_KIND_{leave.kind.name}",
        reason=field_checks.clipped(leave.reason),
    )


def leave_from_wire(wire: pb.LeaveRequest) -> Leave:
    return Leave(
        role_from_wire(wire.role),
        field_checks.index("index", wire.index),
        NOT_JOINED if wire.incarnation == NOT_JOINED else field_checks.incarnation("incarnation", wire.incarnation),
        LeaveKind[field_checks.word("kind", pb.LeaveKind, wire.kind)],
        field_checks.words("reason", wire.reason),
    )
