"""What a checkpoint holds: the variables on the ps under the model's own names.

A variable `w` is saved as `w`, one slice of whole rows for each of its buckets, which every reader sees as one
tensor; so are the parts of a variable that a partitioner made.  The optimizer's slots are named as stock TensorFlow
names them, `w/Momentum`, `w/Adam`, `w/Adam_1`.  What the optimizer keeps once a bucket (Adam's powers of beta) is
saved once a variable, that of its first bucket, as `w/beta1_power`; and once more under the stock name
`beta1_power`, that of the first variable that has one (`beta1_power_1` of the second optimizer of the kind, ...).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from psruntime.core.checkpoint_names import Entry, Kind
from psruntime.core.plan import Bucket, VariableSpec
from psruntime.graph.capture import Partition
from psruntime.graph.store import GLOBAL_STEP
from psruntime.graph.training import TrainGraph


@dataclass(frozen=True)
class Part:
    """A variable on a ps as part of a checkpoint.

    entry: the logical tensor that it is, or is a slice of.  shape: of the part there; the variable has as many
    entries.  slice_spec: which slice of it, in the form of `tf.raw_ops.SaveV2`; empty for all of it.
    """

    entry: Entry
    variable: Any
    ps: int
    shape: tuple[int, ...]
    slice_spec: str = ""

    @property
    def size_bytes(self) -> int:
        entries: int = self.variable.shape.num_elements()
        return entries * int(self.variable.dtype.size)


def parts_of(graph: TrainGraph) -> list[Part]:
    """All variables that a checkpoint restores, but for the global step; those of one entry in the order of buckets."""
    parts = []
    homes = {home.name: home for home in graph.plan.homes}
    stock_suffixes = _stock_suffixes(graph)
    for spec in graph.plan.specs:
        partition = graph.model.partitions.get(spec.name) or Partition(spec.name, spec.shape, (0,) * len(spec.shape))
        if spec.name in homes:
            home = graph.model.homes.variables[spec.name]
            parts.append(_slice("", Kind.VARIABLE, home, homes[spec.name], spec, partition))
        for bucket in graph.plan.of(spec.name):
            master, optimizer = graph.model.stores[bucket.name].master, graph.optimizers.get(bucket.name)
            parts.append(_slice("", Kind.VARIABLE, master, bucket, spec, partition))
            if optimizer is None:
                continue
            for variable in optimizer.variables:
                suffix = variable.op.name.rpartition("/")[2]
                if optimizer.is_slot(variable, master):
                    parts.append(_slice(f"/{suffix}", Kind.SLOT, variable, bucket, spec, partition))
                else:
                    parts.append(_shared(suffix, suffix + stock_suffixes[optimizer.number], variable, bucket))
    return parts


def _stock_suffixes(graph: TrainGraph) -> dict[int, str]:
    """Rule -> what stock adds to the names of what its optimizer shares: it is the first of its kind, or `_1`, ..."""
    kinds = {optimizer.number: optimizer.kind for optimizer in graph.optimizers.values()}
    before = {number: [kinds[n] for n in kinds if n < number].count(kind) for number, kind in kinds.items()}
    return {number: f"_{count}" if count else "" for number, count in before.items()}


def step_part(graph: TrainGraph) -> Part:
    """The global step, a scalar there."""
    return Part(Entry(GLOBAL_STEP.name, (), GLOBAL_STEP.dtype), graph.global_step.master, GLOBAL_STEP.ps, ())


def to_write(parts: list[Part]) -> list[Part]:
    """The parts that are saved: of what every bucket has its own copy, the first, and that under its stock name too."""
    written: list[Part] = []
    names: set[str] = set()
    for part in parts:
        if part.entry.kind is not Kind.SHARED:
            written.append(part)
            continue
        for name in (part.entry.name, part.entry.stock):
            if name not in names:
                names.add(name)
                written.append(replace(part, entry=replace(part.entry, name=name)))
    return written


def _shared(suffix: str, stock: str, variable: Any, bucket: Bucket) -> Part:
    """A copy of what stock has once for all variables."""
    shape = tuple(variable.shape.as_list())
    entry = Entry(f"{bucket.variable}/{suffix}", shape, variable.dtype.base_dtype.name, Kind.SHARED, stock)
    return Part(entry, variable, bucket.ps, shape)


def _slice(suffix: str, kind: Kind, variable: Any, bucket: Bucket, spec: VariableSpec, partition: Partition) -> Part:
    """The bucket's rows of the variable, or of the one that it is a part of."""
    entry = Entry(partition.whole + suffix, partition.shape, variable.dtype.base_dtype.name, kind)
    start, rows = 0, spec.shape[0] if spec.shape else 1
    if bucket.size != spec.size:
        row_size = spec.size // spec.shape[0]
        start, rows = bucket.start // row_size, bucket.size // row_size
    shape = (rows, *spec.shape[1:]) if spec.shape else ()
    if shape == partition.shape:
        return Part(entry, variable, bucket.ps, shape)
    offsets = (partition.offset[0] + start, *partition.offset[1:])
    whole = " ".join(map(str, partition.shape))
    axes = ":".join(f"{offset},{length}" for offset, length in zip(offsets, shape, strict=True))
    return Part(entry, variable, bucket.ps, shape, f"{whole} {axes}")
