"""Small models: what the tests that need one of a few lines are put together from.

A model is a function of (features float32 [8, 5], labels float32 [8], ids int32 [8] below 7).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.model import Context, Model, ModelSpec

ROWS = 7
UNIFORM = partial(tf1.random_uniform_initializer, -0.5, 0.5)

Build = Callable[[Any, Any, Any], Any]  # makes the loss, or the whole ModelSpec


def get(name: str, shape: list[int], seed: int = 1, **settings: Any) -> Any:
    return tf1.get_variable(name, shape, initializer=UNIFORM(seed=seed), **settings)


def error(prediction: Any, labels: Any) -> Any:
    return tf1.reduce_mean(tf1.square(tf1.reshape(prediction, [-1]) - labels))


def linear(x: Any, kernel: Any, y: Any) -> Any:
    return error(tf1.matmul(x, kernel), y)


def of_kernel(make: Callable[[], Any]) -> Build:
    """A linear model of a kernel [5, 1]."""
    return lambda x, y, _: linear(x, make(), y)


def of_table(read: Callable[[Any, Any], Any], **settings: Any) -> Build:
    """A model of a table [7, 4], of which `read` makes [8, 4] from the ids, and a head on it."""

    def build(_x: Any, y: Any, ids: Any) -> Any:
        return linear(read(get("table", [ROWS, 4], 3, **settings), ids), get("head", [4, 1]), y)

    return build


def model_of(build: Build) -> Model:
    def input_fn(context: Context) -> Any:
        def example(i: Any) -> Any:
            x = tf1.random.stateless_uniform([5], seed=[tf1.cast(i, tf1.int32), 1])
            return {"x": x, "id": tf1.cast(i * i % ROWS, tf1.int32)}, tf1.reduce_sum(x * x)

        return tf1.data.Dataset.range(1000).map(example).batch(context.batch_size, drop_remainder=True)

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        made = build(features["x"], labels, features["id"])
        return made if isinstance(made, ModelSpec) else ModelSpec(made, tf1.train.AdagradOptimizer, 0.1)

    return Model("tests.table", input_fn, model_fn)
