"""Moves a large variable in chunks of whole rows.

TensorFlow sends a tensor as one message, which has to stay below 2 GB; and a process that moves a variable as a whole
needs the memory of a second one meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import Op, Tensor
from psruntime.graph.ops.values import zeros

CHUNK_BYTES = 256 << 20  # at most, unless a row is larger


def row_chunks(shape: tuple[int, ...], item_bytes: int) -> Iterator[tuple[int, int]]:
    """(first row, number of rows) of each chunk of a variable of this shape; one of all rows if it is small."""
    rows = shape[0] if shape else 1
    row_bytes = item_bytes
    for size in shape[1:]:
        row_bytes *= size
    step = max(1, CHUNK_BYTES // max(1, row_bytes))
    for start in range(0, max(rows, 1), step):
        yield start, min(step, rows - start)


def assign_rows(handle: Tensor, start: Tensor | int, value: Tensor) -> Op:
    """An operation, on the handle's device, that assigns `value` to the rows from `start`, int64 [] or a number, on.

    The variable must have a value.
    """
    with tf1.device(handle.device):
        begin = tf1.reshape(tf1.cast(start, tf1.int64), [1])
        end = begin + tf1.shape(value, out_type=tf1.int64)[:1]
        one = tf1.constant([1], tf1.int64)
        return tf1.raw_ops.ResourceStridedSliceAssign(ref=handle, begin=begin, end=end, strides=one, value=value)


def move(read: Tensor, handle: Tensor, shape: tuple[int, ...]) -> list[Op]:
    """Operations that assign the variable of `handle`, of this shape, the value `read`, which is on another device.

    read: a tensor on the source's device.  Each chunk starts when the one before has arrived; the last operation runs
    after all others.
    """
    chunks = list(row_chunks(shape, read.dtype.size))
    with tf1.device(handle.device):
        first = read if len(chunks) == 1 else zeros(shape, read.dtype)
        writes = [tf1.raw_ops.AssignVariableOp(resource=handle, value=first)]
    for start, rows in chunks if len(chunks) > 1 else []:
        with tf1.control_dependencies([writes[-1]]), tf1.device(read.device):
            chunk = read[start : start + rows]
        chunk.set_shape([rows, *shape[1:]])
        writes.append(assign_rows(handle, start, chunk))
    return writes
