"""ResNet-50 (He et al. 2016) from tf_keras on random images of 224 x 224: 102 MB of variables, momentum."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1
import tf_keras

from benchmarks.gpu.gate import hooks
from psruntime import Context, ModelSpec

SIDE, CLASSES = 224, 1000


def input_fn(context: Context) -> Any:
    """The same batch again and again: (images [batch, SIDE, SIDE, 3] float32, labels [batch] int64)."""
    random = np.random.RandomState(context.seed)
    images = random.uniform(-1, 1, [context.batch_size, SIDE, SIDE, 3]).astype(np.float32)
    dataset = tf1.data.Dataset.from_tensors((images, random.randint(CLASSES, size=context.batch_size)))
    return (dataset.repeat() if context.mode == "train" else dataset).prefetch(2)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    """The network of the paper."""
    network = tf_keras.applications.ResNet50(weights=None, classes=CLASSES, classifier_activation=None)
    logits = network(features, training=mode == "train")
    loss = tf1.reduce_mean(tf1.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))

    def momentum(learning_rate: Any) -> Any:
        return tf1.train.MomentumOptimizer(learning_rate, 0.9)

    return ModelSpec(loss, optimizer=momentum, learning_rate=1e-3, updates=network.updates, hooks=hooks())
