"""What a checkpoint holds: the variables on the ps under the model's own names.

A variable `w` is saved as `w`, one slice of whole rows for each of its buckets, or of a table in a group for each ps,
which every reader sees as one tensor; so are the parts of a variable that a partitioner made.  The optimizer's slots
are named as stock TensorFlow names them, `w/Momentum`, `w/Adam`, `w/Adam_1`; a row of one may have other entries than
a row of `w`.  What the optimizer keeps once a bucket
(Adam's powers of beta) is saved once a variable, that of its first bucket, as `w/beta1_power`; and once more under the
stock name `beta1_power`, that of the first variable that has one (`beta1_power_1` of the second optimizer that has one,
...).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from psruntime.core.plan.buckets import WAYS, Bucket, Piece, VariableSpec
from psruntime.core.recovery.checkpoint_names import Entry, Kind
from psruntime.graph.base.types import Variable
from psruntime.graph.dynamic.id_sets import IDLE, LAST_USED
from psruntime.graph.model.capture import Partition
from psruntime.graph.ops.row_portions import row_portions
from psruntime.graph.step.train_graph import TrainGraph
from psruntime.graph.store.bucket_store import GLOBAL_STEP


@dataclass(frozen=True)
class CheckpointPart:
    """A variable on a ps as part of a checkpoint.

    entry: the logical tensor that it is, or is a slice of.  shape: of the part there.
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
        """In which slice of the entry it is, in the form of `tf.raw_ops.SaveV2`; empty for all of it."""
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
        """That are read for it."""
        return self.size_bytes * self.stride

    @property
    def is_all(self) -> bool:
        """Whether it is all of the variable."""
        return bool(self.size == self.variable.shape.num_elements())

    @property
    def rows(self) -> tuple[int, int]:
        """(first row in the variable, number of rows); the rows of one that holds several parts are single entries."""
        row_size = max(1, prod(self.variable.shape.as_list()[1:]))
        return self.offset // row_size, self.size // row_size

    def in_rows(self) -> list[CheckpointPart]:
        """The same in portions of whole rows; itself if it is small."""
        ranges = list(row_portions(self.shape, self.variable.dtype.base_dtype.size * self.stride))
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
class WovenPart:
    """Rows of a table of a group, one after the other, as they are written: each ps has every so manieth of them.

    strands: the part of every ps, in the order of their first rows.  first: row of the table.  ps: which writes.
    """

    strands: tuple[CheckpointPart, ...]
    first: int
    rows: int
    ps: int

    @property
    def entry(self) -> Entry:
        return self.strands[0].entry

    @property
    def variable(self) -> Variable:
        """The first that it has rows of."""
        return self.strands[0].variable

    @property
    def of_table(self) -> bool:
        return True

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.strands[0].shape[1:])

    @property
    def slice_spec(self) -> str:
        """As CheckpointPart.slice_spec."""
        begin = self.strands[0].begin
        return slice_spec(self.entry, (begin[0] + self.first, *begin[1:]), self.shape)

    @property
    def moved_bytes(self) -> int:
        """That are written for it."""
        return prod(self.shape) * int(self.variable.dtype.size)

    def in_rows(self) -> list[WovenPart]:
        """As CheckpointPart.in_rows."""
        ranges = row_portions(self.shape, self.variable.dtype.base_dtype.size)
        return [replace(self, first=self.first + start, rows=rows) for start, rows in ranges]

    def of_strand(self, number: int) -> tuple[int, int, int]:
        """(first row in the variable of the strand, number of rows, place of the first among the rows here).

        A row here may be several in the variable: a set of a dynamic table.
        """
        strand, stride = self.strands[number], len(self.strands)
        skipped = len(range(number, self.first, stride))
        rows = len(range(number, self.first + self.rows, stride)) - skipped
        begin, count = strand.rows
        of_a_row = count // strand.shape[0]
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

    def slices(suffix: str, kind: Kind, variable: Variable, bucket: Bucket) -> list[CheckpointPart]:
        return [_slice(suffix, kind, variable, bucket, p, specs[p.variable], graph) for p in bucket.pieces]

    for copy in graph.plan.copies:
        parts += slices("", Kind.VARIABLE, graph.model.ps_copies.variables[copy.name], copy)
    for bucket in graph.plan.buckets:
        master, optimizer = graph.model.stores[bucket.name].master, graph.optimizers.get(bucket.name)
        parts += slices("", Kind.VARIABLE, master, bucket)
        if id_rows := graph.model.id_rows.get(bucket.name):
            for variable in id_rows.of_sets:
                is_time = any(variable is each for each in id_rows.times)
                own = slices(f"/{suffix_of(variable)}", Kind.SLOT, variable, bucket)
                parts += [replace(part, clock=id_rows.clock) for part in own] if is_time else own
        if optimizer is None:
            continue
        for variable in optimizer.variables:
            suffix = suffix_of(variable)
            if optimizer.is_slot(variable, master):
                parts += slices(f"/{suffix}", Kind.SLOT, variable, bucket)
            else:
                stock = stock_names[optimizer.number, suffix]
                parts += [_shared(f"{piece.variable}/{suffix}", stock, variable, bucket.ps) for piece in bucket.pieces]
    return parts


