"""A model whose gradient does not depend on its parameters: from a record one can compute what the updates add up to.

The n-th batch of a worker has the gradient `gradient(n, seed)`.  Worker SLOW takes a while between pull and push.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime import Context, ModelSpec

WIDTH, RATE = 3, 0.05
SLOW, SLOW_S, STEP_S = 2, 0.06, 0.004


def gradient(number: Any, seed: Any) -> Any:
    """[WIDTH], of the batch with this number, from 0; of numbers or of tensors."""
    return [(number * 37 + seed * 101 + k * 13) % 997 / 997 - 0.5 for k in range(WIDTH)]


def input_fn(context: Context) -> Any:
    step_s = SLOW_S if context.worker_index == SLOW else STEP_S

    def batch(number: Any) -> Any:
        values = tf1.stack([tf1.cast(value, tf1.float64) for value in gradient(number, context.seed)])
        return (values[None], tf1.fill([1], tf1.constant(step_s, tf1.float64))), tf1.zeros([1])

    return tf1.data.Dataset.range(1 << 20 if context.mode == "train" else 1).map(batch)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    values, step_s = features

    def take_time(values: Any, step_s: Any) -> Any:
        time.sleep(float(step_s[0]))
        return values

    late = tf1.numpy_function(take_time, [values, step_s], tf1.float64)
    late.set_shape([1, WIDTH])
    w = tf1.get_variable("w", [WIDTH], tf1.float64, initializer=tf1.zeros_initializer())
    return ModelSpec(tf1.reduce_sum(w * late), tf1.train.GradientDescentOptimizer, RATE)


def reference(updates: list[tuple[int, int, float]]) -> Any:
    """The parameters after these updates, (push, seed, weight), in any order; float64 [WIDTH]."""
    total = np.zeros(WIDTH)
    for push, seed, weight in updates:
        rate = np.float32(RATE) * np.float32(weight)  # as the ps has it
        total -= np.float64(rate) * np.array(gradient(push - 1, seed))
    return total
