"""The lookups of a step in table groups, put together: each id and each row travels once, in a message a group and ps.

A lookup gives model_fn its tensor at once, and what feeds that is connected when model_fn has ended and all lookups are
known.  Those whose ids depend on the rows of other lookups come after these: they are of a higher level.  One that the
step does not need, or that is not of its batch, travels by itself: whoever runs it does not run the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.table_groups import GroupedTable, TableGroup
from psruntime.graph.base.ancestors import ancestors
from psruntime.graph.base.devices import ps_device
from psruntime.graph.store.gradient import BucketGradient, row_sums
from psruntime.graph.store.wire import Wire
from psruntime.graph.tables.lookup_notes import is_outermost
from psruntime.graph.tables.reading import brought, uncolocated


class Fetched(NamedTuple):
    """Rows of a group that travelled for some lookups, all on the worker.

    ids: of each ps, integer [rows], unique, of its bucket.  rows: of each ps, [rows] + row shape.
    places: of each lookup, int32 ids.shape: which of the rows it got, those of all ps one after the other.
    results: of each lookup, ids.shape + row shape.
    """

    ids: list[Any]
    rows: list[Any]
    places: list[Any]
    results: list[Any]

    def gradients(self, of_results: Sequence[Any]) -> list[BucketGradient] | None:
        """Of the bucket on each ps, from the gradients of the results, of which some may be None; None if all are.

        Rows that only such results have are left out: an optimizer may move a row whose gradient is zero.
        """
        known = [(tf1.convert_to_tensor(g), at) for g, at in zip(of_results, self.places, strict=True) if g is not None]
        if not known:
            return None
        counts = [tf1.size(ids) for ids in self.ids]
        row_shape = self.rows[0].shape.as_list()[1:]
        each = _joined([tf1.reshape(gradient, [-1, *row_shape]) for gradient, _ in known])
        places = _joined([tf1.reshape(at, [-1]) for _, at in known])
        if len(known) == len(self.places):
            sums = row_sums(each, places, tf1.add_n(counts))
            parts = tf1.split(sums, tf1.stack(counts), num=len(counts)) if len(counts) > 1 else [sums]
            return [BucketGradient(values, ids) for values, ids in zip(parts, self.ids, strict=True)]
        used, places = tf1.unique(places)
        sums = row_sums(each, places, tf1.size(used))
        home = tf1.searchsorted(tf1.cumsum(tf1.stack(counts)), used, side="right")
        parts = tf1.dynamic_partition(sums, home, len(counts))
        ids_of = tf1.dynamic_partition(tf1.gather(_joined(self.ids), used), home, len(counts))
        return [BucketGradient(values, ids) for values, ids in zip(parts, ids_of, strict=True)]


@dataclass(frozen=True, eq=False)
class _Lookup:
    """table: of the group.  ids: integers of any shape.  in_range: an operation that fails unless all are its rows.

    result: identity of what is to be connected; None if the rows are fetched where they are looked up.
    """

    group: _GroupReader
    table: GroupedTable
    ids: Any
    in_range: Any
    result: Any = None


class TableLookups:
    """The table groups of a model as worker device `worker` reads them, in the current graph.

    handles: of each group's name the masters' on every ps, to be read through.

    What the model reads in another way than by lookups at its outermost level, it reads through the handles.
    """

    def __init__(self, groups: Sequence[TableGroup], handles: Mapping[str, list[Any]], worker: str, wire: Wire) -> None:
        self._graph = tf1.get_default_graph()
        self._worker = worker
        self._readers = {group.name: _GroupReader(group, handles[group.name], worker, wire) for group in groups}
        self._lookups: list[_Lookup] = []
        self._is_connected = False

    def views(self) -> dict[str, GroupedTableView]:
        """Table -> how the model reads it."""
        return {
            table.name: GroupedTableView(self, reader, table)
            for reader in self._readers.values()
            for table in reader.group.tables
        }

    def rows(self, reader: _GroupReader, table: GroupedTable, ids: Any) -> Any:
        """The rows of a lookup; those in loops, branches and functions are fetched there."""
        if self._is_connected or not is_outermost(self._graph):
            return reader.fetch([_Lookup(reader, table, ids, _in_range(table, ids, self._worker))]).results[0]
        with tf1.device(self._worker):
            shape = ids.shape.concatenate(reader.group.row_shape)
            result = tf1.identity(tf1.placeholder(reader.dtype, shape, name="to_be_connected"))
        with tf1.control_dependencies(None):  # whatever the result waits for, the fetch waits for the ids alone
            in_range = _in_range(table, ids, self._worker)
        self._lookups.append(_Lookup(reader, table, ids, in_range, result))
        return result

    def put_together(self, step: Iterable[Any], batch: Iterable[Any]) -> None:
        """Fetches the rows of all lookups so far; those of one level and group together that `step` needs and whose
        ids come from `batch`.

        step: tensors and operations.  batch: placeholders.
        """
        self._is_connected = True
        order = _Order(self._lookups, {tensor.op for tensor in batch})
        needed = order.needed_by(step)
        together = [lookup for lookup in self._lookups if lookup in needed and order.is_of_batch(lookup)]
        for lookup in self._lookups:
            if lookup not in together:
                self._fetch([lookup])
        for level in range(max(map(order.level, together), default=-1) + 1):
            for reader in self._readers.values():
                own = [lookup for lookup in together if lookup.group is reader and order.level(lookup) == level]
                if own:
                    self._fetch(own)

    def _fetch(self, lookups: list[_Lookup]) -> None:
        """Feeds the results of lookups of one group."""
        reader = lookups[0].group
        fetched = reader.fetch(lookups)
        for lookup, rows in zip(lookups, fetched.results, strict=True):
            lookup.result.op._update_input(0, rows)
        reader.fetched.append(fetched._replace(results=[lookup.result for lookup in lookups]))

    def fetched(self, group: TableGroup) -> list[Fetched]:
        """What was fetched for the lookups at the outermost level, level by level."""
        return self._readers[group.name].fetched

    def handles(self, group: TableGroup) -> list[Any]:
        """Of every ps, what all else is read through."""
        return self._readers[group.name].handles

    @property
    def sources(self) -> list[Any]:
        """What is read on the ps."""
        return [handle for reader in self._readers.values() for handle in reader.handles]


class GroupedTableView:
    """A table of a group, see View."""

    def __init__(self, lookups: TableLookups, reader: _GroupReader, table: GroupedTable) -> None:
        self._lookups, self._reader, self._table = lookups, reader, table
        home = ps_device(table.offset % reader.group.num_ps)
        self.home: str | None = home
        with tf1.name_scope(f"table/{table.name}"), uncolocated():
            with tf1.device(home):
                self.source = tf1.identity(reader.handles[table.offset % reader.group.num_ps])
            self.value = reader.whole(table, self.source)

    def sparse_read(self, indices: Any, name: str | None = None) -> Any:
        with tf1.name_scope(name, "Lookup"), uncolocated():
            return self._lookups.rows(self._reader, self._table, tf1.convert_to_tensor(indices))

    def gather_nd(self, indices: Any, name: str | None = None) -> Any:
        with tf1.name_scope(name, "Lookup"), uncolocated():
            indices = tf1.convert_to_tensor(indices)
            rows = self._lookups.rows(self._reader, self._table, indices[..., 0])
            depth, rank = indices.shape.as_list()[-1], indices.shape.rank
            return rows if depth == 1 else tf1.gather_nd(rows, indices[..., 1:], batch_dims=rank - 1)


class _GroupReader:
    """Reads rows of one group."""

    def __init__(self, group: TableGroup, handles: list[Any], worker: str, wire: Wire) -> None:
        self.group, self.handles = group, handles
        self.dtype = tf1.as_dtype(group.dtype)
        self.fetched: list[Fetched] = []
        self._worker, self._wire = worker, wire
        self._ids_dtype = tf1.int32 if group.rows + group.num_ps < tf1.int32.max else tf1.int64

    def fetch(self, lookups: Sequence[_Lookup]) -> Fetched:
        """The rows of these lookups."""
        num_ps = self.group.num_ps
        with tf1.name_scope(f"fetch/{self.group.name}/"), uncolocated():
            with tf1.device(self._worker):
                rows_of = [self._group_rows(lookup.table, lookup.ids) for lookup in lookups]
                with tf1.control_dependencies([lookup.in_range for lookup in lookups]):
                    unique, positions = tf1.unique(_joined(rows_of))
                ids, positions = _dealt(unique, positions, num_ps)
            rows = [self._gathered(ps, ids[ps]) for ps in range(num_ps)]
            with tf1.device(self._worker):
                sizes = [tf1.size(each) for each in rows_of]
                parts = tf1.split(positions, tf1.stack(sizes), num=len(sizes)) if len(sizes) > 1 else [positions]
                places = [_shaped(part, lookup.ids) for part, lookup in zip(parts, lookups, strict=True)]
                all_rows = _joined(rows)
                return Fetched(ids, rows, places, [tf1.gather(all_rows, at) for at in places])

    def whole(self, table: GroupedTable, at_home: Any) -> Any:
        """All of a table.  at_home: the handle of the ps where its first row is, as a tensor of the table's own."""
        num_ps = self.group.num_ps
        handles = [at_home if ps == table.offset % num_ps else handle for ps, handle in enumerate(self.handles)]
        parts = [self._strand(table, ps, handle) for ps, handle in enumerate(handles)]
        with tf1.device(self._worker):
            places = [tf1.range((ps - table.offset) % num_ps, table.rows, num_ps) for ps in range(num_ps)]
            value = tf1.dynamic_stitch(places, parts)
            value.set_shape([table.rows, *self.group.row_shape])
            return value

    def _strand(self, table: GroupedTable, ps: int, handle: Any) -> Any:
        """All rows of a table that are on a ps."""
        num_ps = self.group.num_ps
        first = (ps - table.offset) % num_ps
        start, count = (table.offset + first) // num_ps, len(range(first, table.rows, num_ps))

        def read() -> Any:
            return tf1.raw_ops.ReadVariableOp(resource=handle, dtype=self.dtype)[start : start + count]

        return brought(read, ps_device(ps), self._worker, self._wire)

    def _gathered(self, ps: int, ids: Any) -> Any:
        def gather() -> Any:
            return tf1.raw_ops.ResourceGather(resource=self.handles[ps], indices=ids, dtype=self.dtype)

        return brought(gather, ps_device(ps), self._worker, self._wire)

    def _group_rows(self, table: GroupedTable, ids: Any) -> Any:
        """The rows of the group that are rows `ids` of a table, [ids]."""
        flat = ids if ids.shape.rank == 1 else tf1.reshape(ids, [-1])
        return tf1.cast(flat, self._ids_dtype) + tf1.constant(table.offset, self._ids_dtype)


