"""Shards: the ranges of the input, which worker reads which, and which are done.

A worker takes one shard after the other.  A shard is done when it was read to its end and all its batches are in the
variables.  A shard of a worker that is gone is handed out again, from its beginning.  An epoch begins when the one
before is done, so at its end a worker without a shard waits for those that read the others.

| state | take | read | finish | lose |
|---|---|---|---|---|
| FREE | READING | | | |
| READING | | READ | | FREE |
| READ | | | DONE | FREE |
| DONE | | | | |

Pure state.  Workers are named by their incarnations.

Law: in each epoch every shard is handed out at least once, and done once.
Law: no shard is read by two workers.
Law: a ticket is handed out once; a report on one that no worker reads, or from another worker, changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import gcd

from psruntime.core.shards.shard_messages import (
    START,
    Position,
    Shard,
    ShardAnswer,
    ShardBatch,
    Sharding,
    ShardNews,
    ShardsStatus,
)
from psruntime.core.state_table import after
from psruntime.errors import UsageError

_WORD = (1 << 64) - 1


def number_at(place: int, count: int, epoch: int) -> int:
    """The number of the shard at a place of the epoch's order, both from 0 and below `count`.

    The order is scattered, and another one in each epoch.  It steps through the shards by a stride that is drawn from
    the epoch's number and has no factor in common with how many there are.  So neighbours in the input come far from
    each other, and nothing has to be kept of it.
    """
    first, stride = _mixed(2 * epoch) % count, 1 + _mixed(2 * epoch + 1) % count
    while gcd(stride, count) != 1:
        stride += 1
    return (first + place * stride) % count


def _mixed(number: int) -> int:
    """64 bits that look random (splitmix64; Steele et al., Fast splittable pseudorandom number generators, 2014)."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & _WORD
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _WORD
    return mixed ^ mixed >> 31


class Places:
    """Whole numbers from 0.

    Invariant: the ranges [first, end) are ascending, not empty, and apart from each other.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]] = ()) -> None:
        self._firsts = [first for first, _ in ranges]
        self._ends = [end for _, end in ranges]
        self._count = sum(self._ends) - sum(self._firsts)

    def __len__(self) -> int:
        return self._count

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self._firsts, self._ends, strict=True))

    def next_free(self, place: int) -> int:
        """The first place from this one on that is not in the set."""
        at = bisect_right(self._firsts, place) - 1
        return max(place, self._ends[at]) if at >= 0 else place

    def add(self, place: int) -> None:
        """Adds a place that is not in the set."""
        at = bisect_right(self._firsts, place)
        joins_before = at > 0 and self._ends[at - 1] == place
        joins_after = at < len(self._firsts) and self._firsts[at] == place + 1
        self._count += 1
        if joins_before and joins_after:
            self._ends[at - 1] = self._ends[at]
            del self._firsts[at], self._ends[at]
        elif joins_before:
            self._ends[at - 1] = place + 1
        elif joins_after:
            self._firsts[at] = place
        else:
            self._firsts.insert(at, place)
            self._ends.insert(at, place + 1)


class ShardState(Enum):
    """Of a shard in its epoch."""

    FREE = "no worker has it"
    READING = "a worker reads it, and is not at its end"
    READ = "its worker has read it, and the variables lack some of its batches"
    DONE = "the variables have all its batches"


class ShardEvent(Enum):
    """What changes the state."""

    TAKE = "a worker takes it"
    READ = "its worker reports how many batches it has"
    FINISH = "all these are in the variables"
    LOSE = "its worker reads no further"


TRANSITIONS: dict[tuple[ShardState, ShardEvent], ShardState] = {
    (ShardState.FREE, ShardEvent.TAKE): ShardState.READING,
    (ShardState.READING, ShardEvent.READ): ShardState.READ, (ShardState.READING, ShardEvent.LOSE): ShardState.FREE,
    (ShardState.READ, ShardEvent.FINISH): ShardState.DONE, (ShardState.READ, ShardEvent.LOSE): ShardState.FREE,
}  # fmt: skip


@dataclass
class _Reading:
    """A shard that a worker reads.  batches: how many it has, once it is READ.  applied: as in ShardNews."""

    shard: Shard
    incarnation: int
    place: int  # in the epoch's order
    state: ShardState
    batches: int = 0
    applied: set[int] = field(default_factory=set)

    def take(self, news: ShardNews) -> None:
        """Takes the worker's report on it."""
        if news.batches is not None and self.state is ShardState.READING:
            self.batches = news.batches
            self.state = after(TRANSITIONS, self.state, ShardEvent.READ)
        self.applied |= news.applied
        if self.state is ShardState.READ and len(self.applied) >= self.batches:
            self.state = after(TRANSITIONS, self.state, ShardEvent.FINISH)


