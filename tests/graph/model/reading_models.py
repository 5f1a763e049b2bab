"""Models that read variables in ways of their own: in loops, in functions, by lookups."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from tests.support.control_flow import control_flow
from tests.support.small_models import ROWS, UNIFORM, Build, error, get, linear


def tied(x: Any, y: Any, ids: Any) -> Any:
    table = get("table", [ROWS, 5], 3)
    return error(
        tf1.reduce_sum(tf1.nn.embedding_lookup(table, ids) + tf1.matmul(x, table, transpose_b=True)[:, :5], 1), y
    )


def while_loop(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 5])
    _, out = tf1.while_loop(lambda i, _: i < 3, lambda i, value: (i + 1, tf1.matmul(value, kernel)), [0, x])
    return error(tf1.reduce_sum(out, axis=1), y)


def branches(x: Any, y: Any, _: Any) -> Any:
    left, right = get("left", [5, 1]), get("right", [5, 1], 2)
    return error(tf1.cond(tf1.reduce_sum(y) > 1e9, lambda: tf1.matmul(x, left), lambda: tf1.matmul(x, right)), y)


def lookup_in_loop(_x: Any, y: Any, ids: Any) -> Any:
    table = get("table", [ROWS, 1], 3)
    _, out = tf1.while_loop(
        lambda i, _: i < 2, lambda i, t: (i + 1, t + tf1.nn.embedding_lookup(table, ids)), [0, tf1.zeros([8, 1])],
        shape_invariants=[tf1.TensorShape([]), tf1.TensorShape([None, 1])],
    )  # fmt: skip
    return error(out, y)


def mapped(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 1])
    return error(tf1.map_fn(lambda row: tf1.matmul(row[tf1.newaxis], kernel)[0], x), y)


def scanned(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 5])
    return error(tf1.reduce_sum(tf1.scan(lambda before, row: tf1.linalg.matvec(kernel, before) + row, x), 1), y)


def in_function(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 1])

    @tf.function
    def predict(value: Any) -> Any:
        return tf1.matmul(value, kernel)

    return error(predict(x), y)


def custom_gradient(x: Any, y: Any, _: Any) -> Any:
    @tf1.custom_gradient
    def doubled(value: Any) -> Any:
        return tf1.identity(value), lambda upstream: 2.0 * upstream

    return linear(x, doubled(get("kernel", [5, 1]).value()), y)


def penalized(x: Any, y: Any, _: Any) -> Any:
    """The loss has gradients with respect to variables in it."""
    kernel, head = get("kernel", [5, 3]), get("head", [3, 1], 2)
    loss = linear(tf1.tanh(tf1.matmul(x, kernel)), head, y)
    gradients = tf1.gradients(loss, tf1.trainable_variables())
    return loss + 0.1 * tf1.add_n([tf1.reduce_sum(tf1.square(g)) for g in gradients if g is not None])


def sparse_ids(_x: Any, y: Any, ids: Any) -> Any:
    rows = tf1.SparseTensor(tf1.stack([tf1.range(8, dtype=tf1.int64), tf1.zeros([8], tf1.int64)], 1), ids, [8, 1])
    found = tf1.nn.embedding_lookup_sparse(get("table", [ROWS, 4], 3), rows, None, combiner="sum")
    return linear(found, get("head", [4, 1]), y)


def feature_column(_x: Any, y: Any, ids: Any) -> Any:
    column = tf1.feature_column.categorical_column_with_identity("id", ROWS)
    embedded = tf1.feature_column.embedding_column(column, 4, initializer=UNIFORM(seed=3))
    return linear(tf1.feature_column.input_layer({"id": ids}, [embedded]), get("head", [4, 1]), y)


def hash_table(_x: Any, y: Any, ids: Any) -> Any:
    pairs = tf.lookup.KeyValueTensorInitializer(
        tf1.range(ROWS, dtype=tf1.int64), tf1.range(ROWS, dtype=tf1.int64)[::-1]
    )
    found = tf.lookup.StaticHashTable(pairs, -1).lookup(tf1.cast(ids, tf1.int64))
    return linear(tf1.nn.embedding_lookup(get("table", [ROWS, 4], 3), found), get("head", [4, 1]), y)


def under(v2: bool, build: Build) -> Build:
    """The same model with control flow of version 2, or of version 1."""

    def under_control_flow(x: Any, y: Any, ids: Any) -> Any:
        with control_flow(v2):
            return build(x, y, ids)

    return under_control_flow
