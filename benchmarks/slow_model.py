"""The model of stock_async.py for psruntime, with the same pause in each step."""

from __future__ import annotations

import time
from typing import Any

import tensorflow.compat.v1 as tf1

from benchmarks.stock_async import STEP_S
from psruntime import Context, ModelSpec


def input_fn(context: Context) -> Any:
    """Features [batch, 64] float32, drawn anew for each batch; the labels are not used."""
    dataset = tf1.data.Dataset.range(1 << 40 if context.mode == "train" else 1)
    return dataset.map(lambda i: (tf1.random.stateless_uniform([context.batch_size, 64], seed=[0, i]), i))


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:  # noqa: ARG001 - the same in every mode
    """A kernel [64, 10], and Adam."""

    def take_time(features: Any) -> Any:
        time.sleep(STEP_S)
        return features

    features = tf1.ensure_shape(tf1.numpy_function(take_time, [features], tf1.float32), features.shape)
    kernel = tf1.get_variable("kernel", [64, 10])
    return ModelSpec(tf1.reduce_mean(tf1.square(tf1.matmul(features, kernel))), tf1.train.AdamOptimizer)
