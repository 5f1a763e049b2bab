"""A model module whose variables are 76 MB: dense layers of 4096, with Adam."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from benchmarks.gpu.gate import hooks
from psruntime import Context, ModelSpec

WIDTH = 4096
FEATURES = 256
EXAMPLES = 8192


def input_fn(context: Context) -> Any:
    """Batches of (features [batch, FEATURES] float32, labels [batch] int64, the sign of a product of two features)."""
    random = np.random.RandomState(context.seed)
    features = random.normal(size=[EXAMPLES, FEATURES]).astype(np.float32)
    labels = (features[:, 0] * features[:, 1] > 0).astype(np.int64)
    dataset = tf1.data.Dataset.from_tensor_slices((features, labels))
    if context.mode == "train":
        dataset = dataset.repeat()
    return dataset.batch(context.batch_size, drop_remainder=context.mode == "train").prefetch(2)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:  # noqa: ARG001
    """Three hidden layers, of WIDTH, WIDTH and 256 units."""
    hidden = features
    for number, (size, units) in enumerate([(FEATURES, WIDTH), (WIDTH, WIDTH), (WIDTH, 256)]):
        hidden = tf1.nn.relu(_dense(hidden, f"hidden_{number}", size, units))
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, _dense(hidden, "logits", 256, 2))
    return ModelSpec(loss, optimizer=tf1.train.AdamOptimizer, learning_rate=1e-4, hooks=hooks())


def _dense(inputs: Any, name: str, size: int, units: int) -> Any:
    weights = tf1.get_variable(f"{name}/weights", [size, units], initializer=tf1.glorot_uniform_initializer(seed=1))
    biases = tf1.get_variable(f"{name}/biases", [units], initializer=tf1.zeros_initializer())
    return tf1.matmul(inputs, weights) + biases