def suffix_of(variable: Variable) -> str:
    """What a variable that is kept beside a master is called in a checkpoint, after the name of the model's variable:
    as its optimizer calls it; of points of time, how long ago these are."""
    return str(variable.op.name.rpartition("/")[2]).replace(LAST_USED, IDLE)


def _stock_names(graph: TrainGraph) -> dict[tuple[int, str], str]:
    """(rule, what its optimizer calls a variable of all that it updates) -> its name in stock.

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
    """The parts that are restored: what a bucket has once for all its variables comes from the first of them."""
    read: list[CheckpointPart] = []
    for part in parts:
        if part.entry.kind is not Kind.SHARED or not read or read[-1].variable is not part.variable:
            read.append(part)
    return read


def to_write(parts: list[CheckpointPart]) -> list[CheckpointPart | WovenPart]:
    """The parts that are saved: of what every bucket has its own copy, the first, and that under its stock name too.

    The rows of a table of a group are put in order: each ps writes as many, one after the other.
    """
    written: list[CheckpointPart | WovenPart] = []
    names: set[str] = set()
    strands: dict[tuple[str, str], list[CheckpointPart]] = {}
    for part in parts:
        if part.stride > 1:
            strands.setdefault((part.entry.name, part.of), []).append(part)
            continue
        if part.entry.kind is not Kind.SHARED:
            written.append(part)
            continue
        for name in (part.entry.name, part.entry.stock):
            if name not in names:
                names.add(name)
                written.append(replace(part, entry=replace(part.entry, name=name)))
    return written + [woven for of_one in strands.values() for woven in _woven(of_one)]


def _woven(strands: list[CheckpointPart]) -> list[WovenPart]:
    """All rows of the parts of one table, a part for each ps."""
    strands = sorted(strands, key=lambda strand: strand.begin)
    rows, count = sum(strand.shape[0] for strand in strands), len(strands)
    edges = [rows * i // count for i in range(count + 1)]
    every_ps = sorted(strand.ps for strand in strands)
    return [
        WovenPart(tuple(strands), start, end - start, ps)
        for ps, (start, end) in zip(every_ps, pairwise(edges), strict=True)
    ]


def _shared(name: str, stock: str, variable: Variable, ps: int) -> CheckpointPart:
    """A copy of what stock has once for all variables."""
    shape = tuple(variable.shape.as_list())
    return CheckpointPart(Entry(name, shape, variable.dtype.base_dtype.name, Kind.SHARED, stock), variable, ps, shape)


def _slice(
    suffix: str, kind: Kind, variable: Variable, bucket: Bucket, piece: Piece, spec: VariableSpec, graph: TrainGraph
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
    """What a variable of a bucket has for each row of its table, whose bucket has so many rows."""
    first, *others = variable.shape.as_list()
    rows //= WAYS if spec.dynamic else 1  # the rows of a dynamic table are sets
    return (first // rows, *others) if first > rows else tuple(others)


def _of_other_rows(partition: Partition, row_shape: tuple[int, ...]) -> Partition:
    """The same rows in another shape."""
    zeros = (0,) * len(row_shape)
    return Partition(partition.whole, (partition.shape[0], *row_shape), (partition.offset[0], *zeros))
