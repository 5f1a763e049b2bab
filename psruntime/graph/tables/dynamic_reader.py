"""Reads the rows of a dynamic table: the ids themselves are sent to a ps, which maps them to rows."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.table_groups import GroupedTable, TableGroup
from psruntime.errors import UsageError
from psruntime.graph.base.devices import ps_device
from psruntime.graph.base.types import Op, Tensor
from psruntime.graph.dynamic.hashing import sets_of
from psruntime.graph.dynamic.id_rows import IdRows
from psruntime.graph.dynamic.id_sets import NO_ID
from psruntime.graph.store.wire import Wire
from psruntime.graph.tables.group_reader import GroupReader
from psruntime.graph.tables.reading import transferred


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
