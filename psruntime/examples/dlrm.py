"""DLRM (Naumov et al. 2019, arXiv:1906.00091): clicks from 13 numbers and 26 categories in Criteo's format.

    psruntime run --ps 2 --workers 2 --model psruntime.examples.dlrm --batch-size 256

trains on a generated file, for which no model has a higher AUC than `criteo.best_auc()`.  `--data-dir` is the path of
another one, or a folder with train*.txt, train*.txt.gz or day_*.  One line in ten is held out.  For tables of other
sizes write a module with

    model = Dlrm(rows=[1_000_000] * 26, width=64)
    input_fn, model_fn = model.input_fn, model.model_fn

See docs/recommenders.md for how to choose them, and how many ps they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime import Context, ModelSpec
from psruntime.errors import UsageError
from psruntime.examples import criteo
from psruntime.examples.layers import dense, hidden_layers


@dataclass(frozen=True)
class Dlrm:
    """rows: of the table of each category; values are hashed to them.  width: entries of a row, one for all tables.

    bottom: layers of the numbers, before one of `width`.  top: layers of the interactions.  held_out: one line in so
    many is for the evaluation.
    """

    rows: Sequence[int] = (10_000,) * criteo.CATEGORIES
    width: int = 16
    bottom: Sequence[int] = (64, 32)
    top: Sequence[int] = (64, 32)
    learning_rate: float = 0.05
    held_out: int = 10

    def __post_init__(self) -> None:
        if len(self.rows) != criteo.CATEGORIES or min(self.rows) < 2:
            raise UsageError(f"rows of Dlrm must be {criteo.CATEGORIES} numbers from 2, got {self.rows!r}")

    def input_fn(self, context: Context) -> Any:
        """Batches of ({"numbers": [batch, 13], "categories": [batch, 26]}, labels [batch])."""
        return criteo.FORMAT.batches(context, lambda lines: criteo.parsed(lines, self.rows), self.held_out)

    def model_fn(self, features: Any, labels: Any, mode: str) -> ModelSpec:
        """`mode` is "train" or "eval"."""
        numbers = hidden_layers(features["numbers"], [*self.bottom, self.width], "bottom")
        pairs = interactions([numbers, *self._embedded(features["categories"])])
        top = hidden_layers(tf1.concat([numbers, pairs], axis=1), self.top, "top")
        logits = tf1.squeeze(dense(top, 1, "logit"), axis=1)
        chances = tf1.sigmoid(logits)
        return ModelSpec(
            loss=tf1.reduce_mean(tf1.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)),
            optimizer=tf1.train.AdagradOptimizer,
            learning_rate=self.learning_rate,
            predictions=chances,
            metrics={"auc": tf1.metrics.auc(labels, chances, num_thresholds=1000)} if mode == "eval" else None,
        )

    def _embedded(self, categories: Any) -> list[Any]:
        """[batch, width] of each category."""
        found = []
        with tf1.variable_scope("categories"):
            for column, rows in enumerate(self.rows):
                bound = rows**-0.5
                initializer = tf1.random_uniform_initializer(-bound, bound)
                table = tf1.get_variable(f"category_{column}", [rows, self.width], initializer=initializer)
                found.append(tf1.nn.embedding_lookup(table, categories[:, column]))
        return found


def interactions(vectors: Sequence[Any]) -> Any:
    """The dot product of each pair of n vectors [batch, width], [batch, n (n - 1) / 2]: (1, 0), (2, 0), (2, 1), ..."""
    stacked = tf1.stack(vectors, axis=1)
    products = tf1.matmul(stacked, stacked, transpose_b=True)
    below, left = np.tril_indices(len(vectors), -1)
    return tf1.gather(tf1.reshape(products, [-1, len(vectors) ** 2]), below * len(vectors) + left, axis=1)


_model = Dlrm()
input_fn, model_fn = _model.input_fn, _model.model_fn
