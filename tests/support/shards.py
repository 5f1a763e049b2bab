"""Data shards of one process: a source that asks the coordinator's own state machine, and a model that counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime import Context, ModelSpec
from psruntime.core.shards.shard_messages import Position, Shard, ShardAnswer, ShardBatch, Sharding, ShardNews
from psruntime.core.shards.shards import Shards
from psruntime.model import Model


class LockedShards(Shards):
    """As the coordinator has them: one call at a time, and no shard for an incarnation that was lost.

    A worker's input takes shards in a thread of its own.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._lock = threading.RLock()
        self._lost: set[int] = set()

    def take(self, incarnation: int, seen: int) -> ShardAnswer:
        with self._lock:
            return ShardAnswer() if incarnation in self._lost else super().take(incarnation, seen)

    def hear(self, incarnation: int, news: Iterable[ShardNews]) -> None:
        with self._lock:
            super().hear(incarnation, news)

    def applied(self, incarnation: int, batches: Iterable[ShardBatch]) -> None:
        with self._lock:
            super().applied(incarnation, batches)

    def lose(self, incarnation: int, why: str) -> None:
        with self._lock:
            self._lost.add(incarnation)
            super().lose(incarnation, why)

    def restore(self, position: Position) -> None:
        with self._lock:
            super().restore(position)


@dataclass
class LocalShards:
    """The shards of a job as one worker, an incarnation, takes them.  Never waits for one."""

    shards: Shards = field(default_factory=Shards)
    incarnation: int = 1
    seen: int = 0
    taken: list[Shard] = field(default_factory=list)

    @property
    def reason(self) -> str:
        return self.shards.waits_for

    def take(
        self, sharding: Sharding, news: Sequence[ShardNews], is_wanted: Callable[[], bool]
    ) -> tuple[Shard | None, bool]:
        self.shards.agree(sharding)
        self.shards.hear(self.incarnation, news)
        shard = self.shards.take(self.incarnation, self.seen).shard
        if shard:
            self.seen = shard.ticket
            self.taken.append(shard)
        return shard, True

    def position(self) -> Position:
        return self.shards.position


def counting_model(examples: int, size: int | None = None, **more: Any) -> Model:
    """A model whose variable `counts`, float32 [examples], has how often each example was in an applied update.

    More: what to do with the dataset of a shard's ids before it is batched, as `change`.  Each example pulls its own
    entry up by 1: the loss is the mean over the batch, so what it pulls is multiplied by the batch's size.
    """
    change = more.pop("change", lambda dataset: dataset)

    def input_fn(context: Context) -> Any:
        begin, end = context.shards(examples, size)
        return change(tf1.data.Dataset.range(begin, end)).batch(context.batch_size)

    def model_fn(ids: Any, labels: Any, mode: str) -> ModelSpec:
        counts = tf1.get_variable("counts", [examples], initializer=tf1.zeros_initializer())
        read = tf1.reduce_sum(tf1.one_hot(ids, examples) * counts, axis=1)
        loss = -tf1.reduce_mean(read) * tf1.cast(tf1.size(ids), tf1.float32)
        return ModelSpec(loss, tf1.train.GradientDescentOptimizer, learning_rate=1.0, **more)

    return Model("tests.counting", input_fn, model_fn)
