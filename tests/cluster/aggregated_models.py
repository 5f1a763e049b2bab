"""A model with variables that it changes itself, each under another aggregation."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime import Context, ModelSpec

WORKERS = 3


def input_fn(context: Context) -> Any:
    """(index of the worker int64 [batch], zeros float32 [batch])."""
    dataset = tf1.data.Dataset.from_tensors((tf1.constant(context.worker_index, tf1.int64), 0.0))
    return dataset.repeat(8).batch(context.batch_size)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    settings = {"trainable": False, "initializer": tf1.zeros_initializer()}
    kinds = tf1.VariableAggregation
    examples = tf1.get_variable("examples", [WORKERS], aggregation=kinds.SUM, **settings)
    pushes = tf1.get_variable("pushes", [], tf1.int64, aggregation=kinds.SUM, **settings)
    of_chief = tf1.get_variable("of_chief", [], tf1.int64, aggregation=kinds.ONLY_FIRST_REPLICA, **settings)
    mean = tf1.get_variable("mean", [], aggregation=kinds.MEAN, **settings)
    of_each = tf1.get_variable("of_each", [], tf1.int64, **settings)
    weight = tf1.get_variable("weight", [])
    updates = [
        tf1.scatter_add(examples, features, tf1.ones_like(labels)),
        *(count.assign_add(1) for count in (pushes, of_chief, of_each)),
        mean.assign_add(tf1.reduce_mean(tf1.cast(features, tf1.float32))),
    ]
    loss = tf1.reduce_mean(tf1.square(weight - labels))
    return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 0.1, updates=updates)
