"""The plan: where each trainable variable lives.  A pure function, the same on every process.

A variable becomes one bucket, or, above `slice_bytes`, several slices of whole rows (entries along its
first axis).  One whose gradients are sparse becomes a table: one bucket, whatever its size, because its
rows are looked up and updated where they lie.  Buckets are spread over the ps by bytes, longest processing
time first (Graham 1969): the fullest ps holds at most 4/3 of what the best spread would give it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class VariableSpec:
    """A trainable variable as the model declares it: `shape` in entries per axis, `dtype` a float type.

    sparse: whether its gradients name the rows that they change (IndexedSlices); such a one has an axis.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    sparse: bool = False

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.size * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}{' sparse' if self.sparse else ''}"


@dataclass(frozen=True)
class Bucket:
    """One master tensor on one ps: entries [start, start + size) of a flattened variable.

    table_shape: None for a flat master; else the bucket is a table, a whole variable in its own shape,
    rows first.
    """

    name: str
    ps: int
    variable: str
    start: int
    size: int
    dtype: str
    table_shape: tuple[int, ...] | None = None

    @property
    def is_table(self) -> bool:
        return self.table_shape is not None

    @property
    def master_shape(self) -> tuple[int, ...]:
        """The shape of the master and of the optimizer's slots."""
        return (self.size,) if self.table_shape is None else self.table_shape

    @property
    def size_bytes(self) -> int:
        return self.size * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Plan:
    """Buckets in the order of the variables, and within one variable by `start`.

    Invariant: the buckets of a variable cover it once, without gap or overlap.
    """

    specs: tuple[VariableSpec, ...]
    buckets: tuple[Bucket, ...]
    num_ps: int
    fingerprint: str

    def on(self, ps: int) -> list[Bucket]:
        """The buckets of one ps."""
        return [b for b in self.buckets if b.ps == ps]

    def of(self, variable: str) -> list[Bucket]:
        """The buckets of one variable, by `start`."""
        return [b for b in self.buckets if b.variable == variable]

    def bytes_on(self, ps: int) -> int:
        return sum(b.size_bytes for b in self.on(ps))

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
    buckets = tuple(replace(piece, ps=place[piece.name]) for piece in pieces)
    return Plan(tuple(specs), buckets, num_ps, _fingerprint(specs, num_ps, slice_bytes))


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
    if spec.sparse:
        return [Bucket(spec.name, 0, spec.name, 0, spec.size, spec.dtype, spec.shape)]
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
    facts = [[s.name, list(s.shape), s.dtype, s.sparse] for s in specs]
    return hashlib.sha256(json.dumps([facts, num_ps, slice_bytes]).encode()).hexdigest()
