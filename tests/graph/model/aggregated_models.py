"""Variables that the model changes itself and that have an aggregation; numpy says what each batch adds to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.model import ModelSpec
from tests.support.small_models import ROWS, get, linear

SUM, MEAN, FIRST = (getattr(tf1.VariableAggregation, name) for name in ("SUM", "MEAN", "ONLY_FIRST_REPLICA"))


def own(name: str, shape: list[int], aggregation: Any, dtype: Any = "float32", **more: Any) -> Any:
    settings = {"trainable": False, "aggregation": aggregation, "initializer": tf1.zeros_initializer(), **more}
    return tf1.get_variable(name, shape, tf1.as_dtype(dtype), **settings)


def spec_of(loss: Any, updates: list[Any]) -> ModelSpec:
    return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 1e-3, updates=updates)


def every_kind(x: Any, y: Any, ids: Any) -> ModelSpec:
    """One of each; the loss reads two of them as they are before the step."""
    counts, steps = own("counts", [ROWS], SUM), own("steps", [], SUM, "int64", use_resource=True)
    centre, average = own("centre", [5], MEAN), own("average", [], MEAN, "float64")
    first, last = own("first", [], FIRST, "int32"), own("last", [2], FIRST)
    batch_mean = tf1.reduce_mean(x, axis=0)
    with tf1.control_dependencies([tf1.identity(counts), tf1.identity(centre)]):
        loss = linear(x, get("kernel", [5, 1]), y) + 0.0 * tf1.reduce_sum(counts) + 0.0 * tf1.reduce_sum(centre)
    with tf1.control_dependencies([loss]):
        updates = [
            tf1.scatter_add(counts, ids, tf1.ones_like(y)),
            tf1.assign(steps, steps + 1),
            centre.assign_add(0.5 * (batch_mean - centre)),
            average.assign(tf1.cast(tf1.reduce_mean(y), tf1.float64)),
            first.assign_add(tf1.reduce_sum(ids)),
            last.assign(y[:2]),
        ]
    return spec_of(loss, updates)


class Batches:
    """Batch `number` of model_of: x float32 [8, 5], y float32 [8], ids int32 [8]."""

    def __init__(self, count: int) -> None:
        with tf1.Graph().as_default(), tf1.Session() as session:
            rows = tf1.stack([tf1.random.stateless_uniform([5], seed=[i, 1]) for i in range(8 * count)])
            self.x = session.run(rows).reshape(count, 8, 5)
        self.y = (self.x * self.x).sum(axis=2)
        self.ids = (np.arange(8 * count) ** 2 % ROWS).reshape(count, 8).astype(np.int32)

    def counts(self, *numbers: int) -> Any:
        return sum(np.bincount(self.ids[number], minlength=ROWS) for number in numbers)

    def arrays(self, number: int) -> list[Any]:
        """In the order in which a step is fed them."""
        return [self.ids[number], self.x[number], self.y[number]]


def check(saved: Mapping[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(saved[name], value, rtol=2e-6, err_msg=name)


def of_one_worker(batches: Batches, numbers: range) -> dict[str, Any]:
    centre = np.zeros(5)
    for number in numbers:
        centre += 0.5 * (batches.x[number].mean(axis=0) - centre)
    return {
        "counts": batches.counts(*numbers),
        "steps": len(numbers),
        "centre": centre,
        "average": batches.y[numbers[-1]].mean(),
        "first": sum(int(batches.ids[number].sum()) for number in numbers),
        "last": batches.y[numbers[-1]][:2],
    }
