"""Fashion-MNIST: 28 x 28 grey images of ten kinds of clothing, a 784-128-10 network.

`--data-dir` is the folder with the data set's own four files (train-images-idx3-ubyte.gz and so on).

    python -m psruntime.worker --index 0 --model psruntime.examples.fashion_mnist --data-dir FOLDER
"""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime import Context, ModelSpec
from psruntime.examples.layers import classifier, dense

SPLITS = {"train": "train", "eval": "t10k"}
IDX_MAGIC = {1: 2049, 3: 2051}  # axes -> first word of an IDX file of unsigned bytes


@cache
def read_idx(path: Path, axes: int) -> Any:
    """An IDX file (http://yann.lecun.com/exdb/mnist) as uint8 array; gzip-compressed."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; --data-dir must be the folder with the Fashion-MNIST files")
    data = gzip.decompress(path.read_bytes())
    magic, *shape = np.frombuffer(data, ">i4", axes + 1)
    if magic != IDX_MAGIC[axes]:
        raise ValueError(f"{path} is not an IDX file of {axes} axes: it begins with {magic}, not {IDX_MAGIC[axes]}")
    return np.frombuffer(data, np.uint8, offset=4 * (axes + 1)).reshape(shape)


def input_fn(context: Context) -> Any:
    """Batches of (pixels [batch, 784] float32 from 0 to 1, labels [batch] int64)."""
    folder, split = Path(context.data_dir), SPLITS[context.mode]
    pixels = read_idx(folder / f"{split}-images-idx3-ubyte.gz", 3).reshape(-1, 784)
    labels = read_idx(folder / f"{split}-labels-idx1-ubyte.gz", 1)
    dataset = tf1.data.Dataset.from_tensor_slices((pixels, labels))
    if context.mode == "train":
        dataset = dataset.shuffle(len(pixels), seed=context.seed).repeat()
    dataset = dataset.batch(context.batch_size)
    return dataset.map(lambda x, y: (tf1.cast(x, tf1.float32) / 255, tf1.cast(y, tf1.int64))).prefetch(2)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    """A network with one hidden layer; `mode` is "train" or "eval"."""
    hidden = tf1.nn.relu(dense(features, 128, "hidden"))
    return classifier(dense(hidden, 10, "logits"), labels, mode, learning_rate=decaying)


def decaying(global_step: int) -> float:
    """Inverse-time decay: the last steps are small, so the result of the training varies little."""
    return 1e-3 / (1 + global_step / 200)
