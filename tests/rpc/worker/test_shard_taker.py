"""How a worker takes shards: what it says it has seen, when it waits, and what it does when nobody answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from psruntime.config import JobConfig
from psruntime.core.members.messages import Answer, Instructions
from psruntime.core.members.view import Phase, View
from psruntime.core.shards.shard_messages import Position, Shard, ShardAnswer, Sharding, ShardNews, ShardRequest
from psruntime.errors import CheckpointError, ReplacedError, StopRequested, UnreachableError
from psruntime.rpc.client.coordinator_client import ClientContext
from psruntime.rpc.worker import shard_taker
from psruntime.rpc.worker.shard_taker import ShardTaker

SHARDING = Sharding(10, 5)
NEWS = [ShardNews(4, 2)]
NONE = ShardAnswer(None, "others hold the rest of epoch 1")


@dataclass
class Membership:
    """Gives `answers` in order, as the client, too; None: the call was called off.

    asked: incarnation, latest ticket, news, wait.
    """

    answers: list[ShardAnswer | Exception | None]
    index: int = 3
    answer: Answer = field(default_factory=lambda: Answer(7, Instructions(Phase.TRAINING, "", View(1)), 1))
    asked: list[tuple[int, int, tuple[ShardNews, ...], float]] = field(default_factory=list)
    wanted: list[bool] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    def take_shard(self, request: ShardRequest, is_wanted: Any, deadline_s: float) -> ShardAnswer | None:
        assert (request.worker_index, request.sharding) == (self.index, SHARDING) and deadline_s > request.max_wait_s
        self.asked.append((request.incarnation, request.seen, request.news, request.max_wait_s))
        self.meanwhile()
        self.wanted.append(is_wanted())
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def get_position(self, deadline_s: float) -> Position:
        raise UnreachableError("nobody")


def shard(ticket: int) -> ShardAnswer:
    return ShardAnswer(Shard(ticket, 1, 0, 5))


def taker(membership: Membership) -> ShardTaker:
    context = ClientContext(cast(Any, membership), JobConfig(lease_s=6.0), threading.Event(), lambda *_, **__: None)
    return ShardTaker(context, cast(Any, membership))


def take(taker: ShardTaker) -> tuple[Shard | None, bool]:
    return taker.take(SHARDING, NEWS, lambda: True)


def test_it_waits_only_after_it_was_told_that_there_is_none() -> None:
    membership = Membership([shard(5), NONE, NONE, shard(6), shard(9)])
    takes = taker(membership)
    assert [take(takes)[0] and take.__name__ for _ in range(5)] == ["take", None, None, "take", "take"]
    assert [asked[1] for asked in membership.asked] == [0, 5, 5, 5, 6]
    assert [asked[3] for asked in membership.asked] == [0.0, 0.0, 2.0, 2.0, 0.0]
    assert {asked[2] for asked in membership.asked} == {tuple(NEWS)}


def test_a_new_incarnation_has_seen_nothing() -> None:
    membership = Membership([shard(5), shard(2)])
    takes = taker(membership)
    take(takes)
    membership.answer = replace(membership.answer, incarnation=8)
    take(takes)
    assert [asked[:2] for asked in membership.asked] == [(7, 0), (8, 0)]


def test_what_was_not_answered_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_taker, "RETRY_S", 0.0)
    takes = taker(Membership([UnreachableError("gone"), ReplacedError("replaced"), None, NONE]))
    assert [take(takes) for _ in range(4)] == [(None, False), (None, False), (None, False), (None, True)]
    assert takes.reason == NONE.reason


def test_it_waits_no_longer_than_the_phase_lasts_or_the_process_is_asked_to_stop() -> None:
    membership = Membership([NONE, None, None])
    takes = taker(membership)
    take(takes)

    def drain() -> None:
        membership.answer = replace(membership.answer, instructions=Instructions(Phase.DRAINING, "", View(1)))

    membership.meanwhile = drain
    take(takes)
    membership.meanwhile = takes._asked.set
    take(takes)
    assert membership.wanted == [True, False, False]


def test_one_that_stops_ends_the_drawing() -> None:
    membership = Membership([None])
    takes = taker(membership)
    membership.meanwhile = takes._stop.set
    with pytest.raises(StopRequested):
        take(takes)


def test_without_a_position_there_is_no_checkpoint() -> None:
    with pytest.raises(CheckpointError, match="how far the data are read is not known: nobody"):
        taker(Membership([])).position()
