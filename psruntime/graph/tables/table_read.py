"""Reads the rows of one table: of a table that is whole on one ps, and of a dynamic table.

Reads of a table that is whole on one ps: a lookup sends ids there and gets rows back.

The pull of a table is its version; every read of it runs later, because its handle is there only after the version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket
from psruntime.core.plan.table_groups import GroupedTable, TableGroup
from psruntime.errors import UsageError
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Op, Tensor
from psruntime.graph.dynamic.id_rows import IdRows
from psruntime.graph.dynamic.id_sets import NO_ID
from psruntime.graph.dynamic.initial_rows import sets_of
from psruntime.graph.store.gradient import FULL, Wire
from psruntime.graph.tables.group_reader import GroupReader, transferred, uncolocated


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


class DynamicReader(GroupReader):
    """As GroupReader, of a group that has one dynamic table.  id_rows: of each ps."""

    def __init__(
        self, group: TableGroup, handles: list[Tensor], worker: str, wire: Wire, id_rows: Sequence[IdRows]
    ) -> None:
        super().__init__(group, handles, worker, wire)
        self.row_shape = group.row_shape[1:]
        self._id_rows = id_rows

    def check(self, table: GroupedTable, ids: Tensor) -> Op:
        """An operation that fails if one of the ids, int64 of any shape, is the one that marks a free row."""
        with tf1.device(self._worker):
            least = tf1.reduce_min(ids)
            return tf1.raw_ops.Assert(
                condition=tf1.not_equal(least, NO_ID), data=[f"ids of table {table.name} must be above", least]
            )

    def require_outermost(self, table: GroupedTable) -> None:
        raise UsageError(
            f"psruntime.embedding reads table {table.name} in a loop, a branch or a function; call it outside, and use "
            "its rows there"
        )

    def _group_rows(self, _table: GroupedTable, ids: Tensor, /) -> Tensor:
        """The ids themselves, int64 [ids]: only the ps maps them to rows."""
        return tf1.reshape(ids, [-1])

    def _ps_and_bucket_rows(self, unique: Tensor) -> tuple[Tensor, Tensor]:
        """(the ps of each id, int32 [ids]; the ids)."""
        return tf1.cast(sets_of(unique, self.group.rows) % self.group.num_ps, tf1.int32), unique

    def _gathered(self, ps: int, ids: Tensor) -> Tensor:
        def look_up() -> Tensor:
            with tf1.control_dependencies([self.handles[ps]]):  # which is there after the tensors that a step waits for
                rows = self._id_rows[ps].look_up(tf1.identity(ids))
            rows.set_shape([None, *self.row_shape])
            return rows

        return transferred(look_up, ps_device(ps), self._worker, self._wire)

    def _read_all(self, handle: Tensor) -> Tensor:
        return tf1.reshape(super()._read_all(handle), [-1, *self.group.row_shape])
