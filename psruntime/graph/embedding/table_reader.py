"""How a worker reads rows of the tables on the ps: of one that is whole on one ps, and of a table group.

A lookup sends ids and gets rows back; each id and each row travels once, for a group in a message a ps.  The pull of a
table is its version; every read of it runs later, because its handle is there only after the version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket
from psruntime.core.plan.table_groups import (
    BatchPosition,
    BucketRow,
    GroupedTable,
    GroupRow,
    TableGroup,
    TableId,
    bucket_row,
    group_row,
    ids_on,
    ps_of,
)
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Op, Tensor
from psruntime.graph.buckets.gradient import AS_IS, FULL, BucketGradient, Wire, row_sums, unpacked


def transferred(read: Callable[[], Tensor], ps: str, worker: str, wire: Wire) -> Tensor:
    """The result of `read()` on device `ps`, sent to device `worker`; it arrives in host memory, see `pulled_whole`."""
    with uncolocated(), tf1.get_default_graph().gradient_override_map({"Cast": AS_IS}):
        with tf1.device(ps):
            found = read()
            packed = wire.packed(found)
        with tf1.device(worker), tf1.device("/device:CPU:0"):
            packed = tf1.identity(packed)
        with tf1.device(worker):
            return tf1.identity(unpacked(packed, found.dtype))


def uncolocated() -> Any:
    """A scope in which operations are on their own device, without the current colocation."""
    return tf1.get_default_graph().colocate_with(None, ignore_existing=True)


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


_UNIQUE = frozenset({"Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"})
_KEEPING = frozenset({"Identity", "Reshape"})  # operations after which ids are as different as before


class LookupRequest(NamedTuple):
    """A lookup.  ids: integers of any shape.  in_range: an operation that fails unless they can be looked up."""

    table: GroupedTable
    ids: Tensor
    in_range: Op


class Fetched(NamedTuple):
    """Rows of a group that were fetched for some lookups, all on the worker.

    keys: of each ps, integer [rows], unique: BucketRows, or of a dynamic table the ids.
    rows: of each ps, [rows] + row shape.
    positions: of each lookup, int32 ids.shape: BatchPositions among the rows of all ps, one ps after the other.
    results: of each lookup, ids.shape + row shape.
    order: of each ps, int32 [rows]: BatchPositions of its rows among those of all results, one lookup after the other;
        None unless each row is in the results once.
    """

    keys: list[Tensor]
    rows: list[Tensor]
    positions: list[Tensor]
    results: list[Tensor]
    order: list[Tensor] | None = None

    def gradients(self, of_results: Sequence[Tensor]) -> list[BucketGradient] | None:
        """The gradient of the bucket on each ps, from those of the results, of which some may be None; None if all are.

        Rows of results without a gradient only are left out: an optimizer may move a row whose gradient is zero.
        """
        known = [(_dense(g), at) for g, at in zip(of_results, self.positions, strict=True) if g is not None]
        if not known:
            return None
        counts = [tf1.size(keys) for keys in self.keys]
        row_shape = self.rows[0].shape.as_list()[1:]
        each = _joined([tf1.reshape(gradient, [-1, *row_shape]) for gradient, _ in known])
        if self.order and len(known) == len(self.positions):
            parts = [tf1.gather(each, at) for at in self.order] if len(self.order) > 1 else [each]
            return [BucketGradient(values, keys) for values, keys in zip(parts, self.keys, strict=True)]
        positions = _joined([tf1.reshape(at, [-1]) for _, at in known])
        if len(known) == len(self.positions):
            sums = row_sums(each, positions, tf1.add_n(counts))
            parts = tf1.split(sums, tf1.stack(counts), num=len(counts)) if len(counts) > 1 else [sums]
            return [BucketGradient(values, keys) for values, keys in zip(parts, self.keys, strict=True)]
        used, positions = tf1.unique(positions)
        sums = row_sums(each, positions, tf1.size(used))
        ps_of_each = tf1.searchsorted(tf1.cumsum(tf1.stack(counts)), used, side="right")
        parts = tf1.dynamic_partition(sums, ps_of_each, len(counts))
        keys = tf1.dynamic_partition(tf1.gather(_joined(self.keys), used), ps_of_each, len(counts))
        return [BucketGradient(values, own) for values, own in zip(parts, keys, strict=True)]


class GroupReader:
    """Reads rows of one group on device `worker`.  handles: of the masters on every ps, resource [], read through."""

    def __init__(self, group: TableGroup, handles: list[Tensor], worker: str, wire: Wire) -> None:
        self.group, self.handles = group, handles
        self.dtype = tf1.as_dtype(group.dtype)
        self.row_shape = group.row_shape
        self.fetched: list[Fetched] = []
        self._worker, self._wire = worker, wire
        self._ids_dtype = tf1.int32 if group.rows + group.num_ps < tf1.int32.max else tf1.int64

    def check(self, table: GroupedTable, ids: Tensor) -> Op:
        """An operation that fails unless all ids, integers of any shape, are rows of the table.

        It is made in the line of the lookup, which an error then names.
        """
        with tf1.device(self._worker):
            wide = ids if ids.dtype in (tf1.int32, tf1.int64) else tf1.cast(ids, tf1.int64)
            unsigned = tf1.uint32 if wide.dtype == tf1.int32 else tf1.uint64
            largest = tf1.reduce_max(tf1.bitcast(wide, unsigned))  # in which negative ones are the largest
            is_row = tf1.less(largest, tf1.constant(min(table.rows, wide.dtype.max + 1), unsigned))
            what = f"ids of table {table.name} must be in [0, {table.rows}), got"
            return tf1.raw_ops.Assert(condition=is_row, data=[what, tf1.bitcast(largest, wide.dtype)])

    def require_outermost(self, table: GroupedTable) -> None:
        """Called for a lookup in a loop, a branch or a function, whose gradient is taken through the handles.

        Raises:
            UsageError: this kind of table has no gradient there.
        """

    def fetch(self, lookups: Sequence[LookupRequest]) -> Fetched:
        """The rows of these lookups."""
        with tf1.name_scope(f"fetch/{self.group.name}/"), uncolocated():
            with tf1.device(self._worker):
                rows_of = [self._group_rows(lookup.table, lookup.ids) for lookup in lookups]
                with tf1.control_dependencies([lookup.in_range for lookup in lookups]):
                    asked = _joined(rows_of) if len(rows_of) > 1 else tf1.identity(rows_of[0])
                are_unique = _are_unique(lookups)
                unique, positions = (asked, None) if are_unique else tf1.unique(asked)
                keys, order = self._by_ps(unique)
                fetched_at = _fetched_positions(order, positions)
            rows = [self._gathered(ps, keys[ps]) for ps in range(self.group.num_ps)]
            with tf1.device(self._worker):
                sizes = [tf1.size(each) for each in rows_of]
                parts = tf1.split(fetched_at, tf1.stack(sizes), num=len(sizes)) if len(sizes) > 1 else [fetched_at]
                shaped = [_shaped(part, lookup.ids) for part, lookup in zip(parts, lookups, strict=True)]
                all_rows = _joined(rows)
                results = [tf1.gather(all_rows, at) for at in shaped]
                return Fetched(keys, rows, shaped, results, order if are_unique else None)

    def whole(self, table: GroupedTable, first_handle: Tensor) -> Tensor:
        """All rows of a table, [rows] + row shape.

        first_handle: the handle on the ps of its first row, resource [], as a tensor of the table's own.
        """
        num_ps = self.group.num_ps
        first_ps = ps_of(group_row(TableId(0), table.offset), num_ps)
        handles = [first_handle if ps == first_ps else handle for ps, handle in enumerate(self.handles)]
        parts = [self._rows_on(table, ps, handle) for ps, handle in enumerate(handles)]
        with tf1.device(self._worker):
            ids = [ids_on(ps, table.offset, table.rows, num_ps) for ps in range(num_ps)]
            value = tf1.dynamic_stitch([tf1.range(own.start, own.stop, own.step) for own in ids], parts)
            value.set_shape([table.rows, *self.group.row_shape])
            return value

    def _rows_on(self, table: GroupedTable, ps: int, handle: Tensor) -> Tensor:
        """All rows of a table that are on a ps."""
        ids = ids_on(ps, table.offset, table.rows, self.group.num_ps)
        start, count = bucket_row(group_row(TableId(ids[0]), table.offset), self.group.num_ps), len(ids)

        def read() -> Tensor:
            return self._read_all(handle)[start : start + count]

        return transferred(read, ps_device(ps), self._worker, self._wire)

    def _read_all(self, handle: Tensor) -> Tensor:
        """All rows on a ps."""
        return tf1.raw_ops.ReadVariableOp(resource=handle, dtype=self.dtype)

    def _gathered(self, ps: int, keys: BucketRow) -> Tensor:
        """The rows of the bucket on a ps, [keys] + row shape."""

        def gather() -> Tensor:
            return tf1.raw_ops.ResourceGather(resource=self.handles[ps], indices=keys, dtype=self.dtype)

        return transferred(gather, ps_device(ps), self._worker, self._wire)

    def _group_rows(self, table: GroupedTable, ids: Tensor, /) -> GroupRow:
        """The rows of the group of ids of a table, int32 or int64 [ids].  ids: TableIds of any shape."""
        flat = ids if ids.shape.rank == 1 else tf1.reshape(ids, [-1])
        return group_row(tf1.cast(flat, self._ids_dtype), tf1.constant(table.offset, self._ids_dtype))

    def _by_ps(self, unique: GroupRow) -> tuple[list[BucketRow], list[BatchPosition]]:
        """(its keys, [keys]; their BatchPositions among the unique rows, int32 [keys]) of each ps."""
        num_ps = self.group.num_ps
        numbers = tf1.range(tf1.size(unique))
        if num_ps == 1:
            return [BucketRow(unique)], [numbers]  # with one ps both spaces are the same
        ps_of_each, sent = self._ps_and_bucket_rows(unique)
        return tf1.dynamic_partition(sent, ps_of_each, num_ps), tf1.dynamic_partition(numbers, ps_of_each, num_ps)

    def _ps_and_bucket_rows(self, unique: GroupRow) -> tuple[Tensor, BucketRow]:
        """(the ps of each row of the group, int32 [rows]; its row there, [rows])."""
        num_ps = self.group.num_ps
        return tf1.cast(ps_of(unique, num_ps), tf1.int32), bucket_row(unique, num_ps)


def _fetched_positions(order: list[Tensor], positions: Tensor) -> Tensor:
    """BatchPositions among the fetched rows of all ps, one ps after the other, int32 [ids].

    order: of each ps, the positions of its rows among the unique ones.  positions: of each id among the unique rows;
    None: the ids are unique themselves.
    """
    if len(order) == 1:
        return order[0] if positions is None else positions
    fetched_at = tf1.math.invert_permutation(tf1.concat(order, axis=0))
    return fetched_at if positions is None else tf1.gather(fetched_at, positions)


def _shaped(positions: Tensor, ids: Tensor) -> Tensor:
    """[ids] in the shape of the ids."""
    shaped = positions if ids.shape.rank == 1 else tf1.reshape(positions, tf1.shape(ids))
    shaped.set_shape(ids.shape)
    return shaped


def _are_unique(lookups: Sequence[LookupRequest]) -> bool:
    """Whether it is known that no row is asked for twice: each table has one lookup, of ids that are unique."""
    tables = {lookup.table.name for lookup in lookups}
    return len(tables) == len(lookups) and all(_is_unique(lookup.ids) for lookup in lookups)


def _is_unique(ids: Tensor) -> bool:
    while ids.op.type in _KEEPING:
        ids = ids.op.inputs[0]
    return ids.op.type in _UNIQUE and ids is ids.op.outputs[0] and ids.shape.rank == 1


def _dense(gradient: Tensor) -> Tensor:
    """A gradient as a tensor, also if it names rows."""
    if isinstance(gradient, tf1.IndexedSlices) and gradient.dense_shape is not None:
        return row_sums(gradient.values, tf1.cast(gradient.indices, tf1.int32), gradient.dense_shape[0])
    return tf1.convert_to_tensor(gradient)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tf1.concat(tensors, axis=0) if len(tensors) > 1 else tensors[0]
