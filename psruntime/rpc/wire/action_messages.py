"""Actions and reports of mode sync: wire <-> core dataclasses.  Rules as in member_messages.py."""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.core.rounds.round_messages import (
    Action,
    ActionKind,
    Applied,
    Broken,
    Complete,
    Computed,
    Pushed,
    Report,
    Taken,
)
from psruntime.errors import UsageError
from psruntime.rpc.wire import field_checks
from psruntime.rpc.wire.shard_messages import shard_batches_from_wire, shard_batches_to_wire
from psruntime.v1 import coordination_pb2 as pb


@dataclass(frozen=True)
class ActionRequest:
    """A worker's report on its last action, and how long it waits for the next one, in seconds.

    starved_since: the attempt since which the worker has had no batch; None: it has one.
    """

    worker_index: int
    incarnation: int
    view: int
    report: Report | None = None
    max_wait_s: float = 0.0
    starved_since: int | None = None


def action_request_to_wire(request: ActionRequest) -> pb.NextActionRequest:
    wire = pb.NextActionRequest(
        worker_index=request.worker_index,
        incarnation=request.incarnation,
        view_number=request.view,
        max_wait=field_checks.duration(request.max_wait_s) if request.max_wait_s > 0 else None,
        starved_since=request.starved_since,
    )
    report = request.report
    if isinstance(report, Pushed):
        wire.pushed.round, wire.pushed.attempt = report.round, report.attempt
        wire.pushed.batch, wire.pushed.examples = report.batch, report.examples
        wire.pushed.apart = report.apart
        wire.pushed.divisor = report.divisor
        wire.pushed.positions.extend(report.positions)
        if report.taken is not None:
            wire.pushed.taken.CopyFrom(_taken_to_wire(report.taken))
        wire.pushed.shard_batches.extend(shard_batches_to_wire(report.shard_batches))
    elif isinstance(report, Computed):
        wire.computed.round, wire.computed.opened = report.round, report.opened
        wire.computed.batch, wire.computed.examples = report.batch, report.examples
    elif isinstance(report, Applied):
        wire.applied.round, wire.applied.attempt, wire.applied.global_step = (
            report.round,
            report.attempt,
            report.global_step,
        )
    elif report is not None:
        wire.broken.round, wire.broken.attempt, wire.broken.reason = (
            report.round,
            report.attempt,
            field_checks.clipped(report.reason),
        )
    return wire


def action_request_from_wire(wire: pb.NextActionRequest) -> ActionRequest:
    return ActionRequest(
        field_checks.index("worker_index", wire.worker_index),
        field_checks.incarnation("incarnation", wire.incarnation),
        field_checks.number("view_number", wire.view_number, least=1),
        _report_from_wire(wire),
        field_checks.seconds("max_wait", wire.max_wait),
        field_checks.number("starved_since", wire.starved_since) if wire.HasField("starved_since") else None,
    )


def action_to_wire(action: Action) -> pb.Action:
    return pb.Action(
        kind=f"ACTION_KIND_{action.kind.name}",
        round=action.round,
        attempt=action.attempt,
        opened=action.opened,
        reason=field_checks.clipped(action.reason),
        closes=None if action.closes is None else _complete_to_wire(action.closes),
        share=action.share,
        local=action.local,
    )


def action_from_wire(wire: pb.Action) -> Action:
    kind = ActionKind[field_checks.word("action.kind", pb.ActionKind, wire.kind)]
    if kind is ActionKind.APPLY and not wire.HasField("closes"):
        raise UsageError("action.closes is missing, though the kind is APPLY")
    return Action(
        kind,
        field_checks.number("action.round", wire.round),
        field_checks.number("action.attempt", wire.attempt),
        field_checks.number("action.opened", wire.opened),
        _complete_from_wire(wire.closes) if wire.HasField("closes") else None,
        wire.reason,
        field_checks.number("action.share", wire.share),
        wire.local,
    )


def _complete_to_wire(complete: Complete) -> pb.Complete:
    return pb.Complete(
        round=complete.round, attempt=complete.attempt, members=complete.members, examples=complete.examples,
        local=complete.local,
    )  # fmt: skip


def _complete_from_wire(wire: pb.Complete) -> Complete:
    return Complete(
        field_checks.number("closes.round", wire.round, least=1),
        field_checks.number("closes.attempt", wire.attempt, least=1),
        field_checks.number("closes.members", wire.members, least=1),
        field_checks.amount("closes.examples", wire.examples),
        wire.local,
    )


def _taken_to_wire(taken: Taken) -> pb.Taken:
    return pb.Taken(first=taken.first, size=taken.size, batch_size=taken.batch_size, seconds=taken.seconds)


def _taken_from_wire(wire: pb.Taken) -> Taken:
    return Taken(
        field_checks.number("taken.first", wire.first),
        field_checks.number("taken.size", wire.size, least=1),
        field_checks.number("taken.batch_size", wire.batch_size, least=1),
        field_checks.amount("taken.seconds", wire.seconds),
    )


def _report_from_wire(wire: pb.NextActionRequest) -> Report | None:
    which = wire.WhichOneof("report")
    if which is None:
        return None
    part = getattr(wire, which)
    number = field_checks.number(f"{which}.round", part.round, least=1)
    if isinstance(part, pb.Computed):
        opened = field_checks.number("computed.opened", part.opened, least=1)
        batch = field_checks.number("computed.batch", part.batch)
        return Computed(number, opened, batch, field_checks.amount("computed.examples", part.examples))
    attempt = field_checks.number(f"{which}.attempt", part.attempt, least=1)
    if isinstance(part, pb.Pushed):
        batch = field_checks.number("pushed.batch", part.batch)
        examples = field_checks.amount("pushed.examples", part.examples)
        taken = _taken_from_wire(part.taken) if part.HasField("taken") else None
        shard_batches = shard_batches_from_wire(part.shard_batches)
        divisor = field_checks.number("pushed.divisor", part.divisor, least=1) if part.divisor else 1
        positions = tuple(field_checks.number("pushed.positions", each) for each in part.positions)
        return Pushed(number, attempt, batch, examples, part.apart, taken, shard_batches, divisor, positions)
    if isinstance(part, pb.Applied):
        return Applied(number, attempt, field_checks.number("applied.global_step", part.global_step))
    return Broken(number, attempt, field_checks.words("broken.reason", part.reason))
