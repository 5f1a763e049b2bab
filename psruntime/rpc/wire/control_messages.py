"""Steering: wire messages <-> core dataclasses.  Rules as in member_messages.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psruntime.config.schedule import BOUNDED
from psruntime.core.steering.commands import Command, Kind, Outcome, Reply, SteeringStatus
from psruntime.core.steering.overrides import Overrides, check_bound, check_scale
from psruntime.errors import UsageError
from psruntime.rpc.wire import field_checks
from psruntime.v1 import coordination_pb2 as pb

PENDING_COMMANDS = 64
COMMAND_CHARS = 64


@dataclass(frozen=True)
class ControlRequest:
    """A command, and how long its outcome is waited for."""

    command: Command
    max_wait_s: float = 0.0


def control_request_to_wire(request: ControlRequest) -> pb.ControlRequest:
    command = request.command
    return pb.ControlRequest(
        request_id=command.request_id,
        command=f"CONTROL_COMMAND_{command.kind.name}",
        bound=command.bound if command.kind is Kind.BOUND or command.mode == BOUNDED else None,
        learning_rate_scale=command.scale if command.kind is Kind.LEARNING_RATE_SCALE else None,
        worker_index=command.worker if command.kind is Kind.DRAIN_WORKER else None,
        max_wait=field_checks.duration(request.max_wait_s) if request.max_wait_s > 0 else None,
        mode=_mode_to_wire(command.mode),
        automatic=command.automatic,
    )


def control_request_from_wire(wire: pb.ControlRequest, by: str = "") -> ControlRequest:
    """by: where it came from.  What its command does not need is passed over."""
    kind = Kind[field_checks.word("command", pb.ControlCommand, wire.command)]
    request_id = field_checks.words("request_id", wire.request_id, field_checks.JOIN_ID_CHARS)
    field_checks.text("request_id", request_id, field_checks.JOIN_ID_CHARS, least=1)
    facts: dict[str, float | str] = {}
    if kind in (Kind.MODE, Kind.BOUND) and wire.automatic:
        facts["automatic"] = True
    elif kind is Kind.MODE:
        facts["mode"] = field_checks.word("mode", pb.Mode, wire.mode).lower()
    if (kind is Kind.BOUND and not wire.automatic) or facts.get("mode") == BOUNDED:
        facts["bound"] = check_bound("bound", wire.bound)
    if kind is Kind.LEARNING_RATE_SCALE:
        facts["scale"] = check_scale("learning-rate-scale", wire.learning_rate_scale)
    if kind is Kind.DRAIN_WORKER:
        facts["worker"] = field_checks.index("worker_index", wire.worker_index)
    command = Command(kind, request_id, by, **facts)  # type: ignore[arg-type]
    return ControlRequest(command, field_checks.seconds("max_wait", wire.max_wait))


def control_reply_to_wire(reply: Reply) -> pb.ControlResponse:
    return pb.ControlResponse(
        outcome=f"CONTROL_OUTCOME_{reply.outcome.name}",
        global_step=reply.global_step,
        text=field_checks.clipped(reply.text),
    )


def control_reply_from_wire(wire: pb.ControlResponse) -> Reply:
    return Reply(
        Outcome[field_checks.word("outcome", pb.ControlOutcome, wire.outcome)],
        field_checks.number("global_step", wire.global_step),
        field_checks.words("text", wire.text),
    )


def overrides_to_wire(settings: Overrides) -> pb.Overrides:
    return pb.Overrides(
        revision=settings.revision,
        from_global_step=settings.from_global_step,
        bound=settings.bound,
        learning_rate_scale=settings.learning_rate_scale,
        paused=settings.paused,
        mode=_mode_to_wire(settings.mode),
        automatic=settings.automatic,
    )


def overrides_from_wire(wire: pb.Overrides) -> Overrides:
    return Overrides(
        field_checks.number("settings.revision", wire.revision),
        field_checks.number("settings.from_global_step", wire.from_global_step),
        check_bound("settings.bound", wire.bound) if wire.HasField("bound") else None,
        check_scale("settings.learning_rate_scale", wire.learning_rate_scale),
        wire.paused,
        field_checks.word("settings.mode", pb.Mode, wire.mode).lower() if wire.mode else "",
        wire.automatic,
    )


def _mode_to_wire(mode: str) -> Any:
    """Unspecified where it is not known."""
    return f"MODE_{mode.upper()}" if mode else None


def steering_to_wire(status: SteeringStatus) -> pb.SteeringStatus:
    return pb.SteeringStatus(
        settings=overrides_to_wire(status.settings),
        pending=status.pending,
        waits_for=field_checks.clipped(status.waits_for),
        bound_reason=field_checks.clipped(status.bound_reason),
    )


def steering_from_wire(wire: pb.SteeringStatus) -> SteeringStatus:
    if len(wire.pending) > PENDING_COMMANDS:
        raise UsageError(f"steering.pending must be at most {PENDING_COMMANDS}, got {len(wire.pending)}")
    return SteeringStatus(
        overrides_from_wire(wire.settings),
        tuple(field_checks.words("steering.pending", command, COMMAND_CHARS) for command in wire.pending),
        field_checks.words("steering.waits_for", wire.waits_for),
        field_checks.words("steering.bound_reason", wire.bound_reason),
    )
