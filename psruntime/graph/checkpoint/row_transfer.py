"""Moves the touched rows of tables between the ps and files, in chunks, by a few operations for each bucket.

A run moves one chunk on each ps.  Its rows are fed, so the graph does not grow with the number of tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeVar

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.saved_state import RowChanges, TableRange, TouchedPart
from psruntime.errors import CheckpointError
from psruntime.graph.base.server import ps_device, worker_cpu
from psruntime.graph.base.types import Feed, Op, Session, Tensor
from psruntime.graph.buckets.bucket_store import ChiefFence
from psruntime.graph.checkpoint.table_parts import TablePart, TableSlice, TouchedCopy, prefix_of

NUMBERS = "row"  # name of the tensor of the row numbers that the other tensors are of
NOWHERE = TableSlice("", 0, 1, 0, 0)

T = TypeVar("T")


class RowWriter:
    """Writes the touched rows that were copied; in the current graph, for worker `index` as the chief."""

    def __init__(self, copies: Sequence[TouchedCopy], index: int) -> None:
        self._copies = copies
        self._savings = {
            sharded: [
                _Saving(copy, ps_device(copy.part.bucket.ps) if sharded else worker_cpu(index)) for copy in copies
            ]
            for sharded in (True, False)
        }

    def write(self, session: Session, folder: str, parts: Sequence[TouchedPart], sharded: bool) -> list[str]:
        """Writes the files of all rows into `folder`; returns their prefixes.  parts: of the copies, in their order."""
        prefixes: list[str] = []
        savings = self._savings[sharded]

        def runs(number: int) -> Iterator[tuple[Op, Feed]]:
            begin, part = 0, parts[number]
            for chunk, rows in enumerate(part.portions):
                prefixes.append(f"{folder}/rows-{number}-{chunk}")
                yield savings[number].run(prefixes[-1], f"{part.prefix}/{chunk}", begin, rows)
                begin += rows

        of_ps: dict[int, list[tuple[Op, Feed]]] = {}
        for number, copy in enumerate(self._copies):
            of_ps.setdefault(copy.part.bucket.ps, []).extend(runs(number))
        for together in _together(of_ps, sharded):
            session.run(
                [operation for operation, _ in together], {k: v for _, feed in together for k, v in feed.items()}
            )
        return prefixes


class RowReader:
    """Restores rows of tables; in the current graph, for worker `index` as the chief."""

    def __init__(self, parts: Sequence[TablePart], index: int, fence: ChiefFence) -> None:
        self._fence = fence
        self._parts = parts
        self._restorings = {
            sharded: [_Restoring(part, ps_device(part.bucket.ps) if sharded else worker_cpu(index), fence)
                      for part in parts]
            for sharded in (True, False)
        }  # fmt: skip
        self._clocks = [_Advance(part, fence) for part in parts if part.clock is not None]
        self._notes = [_Note(part, fence) for part in parts if part.flags]

    def begin(self, session: Session, stamp: int, every_ps: Collection[int], incarnation: int) -> None:
        """Notes that these ps have the rows of the copy of this stamp; rows that are read later were touched since."""
        notes = [note for note in self._notes if note.ps in every_ps]
        self._fence.run(session, incarnation, [note.begin for note in notes], {note.stamp: stamp for note in notes})

    def read(
        self,
        session: Session,
        path: str,
        changes: RowChanges,
        sharded: bool,
        every_ps: Collection[int],
        incarnation: int,
    ) -> None:
        """Restores touched rows on these ps, whose other rows are those of the whole checkpoint.

        Raises:
            CheckpointError: the model lacks a table that has rows there.
        """
        here = {each.table for part in self._parts for each in part.slices}
        there = {table.name for part in changes.parts for table in part.tables}
        if missing := sorted(there - here):
            raise CheckpointError(
                f"checkpoint {path} does not fit the model: {missing[0]} is saved by rows there, and is no table here"
            )
        clocks = [clock for clock in self._clocks if clock.ps in every_ps]
        feed = {k: v for clock in clocks for k, v in clock.feed(changes).items()}
        self._fence.run(session, incarnation, [clock.write for clock in clocks], feed)
        of_ps: dict[int, list[tuple[Op, Feed]]] = {}
        for part, restoring in zip(self._parts, self._restorings[sharded], strict=True):
            if part.bucket.ps in every_ps:
                of_ps.setdefault(part.bucket.ps, []).extend(restoring.runs(path, changes))
        for together in _together(of_ps, sharded):
            feed = {k: v for _, each in together for k, v in each.items()}
            self._fence.run(session, incarnation, [operation for operation, _ in together], feed)


def _together(of_ps: dict[int, list[T]], sharded: bool) -> Iterator[list[T]]:
    """The work of each run: one item of each ps, or, where the chief moves all, one item."""
    if sharded:
        for run in zip_longest(*of_ps.values()):
            yield [each for each in run if each is not None]
    else:
        yield from ([each] for of_one in of_ps.values() for each in of_one)


class _Saving:
    """Writes a chunk of the touched rows of one copy, on `device`."""

    def __init__(self, copy: TouchedCopy, device: str) -> None:
        self._names = [NUMBERS, *copy.part.kept]
        with tf1.device(device):
            self._prefix = tf1.placeholder(tf1.string, [], name="prefix")
            self._tensor_names = tf1.placeholder(tf1.string, [len(self._names)], name="names")
        with tf1.device(ps_device(copy.part.bucket.ps)):
            self._begin = tf1.placeholder(tf1.int64, [], name="begin")
            self._rows = tf1.placeholder(tf1.int64, [], name="rows")
        tensors = copy.chunk(self._begin, self._rows)
        with tf1.device(device):
            self._save = tf1.raw_ops.SaveV2(
                prefix=self._prefix,
                tensor_names=self._tensor_names,
                shape_and_slices=[""] * len(self._names),
                tensors=tensors,
            )

    def run(self, prefix: str, named: str, begin: int, rows: int) -> tuple[Op, Feed]:
        names = [f"{named}/{name}" for name in self._names]
        return self._save, {
            self._prefix: prefix, self._tensor_names: names, self._begin: begin, self._rows: rows,
        }  # fmt: skip


class _Where(NamedTuple):
    """The tables that a chunk has rows of, int64 [tables] each: from which row of the chunk, and where they are in
    the table, in the bucket that was saved, and in that to which they are restored; see TableRange and TableSlice."""

    first: Tensor
    start: Tensor
    offset: Tensor
    stride: Tensor
    own_start: Tensor
    own_stride: Tensor
    own_height: Tensor  # 0 of a table that is elsewhere
    own_offset: Tensor


class _Restoring:
    """Reads chunks of touched rows on `device`, and writes those that a part has, on its ps."""

    def __init__(self, part: TablePart, device: str, fence: ChiefFence) -> None:
        self._part = part
        self._names = [NUMBERS, *part.kept]
        ps = part.bucket.ps
        with tf1.device(device):
            self._prefix = tf1.placeholder(tf1.string, [], name="prefix")
            self._tensor_names = tf1.placeholder(tf1.string, [len(self._names)], name="names")
            variables = part.kept.values()
            rows, *values = tf1.raw_ops.RestoreV2(
                prefix=self._prefix,
                tensor_names=self._tensor_names,
                shape_and_slices=[""] * len(self._names),
                dtypes=[tf1.int64, *(variable.dtype.base_dtype for variable in variables)],
            )
        rows.set_shape([None])
        for variable, value in zip(variables, values, strict=True):
            value.set_shape([None, *variable.shape[1:]])
        with tf1.device(ps_device(ps)):
            self._where = _Where(*(tf1.placeholder(tf1.int64, [None], name=name) for name in _Where._fields))
            own_rows, is_own = self._own(rows)
            own = {name: tf1.boolean_mask(value, is_own) for name, value in zip(part.kept, values, strict=True)}
            writes = part.assign(own_rows, own) + ([part.flags.note(own_rows)] if part.flags else [])
            self._write = tf1.group(*writes)
        fence.guard(ps, writes)

    def _own(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(rows of the part's variables, int64 [own]; which of the given rows these are, bool [rows])."""
        per_row = self._part.per_row
        numbers = tf1.range(tf1.size(rows, out_type=tf1.int64))
        table = tf1.searchsorted(self._where.first, numbers, side="right") - 1
        at = _Where(*(tf1.gather(each, table) for each in self._where))
        ahead = at.start + (rows - at.offset) // per_row * at.stride - at.own_start
        number = ahead // at.own_stride
        on_this_ps = tf1.equal(tf1.floormod(ahead, at.own_stride), 0)
        is_own = on_this_ps & (ahead >= 0) & (number < at.own_height)
        is_own.set_shape([None])
        row = at.own_offset + number * per_row + tf1.floormod(rows, per_row)
        return tf1.boolean_mask(row, is_own), is_own

    def runs(self, path: str, changes: RowChanges) -> Iterator[tuple[Op, Feed]]:
        """The runs that restore the rows of the part that the file has."""
        slices: dict[str, list[TableSlice]] = {}
        for each in self._part.slices:
            slices.setdefault(each.table, []).append(each)
        for saved in (saved for saved in changes.parts if saved.kind == self._part.kind):
            for number, tables in enumerate(saved.by_portion()):
                of_tables = [slices.get(table.name, []) for _, table in tables]
                for i in range(max(map(len, of_tables), default=0)):  # the parts of a table, one after the other
                    own = [of_table[i] if i < len(of_table) else NOWHERE for of_table in of_tables]
                    yield self._run(path, f"{saved.prefix}/{number}", tables, own)

    def _run(
        self, path: str, named: str, tables: list[tuple[int, TableRange]], own: list[TableSlice]
    ) -> tuple[Op, Feed]:
        where = [
            _Where(first, t.start, t.offset, t.stride, o.start, o.stride, o.height, o.offset)
            for (first, t), o in zip(tables, own, strict=True)
        ]
        return self._write, {
            self._prefix: path,
            self._tensor_names: [f"{named}/{name}" for name in self._names],
            **dict(zip(self._where, map(list, zip(*where, strict=True)), strict=True)),
        }


