"""Models of the cluster tests: small, fast to build, no data files.

A test process puts this folder on its path and names the module `tests.cluster.models`, or one of the
classes' modules written next to its logs.
"""

from __future__ import annotations

import time
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime import Context, ModelSpec

STEP_S = 0.005  # what a step takes beside pull and push, so that many workers share two cores


def input_fn(context: Context) -> Any:
    """Batches of (x [batch, 4], y [batch])."""
    if context.mode == "eval":
        return tf1.data.Dataset.from_tensors((tf1.ones([8, 4]), tf1.ones([8])))
    dataset = tf1.data.Dataset.range(1 << 20).map(
        lambda i: tf1.random.stateless_uniform([4], seed=[tf1.cast(i, tf1.int32), context.seed])
    )
    return dataset.map(lambda x: (x, tf1.reduce_sum(x))).batch(context.batch_size)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    return model_with(STEP_S, features, labels)


def model_with(step_s: float, features: Any, labels: Any, width: int = 8) -> ModelSpec:
    """A model whose steps wait so long, without using a processor, as an accelerator would make a worker wait."""

    def take_time(features: Any) -> Any:
        time.sleep(step_s)
        return features

    features = tf1.reshape(tf1.numpy_function(take_time, [features], tf1.float32), tf1.shape(features))
    features.set_shape([None, 4])
    kernel = tf1.get_variable("kernel", [4, width], initializer=tf1.glorot_uniform_initializer(seed=1))
    head = tf1.get_variable("head", [width, 1], initializer=tf1.glorot_uniform_initializer(seed=2))
    error = tf1.matmul(tf1.matmul(features, kernel), head)[:, 0] - labels
    return ModelSpec(tf1.reduce_mean(tf1.square(error)), tf1.train.GradientDescentOptimizer, 0.02)
