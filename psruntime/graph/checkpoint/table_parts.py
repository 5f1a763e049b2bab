"""The variables of tables whose rows are saved by themselves, and the copy of those rows that were touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.saved_state import TableRange, TouchedPart
from psruntime.core.plan.buckets import WAYS, Bucket, Piece
from psruntime.graph.base import variable_values
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Op, Tensor, Variable
from psruntime.graph.buckets.apply import RowFlags
from psruntime.graph.checkpoint.entries import suffix_of
from psruntime.graph.step.train_graph import TrainGraph

ROWS, SETS = "rows", "sets"  # kinds: of the master and its slots; of the ids of the rows of a dynamic table
MASTER = "value"  # the name of a master among the variables of a part


class TableSlice(NamedTuple):
    """The rows of a table that a piece has: `height` of them, from row `start`, and every `stride`-th after it.  The
    first of them is row `offset` of the bucket's variables."""

    table: str
    start: int
    stride: int
    height: int
    offset: int


@dataclass(frozen=True)
class TablePart:
    """Variables of the bucket of a table, of which an update touches the same rows.

    kept: name in a checkpoint -> variable.  per_row: how many of their rows are one of the table.
    times: those that have points of time, by the `clock`; a checkpoint has how long ago these are.
    flags: None if touched rows are not noted.  is_trained: whether there are updates.
    of_pieces: of each piece of the bucket (the name of its table in a checkpoint, rows of that before the piece's
        variable, which may be a part of it).
    """

    bucket: Bucket
    kind: str
    kept: dict[str, Variable]
    per_row: int
    flags: RowFlags | None
    is_trained: bool
    of_pieces: tuple[tuple[str, int], ...]
    times: tuple[str, ...] = ()
    clock: Variable = None

    @property
    def rows(self) -> int:
        first, *_ = self.kept.values()
        rows: int = first.shape.as_list()[0]
        return rows

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in all of the variables, with its number."""
        of_each = [int(v.dtype.size * v.shape.num_elements()) // self.rows for v in self.kept.values()]
        return 8 + sum(of_each)

    @property
    def slices(self) -> list[TableSlice]:
        """The slices of the pieces of the bucket, in their order."""
        entries = self.bucket.size // self.rows  # of one of the rows
        return [
            TableSlice(
                name, piece.start // (entries * self.per_row) + ahead, piece.stride,
                piece.size // (entries * self.per_row), piece.offset // entries,
            )
            for piece, (name, ahead) in zip(self.bucket.pieces, self.of_pieces, strict=True)
        ]  # fmt: skip

    def values(self, rows: Tensor) -> dict[str, Tensor]:
        """The values of the variables in these rows, int64 [rows], on their ps; of points of time their age."""
        values = {name: variable.sparse_read(rows) for name, variable in self.kept.items()}
        return {name: self.clock.read_value() - v if name in self.times else v for name, v in values.items()}

    def assign(self, rows: Tensor, values: dict[str, Tensor]) -> list[Op]:
        """Operations that assign these rows of the variables, int64 [rows], the values, as `values` returns them."""
        given = {name: self.clock.read_value() - v if name in self.times else v for name, v in values.items()}
        return [variable_values.write_rows(self.kept[name], rows, value) for name, value in given.items()]


def table_parts(graph: TrainGraph) -> list[TablePart]:
    """The parts of all tables that have entries."""
    parts = []
    for store in graph.model.stores.values():
        bucket, id_rows = store.bucket, graph.model.id_rows.get(store.bucket.name)
        if not bucket.is_table or not bucket.size:
            continue
        flags = graph.row_flags.get(bucket.name, (None, None))
        optimizer = graph.optimizers.get(bucket.name)
        slots = [v for v in optimizer.variables if optimizer.is_slot(v, store.master)] if optimizer else []
        kept = {MASTER: store.master} | {suffix_of(variable): variable for variable in slots}
        shared = (optimizer is not None, tuple(_table_of(graph, piece) for piece in bucket.pieces))
        parts.append(TablePart(bucket, ROWS, kept, WAYS if id_rows else 1, flags[0], *shared))
        if id_rows:
            of_sets = {suffix_of(variable): variable for variable in id_rows.of_sets}
            times = tuple(suffix_of(variable) for variable in id_rows.times)
            parts.append(TablePart(bucket, SETS, of_sets, 1, flags[1], *shared, times, id_rows.clock))
    return parts


def _table_of(graph: TrainGraph, piece: Piece) -> tuple[str, int]:
    """(the table of a piece by its name in a checkpoint, rows of it before the piece's variable).

    A part of a table that is cut along another axis is a table of its own.
    """
    partition = graph.model.captured.partitions.get(piece.variable)
    if partition is None:
        return piece.variable, 0
    shape = next(spec.shape for spec in graph.plan.specs if spec.name == piece.variable)
    columns = "" if partition.shape[1:] == shape[1:] else f"/columns_{'_'.join(map(str, partition.offset[1:]))}"
    return partition.whole + columns, partition.offset[0]


class TouchedCopy:
    """A copy of the touched rows of a part, on its ps: made by `take` in the bucket's critical section, then read.

    facts: (stamp of the copy since which they were touched, what the clock has counted since, the number of rows
        before each piece and of all), int64 [3 + pieces].
    """

    def __init__(self, part: TablePart) -> None:
        self.part = part
        self._device = ps_device(part.bucket.ps)
        name = f"psruntime/touched_copy/{part.bucket.name}/{part.kind}"
        with tf1.device(self._device), tf1.control_dependencies(None):
            self._rows = tf1.raw_ops.VarHandleOp(dtype=tf1.int64, shape=[None], shared_name=f"{name}/row")
            self._handles = {
                each: tf1.raw_ops.VarHandleOp(
                    dtype=variable.dtype.base_dtype, shape=[None, *variable.shape[1:]], shared_name=f"{name}/{each}"
                )
                for each, variable in part.kept.items()
            }

    def take(self) -> tuple[Tensor, list[Op]]:
        """(facts, int64 [3 + slices]; operations that copy).

        facts: as of RowFlags.since, then how many of the touched rows are before each slice, and before the end.
        """
        assert self.part.flags
        rows = self.part.flags.touched()
        taken = [tf1.raw_ops.AssignVariableOp(resource=self._rows, value=rows)]
        for name, value in self.part.values(rows).items():
            taken.append(tf1.raw_ops.AssignVariableOp(resource=self._handles[name], value=value))
        firsts = [each.offset for each in self.part.slices]
        before = tf1.searchsorted(rows, tf1.constant([*firsts, self.part.rows], tf1.int64), out_type=tf1.int64)
        return tf1.concat([self.part.flags.since(), before], axis=0), taken

    def read(self, name: str) -> Tensor:
        """The touched rows of one of the variables, [touched, ...] of its dtype, on the ps."""
        with tf1.device(self._device):
            return tf1.raw_ops.ReadVariableOp(resource=self._handles[name], dtype=self.part.kept[name].dtype.base_dtype)

    def chunk(self, begin: Tensor, rows: Tensor) -> list[Tensor]:
        """The numbers of some of the touched rows, then their values; on the ps.  begin, rows: int64 []."""
        with tf1.device(self._device):
            numbers = tf1.raw_ops.ReadVariableOp(resource=self._rows, dtype=tf1.int64)
            return [each[begin : begin + rows] for each in [numbers, *map(self.read, self.part.kept)]]

    def free(self) -> list[Op]:
        """Operations after which there is no copy."""
        with tf1.device(self._device):
            return [
                tf1.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
                for handle in (self._rows, *self._handles.values())
            ]

    def described(self, facts: list[int]) -> TouchedPart:
        """The copy by its facts, for a file in which it is saved in chunks."""
        part = self.part
        elapsed, before = facts[1], facts[2:]
        step = max(1, variable_values.CHUNK_BYTES // part.row_bytes)
        chunks = tuple(min(step, before[-1] - first) for first in range(0, before[-1], step))
        ranges = zip(part.slices, before[:-1], before[1:], strict=True)
        tables = [
            TableRange(each.table, begin, end, each.start, each.offset, each.stride)
            for each, begin, end in ranges
            if begin < end or part.clock is not None  # whose `elapsed` is saved, too
        ]
        return TouchedPart(part.kind, prefix_of(part), chunks, elapsed, tuple(tables))


def prefix_of(part: TablePart) -> str:
    """The prefix of the names of the tensors in which the touched rows of a part are saved."""
    return f"touched/{part.bucket.name}/{part.kind}"
