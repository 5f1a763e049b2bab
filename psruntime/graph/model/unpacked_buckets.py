"""The entries of each variable, from the buckets that were pulled."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Piece
from psruntime.core.plan.packing import ALIGNED_BYTES
from psruntime.core.plan.plan import Plan
from psruntime.graph.base.devices import ps_device
from psruntime.graph.store.wire import Wire, unpacked


def flat_values(plan: Plan, pulls: dict[str, tuple[Any, Any]], wire: Wire) -> dict[str, Any]:
    """Variable name -> its entries, from buckets that are brought here whole."""
    parts: dict[Piece, Any] = {}
    for bucket in plan.buckets:
        if not bucket.is_table:
            master = pulls[bucket.name][1]
            with tf1.device(ps_device(bucket.ps)):
                packed = wire.packed(master)
            pulled = unpacked(packed, master.dtype)
            split = parted(pulled, [piece.size for piece in bucket.pieces]) if bucket.is_packed else [pulled]
            parts.update(zip(bucket.pieces, split, strict=True))
    values = {}
    for spec in plan.trained:
        if not spec.sparse:
            pieces = [parts[piece] for _, piece in plan.of(spec.name)]
            whole = len(pieces) == 1
            values[spec.name] = pieces[0] if whole else tf1.concat([tf1.reshape(p, [-1]) for p in pieces], axis=0)
    return values


def parted(values: Any, sizes: list[int]) -> list[Any]:
    """[entries] in parts of these sizes, one after the other, of any shape.

    TensorFlow copies the parts of a vector; of a matrix whose rows are as long as memory is aligned they share the
    memory of the whole.  So the parts up to the first that is not of whole such rows are rows of a matrix.
    """
    row = ALIGNED_BYTES // values.dtype.size
    count = next((number for number, size in enumerate(sizes) if size % row), len(sizes))
    aligned = sum(sizes[:count])
    first, rest = (values[:aligned], values[aligned:]) if count < len(sizes) else (values, None)
    parts = tf1.split(tf1.reshape(first, [-1, row]), [size // row for size in sizes[:count]]) if count else []
    return [*parts, *([] if rest is None else tf1.split(rest, sizes[count:]))]
