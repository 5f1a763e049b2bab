"""The value of `context.shards`: the range of the input that is read, and how the input is cut."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import SupportsIndex

import tensorflow.compat.v1 as tf1

from psruntime.core.shards.shard_messages import Shard, Sharding
from psruntime.errors import UsageError
from psruntime.graph.base.types import Tensor
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
