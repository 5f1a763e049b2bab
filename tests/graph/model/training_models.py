"""Models that train by more than one plain optimizer: what is not trainable, penalties, limits, other optimizers."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.model import ModelSpec
from tests.support.small_models import ROWS, error, get, linear

# --- variables that are not trainable ---


def frozen_dense(x: Any, y: Any, _: Any) -> Any:
    scale = tf1.get_variable("scale", initializer=tf1.constant([1.0, 2.0, 3.0, 4.0, 5.0]), trainable=False)
    return linear(x * scale, get("kernel", [5, 1]), y)


def counted(x: Any, y: Any, _: Any) -> Any:
    count = tf1.get_variable("count", [], tf1.int64, initializer=tf1.zeros_initializer(), trainable=False)
    loss = linear(x, get("kernel", [5, 1]), y)
    return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 0.05, updates=[count.assign_add(2)])


def averaged(x: Any, y: Any, _: Any) -> Any:
    level = tf1.get_variable("level", [], initializer=tf1.ones_initializer(), trainable=False)
    average = tf1.train.ExponentialMovingAverage(0.5)
    update = average.apply([level, tf1.reduce_mean(x)])
    return ModelSpec(linear(x, get("kernel", [5, 1]) * average.average(level), y), updates=[update],
                     optimizer=tf1.train.GradientDescentOptimizer, learning_rate=0.05)  # fmt: skip


def with_metrics(x: Any, y: Any, _: Any) -> Any:
    loss = linear(x, get("kernel", [5, 1]), y)
    _, update = tf1.metrics.mean(loss)
    return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 0.05, updates=[update])


def annealed(x: Any, y: Any, _: Any) -> Any:
    step = tf1.cast(tf1.train.get_or_create_global_step(), tf1.float32)
    return linear(x, get("kernel", [5, 1]), y) / (1.0 + step)


def regularized(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 1], regularizer=tf1.nn.l2_loss)
    return linear(x, kernel, y) + tf1.add_n(tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES))


def constrained(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 2], constraint=lambda v: tf1.clip_by_norm(tf1.maximum(v, 0.0), 0.4, axes=[0]))
    return error(tf1.reduce_sum(tf1.matmul(x, kernel), axis=1), y)


def summarized(x: Any, y: Any, _: Any) -> Any:
    kernel = get("kernel", [5, 1])
    tf1.summary.histogram("kernel", kernel)
    loss = linear(x, kernel, y)
    tf1.summary.scalar("loss", loss)
    return loss


# --- optimizers ---


class ByNorm(tf1.train.GradientDescentOptimizer):  # type: ignore[misc]
    """Looks at a whole variable, in its shape, and keeps a slot that it does not tell of (as BERT's AdamW does)."""

    def apply_gradients(self, pairs: Any, global_step: Any = None, name: str | None = None) -> Any:
        scaled = []
        for gradient, variable in pairs:
            assert variable.shape.rank == 2
            steps = tf1.get_variable(
                f"{variable.op.name}/steps", [], initializer=tf1.zeros_initializer(), trainable=False
            )
            counted = steps.assign_add(1.0 + 0.0 * tf1.reduce_sum(gradient))
            scaled.append((gradient / (tf1.norm(gradient, axis=0, keepdims=True) + counted), variable))
        return super().apply_gradients(scaled, global_step, name)


def by_norm(x: Any, y: Any, _: Any) -> Any:
    hidden = tf1.tanh(tf1.matmul(x, get("hidden", [5, 4])))
    return ModelSpec(linear(hidden, get("head", [4, 1], 2), y), ByNorm, 0.1)


def by_pattern(x: Any, y: Any, ids: Any) -> Any:
    deep = tf1.matmul(tf1.nn.embedding_lookup(get("deep/table", [ROWS, 4], 3), ids), get("deep/head", [4, 1]))
    loss = error(tf1.matmul(x, get("wide/kernel", [5, 1])) + deep, y)
    optimizers = {"wide/*": tf1.train.FtrlOptimizer, "*": tf1.train.AdagradOptimizer}
    return ModelSpec(loss, optimizers, {"wide/*": 0.1, "*": lambda step: 0.2 * 0.9**step})


def untrained(x: Any, y: Any, _: Any) -> Any:
    get("unused", [3])
    return linear(x, get("kernel", [5, 1]), y)
