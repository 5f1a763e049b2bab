"""The rows of a dynamic table: which id each belongs to, how an id is looked up, and how it gets a row.

Ids get and lose rows in the critical section of an update on their ps.  A lookup locks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf1

from psruntime.core.members.messages import ROW_COLUMNS
from psruntime.core.plan.buckets import WAYS
from psruntime.core.plan.table_groups import GroupedTable, TableGroup
from psruntime.errors import UsageError
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Op, Tensor, Variable
from psruntime.graph.base.variable_values import write_rows
from psruntime.graph.buckets.apply import Update
from psruntime.graph.buckets.bucket_store import BucketStore, ps_variable
from psruntime.graph.buckets.gradient import BucketGradient, Wire
from psruntime.graph.embedding.dynamic_table import NO_ID, IdSets, Lookup, Placed, noted, scattered, sets_of, sets_on_ps
from psruntime.graph.embedding.table_reader import GroupReader, transferred

# Columns of the counts of a set, as RowCounts has them.  Each row of a gradient is one of the first three.
COUNTS = len(ROW_COLUMNS) - 2  # ids and rows are not counted there
FOUND, ADMITTED, REFUSED, EXPIRED, EVICTED = range(COUNTS)

FreshRow = list[tuple[Variable, Tensor]]  # (slot of the optimizer, its entries for a new row)


class IdRows:
    """The variables of a bucket that map its rows to ids, on its ps.

    rows: ids [sets, WAYS], and the update that used each last, by the clock.
    seen: int64 [sets, WAYS], updates that the id of each row was in, those before it was admitted included.
    candidates: ids that were seen, but in too few updates; None where one update is enough.
    counts: int64 [sets, COUNTS], the fates of the rows of gradients, and why rows were freed.
    clock: int64 [], updates of the bucket since it was made; a checkpoint has points of its time as updates ago.

    Row `way` of set `s` is row s * WAYS + way of the master and of the optimizer's slots.
    """

    def __init__(self, store: BucketStore, group: TableGroup) -> None:
        assert group.dynamic
        self._store, self._table = store, group.tables[0].name
        self._all_sets, self._num_ps = group.rows, group.num_ps
        self._admit_after, expire_after = group.dynamic.admit_after, group.dynamic.expire_after
        name, sets = f"dynamic/{store.bucket.name}/", store.bucket.master_shape[0] // WAYS
        with tf1.device(ps_device(store.bucket.ps)):
            self.rows = sets_on_ps(name, sets, expire_after)
            self.seen = ps_variable(f"{name}seen", [sets, WAYS])
            self.counts = ps_variable(f"{name}counts", [sets, COUNTS])
            self.clock = ps_variable(f"{name}clock", [])
            self.candidates: IdSets | None = None
            self._candidates_seen: Variable = None
            if self._admit_after > 1:
                self.candidates = sets_on_ps(f"{name}candidate_", sets, expire_after)
                self._candidates_seen = ps_variable(f"{name}candidate_seen", [sets, WAYS])

    @property
    def variables(self) -> list[Variable]:
        return [*self.of_sets, self.clock]

    @property
    def of_sets(self) -> list[Variable]:
        """The variables that have a row for each set."""
        of_candidates = [*self.candidates.variables, self._candidates_seen] if self.candidates else []
        return [*self.rows.variables, self.seen, self.counts, *of_candidates]

    @property
    def times(self) -> list[Variable]:
        """The variables of points of time, by the clock."""
        return [self.rows.used, *([self.candidates.used] if self.candidates else [])]

    def look_up(self, ids: Tensor) -> Tensor:
        """int64 [ids] -> [ids] + row shape, of the master; the initial row of an id that has none."""

        def read(places: Tensor) -> Tensor:
            return self._store.master.sparse_read(_rows(places))

        def is_live(found: Lookup) -> Tensor:
            with tf1.control_dependencies([found.places]):
                return self.rows.is_live(found, self.clock.read_value())

        return looked_up(self.rows, ids, self.sets_of(ids), read, is_live, self._initial)

    def with_rows(self, gradient: BucketGradient, fresh: FreshRow) -> BucketGradient:
        """The gradient by rows, from one by unique ids: those that are admitted now get rows, and the gradients of ids
        without a row are left out.

        In the critical section of the bucket; gradient and fresh rows may be dead tensors.
        """
        ids = gradient.indices
        with tf1.control_dependencies([*gradient.tensors, *(row for _, row in fresh)]):
            clock = self.clock.assign_add(1, read_value=True)
            sets = self.sets_of(ids)
        with tf1.control_dependencies([clock]):
            found = self.rows.find(ids, sets)
            live = self.rows.is_live(found, clock)
        known = Lookup(tf1.boolean_mask(found.positions, live), tf1.boolean_mask(found.places, live))
        gone = tf1.boolean_mask(found.places, tf1.logical_not(live))
        used = [self.rows.use(known.places, clock), _added(self.seen, known.places), self.rows.free(gone)]
        with tf1.control_dependencies(used):
            unknown = _all_but(known.positions, ids)
        wanted, seen = self._admissible(unknown, ids, sets, clock)
        new = self._admitted(wanted, seen, ids, sets, clock, fresh)
        positions = tf1.concat([known.positions, new.positions], axis=0)
        with tf1.control_dependencies([self._count(sets, known, new, gone, ids)]):
            values = tf1.gather(gradient.values, positions)
            return BucketGradient(values, tf1.concat([_rows(known.places), _rows(new.places)], axis=0))

    def _admissible(self, unknown: Tensor, ids: Tensor, sets: Tensor, clock: Tensor) -> tuple[Tensor, Tensor]:
        """(positions of the ids that may have a row now, updates that each was in), of those at `unknown`."""
        if self.candidates is None:
            return unknown, tf1.ones_like(unknown, tf1.int64)
        ids, sets = tf1.gather(ids, unknown), tf1.gather(sets, unknown)
        found = self.candidates.find(ids, sets)
        before = self._candidates_seen.gather_nd(found.places)
        seen = tf1.where(self.candidates.is_live(found, clock), before, tf1.zeros_like(before)) + 1
        is_due = seen >= self._admit_after
        waiting = tf1.boolean_mask(found.places, tf1.logical_not(is_due))
        with tf1.control_dependencies([seen]):
            noted = [
                self._candidates_noted(waiting, tf1.boolean_mask(seen, tf1.logical_not(is_due))),
                self.candidates.use(waiting, clock),
                self.candidates.free(tf1.boolean_mask(found.places, is_due)),
            ]
        with tf1.control_dependencies(noted):
            first_seen = _all_but(found.positions, ids)
        placed = self.candidates.make_room(tf1.gather(sets, first_seen), clock)
        first_ids = tf1.gather(ids, tf1.gather(first_seen, placed.positions))
        with tf1.control_dependencies([self._candidates_noted(placed.places, tf1.ones_like(first_ids))]):
            entered = self.candidates.enter(first_ids, placed.places, clock)
        with tf1.control_dependencies([entered]):
            due = tf1.boolean_mask(found.positions, is_due)
            return tf1.gather(unknown, due), tf1.boolean_mask(seen, is_due)

    def _admitted(
        self, wanted: Tensor, seen: Tensor, ids: Tensor, sets: Tensor, clock: Tensor, fresh: FreshRow
    ) -> Placed:
        """Gives rows to the ids at `wanted`, as far as there is room; positions among all ids."""
        placed = self.rows.make_room(tf1.gather(sets, wanted), clock)
        positions, rows = tf1.gather(wanted, placed.positions), _rows(placed.places)
        new_ids = tf1.gather(ids, positions)
        made = [write_rows(self._store.master, rows, self._initial(new_ids))]
        for slot, row in fresh:
            shape = tf1.concat([tf1.shape(rows), tf1.shape(row)], axis=0)
            made.append(write_rows(slot, rows, tf1.broadcast_to(row, shape)))
        made.append(scattered(self.seen, placed.places, tf1.gather(seen, placed.positions)))
        with tf1.control_dependencies(made):
            entered = self.rows.enter(new_ids, placed.places, clock)
        with tf1.control_dependencies([entered]):
            expired, evicted = tf1.gather(wanted, placed.expired), tf1.gather(wanted, placed.evicted)
            return Placed(positions, tf1.identity(placed.places), expired, evicted)

    def _count(self, sets: Tensor, known: Lookup, new: Placed, gone: Tensor, ids: Tensor) -> Op:
        refused = _all_but(tf1.concat([known.positions, new.positions], axis=0), ids)
        columns = {
            FOUND: known.places[:, 0],
            ADMITTED: new.places[:, 0],
            REFUSED: tf1.gather(sets, refused),
            EXPIRED: tf1.concat([gone[:, 0], tf1.gather(sets, new.expired)], axis=0),
            EVICTED: tf1.gather(sets, new.evicted),
        }
        cells = [tf1.stack([of, tf1.fill(tf1.shape(of), tf1.constant(c, tf1.int64))], 1) for c, of in columns.items()]
        return _added(self.counts, tf1.concat(cells, axis=0))

    def sets_of(self, ids: Tensor) -> Tensor:
        """int64 [ids] -> the set of each, among those on this ps, int64 [ids]."""
        return sets_of(ids, self._all_sets) // self._num_ps

    def _initial(self, ids: Tensor) -> Tensor:
        master = self._store.master
        return noted()[self._table].initial.of(ids, master.shape.as_list()[1:], master.dtype.base_dtype)

    def _candidates_noted(self, places: Tensor, seen: Tensor) -> Op:
        return scattered(self._candidates_seen, places, seen)


def looked_up(
    stored_ids: IdSets,
    ids: Tensor,
    sets: Tensor,
    read: Callable[[Tensor], Tensor],
    is_live: Callable[[Lookup], Tensor],
    initial: Callable[[Tensor], Tensor],
) -> Tensor:
    """The rows of ids, int64 [ids] of these sets.

    read: the rows at places.  is_live: whether an id in the sets has not expired.  initial: rows of ids without one.

    An eviction removes the id from its place first, so a row that was read counts if its id is still there afterwards.
    """
    found = stored_ids.find(ids, sets)
    rows = read(found.places)
    with tf1.control_dependencies([rows]):
        counts = tf1.logical_and(stored_ids.still(ids, found), is_live(found))
    positions = tf1.boolean_mask(found.positions, counts)
    missing = _all_but(positions, ids)
    return tf1.dynamic_stitch([positions, missing], [tf1.boolean_mask(rows, counts), initial(tf1.gather(ids, missing))])


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


def of_ids(id_rows: IdRows, fresh: FreshRow, update: Update) -> Update:
    """The update of a bucket by a gradient of ids, from its update by a gradient of rows."""
    return lambda gradient: update(id_rows.with_rows(gradient, fresh))


def _all_but(positions: Tensor, ids: Tensor) -> Tensor:
    """The other positions of the ids, int32, ascending."""
    taken = tf1.scatter_nd(positions[:, None], tf1.ones_like(positions), tf1.shape(ids))
    return tf1.cast(tf1.where(tf1.equal(taken, 0))[:, 0], tf1.int32)


def _rows(places: Tensor) -> Tensor:
    return places[:, 0] * WAYS + places[:, 1]


def _added(variable: Variable, cells: Tensor) -> Op:
    ones = tf1.ones(tf1.shape(cells)[:1], tf1.int64)
    return tf1.raw_ops.ResourceScatterNdAdd(ref=variable.handle, indices=cells, updates=ones)
