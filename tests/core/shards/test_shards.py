"""Shards under any order of events: each is done once in every epoch, after all its batches were applied.

Workers may be lost, answers too, what they said may be heard again later, and the variables may go back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psruntime.core.shards import shards as module
from psruntime.core.shards.shard_messages import Position, Shard, ShardBatch, Sharding, ShardNews
from psruntime.core.shards.shards import Places, Shards, number_at
from psruntime.errors import UsageError
from tests.support.selection import examples
from tests.support.transitions import check_transitions

SHARDING = Sharding(examples=11, size=3)  # the last of its 4 shards has 2
EPOCHS = 4
BATCHES = 2  # of a shard
picks = st.integers(0, 7)
mostly = st.sampled_from([True, True, True, False])


@dataclass
class Reader:
    """A worker: what it holds, by ticket, and how many batches of each are in the variables."""

    seen: int = 0
    held: dict[int, Shard] = field(default_factory=dict)
    applied: Counter[int] = field(default_factory=Counter)


class ShardsMachine(RuleBasedStateMachine):
    """applied: in an epoch, by range of a shard, which of its batches the variables hold: what truly is so."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, dict[str, object]]] = []
        self.shards = Shards(EPOCHS, lambda name, **facts: self.events.append((name, facts)))
        self.shards.number_from(100)
        self.readers: dict[int, Reader] = {}
        self.all = 0
        self.words: list[tuple[int, ShardNews]] = []
        self.tickets: set[int] = set()
        self.applied: dict[tuple[int, int], set[tuple[int, int]]] = {}  # (epoch, begin) -> (ticket, number)
        self.saved: list[tuple[Position, dict[tuple[int, int], set[tuple[int, int]]]]] = []

    def pick(self, number: int) -> int:
        return sorted(self.readers)[number % len(self.readers)]

    @precondition(lambda self: len(self.readers) < 3)
    @rule()
    def enter(self) -> None:
        self.all += 1
        self.readers[self.all] = Reader()
        self.shards.agree(SHARDING)

    @precondition(lambda self: self.readers)
    @rule(who=picks, told=mostly)
    def take(self, who: int, told: bool) -> None:
        """The answer may be lost."""
        incarnation = self.pick(who)
        reader = self.readers[incarnation]
        answer = self.shards.take(incarnation, reader.seen)
        assert bool(answer.shard) != bool(answer.reason)
        if answer.shard is None:
            assert self.shards.over or any(other.held for other in self.readers.values()) or self.unheard(), (
                "a shard that nobody holds can be taken"
            )
            return
        shard = answer.shard
        assert shard.epoch == self.shards.epoch and shard.ticket > max(reader.seen, 100)
        self.tickets.add(shard.ticket)
        if told:
            reader.seen = shard.ticket
            reader.held[shard.ticket] = shard

    def unheard(self) -> bool:
        """Whether a shard is held by a worker that does not know it yet."""
        known = {ticket for reader in self.readers.values() for ticket in reader.held}
        return bool(set(self.shards._taken) - known)

    @precondition(lambda self: any(reader.held for reader in self.readers.values()))
    @rule(who=picks, which=picks, told=mostly, apart=st.booleans())
    def read(self, who: int, which: int, told: bool, apart: bool) -> None:
        """A batch is read and applied; with the last one the worker finds that the shard has no more."""
        having = [inc for inc, reader in sorted(self.readers.items()) if reader.held]
        incarnation = having[who % len(having)]
        reader = self.readers[incarnation]
        ticket = sorted(reader.held)[which % len(reader.held)]
        shard, number = reader.held[ticket], reader.applied[ticket]
        reader.applied[ticket] += 1
        self.applied.setdefault((shard.epoch, shard.begin), set()).add((ticket, number))
        ends = BATCHES if number == BATCHES - 1 else None
        if ends:
            del reader.held[ticket]
        if apart and not ends:
            self.shards.applied(incarnation, [ShardBatch(shard, number)])
            return
        news = ShardNews(ticket, ends, frozenset(range(number + 1)))
        self.words.append((incarnation, news))
        if told or ends:  # what is not answered is said again until it is
            self.shards.hear(incarnation, [news])

    @precondition(lambda self: self.words)
    @rule(which=picks)
    def hear_again(self, which: int) -> None:
        incarnation, news = self.words[which % len(self.words)]
        before = self.shards.position, self.shards.revision
        self.shards.hear(incarnation, [news])
        if news.batches:
            assert (self.shards.position, self.shards.revision) == before, "a repeat changes nothing"

    @precondition(lambda self: self.readers)
    @rule(who=picks)
    def lose(self, who: int) -> None:
        incarnation = self.pick(who)
        held = sum(held.incarnation == incarnation for held in self.shards._taken.values())
        before = len(self.events)
        self.shards.lose(incarnation, "lost")
        self.shards.lose(incarnation, "lost")
        assert len(self.events) == before + held
        del self.readers[incarnation]

    @precondition(lambda self: self.shards.sharding)
    @rule()
    def save(self) -> None:
        """The position is taken before the variables are."""
        self.saved.append((self.shards.position, {key: set(of) for key, of in self.applied.items()}))

    @precondition(lambda self: self.saved)
    @rule(which=picks, anew=st.booleans())
    def restore(self, which: int, anew: bool) -> None:
        """Back to a checkpoint; or a new coordinator, to which all workers are new."""
        position, applied = self.saved[which % len(self.saved)]
        self.applied = {key: set(of) for key, of in applied.items()}
        if anew:
            self.shards = Shards(EPOCHS, lambda name, **facts: self.events.append((name, facts)))
            self.shards.number_from(10_000 * (1 + len(self.tickets)))
            self.readers = {}
        self.shards.restore(Position.of_data(position.data()))
        assert self.shards.epoch == position.epoch and self.shards.position.done == position.done
        for reader in self.readers.values():
            reader.held, reader.applied = {}, Counter()

    @invariant()
    def what_is_done_is_in_the_variables(self) -> None:
        shards, count = self.shards, SHARDING.count
        done = {number_at(p, count, shards.epoch) for first, last in shards.position.done for p in range(first, last)}
        expected = [(epoch, number) for epoch in range(1, shards.epoch) for number in range(count)]
        for epoch, number in [*expected, *((shards.epoch, number) for number in done)]:
            applied = self.applied.get((epoch, SHARDING.range_of(number)[0]), set())
            by_ticket = Counter(ticket for ticket, _ in applied)
            assert max(by_ticket.values(), default=0) == BATCHES, f"shard {number} of epoch {epoch} is not all applied"

    @invariant()
    def nothing_is_held_by_two_or_done_and_held(self) -> None:
        places = Counter(held.place for held in self.shards._taken.values())
        done = {place for first, last in self.shards.position.done for place in range(first, last)}
        waiting = [*self.shards._again]
        assert max(places.values(), default=0) <= 1
        assert not done & set(places) and not done & set(waiting) and not set(places) & set(waiting)
        assert len(waiting) == len(set(waiting))


