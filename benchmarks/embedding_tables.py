"""The model of the table benchmarks: embedding tables and two dense layers.  Ours and the peers build it alike.

A model module of psruntime.  How large it is stands in the environment, see `Tables`.  Ids are drawn by a zipf law.
"""

from __future__ import annotations

import json
import os
from dataclasses import KW_ONLY, asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from benchmarks.step_times import StepTimes
from psruntime import Context, ModelSpec, optimizers

TABLES = "BENCHMARK_TABLES"
BATCHES = 8  # that are drawn and repeated
ZIPF = 1.2
HIDDEN = 64
INITIAL = 0.05  # the largest initial value of a table
LEARNING_RATE = 0.05
INITIAL_ACCUMULATOR = 0.1  # of Adagrad
OPTIMIZERS = {
    "adagrad": partial(tf1.train.AdagradOptimizer, initial_accumulator_value=INITIAL_ACCUMULATOR),
    "adam": tf1.train.AdamOptimizer,
    "lazy-adam": optimizers.LazyAdam,
    "rowwise-adagrad": optimizers.RowwiseAdagrad,
    "sgd": tf1.train.GradientDescentOptimizer,
}


@dataclass(frozen=True)
class Tables:
    """count tables of rows x width; ids: that an example has of each table, above 1 by embedding_lookup_sparse.

    optimizer: of OPTIMIZERS.  parts: of each table, for peers that cut tables by a partitioner.  fused: one variable
    for all tables, and one lookup, as by hand.
    """

    count: int
    rows: int
    width: int
    ids: int = 1
    _: KW_ONLY
    optimizer: str = "adagrad"
    parts: int = 1
    fused: bool = False

    def __str__(self) -> str:
        several = f", {self.ids} ids each an example" if self.ids > 1 else ""
        tables = "1 table" if self.count == 1 else f"{self.count} tables"
        return f"{tables} of {self.rows} x {self.width}{several}, {self.optimizer}"

    def environment(self) -> dict[str, str]:
        """Of a process that makes the model so."""
        return {TABLES: json.dumps(asdict(self))}


def here() -> Tables:
    """As this process's environment says."""
    return Tables(**json.loads(os.environ[TABLES]))


def input_fn(context: Context) -> Any:
    """(ids int64 [batch, tables, ids an example], labels float32 [batch]): random, of their own in every worker."""
    random = np.random.RandomState(context.worker_index)
    ids = drawn_ids(here(), context.batch_size, random)
    labels = random.uniform(size=len(ids)).astype("float32")
    dataset = tf1.data.Dataset.from_tensor_slices((ids, labels)).batch(context.batch_size, drop_remainder=True)
    return dataset.cache().prefetch(2)


def drawn_ids(tables: Tables, batch_size: int, random: np.random.RandomState) -> Any:
    """Of BATCHES batches, int64 [BATCHES x batch_size, tables, ids an example]."""
    shape = (BATCHES * batch_size, tables.count, tables.ids)
    return np.minimum(random.zipf(ZIPF, shape) - 1, tables.rows - 1).astype("int64")


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:  # noqa: ARG001 - the same in every mode
    """Squared error of a layer of HIDDEN units on the concatenated rows."""
    tables = here()
    rows = _fused(tables, features) if tables.fused else _each(tables, features)
    kernel = tf1.get_variable("kernel", [tables.count * tables.width, HIDDEN])
    head = tf1.get_variable("head", [HIDDEN, 1])
    error = tf1.matmul(tf1.nn.relu(tf1.matmul(rows, kernel)), head)[:, 0] - labels
    optimizer = OPTIMIZERS[tables.optimizer]
    return ModelSpec(tf1.reduce_mean(tf1.square(error)), optimizer, LEARNING_RATE, hooks=[StepTimes()])


def _variable(name: str, rows: int, tables: Tables) -> Any:
    partitioner = tf1.fixed_size_partitioner(tables.parts) if tables.parts > 1 else None
    values = tf1.random_uniform_initializer(-INITIAL, INITIAL)
    return tf1.get_variable(name, [rows, tables.width], initializer=values, partitioner=partitioner, use_resource=True)


def _each(tables: Tables, ids: Any) -> Any:
    found = []
    for number in range(tables.count):
        table = _variable(f"table_{number}", tables.rows, tables)
        if tables.ids == 1:
            found.append(tf1.nn.embedding_lookup(table, ids[:, number, 0], partition_strategy="div"))
        else:
            found.append(
                tf1.nn.embedding_lookup_sparse(
                    table, sparse(ids[:, number]), None, partition_strategy="div", combiner="sum"
                )
            )
    return tf1.concat(found, axis=1)


def sparse(ids: Any) -> Any:
    """[batch, ids] as the SparseTensor that embedding_lookup_sparse takes."""
    shape = tf1.shape(ids, out_type=tf1.int64)
    rows = tf1.repeat(tf1.range(shape[0]), shape[1])
    columns = tf1.tile(tf1.range(shape[1]), [shape[0]])
    return tf1.SparseTensor(tf1.stack([rows, columns], axis=1), tf1.reshape(ids, [-1]), shape)


def _fused(tables: Tables, ids: Any) -> Any:
    table = _variable("tables", tables.count * tables.rows, tables)
    offsets = np.arange(tables.count, dtype="int64")[:, np.newaxis] * tables.rows
    unique, positions = tf1.unique(tf1.reshape(ids + offsets, [-1]))
    rows = tf1.gather(tf1.nn.embedding_lookup(table, unique, partition_strategy="div"), positions)
    each = tf1.reshape(rows, [-1, tables.count, tables.ids, tables.width])
    return tf1.reshape(tf1.reduce_sum(each, axis=2), [-1, tables.count * tables.width])