class _Order:
    """Which lookups have to come before which, and which depend on the batch alone.  fed: operations of the batch."""

    def __init__(self, lookups: Sequence[_Lookup], fed: set[Any]) -> None:
        self._of_result = {lookup.result.op: lookup for lookup in lookups}
        self._levels: dict[_Lookup, int] = {}
        self._others: set[_Lookup] = set()  # that depend on something else than the batch
        for lookup in lookups:  # one comes after those that its ids depend on
            operations, before = self._before([lookup.ids])
            self._levels[lookup] = max((self._levels[each] + 1 for each in before), default=0)
            if before & self._others or any(op.type == "Placeholder" and op not in fed for op in operations):
                self._others.add(lookup)

    def level(self, lookup: _Lookup) -> int:
        """One more than that of the highest whose rows its ids depend on, from 0."""
        return self._levels[lookup]

    def is_of_batch(self, lookup: _Lookup) -> bool:
        """Whether its ids can be computed from the batch."""
        return lookup not in self._others

    def needed_by(self, targets: Iterable[Any]) -> set[_Lookup]:
        """All lookups that have to be made for these tensors and operations."""
        needed: set[_Lookup] = set()
        waiting = self._before(targets)[1]
        while waiting:
            needed |= waiting
            roots = [root for each in waiting for root in (each.ids, *each.result.op.control_inputs)]
            waiting = self._before(roots)[1] - needed
        return needed

    def _before(self, targets: Iterable[Any]) -> tuple[set[Any], set[_Lookup]]:
        """(operations that have to run before these, back to lookups; these lookups)."""
        met: set[_Lookup] = set()

        def stops(op: Any) -> bool:
            if op in self._of_result:
                met.add(self._of_result[op])
            return op in self._of_result

        return ancestors(targets, stops), met


