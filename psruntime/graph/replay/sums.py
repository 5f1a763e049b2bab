"""Sums of gradients in NumPy, rounded as the training rounds them: float32 additions in the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.graph.base.types import Array, DType


class Gradient(NamedTuple):
    """values: dense, of the variable's shape; sparse, [rows] + the shape of a row.  indices: int64 [rows], or None."""

    values: Array
    indices: Array = None

    @property
    def is_dense(self) -> bool:
        return self.indices is None


def summing(dtype: DType) -> DType:
    """The dtype in which gradients of this dtype are summed."""
    return np.float64 if dtype == np.float64 else np.float32


def unique(gradient: Gradient, in_order: bool = True) -> Gradient:
    """A sparse gradient with the sum over duplicate rows, added in their order; the rows in ascending order, or in that
    of their first occurrences."""
    rows, first, places = np.unique(gradient.indices, return_index=True, return_inverse=True)
    if not in_order:
        came = np.argsort(first)
        rows, places = rows[came], np.argsort(came)[places]
    sums = np.zeros((len(rows), *gradient.values.shape[1:]), gradient.values.dtype)
    np.add.at(sums, places, gradient.values)
    return Gradient(sums, rows)


def mean_of(minibatches: Sequence[tuple[float, Gradient]]) -> Gradient:
    """The mean gradient of several mini-batches by their weights, as a worker makes it (graph/model/minibatches.py)."""
    (weight, first), *others = minibatches
    if not others:
        return first
    dtype = summing(first.values.dtype)
    total, weights = _weighted(first, weight, dtype), np.float64(weight)
    for weight, more in others:
        weights += np.float64(weight)
        more = _weighted(more, weight, dtype)
        if total.is_dense:
            total = Gradient(total.values + more.values)
        else:
            both = zip(total, more, strict=True)
            total = unique(Gradient(*[np.concatenate(parts) for parts in both]))
    mean = total.values / weights.astype(dtype) if weights else np.zeros_like(total.values)
    return Gradient(mean.astype(first.values.dtype), total.indices)


def _weighted(gradient: Gradient, weight: float, dtype: DType) -> Gradient:
    values = gradient.values.astype(dtype)
    return Gradient(values * dtype(weight) if weight else np.zeros_like(values), gradient.indices)


def of_bucket(bucket: Bucket, gradients: Mapping[str, Gradient]) -> Gradient:
    """The gradient of a bucket from those of its variables, whose sparse ones have unique rows."""
    if bucket.own_shape is None:
        flat = [gradients[p.variable].values.reshape(-1)[p.start : p.start + p.size] for p in bucket.pieces]
        return Gradient(np.concatenate(flat))
    if not bucket.is_table:
        return Gradient(gradients[bucket.variable].values.reshape(bucket.own_shape))
    of_pieces = [(piece, gradients[piece.variable]) for piece in bucket.pieces]
    own = [_rows_of(piece, bucket, gradient) for piece, gradient in of_pieces]
    if all(not gradient.is_dense for _, gradient in of_pieces):
        return Gradient(*[np.concatenate(parts) for parts in zip(*own, strict=True)])
    values = np.zeros(bucket.own_shape, own[0].values.dtype)
    for rows in own:
        values[rows.indices] += rows.values
    return Gradient(values)


def place_of(piece: Piece, bucket: Bucket) -> tuple[int, int, int]:
    """(first row in the table, number of rows, first row in the bucket) of a piece with rows of a table."""
    assert bucket.own_shape is not None
    size = prod(bucket.own_shape[1:])
    return piece.start // size, piece.size // size, piece.offset // size


def _rows_of(piece: Piece, bucket: Bucket, gradient: Gradient) -> Gradient:
    """The rows of a variable's gradient that are in a piece, by their rows in the bucket."""
    first, count, begin = place_of(piece, bucket)
    if gradient.is_dense:
        values = gradient.values[first :: piece.stride][:count]
        return Gradient(values, begin + np.arange(count))
    behind = gradient.indices - first
    is_there = (behind >= 0) & (behind % piece.stride == 0) & (behind < count * piece.stride)
    return Gradient(gradient.values[is_there], begin + behind[is_there] // piece.stride)


def sum_of(contributions: Sequence[tuple[float, Gradient]]) -> tuple[Gradient, float]:
    """The sum of a round in one bucket, and its scale, as its ps makes it (graph/push/round_sum.py).

    contributions: (scale, gradient) in the order in which the bucket added them, with scales above 0.  The sum has the
    scale of the first; a later gradient is multiplied by its own scale over that one.
    """
    scale, first = contributions[0]
    dtype = summing(first.values.dtype)
    total = [first._replace(values=first.values.astype(dtype))]
    for own, gradient in contributions[1:]:
        more = times(gradient._replace(values=gradient.values.astype(dtype)), own / scale)
        total = [Gradient(total[0].values + more.values)] if gradient.is_dense else [*total, more]
    if first.is_dense:
        return total[0], scale
    return unique(Gradient(*[np.concatenate(parts) for parts in zip(*total, strict=True)]), in_order=False), scale


def times(gradient: Gradient, factor: float) -> Gradient:
    """factor: rounded to the dtype of the gradient before it multiplies."""
    rounded = gradient.values.dtype.type(factor)
    return gradient if rounded == 1 else gradient._replace(values=gradient.values * rounded)
