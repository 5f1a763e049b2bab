"""scikit-learn's digits: 1,797 images of 8 x 8 pixels, a 64-128-10 network.  Needs no data folder.

python -m psruntime.ps --index 0
python -m psruntime.worker --index 0 --model psruntime.examples.digits
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1
from sklearn.datasets import load_digits

from psruntime import Context, ModelSpec
from psruntime.examples.layers import classifier, dense

HELD_OUT = 360  # images that training never sees


@cache
def _data() -> tuple[Any, Any]:
    """Pixels and labels in one fixed random order: the data set is sorted by writer."""
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    return (digits.data[order] / 16).astype("float32"), digits.target[order].astype("int64")


def input_fn(context: Context) -> Any:
    """Batches of (pixels [batch, 64] float32 from 0 to 1, labels [batch] int64)."""
    pixels, labels = _data()
    if context.mode == "eval":
        return tf1.data.Dataset.from_tensor_slices((pixels[-HELD_OUT:], labels[-HELD_OUT:])).batch(context.batch_size)
    dataset = tf1.data.Dataset.from_tensor_slices((pixels[:-HELD_OUT], labels[:-HELD_OUT]))
    # Each worker has its own seed, so each sees all images in its own order.
    dataset = dataset.shuffle(len(pixels), seed=context.seed).repeat()
    return dataset.batch(context.batch_size).prefetch(2)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    """A network with one hidden layer; `mode` is "train" or "eval"."""
    hidden = tf1.nn.relu(dense(features, 128, "hidden"))
    return classifier(dense(hidden, 10, "logits"), labels, mode, learning_rate=2e-3)