def _dealt(unique: Any, positions: Any, num_ps: int) -> tuple[list[Any], Any]:
    """(ids of each ps, places of `positions` in the rows of all ps one after the other)."""
    if num_ps == 1:
        return [unique], positions
    home = tf1.cast(unique % num_ps, tf1.int32)
    ids = tf1.dynamic_partition(unique // num_ps, home, num_ps)
    places = tf1.dynamic_partition(tf1.range(tf1.size(unique)), home, num_ps)
    return ids, tf1.gather(tf1.math.invert_permutation(tf1.concat(places, axis=0)), positions)


def _shaped(positions: Any, ids: Any) -> Any:
    """[ids] in the shape of the ids."""
    shaped = positions if ids.shape.rank == 1 else tf1.reshape(positions, tf1.shape(ids))
    shaped.set_shape(ids.shape)
    return shaped


def _joined(tensors: Sequence[Any]) -> Any:
    return tf1.concat(tensors, axis=0) if len(tensors) > 1 else tensors[0]


def _in_range(table: GroupedTable, ids: Any, worker: str) -> Any:
    """An operation that fails unless all ids are rows of the table.  It is made by the line that looks them up."""
    with tf1.device(worker):
        wide = ids if ids.dtype in (tf1.int32, tf1.int64) else tf1.cast(ids, tf1.int64)
        unsigned = tf1.uint32 if wide.dtype == tf1.int32 else tf1.uint64
        largest = tf1.reduce_max(tf1.bitcast(wide, unsigned))  # in which negative ones are the largest
        is_row = tf1.less(largest, tf1.constant(min(table.rows, wide.dtype.max + 1), unsigned))
        what = f"ids of table {table.name} must be in [0, {table.rows}), got"
        return tf1.raw_ops.Assert(condition=is_row, data=[what, tf1.bitcast(largest, wide.dtype)])
