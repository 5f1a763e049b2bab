"""A copy of the variables on the ps, each on its own, so that a checkpoint can be written while training continues.

A bucket's master, its optimizer's variables and its counters are copied under the mutex of its section, so all are of
the same update.
Of tables only the rows may be copied that were touched since the last copy of everything; or nothing, where no worker
trains: then they are read in place, a chunk at a time, and no ps needs room for a second one.
TensorFlow copies a dense variable only when it is next updated: until then both share their memory.

Every ps has one copy, also after a change of the chief.  A stamp, a random number that is written before each copy,
identifies it, so a chief that stood still finds that another has made one since.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.saved_state import BucketCounters, RowChanges, SavedState
from psruntime.errors import DivergedError, PassedRoundError
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Op, Session, Tensor, Variable
from psruntime.graph.base.variable_values import VariableCopy, at_run_time, row_chunks
from psruntime.graph.buckets.bucket_store import GLOBAL_STEP, BucketStore, counts_of
from psruntime.graph.checkpoint.table_parts import MASTER, TablePart, TouchedCopy
from psruntime.graph.push.guard import locked
from psruntime.graph.push.round_sum import APPLIED_ATTEMPT
from psruntime.graph.step.train_graph import TrainGraph

# Columns of a bucket's counters with its copy: its version, in mode sync the last attempt that it applied, of the
# global step's bucket the global step, and from there on its ledger.
_VERSION, _ATTEMPT, _STEP, _LEDGER = range(4)


class Snapshot:
    """One copy of everything, in the current graph.  `take`, then run what `read` builds, then `release`.

    tables: all.  only_touched: whether to leave out untouched rows, where touched ones are noted; if not, rows are
    noted as touched since this copy.  in_place: whether the tables are not copied.
    touched: the copies of such rows, in the order of the tables; empty unless only_touched.
    """

    def __init__(
        self, graph: TrainGraph, tables: Sequence[TablePart], only_touched: bool = False, in_place: bool = False
    ) -> None:
        self._graph = graph
        noted = [part for part in tables if part.flags]
        self._tables = [] if only_touched else noted
        self.touched = [TouchedCopy(part) for part in noted] if only_touched else []
        self._in_place = {v.handle.op.name for part in tables for v in part.kept.values()} if in_place else set()
        self._facts: dict[int, Tensor] = {}  # of the touched copies, by their number
        self._every_ps = range(graph.plan.num_ps)
        self._stores = [graph.stores_on(ps) for ps in self._every_ps]
        sections = graph.rounds.sections if graph.rounds else []
        self._rounds = {store.bucket.name: rounds for rounds in sections for store in rounds.stores}
        self._copies: dict[str, VariableCopy] = {}  # by the name of the variable's handle
        self._stamps = [_Stamp(ps) for ps in self._every_ps]
        self._taken = 0  # the stamp of the latest copy
        self._copied: dict[str, Op] = {}  # by bucket, an operation
        counters = [self._copy_ps(ps) for ps in self._every_ps]
        on_ps = graph.model.ps_copies.variables
        ps_copies = [self._copy_after_stamp(copy.ps, on_ps[copy.name]) for copy in graph.plan.copies]
        stamped = [stamp.write for stamp in self._stamps]
        self._take = {
            "counters": [c for c in counters if c is not None],
            "facts": [self._facts[number] for number in range(len(self.touched))],
            "finite": {store.bucket.name: self._is_finite(store) for stores in self._stores for store in stores},
            "others": [*ps_copies, *stamped],
        }
        self._read_stamps = [stamp.value for stamp in self._stamps]
        self._release = [copy.free() for copy in self._copies.values()]
        self._release += [freed for copy in self.touched for freed in copy.free()]
        self._versions = {s.bucket.name: s.version() for stores in self._stores for s in stores}
        self._since = [copy.part.flags.since()[0] for copy in self.touched if copy.part.flags]

    def read(self, variable: Variable, first: int = 0, rows: int | None = None) -> Tensor:
        """The value of a variable's copy, on its ps, as the variable; or [rows, ...], its rows from the first on."""
        if variable.handle.op.name in self._in_place:
            return _rows_of(variable, first, variable.shape.as_list()[0] if rows is None else rows)
        value = self._copies[variable.handle.op.name].read()
        with tf1.device(variable.device):
            return value if rows is None else value[first : first + rows]

    def take(self, session: Session) -> tuple[SavedState, RowChanges | None]:
        """Copies everything as it is now.

        Returns:
            (the counters of now, which rows were touched).  The latter is None without only_touched, or if they are not
            known to be all those since one copy of everything.

        Raises:
            CheckpointError: a parameter is not finite.
            PassedRoundError: mode sync, the buckets have not applied the same rounds.
        """
        self._taken = secrets.randbelow(1 << 62) + 1
        taken = session.run(self._take, {stamp.new: self._taken for stamp in self._stamps})
        if diverged := [name for name, finite in taken["finite"].items() if not finite]:
            raise DivergedError(f"no checkpoint was made: {diverged[0]} has numbers that are not finite")
        with_buckets = [ps for ps in self._every_ps if self._stores[ps]]
        buckets, counts, attempts, global_step = {}, {}, set(), 0
        for ps, (rows, pushed) in zip(with_buckets, taken["counters"], strict=True):
            counts[ps] = counts_of(pushed)
            for store, row in zip(self._stores[ps], rows.tolist(), strict=True):
                buckets[store.bucket.name] = BucketCounters(row[_VERSION], tuple(row[_LEDGER:]), ps)
                if store.bucket.name in self._rounds:  # not of a variable that the loss does not depend on
                    attempts.add(row[_ATTEMPT])
                global_step = max(global_step, row[_STEP])
        if len(attempts) > 1:
            raise PassedRoundError("no checkpoint was made: others closed a round meanwhile")
        state = SavedState(global_step, buckets, counts, self._taken)
        facts = [of_copy.tolist() for of_copy in taken["facts"]]
        stamps = {stamp for stamp, *_ in facts}
        if len(stamps) != 1 or stamps == {0}:
            return state, None
        parts = [copy.described(of_copy) for copy, of_copy in zip(self.touched, facts, strict=True)]
        return state, RowChanges(stamps.pop(), tuple(parts))

    def since(self, session: Session) -> int:
        """The stamp of the copy since which all touched rows are noted; 0 if it is not the same for all tables."""
        stamps = {int(stamp) for stamp in session.run(self._since)}
        return stamps.pop() if len(stamps) == 1 else 0

    def is_ours(self, session: Session) -> bool:
        """Whether every ps has the copy that was taken here last."""
        return set(session.run(self._read_stamps)) == {self._taken}

    def is_current(self, session: Session, state: SavedState) -> bool:
        """Whether no bucket was updated since it was copied, as it must be where tables are read in place."""
        versions = session.run(self._versions) if self._in_place else {}
        return all(state.buckets[name].version == version for name, version in versions.items())

    def release(self, session: Session, others: Sequence[Snapshot] = ()) -> None:
        """Frees the memory of our copies, and of `others`, which a chief that was killed may have left."""
        if self.is_ours(session):
            session.run([snapshot._release for snapshot in (self, *others)])

    def _copy_ps(self, ps: int) -> tuple[Tensor, Tensor] | None:
        """(the counters of its buckets, int64 [buckets, columns]; accepted and received pushes of each worker that each
        of them has, int64 [max_workers, 2]), once they are copied; None without buckets."""
        with tf1.control_dependencies([self._stamps[ps].write]):
            copied = [self._copy_bucket(store) for store in self._stores[ps]]
        if not copied:
            return None
        with tf1.device(ps_device(ps)):
            return tf1.stack([own for own, _ in copied]), tf1.reduce_min(tf1.stack([p for _, p in copied]), axis=0)

    def _copy_bucket(self, store: BucketStore) -> tuple[Tensor, Tensor]:
        rounds = self._rounds.get(store.bucket.name)

        def copy() -> tuple[Tensor, list[Tensor | Op]]:
            nothing = tf1.constant(0, tf1.int64)
            attempt = rounds.state.read_value()[APPLIED_ATTEMPT] if rounds else nothing
            step = store.master.read_value()[0] if store.bucket is GLOBAL_STEP else nothing
            head = tf1.stack([store.version(), attempt, step])
            counters = tf1.concat([head, store.ledger()], axis=0)
            return counters, [counters, *self._copied_values(store)]

        with tf1.name_scope(f"snapshot/{store.bucket.name}/"):
            counters, copied = locked(store.section, [], copy)
            self._copied[store.bucket.name] = copied
            with tf1.device(ps_device(store.bucket.ps)), tf1.control_dependencies([copied]):
                return counters, store.counts()

    def _copied_values(self, store: BucketStore) -> list[Tensor | Op]:
        """Operations that copy a bucket's variables, and restart the notes of which of their rows are touched."""
        done: list[Tensor | Op] = []
        apart: set[str] = set()
        for number, touched in enumerate(self.touched):
            if touched.part.bucket is store.bucket:
                self._facts[number], taken = touched.take()
                done += [self._facts[number], *taken]
                apart.update(variable.handle.op.name for variable in touched.part.kept.values())
        apart |= self._in_place
        done += [self._copy(v) for v in self._graph.values_of(store) if v.handle.op.name not in apart]
        for part in self._tables:
            if part.bucket is store.bucket and part.flags:
                done += part.flags.begin(self._stamps[store.bucket.ps].new)
        return done

    def _is_finite(self, store: BucketStore) -> Tensor:
        """Whether all parameters of the copied bucket are finite, bool [] on its ps; computed outside of the mutex."""
        with tf1.device(ps_device(store.bucket.ps)), tf1.control_dependencies([self._copied[store.bucket.name]]):
            if not store.master.dtype.base_dtype.is_floating:
                return tf1.constant(True)
            if store.master.handle.op.name in self._in_place:
                return _all_finite(store.master)
            touched = [copy for copy in self.touched if copy.part.kept.get(MASTER) is store.master]
            return tf1.reduce_all(tf1.is_finite(touched[0].read(MASTER) if touched else self.read(store.master)))

    def _copy_after_stamp(self, ps: int, variable: Variable) -> Op:
        with tf1.control_dependencies([self._stamps[ps].write]):
            return self._copy(variable)

    def _copy(self, variable: Variable) -> Op:
        copy = self._copies[variable.handle.op.name] = VariableCopy(variable, "snapshot")
        return copy.take()