class Shards:
    """The shards of a job.  `revision` grows whenever a waiting worker may get one, or none will any more.

    epochs: after which the job ends; None: there is no end.  note(name, **facts): logs what an operator wants to
    read.
    """

    def __init__(self, epochs: int | None = None, note: Callable[..., None] = lambda *_, **__: None) -> None:
        self.revision = 0
        self.sharding: Sharding | None = None  # of the first worker that reports one
        self._epochs = epochs
        self._note = note
        self._ticket = 0  # the latest
        self._was_restored = False
        self._restored = START  # from where the present epoch went on
        self._again_in_all = 0
        self._begin(START)

    def _begin(self, position: Position) -> None:
        """Continues at a position, with nothing taken."""
        self.epoch = position.epoch
        self._done = Places(position.done)
        self._next = 0  # the first place that was not handed out since
        self._again: deque[int] = deque()  # places that are to be handed out again, before that
        self._taken: dict[int, _Reading] = {}  # by ticket
        self._again_in_epoch = 0
        self.revision += 1

    # Inputs.

    def number_from(self, number: int) -> None:
        """Tickets are larger; a coordinator after this one has to give another number, drawn at random."""
        self._ticket = self._ticket or number

    def agree(self, sharding: Sharding) -> None:
        """A worker's input is cut like this.

        Raises:
            UsageError: that of another is cut otherwise.
        """
        if self.sharding is None:
            self.sharding = sharding
            self._fit(self._restored)
        if sharding != self.sharding:
            ours, its = self.sharding, sharding
            raise UsageError(
                f"context.shards has {its.examples} examples in shards of {its.size} here, and {ours.examples} in "
                f"shards of {ours.size} on the other workers: give all workers the same data and --batch-size"
            )

    def take(self, incarnation: int, seen: int) -> ShardAnswer:
        """The next shard for a worker; the same one again if its answer was lost.  seen: as in ShardRequest."""
        unseen = [t for t, reading in self._taken.items() if reading.incarnation == incarnation and t > seen]
        if unseen:
            return ShardAnswer(self._taken[min(unseen)].shard)
        place = self._next_place()
        if place is None or self.sharding is None:
            return ShardAnswer(reason=self.waits_for)
        self._ticket += 1
        begin, end = self.sharding.range_of(number_at(place, self.sharding.count, self.epoch))
        shard = Shard(self._ticket, self.epoch, begin, end)
        self._taken[shard.ticket] = _Reading(
            shard, incarnation, place, after(TRANSITIONS, ShardState.FREE, ShardEvent.TAKE)
        )
        return ShardAnswer(shard)

    def hear(self, incarnation: int, news: Iterable[ShardNews]) -> None:
        """Takes a worker's report on the shards that it reads."""
        for each in news:
            reading = self._taken.get(each.ticket)
            if reading is not None and reading.incarnation == incarnation:
                reading.take(each)
                if reading.state is ShardState.DONE:
                    self._finish(reading)

    def applied(self, incarnation: int, batches: Iterable[ShardBatch]) -> None:
        """Batches that a worker read are in the variables."""
        self.hear(incarnation, [ShardNews(batch.shard.ticket, None, frozenset({batch.number})) for batch in batches])

    def lose(self, incarnation: int, why: str) -> None:
        """A worker reads no further: its shards are handed out again."""
        for reading in [reading for reading in self._taken.values() if reading.incarnation == incarnation]:
            reading.state = after(TRANSITIONS, reading.state, ShardEvent.LOSE)
            del self._taken[reading.shard.ticket]
            self._again.append(reading.place)
            self._again_in_epoch += 1
            self._again_in_all += 1
            self.revision += 1
            shard = reading.shard
            self._note("shard_again", epoch=shard.epoch, begin=shard.begin, end=shard.end, reason=why)

    def release_all(self) -> None:
        """All workers are gone: those that come may cut the input otherwise."""
        self._restored, self.sharding = self.position, None

    def restore(self, position: Position) -> None:
        """Returns to a position: the variables contain its done shards, and nothing else of its epoch or later ones."""
        self._restored, self._was_restored = position, True
        self._begin(position)
        self._fit(position)

    # Answers.

    @property
    def over(self) -> bool:
        """Whether all epochs are done."""
        return self._epochs is not None and self.epoch > self._epochs

    @property
    def began_over(self) -> bool:
        """Whether all epochs were done at the position from which the job went on."""
        return self._epochs is not None and self._restored.epoch > self._epochs

    @property
    def why_over(self) -> str:
        return f"epoch {self._epochs} of {self._epochs} is done" if self.over else ""

    @property
    def waits_for(self) -> str:
        """Why no worker gets a shard, where there is none."""
        return self.why_over or f"others hold the rest of epoch {self.epoch}"

    @property
    def are_used(self) -> bool:
        """Whether the workers' input is read by shards, as far as a chief or a worker has reported."""
        return self._was_restored or self.sharding is not None

    @property
    def position(self) -> Position:
        return Position(self.epoch, self._done.ranges, self.sharding or self._restored.sharding)

    @property
    def status(self) -> ShardsStatus | None:
        """None in a job whose workers take none."""
        if self.sharding is None:
            return None
        return ShardsStatus(self.epoch, len(self._done), self.sharding.count, self._again_in_all)

    # What changes with them.

    def _next_place(self) -> int | None:
        if self.over or self.sharding is None:
            return None
        if self._again:
            return self._again.popleft()
        place = self._done.next_free(self._next)
        if place >= self.sharding.count:
            return None
        self._next = place + 1
        return place

    def _finish(self, reading: _Reading) -> None:
        assert self.sharding is not None
        del self._taken[reading.shard.ticket]
        self._done.add(reading.place)
        if len(self._done) == self.sharding.count:
            again = {"handed_out_again": self._again_in_epoch}
            self._note("epoch", number=self.epoch, examples=self.sharding.examples, **again)
            self._begin(Position(self.epoch + 1, (), self.sharding))

    def _fit(self, position: Position) -> None:
        """Restarts the epoch if the position is of an input with another sharding."""
        if self.sharding is None or position.sharding in (None, self.sharding):
            return
        was, now = position.sharding, self.sharding
        assert was is not None
        reason = (
            f"it was of {was.examples} examples in shards of {was.size}, now {now.examples} in shards of {now.size}"
        )
        self._note("epoch_anew", number=position.epoch, reason=reason)
        self._restored = Position(position.epoch, (), now)
        self._begin(self._restored)
