"""The model of the table benchmarks: embedding tables and two dense layers.  Ours and the peers build it alike.

A model module of psruntime.  Its size and its data are those of table_data.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from benchmarks.step_times import StepTimes
from benchmarks.table_data import HIDDEN, INITIAL, INITIAL_ACCUMULATOR, LEARNING_RATE, Tables, drawn, here
from psruntime import Context, ModelSpec, optimizers

OPTIMIZERS = {
    "adagrad": partial(tf1.train.AdagradOptimizer, initial_accumulator_value=INITIAL_ACCUMULATOR),
    "adam": tf1.train.AdamOptimizer,
    "lazy-adam": optimizers.LazyAdam,
    "rowwise-adagrad": optimizers.RowwiseAdagrad,
    "sgd": tf1.train.GradientDescentOptimizer,
}


def input_fn(context: Context) -> Any:
    """(ids int64 [batch, tables, ids an example], labels float32 [batch]): random, of their own in every worker."""
    drawn_here = drawn(here(), context.batch_size, context.worker_index)
    dataset = tf1.data.Dataset.from_tensor_slices(drawn_here).batch(context.batch_size, drop_remainder=True)
    return dataset.cache().prefetch(2)


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
