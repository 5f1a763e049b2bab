"""embedding_tables for ParameterServerStrategy, see strategy.py: a variable for each table, which it cuts over the ps.

Data, initial values, optimizer and learning rate are the same.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from benchmarks import embedding_tables
from benchmarks.embedding_tables import sparse
from benchmarks.table_data import HIDDEN, INITIAL, INITIAL_ACCUMULATOR, LEARNING_RATE, Tables, here

MIN_PART_BYTES = 256 << 10  # as TensorFlow's own guide has it, and as its partitioner does by itself
input_fn = embedding_tables.input_fn


def partitioner(num_ps: int) -> Any:
    """Small variables stay whole."""
    return tf.distribute.experimental.partitioners.MinSizePartitioner(MIN_PART_BYTES, num_ps)


def model() -> tuple[list[Any], Any, Any]:
    """Squared error of a layer of HIDDEN units on the concatenated rows; Adagrad."""
    sizes = here()
    uniform = tf.keras.initializers.RandomUniform(-INITIAL, INITIAL)
    glorot = tf.keras.initializers.GlorotUniform()
    tables = [_variable(f"table_{number}", uniform, sizes.rows, sizes.width) for number in range(sizes.count)]
    kernel = _variable("kernel", glorot, sizes.count * sizes.width, HIDDEN)
    head = _variable("head", glorot, HIDDEN, 1)

    def loss(ids: Any, labels: Any) -> Any:
        rows = tf.concat([_looked_up(table, ids[:, i], sizes) for i, table in enumerate(tables)], axis=1)
        error = tf.matmul(tf.nn.relu(tf.matmul(rows, kernel)), head)[:, 0] - labels
        return tf.reduce_mean(tf.square(error))

    trained = [part for variable in (*tables, kernel, head) for part in getattr(variable, "variables", [variable])]
    optimizer = tf.keras.optimizers.legacy.Adagrad(LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR)
    return trained, loss, optimizer


def _variable(name: str, initial: Any, *shape: int) -> Any:
    """Its initial values are made on the ps, each part's on its own."""
    return tf.Variable(partial(initial, shape=shape, dtype=tf.float32), shape=shape, dtype=tf.float32, name=name)


def _looked_up(table: Any, ids: Any, sizes: Tables) -> Any:
    if sizes.ids == 1:
        return tf.nn.embedding_lookup(table, ids[:, 0])
    return tf.nn.embedding_lookup_sparse(table, sparse(ids), None, combiner="sum")
