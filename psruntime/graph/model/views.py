"""Views: how the model reads a variable whose master is on a ps.

A pulled view is the whole value, pulled before the step and cut out of the buckets.  A table view stays on the ps: a
lookup sends ids there and brings rows back.  The pull of a table is its version; every read of it comes later, because
the handle that it reads through is known only after the version is.
"""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.core.plan.packing import ALIGNED_BYTES
from psruntime.core.plan.plan import Plan
from psruntime.graph.base.devices import ps_device
from psruntime.graph.store.wire import AS_IS, FULL, Wire, unpacked


class View(Protocol):
    """Reads of one variable, as operations of a worker.

    value: the whole variable, in its shape.  source: what the gradients are taken with respect to.
    home: the device of the variable's own handle and initial value, None for that of the model.
    """

    value: Any
    source: Any
    home: str | None

    def sparse_read(self, indices: Any, name: str | None = None) -> Any:
        """Rows: integer `indices` of any shape -> indices.shape + row shape."""

    def gather_nd(self, indices: Any, name: str | None = None) -> Any:
        """Entries or slices, as tf.gather_nd gives them."""


class PulledView:
    """A variable whose value is on the worker."""

    home: str | None = None

    def __init__(self, value: Any) -> None:
        self.value = self.source = value

    def sparse_read(self, indices: Any, name: str | None = None) -> Any:
        return tf1.gather(self.value, indices, name=name)

    def gather_nd(self, indices: Any, name: str | None = None) -> Any:
        return tf1.gather_nd(self.value, indices, name=name)


class TableView:
    """A variable that is looked up on its ps by the worker on device `worker`.

    handle: resource [], of the variable there; of a bucket's master it is there once the version is read.

    Each read says its devices and leaves the colocation that embedding_lookup asks for, so rows are
    used on the worker.
    """

    def __init__(self, bucket: Bucket, handle: Any, worker: str, wire: Wire = FULL) -> None:
        self.home: str | None = ps_device(bucket.ps)
        self.source = handle
        self._ps = ps_device(bucket.ps)
        self._worker = worker
        self._wire = wire
        self._shape = bucket.master_shape
        self._dtype = tf1.as_dtype(bucket.dtype)
        with tf1.name_scope(f"table/{bucket.name}"):
            self.value = self._read(lambda: tf1.raw_ops.ReadVariableOp(resource=handle, dtype=self._dtype))

    def sparse_read(self, indices: Any, name: str | None = None) -> Any:
        """Each id travels once, and each row.

        The rows are spread by gather_nd with a leading axis: the gradient of that is a dense sum over
        duplicates, where that of tf.gather would be one more IndexedSlices.
        """
        with tf1.name_scope(name, "Lookup"), _uncolocated():
            with tf1.device(self._worker):
                indices = tf1.convert_to_tensor(indices)
                ids, positions = tf1.unique(tf1.cast(tf1.reshape(indices, [-1]), tf1.int64))
            rows = self._read(lambda: tf1.raw_ops.ResourceGather(resource=self.source, indices=ids, dtype=self._dtype))
            with tf1.device(self._worker):
                spread = tf1.gather_nd(rows, positions[tf1.newaxis, :, tf1.newaxis])
                result = tf1.reshape(spread, tf1.concat([tf1.shape(indices), self._shape[1:]], axis=0))
                result.set_shape(indices.shape.concatenate(self._shape[1:]))
                return result

    def gather_nd(self, indices: Any, name: str | None = None) -> Any:
        with tf1.name_scope(name, "Lookup"), _uncolocated():
            with tf1.device(self._worker):
                indices = tf1.convert_to_tensor(indices)
            return self._read(
                lambda: tf1.raw_ops.ResourceGatherNd(resource=self.source, indices=indices, dtype=self._dtype)
            )

    def _read(self, read: Any) -> Any:
        """What `read()` gives on the ps, on the worker."""
        with _uncolocated(), tf1.get_default_graph().gradient_override_map({"Cast": AS_IS}):
            with tf1.device(self._ps):
                found = read()
                packed = self._wire.packed(found)
            with tf1.device(self._worker):
                return tf1.identity(unpacked(packed, found.dtype))


def _uncolocated() -> Any:
    return tf1.get_default_graph().colocate_with(None, ignore_existing=True)


def unpacked_buckets(plan: Plan, pulls: dict[str, tuple[Any, Any]], wire: Wire) -> dict[str, Any]:
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
            pieces = [parts[piece] for _, piece in plan.pieces_of(spec.name)]
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
