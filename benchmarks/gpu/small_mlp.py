"""A model module for exactness: a dense layer, two tables, a limit of the gradients' norm, and a smooth activation.

tanh instead of ReLU: at the kink of ReLU two right sums that differ in their last bit give different gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from benchmarks.gpu.gate import hooks
from psruntime import Context, ModelSpec

FEATURES, IDS, ROWS, EXAMPLES = 32, 3, 1000, 4096


def input_fn(context: Context) -> Any:
    """Batches of ((features [batch, FEATURES] float32, ids [batch, IDS] int64), labels [batch] int64)."""
    random = np.random.RandomState(context.seed)
    features = random.normal(size=[EXAMPLES, FEATURES]).astype(np.float32)
    ids = random.randint(ROWS, size=[EXAMPLES, IDS]).astype(np.int64)
    dataset = tf1.data.Dataset.from_tensor_slices(((features, ids), (features[:, 0] > 0).astype(np.int64)))
    if context.mode == "train":
        dataset = dataset.repeat()
    return dataset.batch(context.batch_size, drop_remainder=context.mode == "train").prefetch(2)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:  # noqa: ARG001
    """Rows of one table are summed, those of the other are taken as they are."""
    numbers, ids = features
    rows = [
        tf1.get_variable(f"table_{n}", [ROWS, 8], initializer=tf1.random_uniform_initializer(-0.1, 0.1, seed=n))
        for n in range(2)
    ]
    summed = tf1.reduce_sum(tf1.nn.embedding_lookup(rows[0], ids), axis=1)
    inputs = tf1.concat([numbers, summed, tf1.nn.embedding_lookup(rows[1], ids[:, 0])], axis=1)
    hidden = tf1.get_variable("hidden", [FEATURES + 16, 64], initializer=tf1.glorot_uniform_initializer(seed=1))
    biases = tf1.get_variable("biases", [64], initializer=tf1.zeros_initializer())
    logits = tf1.get_variable("logits", [64, 2], initializer=tf1.glorot_uniform_initializer(seed=2))
    outputs = tf1.matmul(tf1.tanh(tf1.matmul(inputs, hidden) + biases), logits)
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, outputs)
    return ModelSpec(loss, optimizer=tf1.train.AdagradOptimizer, learning_rate=0.05, clip_norm=1.0, hooks=hooks())
