"""scikit-learn's digits by data shards, and a variable `counts` that has how often each example was in an update.

The ps count, with the gradient: each example pulls its own entry up by 1, whatever else a batch has.  In mode sync a
round takes the mean of its batches, so there `counts` says only which examples were in one at all.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import tensorflow.compat.v1 as tf1
from sklearn.datasets import load_digits

from psruntime import Context, ModelSpec
from psruntime.examples.layers import dense

EXAMPLES = 1437  # for training
SIZE = 64  # of a shard: 23 of them
STEP_S = 0.04  # what a step takes beside pull and push, so that a test can do something meanwhile


@cache
def _data() -> tuple[Any, Any]:
    digits = load_digits()
    return (digits.data / 16).astype("float32"), digits.target.astype("int64")


def input_fn(context: Context) -> Any:
    """Batches of ({pixels, ids}, labels)."""
    pixels, labels = _data()
    begin, end = context.shards(EXAMPLES, SIZE)

    def example(i: Any) -> Any:
        return {"pixels": tf1.gather(pixels, i), "ids": i}, tf1.gather(labels, i)

    dataset = tf1.data.Dataset.range(begin, end)
    if context.mode == "train":
        dataset = dataset.shuffle(SIZE, seed=context.seed)
    return dataset.map(example).batch(context.batch_size).prefetch(1)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    """A softmax regression, and the counts."""

    def take_time(pixels: Any) -> Any:
        time.sleep(STEP_S)
        return pixels

    pixels, ids = features["pixels"], features["ids"]
    if mode == "train":
        pixels = tf1.ensure_shape(tf1.numpy_function(take_time, [pixels], tf1.float32), pixels.shape)
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, dense(pixels, 10, "logits"))
    counts = tf1.get_variable("counts", [EXAMPLES], initializer=tf1.zeros_initializer())
    pull = tf1.reduce_sum(tf1.one_hot(ids, EXAMPLES) * counts)
    loss += tf1.stop_gradient(pull) - pull  # which is 0
    optimizers = {"counts": tf1.train.GradientDescentOptimizer, "*": tf1.train.AdamOptimizer}
    return ModelSpec(loss, optimizers, learning_rate={"counts": 1.0, "*": 2e-3})
