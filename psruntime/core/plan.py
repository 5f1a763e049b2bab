"""The plan: where each variable lives.  A pure function, the same on every process.

A trainable variable becomes one bucket, or, above `slice_bytes`, several slices of whole rows (entries along
its first axis).  One whose gradients are sparse becomes a table: one bucket, whatever its size, because its
rows are looked up and updated where they lie.  One whose updates need all of it is one bucket, too, in its own
shape.  A variable that is not trainable has one home, whole.  Buckets and homes are spread over the ps by
bytes, longest processing time first (Graham 1969): the fullest ps holds at most 4/3 of what the best spread
would give it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

TRAINED_DTYPES = ("float16", "bfloat16", "float32", "float64")
DTYPE_BYTES = dict.fromkeys(("bool", "int8", "uint8"), 1)
DTYPE_BYTES |= dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2)
DTYPE_BYTES |= dict.fromkeys(("int32", "uint32", "float32"), 4)
DTYPE_BYTES |= dict.fromkeys(("int64", "uint64", "float64"), 8)


@dataclass(frozen=True)
class VariableSpec:
    """A variable as the model declares it: `shape` in entries per axis, `dtype` one of DTYPE_BYTES.

    sparse: whether its gradients name the rows that they change (IndexedSlices); of one that is not trainable,
        whether it is only ever looked up by rows, and never changed.  Such a one has an axis.
    trainable: whether updates change it on the ps; its dtype is one of TRAINED_DTYPES then.
    whole: whether its updates need all of it, in its own shape.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    sparse: bool = False
    trainable: bool = True
    whole: bool = False

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.size * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        kinds = {" sparse": self.sparse, " not trainable": not self.trainable, " whole": self.whole}
        return f"{self.name} {self.dtype}{list(self.shape)}{''.join(kind for kind, holds in kinds.items() if holds)}"


@dataclass(frozen=True)
class Bucket:
    """One master tensor on one ps: entries [start, start + size) of a flattened variable.

    own_shape: None for a flat master; else the bucket is a whole variable in its own shape.
    is_table: whether its rows are looked up on the ps.
    """

    name: str
    ps: int
    variable: str
    start: int
    size: int
    dtype: str
    own_shape: tuple[int, ...] | None = None
    is_table: bool = False

    @property
    def master_shape(self) -> tuple[int, ...]:
        """The shape of the master and of the optimizer's slots."""
        return (self.size,) if self.own_shape is None else self.own_shape

    @property
    def size_bytes(self) -> int:
        return self.size * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Plan:
    """Buckets in the order of the variables, and within one variable by `start`.

    specs: of all variables.  buckets: of the trainable ones.  homes: of the others, one each, in its own shape.

    Invariant: the buckets of a trainable variable cover it once, without gap or overlap.
    """

    specs: tuple[VariableSpec, ...]
    buckets: tuple[Bucket, ...]
    homes: tuple[Bucket, ...]
    num_ps: int
    fingerprint: str

    @property
    def trained(self) -> list[VariableSpec]:
        """The trainable variables."""
        return [spec for spec in self.specs if spec.trainable]

    def on(self, ps: int) -> list[Bucket]:
        """The buckets of one ps."""
        return [b for b in self.buckets if b.ps == ps]

    def of(self, variable: str) -> list[Bucket]:
        """The buckets of one trainable variable, by `start`."""
        return [b for b in self.buckets if b.variable == variable]

    def bytes_on(self, ps: int) -> int:
        """Of all variables there."""
        return sum(b.size_bytes for b in (*self.buckets, *self.homes) if b.ps == ps)

    @property
    def marker(self) -> int:
        """The fingerprint as a positive int64, which a prepared ps carries."""
        return int(self.fingerprint[:15], 16) | 1


def make_plan(specs: Sequence[VariableSpec], num_ps: int, slice_bytes: int) -> Plan:
    """Places every variable.

    Raises:
        ValueError: two variables or slices share a name, a sparse one is a scalar, or no ps or slice size is given.
    """
    if num_ps < 1 or slice_bytes < 1:
        raise ValueError(f"num_ps ({num_ps}) and slice_bytes ({slice_bytes}) must be at least 1")
    _refuse_twins(spec.name for spec in specs)
    for spec in specs:
        if spec.sparse and not spec.shape:
            raise ValueError(f"sparse variable {spec.name} must have rows, it is a scalar")
    pieces = [piece for spec in specs for piece in _cut(spec, slice_bytes)]
    _refuse_twins(piece.name for piece in pieces)
    load = [0] * num_ps
    place: dict[str, int] = {}
    for piece in sorted(pieces, key=lambda b: (-b.size_bytes, b.name)):
        ps = min(range(num_ps), key=lambda i: (load[i], i))
        load[ps] += piece.size_bytes
        place[piece.name] = ps
    placed = [replace(piece, ps=place[piece.name]) for piece in pieces]
    trained = {spec.name for spec in specs if spec.trainable}
    buckets = tuple(bucket for bucket in placed if bucket.variable in trained)
    homes = tuple(bucket for bucket in placed if bucket.variable not in trained)
    return Plan(tuple(specs), buckets, homes, num_ps, _fingerprint(specs, num_ps, slice_bytes))


def first_difference(ours: Sequence[VariableSpec], theirs: Sequence[VariableSpec]) -> str | None:
    """Names the first variable in which two models differ, with both shapes; None if they agree."""
    for mine, other in zip(ours, theirs, strict=False):
        if mine != other:
            return f"{other} there, {mine} here"
    if len(ours) > len(theirs):
        return f"{ours[len(theirs)]} is here only"
    if len(theirs) > len(ours):
        return f"{theirs[len(ours)]} is there only"
    return None


def _refuse_twins(names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"variable and slice names must differ, {name} is there {count} times")


def _cut(spec: VariableSpec, slice_bytes: int) -> list[Bucket]:
    """One piece, or the fewest slices of whole rows that are at most `slice_bytes` where rows allow it."""
    if spec.sparse or spec.whole or not spec.trainable:
        return [Bucket(spec.name, 0, spec.name, 0, spec.size, spec.dtype, spec.shape, spec.sparse)]
    if spec.size_bytes <= slice_bytes or not spec.shape:
        return [Bucket(spec.name, 0, spec.name, 0, spec.size, spec.dtype)]
    rows = spec.shape[0]
    row_size = spec.size // rows
    rows_each = max(1, slice_bytes // (spec.size_bytes // rows))  # whole rows that fit into a slice
    count = -(-rows // rows_each)
    edges = [rows * i // count * row_size for i in range(count + 1)]
    return [
        Bucket(f"{spec.name}/slice_{i}", 0, spec.name, start, end - start, spec.dtype)
        for i, (start, end) in enumerate(pairwise(edges))
    ]


def _fingerprint(specs: Sequence[VariableSpec], num_ps: int, slice_bytes: int) -> str:
    facts = [[s.name, list(s.shape), s.dtype, s.sparse, s.trainable, s.whole] for s in specs]
    return hashlib.sha256(json.dumps([facts, num_ps, slice_bytes]).encode()).hexdigest()
