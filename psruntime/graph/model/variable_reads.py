"""How the model reads a variable whose master is on a ps.

A PulledRead has the whole value, pulled before the step and cut out of the buckets.  The reads of tables, which stay on
the ps, are in graph/tables.
"""

from __future__ import annotations

from typing import Protocol

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Piece
from psruntime.core.plan.packing import ALIGNED_BYTES
from psruntime.core.plan.plan import Plan
from psruntime.graph.base.types import Tensor


class VariableRead(Protocol):
    """Reads of one variable, as operations of a worker.

    value: the whole variable, in its shape.  source: the tensor of which gradients are taken.
    handle_device: the device of the variable's own handle and initial value, None for that of the model.
    """

    value: Tensor
    source: Tensor
    handle_device: str | None

    def sparse_read(self, indices: Tensor, name: str | None = None) -> Tensor:
        """Rows: integer `indices` of any shape -> indices.shape + row shape."""

    def gather_nd(self, indices: Tensor, name: str | None = None) -> Tensor:
        """Entries or slices, as tf.gather_nd gives them."""


class PulledRead:
    """A variable whose value is on the worker.  value: of the variable's shape and dtype."""

    handle_device: str | None = None

    def __init__(self, value: Tensor) -> None:
        self.value = self.source = value

    def sparse_read(self, indices: Tensor, name: str | None = None) -> Tensor:
        return tf1.gather(self.value, indices, name=name)

    def gather_nd(self, indices: Tensor, name: str | None = None) -> Tensor:
        return tf1.gather_nd(self.value, indices, name=name)


def unpacked_buckets(plan: Plan, pulled: dict[str, Tensor]) -> dict[str, Tensor]:
    """Variable name -> its value, in its own shape, from [size] of each bucket that is pulled whole."""
    parts: dict[Piece, Tensor] = {}
    for bucket in plan.buckets:
        if not bucket.is_table:
            values = pulled[bucket.name]
            split = parted(values, [piece.size for piece in bucket.pieces]) if bucket.is_packed else [values]
            parts.update(zip(bucket.pieces, split, strict=True))
    variables = {}
    for spec in [*plan.trained, *plan.aggregated]:
        if not spec.sparse:
            pieces = [parts[piece] for _, piece in plan.pieces_of(spec.name)]
            whole = len(pieces) == 1
            variables[spec.name] = pieces[0] if whole else tf1.concat([tf1.reshape(p, [-1]) for p in pieces], axis=0)
    return variables


def parted(values: Tensor, sizes: list[int]) -> list[Tensor]:
    """[entries] in parts of these sizes, one after the other, of any shape.

    TensorFlow copies the parts of a vector.  Those of a matrix share its memory if its rows are as long as memory is
    aligned.  So the parts before the first that is not of whole such rows are rows of a matrix.
    """
    row = ALIGNED_BYTES // values.dtype.size
    count = next((number for number, size in enumerate(sizes) if size % row), len(sizes))
    aligned = sum(sizes[:count])
    first, remainder = (values[:aligned], values[aligned:]) if count < len(sizes) else (values, None)
    parts = tf1.split(tf1.reshape(first, [-1, row]), [size // row for size in sizes[:count]]) if count else []
    return [*parts, *([] if remainder is None else tf1.split(remainder, sizes[count:]))]
