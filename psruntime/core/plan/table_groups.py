"""Table groups: tables that are alike share a space of rows, which are spread over all ps; and the maps of its rows.

A step then has one message of ids and one of rows for each group and ps, and one update, however many tables there are.
Rows are dealt out one by one, so that the low ids, which are the frequent ones where ids are numbered by frequency, are
on all ps; and each table begins at another ps than the one before it.

    TableId        a row of one table: the id that model_fn looks up
    GroupRow       a row of the group, whose tables follow each other: table t has the rows from its offset on
    BucketRow      a row of the group's bucket on one ps; the rows of the group are dealt out to the ps one by one
    BatchPosition  a position among the ids, or the rows, of the lookups of a step

All are integers, which only these types tell apart.  A map takes an int, or an integer array or tensor of any
shape, whose elements it maps.  Its formula stands nowhere else.

Law: each TableId of each table has a (ps, BucketRow) of its own.
Law: the ids of a table on one ps are consecutive BucketRows, in the order of the ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NewType

from psruntime.core.plan.buckets import WAYS, Bucket, DynamicRows, Piece, VariableSpec

TableId = NewType("TableId", int)
GroupRow = NewType("GroupRow", int)
BucketRow = NewType("BucketRow", int)
BatchPosition = NewType("BatchPosition", int)


def group_row(table_id: TableId, offset: int) -> GroupRow:
    """The row of the group that is row `table_id` of the table that begins at row `offset` of the group."""
    return GroupRow(table_id + offset)


def ps_of(row: GroupRow, num_ps: int) -> int:
    """The ps that has a row of the group, from 0 to num_ps - 1."""
    return row % num_ps


def bucket_row(row: GroupRow, num_ps: int) -> BucketRow:
    """The row of the bucket, on the ps that has it, that is this row of the group."""
    return BucketRow(row // num_ps)


def first_id_on(ps: int, offset: int, num_ps: int) -> TableId:
    """The lowest id of the table at `offset` that is on a ps.  A table in a group has at least one on each."""
    return TableId((ps - offset) % num_ps)


def ids_on(ps: int, offset: int, rows: int, num_ps: int) -> range:
    """The TableIds on a ps of the table with so many rows at `offset`, ascending."""
    return range(first_id_on(ps, offset, num_ps), rows, num_ps)


@dataclass(frozen=True)
class GroupedTable:
    """A table of a group: its rows are the GroupRows [offset, offset + rows)."""

    name: str
    rows: int
    offset: int


@dataclass(frozen=True)
class TableGroup:
    """Tables that share the rows of a bucket on each ps.

    group: as VariableSpec.group.  dynamic: of one that is of a dynamic table; each of its rows is a set, which is
    WAYS rows of a bucket.
    """

    name: str
    tables: tuple[GroupedTable, ...]
    row_shape: tuple[int, ...]
    dtype: str
    group: int
    num_ps: int
    dynamic: DynamicRows | None = None

    @property
    def rows(self) -> int:
        """Of the group; a few between two tables belong to none."""
        return self.tables[-1].offset + self.tables[-1].rows

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """One for each ps, all of the same shape."""
        rows = max(1, -(-self.rows // self.num_ps))
        shape = (rows * WAYS, *self.row_shape[1:]) if self.dynamic else (rows, *self.row_shape)
        return tuple(
            Bucket(f"{self.name}/rows_{ps}", ps, self._pieces(ps), self.dtype, shape, True, self.group)
            for ps in range(self.num_ps)
        )

    def _pieces(self, ps: int) -> tuple[Piece, ...]:
        pieces, size = [], prod(self.row_shape)
        for table in self.tables:
            ids = ids_on(ps, table.offset, table.rows, self.num_ps)
            first = bucket_row(group_row(TableId(ids[0]), table.offset), self.num_ps)
            pieces.append(Piece(table.name, ids[0] * size, len(ids) * size, first * size, self.num_ps))
        return tuple(pieces)


def grouped(specs: Sequence[VariableSpec], num_ps: int) -> list[TableGroup]:
    """The groups of all tables that may share one, in the order of their first tables.

    Alike are tables of one dtype, shape of a row, and VariableSpec.group; a dynamic one is like no other.  One with
    fewer rows than there are ps is in none: it would be missing on some.
    """
    alike: dict[tuple[object, ...], list[VariableSpec]] = {}
    for spec in specs:
        if spec.sparse and spec.trainable and spec.group and spec.size and spec.shape[0] >= num_ps:
            own = spec.name if spec.dynamic else ""
            alike.setdefault((spec.dtype, spec.shape[1:], spec.group, own), []).append(spec)
    return [_group(tables, num_ps) for tables in alike.values()]


def _group(specs: Sequence[VariableSpec], num_ps: int) -> TableGroup:
    tables: list[GroupedTable] = []
    end = 0
    for number, spec in enumerate(specs):
        offset = end + (number - end) % num_ps  # row 0 is on ps `number` modulo the number of ps
        tables.append(GroupedTable(spec.name, spec.shape[0], offset))
        end = offset + spec.shape[0]
    first = specs[0]
    name = first.name if len(specs) == 1 else f"{first.name}.and_{len(specs) - 1}"
    return TableGroup(name, tuple(tables), first.shape[1:], first.dtype, first.group, num_ps, first.dynamic)
