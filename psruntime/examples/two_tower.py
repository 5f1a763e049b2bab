"""Two towers, one of users and one of items, that retrieve the items which a user would like (Yi et al. 2019).

    psruntime run --ps 2 --workers 2 --model psruntime.examples.two_tower --batch-size 256

trains on generated ratings, for which no model has a higher recall than `ratings.best_recall(10)`.  `--data-dir` is
the path of others in the form of MovieLens (user, item, rating, time), or a folder with u.data, ratings*.tsv or
ratings*.tsv.gz.  One line in ten is held out.  The sizes are enough for MovieLens 100K; for others write a module with

    model = TwoTower(users=200_000, items=30_000, width=64)
    input_fn, model_fn = model.input_fn, model.model_fn

See docs/recommenders.md for how to choose them, and how many ps they need.

The loss is a sampled softmax: an example's negatives are the items of the other examples in its batch, so popular items
are negatives more often, which the loss corrects ("Sampling-bias-corrected neural modeling for large corpus item
recommendations", RecSys 2019).  Larger batches have more negatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime import Context, ModelSpec
from psruntime.examples import ratings
from psruntime.examples.layers import dense, hidden_layers

FIRST_GAP = 100.0  # the first estimate of the steps from one batch with an item to the next
GAP_RATE = 0.05  # of the moving average of these gaps; the paper's alpha
MOST_CANDIDATES = 10_000


@dataclass(frozen=True)
class TwoTower:
    """users, items: rows of the two tables; ids are below them.  width: entries of a row, and of a tower's result.

    hidden: layers of a tower, before one of `width`.  temperature: by which similarities are divided.
    """

    users: int = 1000
    items: int = 2000
    width: int = 32
    hidden: Sequence[int] = (64,)
    temperature: float = 0.1
    learning_rate: float = 0.1
    held_out: int = 10

    def input_fn(self, context: Context) -> Any:
        """Batches of (users [batch], items that they like [batch]), both int64."""
        return ratings.FORMAT.batches(context, ratings.liked, self.held_out)

    def model_fn(self, users: Any, items: Any, mode: str) -> ModelSpec:
        """`mode` is "train" or "eval"."""
        user_vectors, item_vectors = self._tower("user", users, self.users), self._tower("item", items, self.items)
        chances, update = sampling_chances(items, self.items)
        similar = tf1.matmul(user_vectors, item_vectors, transpose_b=True) / self.temperature
        return ModelSpec(
            loss=tf1.reduce_mean(sampled_softmax_loss(similar, items, chances)),
            optimizer=tf1.train.AdagradOptimizer,
            learning_rate=self.learning_rate,
            predictions=user_vectors,
            updates=[update],
            metrics=self._metrics(user_vectors, item_vectors) if mode == "eval" else None,
        )

    def _tower(self, kind: str, ids: Any, rows: int) -> Any:
        """[ids, width], each of length 1."""
        with tf1.variable_scope(kind, reuse=tf1.AUTO_REUSE):
            table = tf1.get_variable("table", [rows, self.width], initializer=tf1.random_normal_initializer(stddev=0.1))
            hidden = hidden_layers(tf1.nn.embedding_lookup(table, ids), self.hidden, "hidden")
            return tf1.nn.l2_normalize(dense(hidden, self.width, "result"), axis=1)

    def _metrics(self, user_vectors: Any, item_vectors: Any) -> dict[str, Any]:
        """How often the liked item is among the 10 most similar ones of all, or of MOST_CANDIDATES spread over them."""
        every = -(-self.items // MOST_CANDIDATES)
        candidates = self._tower("item", tf1.range(0, self.items, every), self.items)
        liked = tf1.reduce_sum(user_vectors * item_vectors, axis=1, keepdims=True)
        better = tf1.greater(tf1.matmul(user_vectors, candidates, transpose_b=True), liked + 1e-6)
        found = tf1.less(tf1.reduce_sum(tf1.cast(better, tf1.int32), axis=1), 10)
        return {"recall_at_10": tf1.metrics.mean(tf1.cast(found, tf1.float32))}


def sampled_softmax_loss(similar: Any, items: Any, chances: Any) -> Any:
    """Cross entropy [batch] of each example's own item among those of the batch.

    similar [batch, batch]: of user (row) and item (column).  items [batch]: ids; another example's item that is the
    same as one's own is no negative.  chances [batch]: that an item is in a batch, by the log of which its similarity
    is corrected.
    """
    count = tf1.shape(items)[0]
    logits = similar - tf1.log(chances)
    same = tf1.logical_and(tf1.equal(items[:, None], items[None, :]), tf1.logical_not(tf1.eye(count, dtype=tf1.bool)))
    logits = tf1.where(same, tf1.fill(tf1.shape(logits), logits.dtype.min), logits)
    return tf1.nn.sparse_softmax_cross_entropy_with_logits(labels=tf1.range(count), logits=logits)


def sampling_chances(items: Any, rows: int) -> tuple[Any, Any]:
    """(the chance [batch] that each item is in a batch, an operation that updates it for the next batch).

    1 / the mean number of steps from one batch with the item to the next: algorithm 2 of Yi et al. 2019, without its
    hashing.  Every worker estimates it for its own batches.
    """
    with tf1.variable_scope("sampling", use_resource=True):
        step = tf1.get_variable("step", [], tf1.int64, tf1.zeros_initializer(), trainable=False)
        last = tf1.get_variable("last_step", [rows], tf1.int64, tf1.zeros_initializer(), trainable=False)
        gap = tf1.get_variable("gap", [rows], initializer=tf1.constant_initializer(FIRST_GAP), trainable=False)
    unique, places = tf1.unique(items)
    now = step + 1
    passed = tf1.cast(now - tf1.gather(last, unique), tf1.float32)
    gaps = (1 - GAP_RATE) * tf1.gather(gap, unique) + GAP_RATE * passed
    with tf1.control_dependencies([gaps]):
        nows = tf1.fill(tf1.shape(unique), now)
        update = tf1.group(
            step.assign(now), tf1.scatter_update(last, unique, nows), tf1.scatter_update(gap, unique, gaps)
        )
    return tf1.gather(1 / gaps, places), update


_model = TwoTower()
input_fn, model_fn = _model.input_fn, _model.model_fn
