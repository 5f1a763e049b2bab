"""Reads of a table that is whole on one ps: a lookup sends ids there and gets rows back.

The pull of a table is its version; every read of it runs later, because its handle is there only after the version.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket
from psruntime.graph.base.devices import ps_device
from psruntime.graph.base.types import Tensor
from psruntime.graph.store.wire import FULL, Wire
from psruntime.graph.tables.reading import transferred, uncolocated


class TableRead:
    """A variable that is looked up on its ps by the worker on device `worker`.

    handle: resource [], of the variable there; of a bucket's master it is there once the version is read.

    Each read sets its devices and leaves the colocation that embedding_lookup asks for, so rows are
    used on the worker.
    """

    def __init__(self, bucket: Bucket, handle: Tensor, worker: str, wire: Wire = FULL) -> None:
        self.handle_device: str | None = ps_device(bucket.ps)
        self.source = handle
        self._ps = ps_device(bucket.ps)
        self._worker = worker
        self._wire = wire
        self._shape = bucket.master_shape
        self._dtype = tf1.as_dtype(bucket.dtype)
        with tf1.name_scope(f"table/{bucket.name}"):
            self.value = self._read(lambda: tf1.raw_ops.ReadVariableOp(resource=handle, dtype=self._dtype))

    def sparse_read(self, indices: Tensor, name: str | None = None) -> Tensor:
        """Sends each id once, and each row.

        The rows are spread by gather_nd with a leading axis: the gradient of that is a dense sum over
        duplicates, where that of tf.gather would be one more IndexedSlices.
        """
        with tf1.name_scope(name, "Lookup"), uncolocated():
            with tf1.device(self._worker):
                indices = tf1.convert_to_tensor(indices)
                ids, positions = tf1.unique(tf1.cast(tf1.reshape(indices, [-1]), tf1.int64))
            rows = self._read(lambda: tf1.raw_ops.ResourceGather(resource=self.source, indices=ids, dtype=self._dtype))
            with tf1.device(self._worker):
                spread = tf1.gather_nd(rows, positions[tf1.newaxis, :, tf1.newaxis])
                result = tf1.reshape(spread, tf1.concat([tf1.shape(indices), self._shape[1:]], axis=0))
                result.set_shape(indices.shape.concatenate(self._shape[1:]))
                return result

    def gather_nd(self, indices: Tensor, name: str | None = None) -> Tensor:
        with tf1.name_scope(name, "Lookup"), uncolocated():
            with tf1.device(self._worker):
                indices = tf1.convert_to_tensor(indices)
            return self._read(
                lambda: tf1.raw_ops.ResourceGatherNd(resource=self.source, indices=indices, dtype=self._dtype)
            )

    def _read(self, read: Callable[[], Tensor]) -> Tensor:
        return transferred(read, self._ps, self._worker, self._wire)
