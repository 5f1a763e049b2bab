"""The content of a checkpoint: the variables on the ps under the model's own names.

A variable `w` is saved as `w`, one slice of whole rows for each of its buckets, or of a table in a group for each ps,
which every reader sees as one tensor; so are the parts of a variable that a partitioner made.  The optimizer's slots
are named as stock TensorFlow names them, `w/Momentum`, `w/Adam`, `w/Adam_1`; a row of one may have other entries than
a row of `w`.  Variables that the optimizer has once a bucket
(Adam's powers of beta) are saved once a variable, that of its first bucket, as `w/beta1_power`; and once more under the
stock name `beta1_power`, that of the first variable that has one (`beta1_power_1` of the second optimizer that has one,
...).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from psruntime.core.plan.buckets import WAYS, Bucket, Piece, VariableSpec
from psruntime.core.recovery.checkpoint_names import Entry, EntryKind
from psruntime.graph.base.types import Variable
from psruntime.graph.base.variable_values import row_chunks
from psruntime.graph.buckets.bucket_store import GLOBAL_STEP
from psruntime.graph.embedding.dynamic_table import IDLE, LAST_USED
from psruntime.graph.model.capture import Partition
from psruntime.graph.step.train_graph import TrainGraph


@dataclass(frozen=True)
class CheckpointPart:
    """A variable on a ps as part of a checkpoint.

    entry: the logical tensor that it is, or is a slice of.  shape: of the part in the entry.
    begin: where the part begins in the entry, by axis; empty for its beginning.
    offset: where the part begins in the variable, in entries.
    stride: in rows of the entry; a part of a table group has every so manieth row.
    of: the variable of the model that it belongs to.
    clock: of the bucket, in which the variable has points of time; the entry has how long ago they are.
    of_table: whether it has rows of a table.
    """

    entry: Entry
    variable: Variable
    ps: int
    shape: tuple[int, ...]
    begin: tuple[int, ...] = ()
    offset: int = 0
    stride: int = 1
    of: str = ""
    clock: Variable = None
    of_table: bool = False

    @property
    def slice_spec(self) -> str:
        """Its slice of the entry, in the form of `tf.raw_ops.SaveV2`; empty for all of it."""
        if self.stride == 1:
            return slice_spec(self.entry, self.begin, self.shape)
        return slice_spec(self.entry, self.begin, ((self.shape[0] - 1) * self.stride + 1, *self.shape[1:]))

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.size * int(self.variable.dtype.size)

    @property
    def moved_bytes(self) -> int:
        """Bytes that are read for it."""
        return self.size_bytes * self.stride

    @property
    def is_all(self) -> bool:
        """Whether it is all of the variable."""
        return bool(self.size == self.variable.shape.num_elements())

    @property
    def rows(self) -> tuple[int, int]:
        """(first row in the variable, number of rows); in a variable of several parts a row is a single entry."""
        row_size = max(1, prod(self.variable.shape.as_list()[1:]))
        return self.offset // row_size, self.size // row_size

    def in_rows(self) -> list[CheckpointPart]:
        """The same in chunks of whole rows; itself if it is small."""
        ranges = list(row_chunks(self.shape, self.variable.dtype.base_dtype.size * self.stride))
        if len(ranges) == 1:
            return [self]
        begin, row_size = self.begin or (0,) * len(self.shape), prod(self.shape[1:])
        return [
            replace(
                self, shape=(rows, *self.shape[1:]), begin=(begin[0] + start * self.stride, *begin[1:]),
                offset=self.offset + start * row_size,
            )
            for start, rows in ranges
        ]  # fmt: skip


@dataclass(frozen=True)
class InterleavedPart:
    """Consecutive rows of a table of a group, as they are written; on the ps they are interleaved.

    slices: the part of every ps, in the order of their first rows.  first: row of the table.  ps: which writes.
    """

    slices: tuple[CheckpointPart, ...]
    first: int
    rows: int
    ps: int

    @property
    def entry(self) -> Entry:
        return self.slices[0].entry

    @property
    def variable(self) -> Variable:
        """The first that it has rows of."""
        return self.slices[0].variable

    @property
    def of_table(self) -> bool:
        return True

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.slices[0].shape[1:])

    @property
    def slice_spec(self) -> str:
        """As CheckpointPart.slice_spec."""
        begin = self.slices[0].begin
        return slice_spec(self.entry, (begin[0] + self.first, *begin[1:]), self.shape)

    @property
    def moved_bytes(self) -> int:
        """Bytes that are written for it."""
        return prod(self.shape) * int(self.variable.dtype.size)

    def in_rows(self) -> list[InterleavedPart]:
        """As CheckpointPart.in_rows."""
        ranges = row_chunks(self.shape, self.variable.dtype.base_dtype.size)
        return [replace(self, first=self.first + start, rows=rows) for start, rows in ranges]

    def of_slice(self, number: int) -> tuple[int, int, int]:
        """(first row in the variable of the slice, number of rows, position of the first among the rows here).

        A row here may be several in the variable: a set of a dynamic table.
        """
        part, stride = self.slices[number], len(self.slices)
        skipped = len(range(number, self.first, stride))
        rows = len(range(number, self.first + self.rows, stride)) - skipped
        begin, count = part.rows
        of_a_row = count // part.shape[0]
        return begin + skipped * of_a_row, rows * of_a_row, number + skipped * stride - self.first


def slice_spec(entry: Entry, begin: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """Which slice of the entry it is, in the form of `tf.raw_ops.SaveV2`; empty for all of it."""
    if shape == entry.shape:
        return ""
    begin = begin or (0,) * len(shape)
    whole = " ".join(map(str, entry.shape))
    return f"{whole} " + ":".join(f"{offset},{length}" for offset, length in zip(begin, shape, strict=True))


def parts_of(graph: TrainGraph) -> list[CheckpointPart]:
    """All variables that a checkpoint restores, but for the global step; all parts of one variable together, those of
    one entry in the order of buckets."""
    parts = []
    specs = {spec.name: spec for spec in graph.plan.specs}
    stock_names = _stock_names(graph)

    def slices(suffix: str, kind: EntryKind, variable: Variable, bucket: Bucket) -> list[CheckpointPart]:
        return [_slice(suffix, kind, variable, bucket, p, specs[p.variable], graph) for p in bucket.pieces]

    for copy in graph.plan.copies:
        parts += slices("", EntryKind.VARIABLE, graph.model.ps_copies.variables[copy.name], copy)
    for bucket in graph.plan.buckets:
        master, optimizer = graph.model.stores[bucket.name].master, graph.optimizers.get(bucket.name)
        parts += slices("", EntryKind.VARIABLE, master, bucket)
        if id_rows := graph.model.id_rows.get(bucket.name):
            for variable in id_rows.of_sets:
                is_time = any(variable is each for each in id_rows.times)
                own = slices(f"/{suffix_of(variable)}", EntryKind.SLOT, variable, bucket)
                parts += [replace(part, clock=id_rows.clock) for part in own] if is_time else own
        if optimizer is None:
            continue
        for variable in optimizer.variables:
            suffix = suffix_of(variable)
            if optimizer.is_slot(variable, master):
                parts += slices(f"/{suffix}", EntryKind.SLOT, variable, bucket)
            else:
                stock = stock_names[optimizer.number, suffix]
                parts += [_shared(f"{piece.variable}/{suffix}", stock, variable, bucket.ps) for piece in bucket.pieces]
    return parts


def suffix_of(variable: Variable) -> str:
    """The suffix of a variable beside a master, after the name of the model's variable, in a checkpoint: its name in
    the optimizer; of points of time that of how long ago these are."""
    return str(variable.op.name.rpartition("/")[2]).replace(LAST_USED, IDLE)


def _stock_names(graph: TrainGraph) -> dict[tuple[int, str], str]:
    """(rule, the optimizer's name of a variable that it has once) -> its name in stock.

    Stock adds `_1`, ... to the name that another optimizer has used before.
    """
    optimizers = {optimizer.number: optimizer for optimizer in graph.optimizers.values()}
    names, used = {}, Counter[str]()
    for number, optimizer in sorted(optimizers.items()):
        for suffix in map(suffix_of, optimizer.variables):
            names[number, suffix] = f"{suffix}_{used[suffix]}" if used[suffix] else suffix
            used[suffix] += 1
    return names


def step_part(graph: TrainGraph) -> CheckpointPart:
    """The global step, a scalar there."""
    return CheckpointPart(Entry(GLOBAL_STEP.name, (), GLOBAL_STEP.dtype), graph.global_step.master, GLOBAL_STEP.ps, ())


def to_read(parts: list[CheckpointPart]) -> list[CheckpointPart]:
    """The parts that are restored: a variable that a bucket has once is read from the part of its first variable."""
    read: list[CheckpointPart] = []
    for part in parts:
        if part.entry.kind is not EntryKind.SHARED or not read or read[-1].variable is not part.variable:
            read.append(part)
    return read


def to_write(parts: list[CheckpointPart]) -> list[CheckpointPart | InterleavedPart]:
    """The parts that are saved: of variables that every bucket has once, the first, also under its stock name.

    The rows of a table of a group are written in order: each ps writes as many, one after the other.
    """
    written: list[CheckpointPart | InterleavedPart] = []
    names: set[str] = set()
    slices: dict[tuple[str, str], list[CheckpointPart]] = {}
    for part in parts:
        if part.stride > 1:
            slices.setdefault((part.entry.name, part.of), []).append(part)
            continue
        if part.entry.kind is not EntryKind.SHARED:
            written.append(part)
            continue
        for name in (part.entry.name, part.entry.stock):
            if name not in names:
                names.add(name)
                written.append(replace(part, entry=replace(part.entry, name=name)))
    return written + [part for of_one in slices.values() for part in _interleaved(of_one)]


def _interleaved(slices: list[CheckpointPart]) -> list[InterleavedPart]:
    """All rows of the parts of one table, a part for each ps."""
    slices = sorted(slices, key=lambda part: part.begin)
    rows, count = sum(part.shape[0] for part in slices), len(slices)
    edges = [rows * i // count for i in range(count + 1)]
    every_ps = sorted(part.ps for part in slices)
    return [
        InterleavedPart(tuple(slices), start, end - start, ps)
        for ps, (start, end) in zip(every_ps, pairwise(edges), strict=True)
    ]


def _shared(name: str, stock: str, variable: Variable, ps: int) -> CheckpointPart:
    """A copy of a variable that stock has once for all variables."""
    shape = tuple(variable.shape.as_list())
    return CheckpointPart(
        Entry(name, shape, variable.dtype.base_dtype.name, EntryKind.SHARED, stock), variable, ps, shape
    )


def _slice(
    suffix: str,
    kind: EntryKind,
    variable: Variable,
    bucket: Bucket,
    piece: Piece,
    spec: VariableSpec,
    graph: TrainGraph,
) -> CheckpointPart:
    """The piece's rows of the model's variable, or of the one that it is a part of; or those of a slot."""
    whole = Partition(spec.name, spec.shape, (0,) * len(spec.shape))
    partition = graph.model.captured.partitions.get(spec.name, whole)
    row_shape, offset = spec.shape[1:], piece.offset
    if bucket.own_shape and (own := _row_shape(variable, bucket.own_shape[0], spec)) != row_shape:
        partition = _of_other_rows(partition if partition.shape[1:] == row_shape else whole, own)
        row_shape, offset = own, offset // prod(row_shape) * prod(own)
    entry = Entry(partition.whole + suffix, partition.shape, variable.dtype.base_dtype.name, kind)
    start, rows = 0, spec.shape[0] if spec.shape else 1
    if piece.size != spec.size:
        row_size = spec.size // spec.shape[0]
        start, rows = piece.start // row_size, piece.size // row_size
    shape = (rows, *row_shape) if spec.shape else ()
    begin = (partition.offset[0] + start, *partition.offset[1:]) if shape else ()
    return CheckpointPart(
        entry, variable, bucket.ps, shape, begin, offset, piece.stride, spec.name, of_table=bucket.is_table
    )


def _row_shape(variable: Variable, rows: int, spec: VariableSpec) -> tuple[int, ...]:
    """The shape of a variable's entries for each row of its table, whose bucket has `rows` rows."""
    first, *others = variable.shape.as_list()
    rows //= WAYS if spec.dynamic else 1  # the rows of a dynamic table are sets
    return (first // rows, *others) if first > rows else tuple(others)


def _of_other_rows(partition: Partition, row_shape: tuple[int, ...]) -> Partition:
    """The same rows in another shape."""
    zeros = (0,) * len(row_shape)
    return Partition(partition.whole, (partition.shape[0], *row_shape), (partition.offset[0], *zeros))