class _Note:
    """Starts to note which rows of a part are touched, on its ps."""

    def __init__(self, part: TablePart, fence: ChiefFence) -> None:
        assert part.flags
        self.ps = part.bucket.ps
        with tf1.device(ps_device(self.ps)):
            self.stamp = tf1.placeholder(tf1.int64, [], name="stamp")
            self.begin = part.flags.begin(self.stamp)
        fence.guard(self.ps, self.begin)


class _Advance:
    """Advances the clock of a dynamic table, on its ps."""

    def __init__(self, part: TablePart, fence: ChiefFence) -> None:
        self.part, self.ps = part, part.bucket.ps
        with tf1.device(ps_device(self.ps)):
            self.elapsed = tf1.placeholder(tf1.int64, [], name="elapsed")
            self.write = part.clock.assign_add(self.elapsed, read_value=False)
        fence.guard(self.ps, [self.write])

    def feed(self, changes: RowChanges) -> Feed:
        """The count of this bucket's clock; if the rows were on other ps, the highest of their clocks.

        In the modes async and bounded clocks differ by the updates that a ps refused, and so do idle times then.
        """
        table = self.part.slices[0].table
        of_table = [part for part in changes.parts if any(each.name == table for each in part.tables)]
        same = [part.elapsed for part in of_table if part.prefix == prefix_of(self.part)]
        return {self.elapsed: max(same or [part.elapsed for part in of_table], default=0)}
