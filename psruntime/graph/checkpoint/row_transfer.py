"""Moves the touched rows of tables between the ps and files, in portions, by a few operations for each bucket.

A run moves one portion on each ps.  Which one is fed, so the graph does not grow with the number of tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.row_changes import RowChanges, TableRange, TouchedPart
from psruntime.core.plan.buckets import Piece
from psruntime.errors import CheckpointError
from psruntime.graph.base.devices import ps_device, worker_cpu
from psruntime.graph.checkpoint.table_parts import TablePart, TouchedCopy
from psruntime.graph.store.write_fence import WriteFence

NUMBERS = "row"  # name of the tensor that says which rows the others are of

Feed = dict[Any, Any]
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

    def write(self, session: Any, folder: str, parts: Sequence[TouchedPart], sharded: bool) -> list[str]:
        """Writes the files of all rows into `folder`; returns their prefixes.  parts: of the copies, in their order."""
        prefixes: list[str] = []
        savings = self._savings[sharded]

        def runs(number: int) -> Iterator[tuple[Any, Feed]]:
            begin, part = 0, parts[number]
            for portion, rows in enumerate(part.portions):
                prefixes.append(f"{folder}/rows-{number}-{portion}")
                yield savings[number].run(prefixes[-1], f"{part.prefix}/{portion}", begin, rows)
                begin += rows

        of_ps: dict[int, list[tuple[Any, Feed]]] = {}
        for number, copy in enumerate(self._copies):
            of_ps.setdefault(copy.part.bucket.ps, []).extend(runs(number))
        for together in _together(of_ps, sharded):
            session.run(
                [operation for operation, _ in together], {k: v for _, feed in together for k, v in feed.items()}
            )
        return prefixes


class RowReader:
    """Gives rows of tables what was saved of them; in the current graph, for worker `index` as the chief."""

    def __init__(self, parts: Sequence[TablePart], index: int, fence: WriteFence) -> None:
        self._fence = fence
        self._parts = parts
        self._restorings = {
            sharded: [_Restoring(part, ps_device(part.bucket.ps) if sharded else worker_cpu(index), fence)
                      for part in parts]
            for sharded in (True, False)
        }  # fmt: skip
        self._clocks = [_Advance(part, fence) for part in parts if part.clock is not None]

    def read(
        self, session: Any, path: str, changes: RowChanges, sharded: bool, every_ps: Collection[int], incarnation: int
    ) -> None:
        """Writes them over the rows on these ps, which are as the checkpoint before has them.

        Raises:
            CheckpointError: rows of a table are there that is none here.
        """
        here = {piece.variable for part in self._parts for piece in part.bucket.pieces}
        there = {table.name for part in changes.parts for table in part.tables}
        if missing := sorted(there - here):
            raise CheckpointError(
                f"checkpoint {path} does not fit the model: {missing[0]} is saved by rows there, and is no table here"
            )
        elapsed = max((part.elapsed for part in changes.parts), default=0)
        clocks = [clock for clock in self._clocks if clock.ps in every_ps]
        self._fence.run(
            session, incarnation, [clock.write for clock in clocks], {clock.elapsed: elapsed for clock in clocks}
        )
        of_ps: dict[int, list[tuple[Any, Feed]]] = {}
        for part, restoring in zip(self._parts, self._restorings[sharded], strict=True):
            if part.bucket.ps in every_ps:
                of_ps.setdefault(part.bucket.ps, []).extend(restoring.runs(path, changes))
        for together in _together(of_ps, sharded):
            feed = {k: v for _, each in together for k, v in each.items()}
            self._fence.run(session, incarnation, [operation for operation, _ in together], feed)


def _together(of_ps: dict[int, list[T]], sharded: bool) -> Iterator[list[T]]:
    """What one run does: something on each ps, or, where the chief moves all, one thing."""
    if sharded:
        for run in zip_longest(*of_ps.values()):
            yield [each for each in run if each is not None]
    else:
        yield from ([each] for of_one in of_ps.values() for each in of_one)


class _Saving:
    """Writes a portion of the touched rows of one copy, on `device`."""

    def __init__(self, copy: TouchedCopy, device: str) -> None:
        self._names = [NUMBERS, *copy.part.kept]
        with tf1.device(device):
            self._prefix = tf1.placeholder(tf1.string, [], name="prefix")
            self._tensor_names = tf1.placeholder(tf1.string, [len(self._names)], name="names")
        with tf1.device(ps_device(copy.part.bucket.ps)):
            self._begin = tf1.placeholder(tf1.int64, [], name="begin")
            self._rows = tf1.placeholder(tf1.int64, [], name="rows")
        tensors = copy.portion(self._begin, self._rows)
        with tf1.device(device):
            self._save = tf1.raw_ops.SaveV2(
                prefix=self._prefix,
                tensor_names=self._tensor_names,
                shape_and_slices=[""] * len(self._names),
                tensors=tensors,
            )

    def run(self, prefix: str, named: str, begin: int, rows: int) -> tuple[Any, Feed]:
        names = [f"{named}/{name}" for name in self._names]
        return self._save, {
            self._prefix: prefix, self._tensor_names: names, self._begin: begin, self._rows: rows,
        }  # fmt: skip


class _Where(NamedTuple):
    """Which rows a file has of a table, and which of them a piece of a bucket has, int64 [] each; see `_Restoring`."""

    start: Any
    offset: Any
    stride: Any
    own_start: Any
    own_offset: Any
    own_stride: Any
    own_height: Any


class _Restoring:
    """Reads some of the touched rows of a table on `device`, and writes those that a part has, on its ps."""

    def __init__(self, part: TablePart, device: str, fence: WriteFence) -> None:
        self._part = part
        self._names = [NUMBERS, *part.kept]
        ps = part.bucket.ps
        with tf1.device(device):
            self._prefix = tf1.placeholder(tf1.string, [], name="prefix")
            self._tensor_names = tf1.placeholder(tf1.string, [len(self._names)], name="names")
            self._slices = tf1.placeholder(tf1.string, [len(self._names)], name="slices")
            variables = part.kept.values()
            dtypes = [tf1.int64, *(variable.dtype.base_dtype for variable in variables)]
            rows, *values = tf1.raw_ops.RestoreV2(
                prefix=self._prefix, tensor_names=self._tensor_names, shape_and_slices=self._slices, dtypes=dtypes
            )
        rows.set_shape([None])
        for variable, value in zip(variables, values, strict=True):
            value.set_shape([None, *variable.shape[1:]])
        with tf1.device(ps_device(ps)):
            self._where = _Where(*(tf1.placeholder(tf1.int64, [], name=name) for name in _Where._fields))
            own_rows, is_own = self._own(rows)
            own = {name: tf1.boolean_mask(value, is_own) for name, value in zip(part.kept, values, strict=True)}
            writes = part.assign(own_rows, own)
            self._write = tf1.group(*writes)
        fence.guard(ps, writes)

    def _own(self, rows: Any) -> tuple[Any, Any]:
        """(rows of the part's variables, int64 [own]; which of the given rows these are, bool [rows])."""
        where, per_row = self._where, self._part.per_row
        of_table = where.start + (rows - where.offset) // per_row * where.stride
        ahead = of_table - where.own_start
        place = ahead // where.own_stride
        on_this_ps = tf1.equal(tf1.floormod(ahead, where.own_stride), 0)
        is_own = on_this_ps & (ahead >= 0) & (place < where.own_height)
        row = where.own_offset + place * per_row + tf1.floormod(rows, per_row)
        return tf1.boolean_mask(row, is_own), is_own

    def runs(self, path: str, changes: RowChanges) -> Iterator[tuple[Any, Feed]]:
        """All that give the part what the file has of its rows."""
        pieces = {piece.variable: piece for piece in self._part.bucket.pieces}
        for saved in (saved for saved in changes.parts if saved.kind == self._part.kind):
            for table in (table for table in saved.tables if table.name in pieces):
                for number, first, rows in saved.portions_of(table):
                    yield self._run(path, saved, table, pieces[table.name], number, first, rows)

    def _run(
        self, path: str, saved: TouchedPart, table: TableRange, piece: Piece, number: int, first: int, rows: int
    ) -> tuple[Any, Feed]:
        part = self._part
        heights = [saved.portions[number]] * len(self._names)
        row_shapes = [(), *(tuple(variable.shape.as_list()[1:]) for variable in part.kept.values())]
        where = _Where(
            table.start, table.offset, table.stride,
            part.start(piece), part.first_row(piece), piece.stride, part.height(piece),
        )  # fmt: skip
        return self._write, {
            self._prefix: path,
            self._tensor_names: [f"{saved.prefix}/{number}/{name}" for name in self._names],
            self._slices: [_slice(h, shape, first, rows) for h, shape in zip(heights, row_shapes, strict=True)],
            **dict(zip(self._where, where, strict=True)),
        }


class _Advance:
    """Lets the clock of a dynamic table go on, on its ps."""

    def __init__(self, part: TablePart, fence: WriteFence) -> None:
        self.ps = part.bucket.ps
        with tf1.device(ps_device(self.ps)):
            self.elapsed = tf1.placeholder(tf1.int64, [], name="elapsed")
            self.write = part.clock.assign_add(self.elapsed, read_value=False)
        fence.guard(self.ps, [self.write])


def _slice(height: int, row_shape: tuple[int, ...], first: int, rows: int) -> str:
    """Rows of a tensor of that height, in the form of `tf.raw_ops.SaveV2`."""
    shape = " ".join(map(str, (height, *row_shape)))
    return f"{shape} " + ":".join([f"{first},{rows}", *("-" for _ in row_shape)])
