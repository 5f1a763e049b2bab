"""Measures of a ranking, of numpy arrays: the hidden model of generated data has the best possible values."""

from __future__ import annotations

from typing import Any

import numpy as np


def auc(labels: Any, scores: Any) -> float:
    """The chance that a positive example scores higher than a negative one (Mann and Whitney 1947).

    labels [n]: positive above 0, some of either kind.  scores [n], all different.
    """
    positive = np.asarray(labels) > 0
    ranks = np.empty(len(positive))
    ranks[np.argsort(scores)] = np.arange(1, len(positive) + 1)
    pairs = positive.sum() * (~positive).sum()
    return float((ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2) / pairs)


def recall_at(k: int, scores: Any, wanted: Any) -> float:
    """The share of rows of scores [n, items] in which the item `wanted` [n] is among the k highest."""
    of_wanted = np.take_along_axis(scores, wanted[:, None], axis=1)
    return float(np.mean(np.sum(scores > of_wanted, axis=1) < k))
