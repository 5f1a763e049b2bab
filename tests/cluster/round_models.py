"""Models for exactness in rounds: every worker has data of its own, every optimizer, dense or with a table."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime import Context, ModelSpec

OPTIMIZERS = {
    "sgd": tf1.train.GradientDescentOptimizer,
    "momentum": partial(tf1.train.MomentumOptimizer, momentum=0.9),
    "adam": tf1.train.AdamOptimizer,
    "adagrad": tf1.train.AdagradOptimizer,
    "rmsprop": tf1.train.RMSPropOptimizer,
    "ftrl": tf1.train.FtrlOptimizer,
}
IDS, ROWS = 3, 40


def input_fn(context: Context) -> Any:
    """((x [batch, 6], ids [batch, IDS]), y [batch]); `context.seed` makes the data."""

    def example(i: Any) -> Any:
        draw = tf1.random.stateless_uniform([6 + IDS], seed=[tf1.cast(i, tf1.int32), context.seed])
        ids = tf1.cast(draw[6:] * draw[6:] * (ROWS - 5), tf1.int64)  # skewed, and some are never drawn
        return (draw[:6], ids), tf1.sin(tf1.reduce_sum(draw) * 3)

    if context.mode == "eval":
        return tf1.data.Dataset.range(8).map(example).batch(8)
    return tf1.data.Dataset.range(64).map(example).shuffle(64, seed=context.seed).batch(context.batch_size)


def make(optimizer: str, *, table: bool, clip_norm: float | None = None, clip_value: float | None = None) -> Any:
    """A model_fn."""

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        x, ids = features
        normal = tf1.truncated_normal_initializer(stddev=0.5, seed=7)
        kernel = tf1.get_variable("kernel", [6, 16], initializer=normal)
        bias = tf1.get_variable("bias", [16], initializer=tf1.zeros_initializer())
        head = tf1.get_variable("head", [16], initializer=normal)
        y = tf1.reduce_sum(tf1.nn.tanh(tf1.matmul(x, kernel) + bias) * head, axis=1)
        if table:
            embedding = tf1.get_variable("embedding", [ROWS, 4], initializer=normal)
            y += tf1.reduce_sum(tf1.nn.embedding_lookup(embedding, ids), axis=[1, 2])
        return ModelSpec(
            tf1.reduce_mean(tf1.square(y - labels)), OPTIMIZERS[optimizer], lambda step: 0.05 * 0.97**step,
            clip_norm=clip_norm, clip_value=clip_value,
        )  # fmt: skip

    return model_fn
