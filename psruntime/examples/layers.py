"""Functions of several examples: dense layers, and the ModelSpec of a classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime import ModelSpec


def dense(inputs: Any, units: int, name: str) -> Any:
    """inputs [batch, n] -> inputs x kernel + bias [batch, units]."""
    with tf1.variable_scope(name):
        kernel = tf1.get_variable("kernel", [inputs.shape[1], units], initializer=tf1.glorot_uniform_initializer())
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
    return tf1.nn.bias_add(tf1.matmul(inputs, kernel), bias)


def hidden_layers(inputs: Any, units: Sequence[int], name: str) -> Any:
    """inputs [batch, n] -> [batch, the last of `units`], through a dense layer with a ReLU for each of `units`."""
    with tf1.variable_scope(name):
        for layer, width in enumerate(units):
            inputs = tf1.nn.relu(dense(inputs, width, f"layer_{layer}"))
    return inputs


def classifier(logits: Any, labels: Any, mode: str, learning_rate: float | Callable[[int], float]) -> ModelSpec:
    """Cross entropy of logits [batch, classes] with labels [batch] int64, Adam, and accuracy when evaluating."""
    loss = tf1.reduce_mean(tf1.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    predictions = tf1.argmax(logits, axis=1)
    return ModelSpec(
        loss=loss,
        optimizer=tf1.train.AdamOptimizer,
        learning_rate=learning_rate,
        predictions=predictions,
        metrics={"accuracy": tf1.metrics.accuracy(labels, predictions)} if mode == "eval" else None,
    )
