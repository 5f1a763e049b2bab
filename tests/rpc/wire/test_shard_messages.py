"""Data shards on the wire: round trips, and what is refused, by the name of the field."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psruntime.core import fields
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
from psruntime.rpc.wire.codec import from_wire, to_wire
from psruntime.v1 import coordination_pb2 as pb
from tests.rpc.wire.test_messages import counts, incarnations, indices, spans, words
from tests.support.messages import messages

relaxed = settings(deadline=None)
numbers = st.integers(1, fields.COUNT_LIMIT - 1)
shardings = st.builds(Sharding, numbers, numbers)
shards = st.builds(
    lambda ticket, epoch, begin, size: Shard(ticket, epoch, begin, begin + size),
    incarnations,
    numbers,
    st.integers(0, 2**40),
    st.integers(1, 2**40),
)
shard_batches = st.lists(st.builds(ShardBatch, shards, counts), max_size=3).map(tuple)
news = st.builds(ShardNews, incarnations, st.none() | counts, st.frozensets(counts, max_size=4))
requests = st.builds(
    ShardRequest,
    indices,
    incarnations,
    shardings,
    st.just(0) | incarnations,
    st.lists(news, max_size=3).map(tuple),
    spans,
)
answers = st.builds(ShardAnswer, st.none() | shards, words)
positions = st.builds(
    lambda epoch, ends, sharding: Position(epoch, tuple((a, a + 1) for a in sorted(ends)), sharding),
    numbers,
    st.sets(st.integers(0, 40).map(lambda n: 2 * n), max_size=5),
    st.builds(Sharding, st.integers(100, 2**40), st.just(1)),
)


@relaxed
@given(requests)
def test_a_request_comes_back(request):
    assert from_wire(ShardRequest, to_wire(request, pb.TakeShardRequest)) == request


@relaxed
@given(answers)
def test_an_answer_comes_back(answer):
    assert from_wire(ShardAnswer, to_wire(answer, pb.TakeShardResponse)) == answer


@relaxed
@given(positions | numbers.map(Position))
def test_a_position_comes_back_from_the_wire_and_from_json(position):
    assert from_wire(Position, to_wire(position, pb.Position)) == position
    assert Position.of_data(position.data()) == position


@given(st.builds(ShardsStatus, numbers, counts, numbers, counts))
def test_the_status_comes_back(status):
    assert from_wire(ShardsStatus, to_wire(status, pb.ShardsStatus)) == status


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (pb.TakeShardRequest(worker_index=-1), "worker_index must be from 0"),
        (pb.TakeShardRequest(incarnation=1), "sharding.examples must be from 1"),
        (pb.TakeShardRequest(incarnation=1, sharding=pb.Sharding(examples=1)), "sharding.size must be from 1"),
    ],
)
def test_a_request_that_cannot_be_is_refused(wire, said):
    with pytest.raises(UsageError, match=said):
        from_wire(ShardRequest, wire)


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (pb.Position(), "epoch must be from 1"),
        (pb.Position(epoch=1, done=[pb.Places(first=0, end=1)]), "done is wrong"),
        (
            pb.Position(epoch=1, done=[pb.Places(first=3, end=3)], sharding=pb.Sharding(examples=9, size=1)),
            "done is wrong",
        ),
    ],
)
def test_a_position_that_cannot_be_is_refused(wire, said):
    with pytest.raises(UsageError, match=said):
        from_wire(Position, wire)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (pb.TakeShardRequest, ShardRequest),
        (pb.TakeShardResponse, ShardAnswer),
        (pb.Position, Position),
        (pb.ShardsStatus, ShardsStatus),
    ],
)
@relaxed
@given(data=st.data())
def test_whatever_comes_is_read_or_refused_in_one_way(kind, wanted, data):
    with suppress(UsageError):
        from_wire(wanted, data.draw(messages(kind)))
