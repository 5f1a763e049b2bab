"""Wide and deep click prediction (Cheng et al. 2016): a linear part under Ftrl, embeddings and a network under Adagrad.

    python -m psruntime.worker --index 0 --model psruntime.examples.wide_deep

The clicks are drawn from a hidden model of users, items and contexts, so the highest possible held-out AUC is about
0.8; `best_auc` computes it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime import Context, ModelSpec
from psruntime.examples.layers import dense
from psruntime.examples.measures import auc

SIZES = {"user": 2000, "item": 500, "context": 50}  # values of each categorical feature
CROSS_BUCKETS = 5000  # for the pair of item and context
EMBEDDED = 8  # entries of an embedding
TRAIN, HELD_OUT = 60_000, 10_000


@cache
def clicks() -> tuple[dict[str, Any], Any, Any]:
    """(ids int64 [n] of each feature, labels float32 [n], the probabilities that they were drawn with)."""
    random = np.random.RandomState(0)
    n = TRAIN + HELD_OUT
    popular = {name: random.zipf(1.3, size=n) % size for name, size in SIZES.items()}
    tastes = {name: random.normal(0, 1, [size, 3]) for name, size in SIZES.items()}
    bias = {name: random.normal(0, 0.5, size) for name, size in SIZES.items()}
    user, item = tastes["user"][popular["user"]], tastes["item"][popular["item"]]
    logits = 0.7 * np.sum(user * item * tastes["context"][popular["context"]], axis=1) - 1
    logits += sum(bias[name][popular[name]] for name in SIZES)
    chances = 1 / (1 + np.exp(-logits))
    labels = (random.uniform(size=n) < chances).astype(np.float32)
    return {name: ids.astype(np.int64) for name, ids in popular.items()}, labels, chances


def best_auc() -> float:
    """The held-out AUC of the chances themselves."""
    _, labels, chances = clicks()
    return auc(labels[TRAIN:], chances[TRAIN:])


def input_fn(context: Context) -> Any:
    """Batches of ({feature: ids [batch] int64}, labels [batch] float32)."""
    ids, labels, _ = clicks()
    rows = slice(TRAIN, None) if context.mode == "eval" else slice(0, TRAIN)
    dataset = tf1.data.Dataset.from_tensor_slices(({name: values[rows] for name, values in ids.items()}, labels[rows]))
    if context.mode == "train":
        dataset = dataset.shuffle(TRAIN, seed=context.seed)
    return dataset.batch(context.batch_size).prefetch(2)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    """The sum of a wide and a deep logit; `mode` is "train" or "eval"."""
    logits = tf1.reshape(_wide(features) + _deep(features), [-1])
    loss = tf1.reduce_mean(tf1.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    chances = tf1.sigmoid(logits)
    return ModelSpec(
        loss,
        optimizer={"wide/*": tf1.train.FtrlOptimizer, "*": tf1.train.AdagradOptimizer},
        learning_rate={"wide/*": 0.1, "*": 0.05},
        predictions=chances,
        metrics={"auc": tf1.metrics.auc(labels, chances, num_thresholds=1000)} if mode == "eval" else None,
    )


def _wide(features: Any) -> Any:
    """A weight for every value of every feature, and for every crossed pair; [batch, 1]."""
    pair = features["item"] * SIZES["context"] + features["context"]
    crossed = tf1.floormod(pair, CROSS_BUCKETS)  # LiteRT has no strings to hash; an item of the first 100 has its own
    with tf1.variable_scope("wide"):
        found = [_looked_up(name, [size, 1], features[name], tf1.zeros_initializer()) for name, size in SIZES.items()]
        return tf1.add_n([*found, _looked_up("cross", [CROSS_BUCKETS, 1], crossed, tf1.zeros_initializer())])


def _deep(features: Any) -> Any:
    """Two layers over the embeddings; [batch, 1]."""
    with tf1.variable_scope("deep"):
        narrow = tf1.random_normal_initializer(stddev=0.1)
        embedded = [_looked_up(name, [size, EMBEDDED], features[name], narrow) for name, size in SIZES.items()]
        hidden = tf1.nn.relu(dense(tf1.concat(embedded, axis=1), 32, "hidden_0"))
        return dense(tf1.nn.relu(dense(hidden, 16, "hidden_1")), 1, "logit")


def _looked_up(name: str, shape: list[int], ids: Any, initializer: Any) -> Any:
    return tf1.nn.embedding_lookup(tf1.get_variable(name, shape, initializer=initializer), ids)
