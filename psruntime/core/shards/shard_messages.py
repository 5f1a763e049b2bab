"""Messages of data shards (shards.py): ranges, the batches read of them, and the progress of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from psruntime.core.fields import AtMost, Incarnation, IncarnationOrZero, Positive, Words
from psruntime.errors import UsageError

SHARDS = 100_000  # in one message
BATCHES = 1_000_000  # of a shard


@dataclass(frozen=True)
class Sharding:
    """How the input is cut: `examples` of them in shards of `size`, both from 1; the last shard may be smaller."""

    examples: Positive
    size: Positive

    @property
    def count(self) -> int:
        """How many shards an epoch has."""
        return -(-self.examples // self.size)

    def range_of(self, number: int) -> tuple[int, int]:
        """(begin, end) of the shard of this number, from 0."""
        return number * self.size, min(self.examples, (number + 1) * self.size)


@dataclass(frozen=True)
class Shard:
    """The examples begin..end-1 of an epoch, from 1, as they are handed out to one worker.

    ticket: of this handing-out.  No two of a job have the same, and the later one has the larger.
    """

    ticket: Incarnation
    epoch: Positive
    begin: int
    end: int

    def checked(self) -> Shard:
        """Itself.  Raises UsageError if it is empty."""
        if self.end <= self.begin:
            raise UsageError(f"end must be above begin ({self.begin}), got {self.end}")
        return self


@dataclass(frozen=True)
class ShardBatch:
    """The `number`-th batch that was read of a shard, from 0."""

    shard: Shard
    number: int


@dataclass(frozen=True)
class ShardNews:
    """A worker's report on a shard that it reads.

    batches: how many it has; None: it is not read to its end.  applied: numbers of those that are in the variables, or
    were passed over.
    """

    ticket: Incarnation
    batches: int | None = None
    applied: Annotated[frozenset[int], AtMost(BATCHES)] = frozenset()


@dataclass(frozen=True)
class ShardRequest:
    """A worker asks for a shard, and reports on those that it reads.

    seen: the latest ticket that it has, under this incarnation; 0: none.
    """

    worker_index: int
    incarnation: Incarnation
    sharding: Sharding
    seen: IncarnationOrZero = 0
    news: Annotated[tuple[ShardNews, ...], AtMost(SHARDS)] = ()
    max_wait_s: float = 0.0


@dataclass(frozen=True)
class ShardAnswer:
    """shard: None if there is none now, for the reason given."""

    shard: Shard | None = None
    reason: Words = ""


@dataclass(frozen=True)
class Position:
    """How far a job is with its input, for a checkpoint.

    epoch: the present one, from 1.  done: its shards that are done, as ranges [from, to) of places in the epoch's order
    (shards.py), ascending and apart from each other.  sharding: what the places are of; None: nothing was read yet.
    """

    epoch: Positive = 1
    done: Annotated[tuple[tuple[int, int], ...], AtMost(SHARDS)] = ()
    sharding: Sharding | None = None

    @property
    def facts(self) -> dict[str, object]:
        """For the log."""
        of = {"of": self.sharding.count} if self.sharding else {}
        return {"epoch": self.epoch, "done": sum(last - first for first, last in self.done), **of}

    def data(self) -> dict[str, object]:
        """As JSON."""
        cut = {"examples": self.sharding.examples, "size": self.sharding.size} if self.sharding else {}
        return {"epoch": self.epoch, "done": [list(places) for places in self.done], **cut}

    @classmethod
    def of_data(cls, data: dict[str, object]) -> Position:
        """Raises KeyError, TypeError or ValueError: it is not one of `data`."""
        given: dict[str, object] = dict(data)
        sharding = Sharding(_int(given["examples"]), _int(given["size"])) if "examples" in given else None
        done = given["done"]
        if not isinstance(done, list):
            raise TypeError("done is no list")
        return cls(_int(given["epoch"]), tuple((_int(first), _int(last)) for first, last in done), sharding).checked()

    def checked(self) -> Position:
        """Itself.

        Raises:
            ValueError: it is none that a job can be at.
        """
        count, least = self.sharding.count if self.sharding else 0, 0
        for first, last in self.done:
            if not least <= first < last <= count:
                raise ValueError(f"done is wrong: the shards [{first}, {last}) of {count} cannot be done")
            least = last + 1
        if self.epoch < 1 or (self.sharding and min(self.sharding.examples, self.sharding.size) < 1):
            raise ValueError("epoch, examples and size must be at least 1")
        return self


@dataclass(frozen=True)
class ShardsStatus:
    """How far a job is with its input.  again: shards that were handed out again, since the coordinator started."""

    epoch: Positive
    done: int
    of: Positive
    again: int


START = Position()


def _int(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    return value