ShardsMachine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=60, deadline=None)
TestShards = ShardsMachine.TestCase


def read_all(shards: Shards, incarnation: int, batches: int = 1) -> list[Shard]:
    """A worker reads until there is no shard for it; what it read."""
    found: list[Shard] = []
    seen = 0
    while (shard := shards.take(incarnation, seen).shard) is not None:
        found.append(shard)
        seen = shard.ticket
        shards.hear(incarnation, [ShardNews(shard.ticket, batches, frozenset(range(batches)))])
    return found


def ranges(shards: list[Shard], epoch: int) -> list[tuple[int, int]]:
    return sorted((shard.begin, shard.end) for shard in shards if shard.epoch == epoch)


def test_without_a_fault_every_shard_of_every_epoch_is_handed_out_once() -> None:
    shards = Shards(epochs=2)
    shards.agree(SHARDING)
    found = read_all(shards, 1)
    assert ranges(found, 1) == ranges(found, 2) == [(0, 3), (3, 6), (6, 9), (9, 11)]
    assert len(found) == 8
    assert shards.over and shards.take(1, 0).reason == "epoch 2 of 2 is done"


def test_who_finds_nothing_waits_for_those_who_hold_the_rest_and_gets_it_when_they_are_lost() -> None:
    shards = Shards()
    shards.agree(SHARDING)
    slow = shards.take(1, 0).shard
    assert slow
    assert len(read_all(shards, 2)) == 3
    waits, revision = shards.take(2, 9), shards.revision
    assert waits.shard is None and waits.reason == "others hold the rest of epoch 1"
    shards.lose(1, "worker 1 is gone")
    again = shards.take(2, 9).shard
    assert shards.revision > revision and again
    assert (again.begin, again.end, again.epoch) == (slow.begin, slow.end, 1) and again.ticket > slow.ticket


