"""Sums of rows by place: narrow rows are added up by a product with a sparse matrix, in the same order."""

from __future__ import annotations

from math import prod

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.gpus import may_be_on_gpu
from psruntime.graph.base.types import Tensor

WIDE_ROW = 32  # entries
HIGH = 1 << 32  # one in the second of the two int32 that an int64 is, on a little-endian machine


def row_sums(values: Tensor, places: Tensor, count: Tensor) -> Tensor:
    """[rows] + row shape -> [count] + row shape, sums over the rows of each place; int32 `places` [rows] are below
    `count`, an integer [].

    For 26,624 narrow rows of 16 float32 in 8,711 places the product took 0.14 ms, and unsorted_segment_sum 0.7 to 1.0.
    From 32 entries on both take as long.  On a GPU unsorted_segment_sum is as fast (1,350,985 places of 5,570,000 rows:
    2.3 and 2.5 ms), and has a deterministic kernel.
    """
    if not are_narrow(values):
        return tf1.math.unsorted_segment_sum(values, places, count)
    rows = tf1.shape(places, out_type=tf1.int64)[0]
    if may_be_on_gpu(rows.op):
        return tf1.math.unsorted_segment_sum(values, places, count)
    return _product(values, tf1.cast(places, tf1.int64) + tf1.range(0, rows * HIGH, HIGH), count)


def are_narrow(rows: Tensor) -> bool:
    """Whether `narrow_sums` is the faster way to add up such rows, [rows, ...]."""
    shape = rows.shape
    is_known = shape.rank is not None and shape[1:].is_fully_defined()
    return is_known and prod(shape[1:]) < WIDE_ROW and rows.dtype in (tf1.float32, tf1.float64)


def narrow_sums(values: Tensor, taken: Tensor, places: Tensor, count: Tensor, weights: Tensor = None) -> Tensor:
    """[count] + row shape: to each place the sum of the rows that are taken there.

    values: [rows] + row shape.  taken, places: integers [terms], below the number of rows, and below `count`.
    count: an integer [].  weights: [terms], by which each row that is taken is multiplied; None: by 1.
    """
    return _product(values, tf1.cast(places, tf1.int64) + tf1.cast(taken, tf1.int64) * HIGH, count, weights)


def _product(values: Tensor, pairs: Tensor, count: Tensor, weights: Tensor = None) -> Tensor:
    """pairs: int64 [terms], place + HIGH * row, seen as two int32; `stack` would put these together slowly."""
    row_shape = values.shape.as_list()[1:]
    sums = tf1.raw_ops.SparseTensorDenseMatMul(
        a_indices=tf1.bitcast(pairs, tf1.int32),
        a_values=tf1.ones_like(pairs, values.dtype) if weights is None else weights,
        a_shape=tf1.stack([tf1.cast(count, tf1.int64), tf1.shape(values, out_type=tf1.int64)[0]]),
        b=tf1.reshape(values, [-1, prod(row_shape)]),
    )
    return tf1.reshape(sums, [-1, *row_shape]) if len(row_shape) != 1 else sums
