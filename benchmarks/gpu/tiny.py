"""NVIDIA's synthetic recommender "Tiny" (distributed-embeddings, examples/benchmarks/synthetic_models, version 3).

55 tables of 4.2 GiB, 85 ids an example whose frequencies follow a power law of exponent 1.05, ten numbers, and dense
layers of 256, 128 and 1; Adagrad.  NVIDIA publishes 24.4 ms for a batch of 65,536 on one A100, with the
tables on the GPU.
PSRUNTIME_TINY_ROWS divides the numbers of rows, to try it on a small machine.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf1

from benchmarks.gpu.gate import hooks
from psruntime import Context, ModelSpec


class Tables(NamedTuple):
    """number: tables alike.  hotness: ids of an example for each lookup of a table, which are summed."""

    number: int
    hotness: tuple[int, ...]
    rows: int
    width: int


TINY = (
    Tables(1, (1, 10), 10_000, 8),
    Tables(1, (1, 10), 1_000_000, 16),
    Tables(1, (1, 10), 25_000_000, 16),
    Tables(1, (1,), 25_000_000, 16),
    Tables(16, (1,), 10, 8),
    Tables(10, (1,), 1_000, 8),
    Tables(4, (1,), 10_000, 8),
    Tables(2, (1,), 100_000, 16),
    Tables(19, (1,), 1_000_000, 16),
)
NUMBERS = 10
LAYERS = (256, 128)
EXPONENT = 1.05
BATCHES = 4  # different ones
SMALLER = int(os.environ.get("PSRUNTIME_TINY_ROWS", "1"))


def lookups() -> list[tuple[str, int, int, int]]:
    """(table, rows, width, ids of an example) of each."""
    tables = [
        (f"table_{kind}_{each}", max(2, alike.rows // SMALLER), alike.width, alike.hotness)
        for kind, alike in enumerate(TINY)
        for each in range(alike.number)
    ]
    return [(name, rows, width, hot) for name, rows, width, hotness in tables for hot in hotness]


def input_fn(context: Context) -> Any:
    """Batches of ((numbers [batch, NUMBERS] float32, ids [batch, 85] int32), labels [batch, 1] float32)."""
    random = np.random.RandomState(context.seed)
    size = context.batch_size
    batches = [
        (
            random.uniform(0, 1, [size, NUMBERS]).astype(np.float32),
            np.concatenate([_ids(random, size, hot, rows) for _, rows, _, hot in lookups()], axis=1),
            random.randint(2, size=[size, 1]).astype(np.float32),
        )
        for _ in range(BATCHES)
    ]

    def endlessly() -> Any:
        number = 0
        while context.mode == "train" or number < BATCHES:
            numbers, ids, labels = batches[number % BATCHES]
            yield (numbers, ids), labels
            number += 1

    of_ids = sum(hot for *_, hot in lookups())
    types = (tf1.float32, tf1.int32), tf1.float32
    shapes = ([size, NUMBERS], [size, of_ids]), [size, 1]
    return tf1.data.Dataset.from_generator(endlessly, types, shapes).prefetch(2)


def _ids(random: np.random.RandomState, size: int, hot: int, rows: int) -> Any:
    """[size, hot] int32 below `rows`, the inverse of a power law's distribution at uniform numbers."""
    power = 1 - EXPONENT
    drawn = (random.uniform(size=[size, hot]) * ((rows + 1) ** power - 1) + 1) ** (1 / power)
    return np.minimum(drawn.astype(np.int32) - 1, rows - 1)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:  # noqa: ARG001
    """The rows of each lookup are summed; numbers and sums go through the dense layers."""
    numbers, ids = features
    parts, at = [], 0
    with tf1.variable_scope("tables", reuse=tf1.AUTO_REUSE):
        for name, rows, width, hot in lookups():
            table = tf1.get_variable(name, [rows, width], initializer=tf1.random_uniform_initializer(-0.05, 0.05))
            found = tf1.nn.embedding_lookup(table, ids[:, at : at + hot])
            parts.append(tf1.reduce_sum(found, axis=1) if hot > 1 else found[:, 0])
            at += hot
    hidden = tf1.concat([*parts, numbers], axis=1)
    for units in LAYERS:
        hidden = tf1.layers.dense(hidden, units, activation=tf1.nn.relu)
    loss = tf1.reduce_mean(tf1.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=tf1.layers.dense(hidden, 1)))
    return ModelSpec(loss, optimizer=tf1.train.AdagradOptimizer, learning_rate=0.01, hooks=hooks())
