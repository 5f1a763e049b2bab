"""MobileNetV2 in the benchmarks: the example, and the same network for strategies (strategy.py, mirrored.py)."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf

from benchmarks.step_times import StepTimes
from psruntime import ModelSpec
from psruntime.examples import mobilenet_v2

input_fn = mobilenet_v2.input_fn
LEARNING_RATE = 1e-3


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    """The example's, which also prints its steps."""
    return replace(mobilenet_v2.model_fn(features, labels, mode), hooks=[StepTimes()])


def model() -> tuple[list[Any], Any, Any]:
    """(variables that are trained, loss of features and labels, optimizer): the same network, eager; Adam."""
    side = mobilenet_v2.SIDE
    network = tf.keras.applications.MobileNetV2(
        input_shape=(side, side, 3), weights=None, classes=mobilenet_v2.CLASSES, classifier_activation=None
    )

    def loss(features: Any, labels: Any) -> Any:
        logits = network(features, training=True)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))

    return network.trainable_variables, loss, tf.keras.optimizers.legacy.Adam(LEARNING_RATE)
