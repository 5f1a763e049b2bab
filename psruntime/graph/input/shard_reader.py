"""Draws the batches of a dataset shard by shard, and gathers what became of them for the coordinator."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, SupportsIndex

import tensorflow.compat.v1 as tf1

from psruntime.core.shards.shard_messages import Shard, ShardBatch, Sharding, ShardNews
from psruntime.errors import UsageError, UserCodeError
from psruntime.graph.base.types import Array, Tensor
from psruntime.model import TRAIN, Context

BATCHES = 8  # of a shard by default: a worker that is lost leaves two or three shards, so few batches are read again


class ShardRange:
    """The range of one dataset, in the current graph.

    context: the argument of input_fn.  sharding: None until input_fn has asked for a range.
    """

    def __init__(self, context: Context) -> None:
        self.context = replace(context, cut=self._cut)
        self.sharding: Sharding | None = None
        self._begin: Tensor = None
        self._end: Tensor = None

    @property
    def is_used(self) -> bool:
        """Whether the dataset depends on the range."""
        return any(tensor.consumers() for tensor in (self._begin, self._end))

    def feed(self, shard: Shard) -> dict[Tensor, int]:
        """The feed of an iterator's initialisation, so that it reads the shard: int64 []."""
        return {self._begin: shard.begin, self._end: shard.end}

    def _cut(self, examples: int, size: int | None) -> tuple[Tensor, Tensor]:
        if self.sharding is not None:
            raise UsageError("context.shards was called twice; the coordinator hands out one range at a time")
        size = BATCHES * self.context.batch_size if size is None else size
        self.sharding = Sharding(_count("examples", examples), _count("size", size))
        if self.context.mode == TRAIN:
            self._begin, self._end = (tf1.placeholder(tf1.int64, [], name=name) for name in ("begin", "end"))
        else:
            self._begin, self._end = tf1.constant(0, tf1.int64), tf1.constant(examples, tf1.int64)
        return self._begin, self._end


def _count(name: str, value: SupportsIndex) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} of context.shards must be a whole number, got {value!r}") from None
    if count < 1:
        raise UsageError(f"{name} of context.shards must be at least 1, got {count}")
    return count


class ShardSource(Protocol):
    """Where shards come from; rpc/worker/shard_taker.py has the real one.

    reason: why there was none at the last request, for people.
    """

    @property
    def reason(self) -> str: ...

    def take(
        self, sharding: Sharding, news: Sequence[ShardNews], is_wanted: Callable[[], bool]
    ) -> tuple[Shard | None, bool]:
        """(the next shard, or None: there is none now; whether the coordinator answered).

        If there was none the time before, it may wait for one while `is_wanted` returns true.  Raises the error that
        ends the training.
        """


class DrawnBatch(list[Array]):
    """The arrays of the batch of a step, and the shards they are of: an entry for each mini-batch."""

    def __init__(self, arrays: Iterable[Array], of: tuple[ShardBatch, ...]) -> None:
        super().__init__(arrays)
        self.of = of


@dataclass
class _Unreported:
    """What was not reported yet of a shard; as in ShardNews."""

    batches: int | None = None
    applied: set[int] = field(default_factory=set)

    @property
    def is_nothing(self) -> bool:
        return self.batches is None and not self.applied


class ShardReader:
    """Reads shard by shard.  `draw` is called by one thread, `applied` by another.

    is_answered: whether the coordinator answered the last request for a shard.
    begin: starts to read a shard.  read: its next batch, as arrays; None at its end.
    """

    def __init__(
        self, name: str, sharding: Sharding, begin: Callable[[Shard], None], read: Callable[[], list[Array] | None]
    ) -> None:
        self.sharding = sharding
        self._name = name
        self._open, self._read = begin, read
        self._source: ShardSource | None = None
        self._shard: Shard | None = None  # that is read
        self._number = 0  # of its next batch
        self._unopened: Shard | None = None  # that could not be read; the next draw skips it
        self._empty = 0  # shards in a row that had none
        self.is_answered = False
        self._lock = threading.Lock()  # guards what follows
        self._news: dict[int, _Unreported] = {}  # by ticket

    def take_from(self, source: ShardSource) -> None:
        """Sets the source of shards, before the first `draw`."""
        self._source = source

    @property
    def reason(self) -> str:
        """Why there is no batch, for people."""
        return self._source.reason if self._source else ""

    def draw(self) -> DrawnBatch | None:
        """The next batch; None if there is no shard to read now.

        Raises:
            UsageError: no shard has a batch.
            The error that ends the training, or that of the input: the next call continues behind that batch.
        """
        if self._unopened is not None:
            self._leave(self._unopened)
            self._unopened = None
        while True:
            if self._shard is None and not self._take():
                return None
            assert self._shard is not None
            arrays = self._read()
            if arrays is not None:
                self._number, self._empty = self._number + 1, 0
                return DrawnBatch(arrays, (ShardBatch(self._shard, self._number - 1),))
            self._end(self._shard)

    def applied(self, batch: list[Array]) -> None:
        """Notes that a batch is in the variables, or was skipped."""
        if isinstance(batch, DrawnBatch):
            with self._lock:
                for each in batch.of:
                    self._news.setdefault(each.shard.ticket, _Unreported()).applied.add(each.number)

    def _take(self) -> bool:
        assert self._source is not None, "`take_from` comes first"
        shard, calls_off = None, True
        while shard is None and calls_off:
            news = self._unreported()
            shard, answered = self._source.take(self.sharding, news, partial(self._is_all, news))
            self.is_answered = answered
            if answered:
                self._forget(news)
            calls_off = not answered and not self._is_all(news)
        if shard is None:
            return False
        self._shard, self._number = shard, 0
        try:
            self._open(shard)
        except UserCodeError:
            self._shard, self._unopened = None, shard
            raise
        return True

    def _end(self, shard: Shard) -> None:
        self._empty += self._number == 0
        if self._empty >= self.sharding.count:
            raise UsageError(
                f"{self._name} gave no batch for any shard of {self.sharding.size} examples; is batch_size larger?"
            )
        self._leave(shard)

    def _leave(self, shard: Shard) -> None:
        with self._lock:
            self._news.setdefault(shard.ticket, _Unreported()).batches = self._number
        self._shard = None

    def _unreported(self) -> list[ShardNews]:
        with self._lock:
            return [ShardNews(ticket, of.batches, frozenset(of.applied)) for ticket, of in self._news.items()]

    def _is_all(self, news: list[ShardNews]) -> bool:
        """Whether nothing else is unreported."""
        return self._unreported() == news

    def _forget(self, answered: Sequence[ShardNews]) -> None:
        with self._lock:
            for each in answered:
                remainder = self._news[each.ticket]
                remainder.batches = None if each.batches is not None else remainder.batches
                remainder.applied -= each.applied
                if remainder.is_nothing:
                    del self._news[each.ticket]
