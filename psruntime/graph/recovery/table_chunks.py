"""The initial values of large tables of groups: each ps makes its own rows, in chunks.

So no process has a table as a whole, and no row is sent.  A ps draws the numbers of all rows of a chunk and keeps its
own: a row is the same for any number of ps.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from math import prod

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Piece
from psruntime.graph.base.devices import ps_device
from psruntime.graph.base.types import Feed, Op, Tensor
from psruntime.graph.ops import row_chunks
from psruntime.graph.ops.row_chunks import assign_rows
from psruntime.graph.ops.value_rows import ALIGNED, Rows, rows_of
from psruntime.graph.step.train_graph import TrainGraph

COMPUTED_WHOLE_BYTES = 4 << 20  # up to this size a table's value is computed whole, as the model makes it, and spread


class TableChunks:
    """Assigns, behind the fence, the rows of those tables among `values` that are large and can be made by rows.

    values: initial values by name.  users: of an operation, the number of values in the model that depend on it.
    tables: the names of those that are assigned here; their buckets must have values already.
    """

    def __init__(self, graph: TrainGraph, values: Mapping[str, Tensor], users: Mapping[Op, int]) -> None:
        self._users = users
        self._drawn: dict[
            Op, Tensor
        ] = {}  # an operation that draws without a seed -> the placeholder of its key, uint64 [2]
        self._chunk = tf1.placeholder(tf1.int64, [], name="chunk")
        grouped = {table.name for group in graph.plan.groups if not group.dynamic for table in group.tables}
        large = {name: v for name, v in values.items() if name in grouped and _size_bytes(v) > COMPUTED_WHOLE_BYTES}
        made = {name: (value, rows_of(value, self._key)) for name, value in large.items()}
        rows = {name: (value, makes) for name, (value, makes) in made.items() if makes}
        self.tables = frozenset(rows)
        self._number = max((-(-_height(value) // _at_once(value)) for value, _ in rows.values()), default=0)
        self._assigned: list[tuple[int, Op]] = []  # (ps, operation)
        for bucket in [bucket for group in graph.plan.groups for bucket in group.buckets]:
            last: list[Op] = []
            for piece in (piece for piece in bucket.pieces if piece.variable in rows):
                with tf1.control_dependencies(last), tf1.device(ps_device(bucket.ps)):
                    start, own = self._own(piece, *rows[piece.variable])
                    last = [assign_rows(graph.model.stores[bucket.name].master.handle, start, own)]
                graph.fence.guard(bucket.ps, last)
                self._assigned.append((bucket.ps, last[0]))

    def runs(self, every_ps: Collection[int]) -> Iterator[tuple[list[Op], Feed]]:
        """(operations, feed) of each run, one after the other, that together make the rows on these ps."""
        operations = [operation for ps, operation in self._assigned if ps in every_ps]
        drawn = {fed: [random.SystemRandom().getrandbits(64) for _ in range(2)] for fed in self._drawn.values()}
        for chunk in range(self._number):
            yield operations, {self._chunk: chunk, **drawn}

    def _key(self, op: Op) -> Tensor:
        """The key of a draw; None if the values of several variables depend on it, since they would not share it."""
        if self._users[op] > 1:
            return None
        return self._drawn.setdefault(op, tf1.placeholder(tf1.uint64, [2], name="drawn"))

    def _own(self, piece: Piece, value: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """(first row in the bucket, int64 []; the rows of the chunk that are in the piece)."""
        row_size = prod(value.shape.as_list()[1:])
        first, offset = piece.start // row_size, piece.offset // row_size
        height = tf1.constant(_height(value), tf1.int64)
        begin = tf1.minimum(self._chunk * _at_once(value), height)
        skipped = tf1.floormod(first - begin, piece.stride)
        chunk = rows(begin, tf1.minimum(height - begin, _at_once(value)))
        return offset + (begin + skipped - first) // piece.stride, chunk[skipped :: piece.stride]


def _size_bytes(value: Tensor) -> int:
    return int(value.shape.num_elements() * value.dtype.size)


def _height(value: Tensor) -> int:
    return int(value.shape[0])


def _at_once(value: Tensor) -> int:
    """Rows of a chunk."""
    rows = row_chunks.CHUNK_BYTES * _height(value) // _size_bytes(value)
    return max(1, rows // ALIGNED) * ALIGNED
