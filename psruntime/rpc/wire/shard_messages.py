"""Data shards: wire <-> core/shards/shard_messages.py.  Rules as in member_messages.py."""

from __future__ import annotations

from collections.abc import Iterable

from psruntime.core.shards.shard_messages import (
    Position,
    Shard,
    ShardAnswer,
    ShardBatch,
    Sharding,
    ShardNews,
    ShardRequest,
    ShardsStatus,
)
from psruntime.errors import UsageError
from psruntime.rpc.wire import field_checks
from psruntime.v1 import coordination_pb2 as pb

SHARDS = 100_000  # of which a message says something
BATCHES = 1_000_000  # of a shard
MINI_BATCHES = 256  # of a step, as config.AT_MOST has it


def shard_request_to_wire(request: ShardRequest) -> pb.TakeShardRequest:
    return pb.TakeShardRequest(
        worker_index=request.worker_index,
        incarnation=request.incarnation,
        sharding=_sharding_to_wire(request.sharding),
        seen_ticket=request.seen,
        news=[pb.ShardNews(ticket=n.ticket, batches=n.batches, applied=sorted(n.applied)) for n in request.news],
        max_wait=field_checks.duration(request.max_wait_s) if request.max_wait_s > 0 else None,
    )


def shard_request_from_wire(wire: pb.TakeShardRequest) -> ShardRequest:
    _few("news", len(wire.news), SHARDS)
    return ShardRequest(
        field_checks.index("worker_index", wire.worker_index),
        field_checks.incarnation("incarnation", wire.incarnation),
        _sharding_from_wire("sharding", wire.sharding),
        field_checks.number("seen_ticket", wire.seen_ticket, limit=field_checks.INCARNATION_LIMIT),
        tuple(_news_from_wire(news) for news in wire.news),
        field_checks.seconds("max_wait", wire.max_wait),
    )


def shard_answer_to_wire(answer: ShardAnswer) -> pb.TakeShardResponse:
    shard = None if answer.shard is None else _shard_to_wire(answer.shard)
    return pb.TakeShardResponse(shard=shard, reason=field_checks.clipped(answer.reason))


def shard_answer_from_wire(wire: pb.TakeShardResponse) -> ShardAnswer:
    shard = _shard_from_wire("shard", wire.shard) if wire.HasField("shard") else None
    return ShardAnswer(shard, field_checks.words("reason", wire.reason))


def position_to_wire(position: Position) -> pb.Position:
    return pb.Position(
        epoch=position.epoch,
        done=[pb.Places(first=first, end=end) for first, end in position.done],
        sharding=None if position.sharding is None else _sharding_to_wire(position.sharding),
    )


def position_from_wire(wire: pb.Position) -> Position:
    _few("position.done", len(wire.done), SHARDS)
    sharding = _sharding_from_wire("position.sharding", wire.sharding) if wire.HasField("sharding") else None
    epoch = field_checks.number("position.epoch", wire.epoch, least=1)
    try:
        return Position(epoch, tuple((places.first, places.end) for places in wire.done), sharding).checked()
    except ValueError as error:
        raise UsageError(f"position.done is wrong: {error}") from error


def shard_batches_to_wire(batches: Iterable[ShardBatch]) -> list[pb.ShardBatch]:
    return [pb.ShardBatch(shard=_shard_to_wire(batch.shard), number=batch.number) for batch in batches]


def shard_batches_from_wire(wire: Iterable[pb.ShardBatch]) -> tuple[ShardBatch, ...]:
    batches = list(wire)
    _few("shard_batches", len(batches), MINI_BATCHES)
    return tuple(
        ShardBatch(_shard_from_wire("shard_batches.shard", b.shard), _batch("shard_batches.number", b.number))
        for b in batches
    )


def shards_status_to_wire(status: ShardsStatus) -> pb.ShardsStatus:
    return pb.ShardsStatus(epoch=status.epoch, done=status.done, count=status.of, again=status.again)


def shards_status_from_wire(wire: pb.ShardsStatus) -> ShardsStatus:
    return ShardsStatus(
        field_checks.number("shards.epoch", wire.epoch, least=1),
        field_checks.number("shards.done", wire.done),
        field_checks.number("shards.count", wire.count, least=1),
        field_checks.number("shards.again", wire.again),
    )


def _sharding_to_wire(sharding: Sharding) -> pb.Sharding:
    return pb.Sharding(examples=sharding.examples, size=sharding.size)


def _sharding_from_wire(name: str, wire: pb.Sharding) -> Sharding:
    examples = field_checks.number(f"{name}.examples", wire.examples, least=1)
    return Sharding(examples, field_checks.number(f"{name}.size", wire.size, least=1))


def _shard_to_wire(shard: Shard) -> pb.Shard:
    return pb.Shard(ticket=shard.ticket, epoch=shard.epoch, begin=shard.begin, end=shard.end)


def _shard_from_wire(name: str, wire: pb.Shard) -> Shard:
    begin = field_checks.number(f"{name}.begin", wire.begin)
    return Shard(
        field_checks.incarnation(f"{name}.ticket", wire.ticket),
        field_checks.number(f"{name}.epoch", wire.epoch, least=1),
        begin,
        field_checks.number(f"{name}.end", wire.end, least=begin + 1),
    )


def _news_from_wire(wire: pb.ShardNews) -> ShardNews:
    _few("news.applied", len(wire.applied), BATCHES)
    return ShardNews(
        field_checks.incarnation("news.ticket", wire.ticket),
        field_checks.number("news.batches", wire.batches) if wire.HasField("batches") else None,
        frozenset(_batch("news.applied", number) for number in wire.applied),
    )


def _batch(name: str, value: int) -> int:
    return field_checks.number(name, value)


def _few(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise UsageError(f"{name} must have at most {limit} entries, got {count}")