def test_a_shard_without_a_batch_is_done_when_it_was_read() -> None:
    shards = Shards(epochs=1)
    shards.agree(SHARDING)
    assert len(read_all(shards, 1, batches=0)) == 4 and shards.over


def test_a_lost_answer_is_given_again() -> None:
    shards = Shards()
    shards.agree(SHARDING)
    first = shards.take(1, 0).shard
    assert first and shards.take(1, 0).shard == first
    second = shards.take(1, first.ticket).shard
    assert second and second != first and shards.take(1, first.ticket).shard == second


def test_workers_must_cut_their_input_alike() -> None:
    shards = Shards()
    shards.agree(SHARDING)
    with pytest.raises(UsageError, match="12 examples in shards of 3 here, and 11 in shards of 3 on the other"):
        shards.agree(Sharding(12, 3))
    shards.agree(SHARDING)


def test_a_position_of_another_input_begins_its_epoch_anew() -> None:
    events: list[str] = []
    shards = Shards(3, lambda name, **_: events.append(name))
    shards.restore(Position(3, ((0, 2),), Sharding(11, 2)))
    shards.agree(SHARDING)
    assert events == ["epoch_anew"]
    assert shards.position == Position(3, (), SHARDING)
    assert ranges(read_all(shards, 1), 3) == [(0, 3), (3, 6), (6, 9), (9, 11)]


def test_a_job_whose_epochs_are_done_has_nothing_to_read() -> None:
    shards = Shards(epochs=2)
    shards.restore(Position(3, (), SHARDING))
    assert shards.over
    longer = Shards(epochs=3)
    longer.restore(Position(3, (), SHARDING))
    assert not longer.over


@given(st.permutations(range(12)), st.integers(0, 12))
def test_places_are_a_set(order: list[int], count: int) -> None:
    places, expected = Places(), set[int]()
    for place in order[:count]:
        places.add(place)
        expected.add(place)
        assert {p for first, end in places.ranges for p in range(first, end)} == expected and len(places) == len(
            expected
        )
        assert all(end < first for (_, end), (first, _) in zip(places.ranges, places.ranges[1:], strict=False))
    for place in range(14):
        assert places.next_free(place) == min(p for p in range(place, 27) if p not in expected)


@given(st.integers(1, 300), st.integers(1, 1000))
def test_an_order_has_every_shard_once(count: int, epoch: int) -> None:
    assert sorted(number_at(place, count, epoch) for place in range(count)) == list(range(count))


def test_epochs_have_different_orders_and_neighbours_are_apart() -> None:
    orders = {tuple(number_at(place, 100, epoch) for place in range(100)) for epoch in range(1, 9)}
    assert len(orders) == 8
    assert all(abs(a - b) > 1 for a, b in zip(min(orders), min(orders)[1:], strict=False))


@pytest.mark.parametrize(
    "data",
    [
        {"epoch": 0, "done": []},
        {"epoch": 1, "done": [[0, 1]]},
        {"epoch": 1, "done": [[0, 5]], "examples": 11, "size": 3},
        {"epoch": 1, "done": [[2, 3], [0, 1]], "examples": 11, "size": 3},
        {"epoch": 1, "done": [[0, 1], [1, 2]], "examples": 11, "size": 3},
        {"epoch": 1, "done": [], "examples": 0, "size": 3},
        {"epoch": 1.5, "done": []},
        {"epoch": 1, "done": {}},
        {"epoch": 1},
    ],
)
def test_a_position_that_cannot_be_is_refused(data: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Position.of_data(data)


def test_workers_that_come_after_all_were_gone_may_cut_the_input_otherwise() -> None:
    told: list[str] = []
    shards = Shards(note=lambda name, **_: told.append(name))
    shards.agree(Sharding(20, 10))
    first = shards.take(1, 0).shard
    assert first
    shards.hear(1, [ShardNews(first.ticket, 1, frozenset({0}))])
    with pytest.raises(UsageError, match="on the other workers"):
        shards.agree(Sharding(20, 5))
    shards.lose(1, "it is gone")
    shards.release_all()
    shards.agree(Sharding(20, 10))
    assert len(shards.position.done) == 1 and told == [], "cut as before: it goes on"
    shards.release_all()
    shards.agree(Sharding(20, 5))
    assert shards.position.done == () and told == ["epoch_anew"]


def test_every_event_of_a_shard_is_in_the_drawn_table_or_refused() -> None:
    check_transitions(module.__doc__, module.ShardState, module.ShardEvent, module.TRANSITIONS)
