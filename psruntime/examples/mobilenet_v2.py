"""MobileNetV2 (Sandler et al. 2018) from tf_keras, trained from scratch on images of 96 x 96.

`--data-dir` is a folder with four arrays: train_images.npy and eval_images.npy, uint8 [n, 96, 96, 3], and
train_labels.npy and eval_labels.npy, integers [n] below 10.  Without it, stripes whose direction is the label.

    python -m psruntime.worker --index 0 --model psruntime.examples.mobilenet_v2 --batch-size 32

Batch norm: each worker has moving averages of its own, and the chief's are saved and evaluated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1
import tf_keras

from psruntime import Context, ModelSpec

SIDE = 96  # pixels
CLASSES = 10
SYNTHETIC = {"train": 512, "eval": 128}


def arrays(context: Context) -> tuple[Any, Any]:
    """(images uint8 [n, SIDE, SIDE, 3], labels int64 [n])."""
    if not context.data_dir:
        return stripes(SYNTHETIC[context.mode], seed=len(context.mode))
    folder = Path(context.data_dir)
    images = np.load(folder / f"{context.mode}_images.npy", mmap_mode="r")
    labels = np.load(folder / f"{context.mode}_labels.npy").astype(np.int64)
    if images.shape != (len(labels), SIDE, SIDE, 3) or images.dtype != np.uint8:
        raise ValueError(
            f"{folder}/{context.mode}_images.npy is {images.dtype}{list(images.shape)}; "
            f"for {len(labels)} labels it must be uint8[{len(labels)}, {SIDE}, {SIDE}, 3]"
        )
    return images, labels


def stripes(count: int, seed: int) -> tuple[Any, Any]:
    """Coloured stripes and noise; the label is the direction of the stripes, in twentieths of a turn."""
    random = np.random.RandomState(seed)
    labels = random.randint(CLASSES, size=count).astype(np.int64)
    angles = (labels * np.pi / CLASSES)[:, None, None]
    y, x = np.mgrid[:SIDE, :SIDE]
    along = x * np.cos(angles) + y * np.sin(angles)
    waves = np.sin(along * random.uniform(0.3, 0.6, [count, 1, 1]) + random.uniform(0, 6.3, [count, 1, 1]))
    images = waves[..., None] * random.uniform(40, 100, [count, 1, 1, 3]) + 128
    return np.clip(images + random.normal(0, 20, images.shape), 0, 255).astype(np.uint8), labels


def input_fn(context: Context) -> Any:
    """Batches of (images [batch, 96, 96, 3] float32 from -1 to 1, labels [batch] int64)."""
    dataset = tf1.data.Dataset.from_tensor_slices(arrays(context))
    if context.mode == "train":
        dataset = dataset.shuffle(2048, seed=context.seed)
    dataset = dataset.batch(context.batch_size)
    return dataset.map(lambda images, labels: (tf1.cast(images, tf1.float32) / 127.5 - 1, labels)).prefetch(2)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    """The network of the paper; `mode` is "train" or "eval"."""
    network = tf_keras.applications.MobileNetV2(
        input_shape=(SIDE, SIDE, 3), weights=None, classes=CLASSES, classifier_activation=None
    )
    logits = network(features, training=mode == "train")
    loss = tf1.reduce_mean(tf1.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    predictions = tf1.argmax(logits, axis=1)
    return ModelSpec(
        loss,
        optimizer=tf1.train.AdamOptimizer,
        learning_rate=1e-3,
        predictions=predictions,
        metrics={"accuracy": tf1.metrics.accuracy(labels, predictions)} if mode == "eval" else None,
        updates=network.updates,  # the moving averages of batch norm
    )