def _rows_of(variable: Variable, first: int, rows: int) -> Tensor:
    """Some rows of a variable.  TensorFlow copies a variable that is updated by rows to read all of it."""
    with tf1.device(variable.device):
        numbers = at_run_time(first) + tf1.range(at_run_time(rows))
        return tf1.raw_ops.ResourceGather(resource=variable.handle, indices=numbers, dtype=variable.dtype.base_dtype)


def _all_finite(variable: Variable) -> Tensor:
    """Whether all rows are, a chunk at a time."""
    finite = tf1.constant(True)
    for start, rows in row_chunks(tuple(variable.shape.as_list()), variable.dtype.base_dtype.size):
        with tf1.control_dependencies([finite]):
            finite = finite & tf1.reduce_all(tf1.is_finite(_rows_of(variable, start, rows)))
    return finite


class _Stamp:
    """The stamp of the copy on a ps, int64 [].  new: placeholder.  write: an operation.  value: a tensor."""

    def __init__(self, ps: int) -> None:
        name = f"psruntime/snapshot_stamp/ps_{ps}"
        with tf1.device(ps_device(ps)):
            self.new = tf1.placeholder(tf1.int64, [], name=f"snapshot_stamp_{ps}")
            handle = tf1.raw_ops.VarHandleOp(dtype=tf1.int64, shape=[], shared_name=name)
            self.write = tf1.raw_ops.AssignVariableOp(resource=handle, value=self.new)
            self.value = tf1.raw_ops.ReadVariableOp(resource=handle, dtype=tf1.int64)
