"""A model with embedding tables: skewed ids, several times in a batch, and some rows that are never looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.model import Context, Model, ModelSpec

ROWS, WIDTH, IDS = 50, 6, 4


def input_fn(context: Context) -> Any:
    """(ids int64 [batch, IDS], labels float32 [batch]), the same in every run."""

    def example(i: Any) -> tuple[Any, Any]:
        draw = tf1.random.stateless_uniform([IDS], seed=[tf1.cast(i, tf1.int32), 1])
        ids = tf1.cast(tf1.floor(draw * draw * (ROWS - 5)), tf1.int64)
        return ids, tf1.reduce_sum(tf1.sin(tf1.cast(ids, tf1.float32)))

    return tf1.data.Dataset.range(1000).map(example).batch(context.batch_size)


def make_variables() -> tuple[Any, Any, Any, Any]:
    """(embedding [ROWS, WIDTH], wide [ROWS], kernel [IDS x WIDTH, 1], bias [1])"""
    with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
        normal = tf1.truncated_normal_initializer(stddev=0.5, seed=7)
        return (
            tf1.get_variable("embedding", [ROWS, WIDTH], initializer=normal),
            tf1.get_variable("wide", [ROWS], initializer=tf1.zeros_initializer()),
            tf1.get_variable("kernel", [IDS * WIDTH, 1], initializer=normal),
            tf1.get_variable("bias", [1], initializer=tf1.zeros_initializer()),
        )


def predict(ids: Any) -> Any:
    """ids [batch, IDS] -> [batch], by two lookups of `embedding` and one of `wide`."""
    embedding, wide, kernel, bias = make_variables()
    rows = tf1.reshape(tf1.nn.embedding_lookup(embedding, ids), [-1, IDS * WIDTH])
    first = tf1.reduce_sum(tf1.gather(embedding, tf1.cast(ids[:, 0], tf1.int32)), axis=1)
    return tf1.matmul(rows, kernel)[:, 0] + bias + first + tf1.reduce_sum(tf1.gather(wide, ids), axis=1)


def embedding_model(
    optimizer: Callable[[Any], Any],
    learning_rate: float = 0.1,
    loss: Callable[[Any, Any], Any] | None = None,
    **spec: Any,
) -> Model:
    """`loss(ids, labels)` in place of the mean square error of `predict`; `spec` goes to ModelSpec."""

    def mean_square(ids: Any, labels: Any) -> Any:
        return tf1.reduce_mean(tf1.square(predict(ids) - labels))

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        value = (loss or mean_square)(features, labels)
        metrics = {"mean_prediction": tf1.metrics.mean(predict(features))} if mode == "eval" else None
        return ModelSpec(value, optimizer, learning_rate, metrics=metrics, **spec)

    return Model("tests.embedding", input_fn, model_fn)
