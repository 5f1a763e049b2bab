"""The row spaces of a table group, and the maps between them.

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

from typing import NewType

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
