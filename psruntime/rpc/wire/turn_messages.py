"""Turns of the sync mode: wire <-> core dataclasses.  Rules as in member_messages.py."""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.core.rounds.round_messages import (
    Closed,
    Complete,
    Computed,
    Contribution,
    Done,
    Duty,
    Taken,
    Torn,
    Turn,
)
from psruntime.errors import UsageError
from psruntime.rpc.wire import field_checks
from psruntime.rpc.wire.shard_messages import shard_batches_from_wire, shard_batches_to_wire
from psruntime.v1 import coordination_pb2 as pb


@dataclass(frozen=True)
class TurnRequest:
    """What a worker has done since its last turn, and how long it waits for the next.

    rests_after: it has no batch for a round that was first opened after this attempt; None: it has one.
    """

    worker_index: int
    incarnation: int
    view: int
    done: Done | None = None
    max_wait_s: float = 0.0
    rests_after: int | None = None


def turn_request_to_wire(request: TurnRequest) -> pb.TakeTurnRequest:
    wire = pb.TakeTurnRequest(
        worker_index=request.worker_index,
        incarnation=request.incarnation,
        view_number=request.view,
        max_wait=field_checks.duration(request.max_wait_s) if request.max_wait_s > 0 else None,
        rests_after=request.rests_after,
    )
    done = request.done
    if isinstance(done, Contribution):
        wire.contribution.round, wire.contribution.attempt = done.round, done.attempt
        wire.contribution.batch, wire.contribution.examples = done.batch, done.examples
        wire.contribution.apart = done.apart
        wire.contribution.divisor = done.divisor
        wire.contribution.positions.extend(done.positions)
        if done.taken is not None:
            wire.contribution.taken.CopyFrom(_taken_to_wire(done.taken))
        wire.contribution.shard_batches.extend(shard_batches_to_wire(done.shard_batches))
    elif isinstance(done, Computed):
        wire.computed.round, wire.computed.opened = done.round, done.opened
        wire.computed.batch, wire.computed.examples = done.batch, done.examples
    elif isinstance(done, Closed):
        wire.closed.round, wire.closed.attempt, wire.closed.global_step = done.round, done.attempt, done.global_step
    elif done is not None:
        wire.torn.round, wire.torn.attempt, wire.torn.reason = (
            done.round,
            done.attempt,
            field_checks.clipped(done.reason),
        )
    return wire


def turn_request_from_wire(wire: pb.TakeTurnRequest) -> TurnRequest:
    return TurnRequest(
        field_checks.index("worker_index", wire.worker_index),
        field_checks.incarnation("incarnation", wire.incarnation),
        field_checks.number("view_number", wire.view_number, least=1),
        _done_from_wire(wire),
        field_checks.seconds("max_wait", wire.max_wait),
        field_checks.number("rests_after", wire.rests_after) if wire.HasField("rests_after") else None,
    )


def turn_to_wire(turn: Turn) -> pb.Turn:
    return pb.Turn(
        duty=f"DUTY_{turn.duty.name}",
        round=turn.round,
        attempt=turn.attempt,
        opened=turn.opened,
        reason=field_checks.clipped(turn.reason),
        closes=None if turn.closes is None else _complete_to_wire(turn.closes),
        share=turn.share,
        local=turn.local,
    )


def turn_from_wire(wire: pb.Turn) -> Turn:
    duty = Duty[field_checks.word("turn.duty", pb.Duty, wire.duty)]
    if duty is Duty.CLOSE and not wire.HasField("closes"):
        raise UsageError("turn.closes is missing, though the duty is to close")
    return Turn(
        duty,
        field_checks.number("turn.round", wire.round),
        field_checks.number("turn.attempt", wire.attempt),
        field_checks.number("turn.opened", wire.opened),
        _complete_from_wire(wire.closes) if wire.HasField("closes") else None,
        wire.reason,
        field_checks.number("turn.share", wire.share),
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


def _done_from_wire(wire: pb.TakeTurnRequest) -> Done | None:
    which = wire.WhichOneof("done")
    if which is None:
        return None
    part = getattr(wire, which)
    number = field_checks.number(f"{which}.round", part.round, least=1)
    if isinstance(part, pb.Computed):
        opened = field_checks.number("computed.opened", part.opened, least=1)
        batch = field_checks.number("computed.batch", part.batch)
        return Computed(number, opened, batch, field_checks.amount("computed.examples", part.examples))
    attempt = field_checks.number(f"{which}.attempt", part.attempt, least=1)
    if isinstance(part, pb.Contribution):
        batch = field_checks.number("contribution.batch", part.batch)
        examples = field_checks.amount("contribution.examples", part.examples)
        taken = _taken_from_wire(part.taken) if part.HasField("taken") else None
        shard_batches = shard_batches_from_wire(part.shard_batches)
        divisor = field_checks.number("contribution.divisor", part.divisor, least=1) if part.divisor else 1
        positions = tuple(field_checks.number("contribution.positions", each) for each in part.positions)
        return Contribution(number, attempt, batch, examples, part.apart, taken, shard_batches, divisor, positions)
    if isinstance(part, pb.Closed):
        return Closed(number, attempt, field_checks.number("closed.global_step", part.global_step))
    return Torn(number, attempt, field_checks.words("torn.reason", part.reason))
