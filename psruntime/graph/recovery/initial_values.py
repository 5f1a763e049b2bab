"""Gives every variable on the ps the model's own initial value.

Values that are computed from other variables are assigned after these.  Values of one run that depend on the same
random numbers share them.  A table's value is computed on a ps.  Of a large table in a group each ps makes its own
rows, in chunks, so no process has the table as a whole, and no row is sent.  A ps draws the numbers of all rows of a
chunk and keeps its own: a row is the same for any number of ps.
The chief reads values of checkpoints that model_fn names before any value that depends on them is computed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from math import prod

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.graph.base import variable_values
from psruntime.graph.base.graphs import ancestors
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Feed, Op, Tensor, Variable
from psruntime.graph.base.variable_values import ALIGNED, Rows, assign_rows, initialise, row_chunks, rows_of
from psruntime.graph.buckets.bucket_store import GLOBAL_STEP
from psruntime.graph.recovery.warm_start import PretrainedValues
from psruntime.graph.step.train_graph import TrainGraph

COMPUTED_WHOLE_BYTES = 4 << 20  # up to this size a table's value is computed whole, as the model makes it, and spread


class _TableChunks:
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
    rows = variable_values.CHUNK_BYTES * _height(value) // _size_bytes(value)
    return max(1, rows // ALIGNED) * ALIGNED


Assigned = tuple[int, Op]  # (ps, an operation that assigns there)
Values = Mapping[str, Tensor]  # initial values by the names of variables


class InitialValues:
    """Assigns initial values, in runs that follow each other, behind the fence of the graph.

    Built in the current graph, on the current device, for worker `index` as the chief.
    """

    def __init__(self, graph: TrainGraph, index: int = 0) -> None:
        captured = graph.model.captured
        initial_values = {n: v for n, v in captured.initial_values.items() if n not in captured.pretrained}
        self._pretrained = PretrainedValues(graph, index)
        levels = _levels(graph)
        users = Counter(op for value in initial_values.values() for op in ancestors([value]))
        self._first = _guarded(graph, _assigned_first(graph))
        self._levels: list[tuple[list[Assigned], _TableChunks]] = []
        for level in range(max(levels.values(), default=0) + 1):
            values = {name: value for name, value in initial_values.items() if levels[name] == level}
            assigned = _guarded(graph, _assigned(graph, values, levels, level))
            chunks = _TableChunks(graph, values, users)
            whole = {name: value for name, value in values.items() if name not in chunks.tables}
            self._levels.append((assigned + _spread(graph, whole), chunks))

    def assign(
        self,
        write: Callable[..., None],
        every_ps: Collection[int],
        read: Callable[[PretrainedValues], None] = lambda _: None,
    ) -> None:
        """Assigns those of these ps, by `write(operations, feed)`; `read` assigns those that are in checkpoints."""
        write(_on(every_ps, self._first))
        read(self._pretrained)
        for assigned, chunks in self._levels:
            write(_on(every_ps, assigned))
            for operations, feed in chunks.runs(every_ps):
                write(operations, feed)


def _on(every_ps: Collection[int], assigned: list[Assigned]) -> list[Op]:
    return [operation for ps, operation in assigned if ps in every_ps]


def _guarded(graph: TrainGraph, assigned: list[Assigned]) -> list[Assigned]:
    for ps in range(graph.plan.num_ps):
        graph.fence.guard(ps, _on([ps], assigned))
    return assigned


def _assigned_first(graph: TrainGraph) -> list[Assigned]:
    """The global step, the variables beside the masters, and the variables that are filled row by row: the masters of
    table groups, and those with values of a checkpoint."""
    beside = [
        (store.bucket.ps, initialise(variable))
        for name, store in graph.model.stores.items()
        for variable in graph.kept_beside(name)
    ]
    pretrained, copies = graph.model.captured.pretrained, graph.model.ps_copies.variables
    beside += [(copy.ps, initialise(copies[copy.name])) for copy in graph.plan.copies if copy.name in pretrained]
    buckets = [bucket for bucket in graph.plan.buckets if bucket.is_grouped or _is_pretrained(graph, bucket)]
    masters = [(bucket.ps, initialise(graph.model.stores[bucket.name].master)) for bucket in buckets]
    return [(GLOBAL_STEP.ps, initialise(graph.global_step.master)), *beside, *masters]


def _is_pretrained(graph: TrainGraph, bucket: Bucket) -> bool:
    """Whether one of its variables has values of a checkpoint."""
    return any(piece.variable in graph.model.captured.pretrained for piece in bucket.pieces)


def _levels(graph: TrainGraph) -> dict[str, int]:
    """Variable -> the length of the longest chain of others that its initial value depends on."""
    levels: dict[str, int] = {}
    sources = {read.source.op: {name} for name, read in graph.model.reads.items()}
    for group in graph.plan.groups:
        tables = {table.name for table in group.tables}
        sources |= {handle.op: tables for handle in graph.model.lookups.handles(group)}
    for name, value in graph.model.captured.initial_values.items():  # in the order in which they were made
        read = {source for op in ancestors([value]) for source in sources.get(op, ())}
        levels[name] = max((levels[source] for source in read if source in levels), default=-1) + 1
    return levels


def _assigned(graph: TrainGraph, values: Values, levels: dict[str, int], level: int) -> list[Assigned]:
    """Operations that assign the variables of one level, but for the rows of table groups."""
    assigned = [
        (copy.ps, _assign(graph.model.ps_copies.variables[copy.name], values[copy.name]))
        for copy in graph.plan.copies
        if copy.name in values
    ]
    for bucket in graph.plan.buckets:
        if not bucket.is_grouped and any(piece.variable in values for piece in bucket.pieces):
            master = graph.model.stores[bucket.name].master
            if bucket.is_table:
                assigned.append((bucket.ps, _assign(master, values[bucket.name])))
            else:
                is_first = level == min(levels[piece.variable] for piece in bucket.pieces)
                is_first = is_first and not _is_pretrained(graph, bucket)
                value = _of_bucket(bucket, values, None if is_first else master)
                assigned.append((bucket.ps, master.assign(value, read_value=False)))
    return assigned


def _spread(graph: TrainGraph, values: Values) -> list[Assigned]:
    """Operations that spread the rows of those tables of groups that are among the values, each behind the fence."""
    return [
        (bucket.ps, operation)
        for group in graph.plan.groups
        if not group.dynamic  # which has no rows yet
        for bucket in group.buckets
        for operation in _spread_to(graph, bucket, values)
    ]


def _spread_to(graph: TrainGraph, bucket: Bucket, values: Values) -> list[Op]:
    """The operations for one ps.  A table's value is computed on the ps of its first row, which sends the rows of
    another one in chunks, one after the other."""
    master, row_shape = graph.model.stores[bucket.name].master, bucket.master_shape[1:]
    row_size = prod(row_shape)
    dealt: list[Op] = []
    for piece in (piece for piece in bucket.pieces if piece.variable in values):
        value, device = values[piece.variable], graph.model.reads[piece.variable].handle_device
        for start, rows in row_chunks((piece.size // row_size, *row_shape), value.dtype.size):
            begin = piece.start // row_size + start * piece.stride
            with tf1.control_dependencies(dealt[-1:]), tf1.device(device):
                chunk = value[begin : begin + (rows - 1) * piece.stride + 1 : piece.stride]
            chunk.set_shape([rows, *row_shape])
            dealt.append(assign_rows(master.handle, piece.offset // row_size + start, chunk))
            graph.fence.guard(bucket.ps, dealt[-1:])
    return dealt


def _of_bucket(bucket: Bucket, values: Values, master: Variable) -> Tensor:
    """The bucket's value; variables that are not in `values` have that of the master, or zeros without one."""
    own = tf1.zeros([bucket.size], bucket.dtype) if master is None else master.read_value()
    pieces = []
    for piece in bucket.pieces:
        start = piece.start if piece.variable in values else piece.offset
        flat = tf1.reshape(values.get(piece.variable, own), [-1])
        pieces.append(flat[start : start + piece.size])
    return tf1.reshape(tf1.concat(pieces, axis=0), bucket.master_shape)


def _assign(variable: Variable, value: Tensor) -> Op:
    with tf1.device(variable.device):
        return variable.assign(value, read_value=False)
