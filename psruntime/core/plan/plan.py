"""The plan: where each variable lives.  A pure function, the same on every process.

A trainable variable becomes one bucket, or, above `slice_bytes`, several slices of whole rows (entries along
its first axis); small ones of one group share buckets of up to `pack_bytes`.  One whose gradients are sparse becomes
a table: its rows are looked up and updated where they lie.  Where variables are packed, tables that are alike share a
table group, which has a bucket on every ps (table_groups.py); any other is one bucket, whatever its size.  A variable
whose updates need all of it is one bucket, too, in its own shape, and so is one with an aggregation.  Any other that is
not trainable has one home, whole.  All
are spread over the ps by bytes before they are packed, longest processing time first (Graham 1969): the fullest ps
holds at most 4/3 of what the best spread would give it.  With `min_ps_bytes` few bytes are on few ps.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from psruntime.core.plan.buckets import WAYS, Bucket, Piece, VariableSpec
from psruntime.core.plan.packing import LIGHT_BYTES, cut, pack, spread
from psruntime.core.plan.table_groups import TableGroup, grouped
from psruntime.errors import UsageError


@dataclass(frozen=True)
class Plan:
    """Buckets in the order of the model's variables, and within one variable by `start`; last those of table groups.

    specs: of all variables.  buckets: of the trainable ones and those with an aggregation.  copies: of the others, one
    each, in its own shape.  groups: of tables.

    Invariant: the pieces of a variable with buckets cover it once, without gap or overlap.
    """

    specs: tuple[VariableSpec, ...]
    buckets: tuple[Bucket, ...]
    copies: tuple[Bucket, ...]
    groups: tuple[TableGroup, ...]
    num_ps: int
    fingerprint: str

    @property
    def trained(self) -> list[VariableSpec]:
        """The trainable variables."""
        return [spec for spec in self.specs if spec.trainable]

    @property
    def aggregated(self) -> list[VariableSpec]:
        """The variables with an aggregation."""
        return [spec for spec in self.specs if spec.aggregation]

    def on(self, ps: int) -> list[Bucket]:
        """The buckets of one ps."""
        return [b for b in self.buckets if b.ps == ps]

    @cached_property
    def group_of(self) -> dict[str, TableGroup]:
        """Name of a bucket -> its table group, of those that have one."""
        return {bucket.name: group for group in self.groups for bucket in group.buckets}

    def pieces_of(self, variable: str) -> list[tuple[Bucket, Piece]]:
        """The pieces of one variable with buckets, by `start`, each with the bucket that it is in."""
        return self._pieces.get(variable, [])

    @cached_property
    def _pieces(self) -> dict[str, list[tuple[Bucket, Piece]]]:
        pieces: dict[str, list[tuple[Bucket, Piece]]] = {}
        for bucket in self.buckets:
            for piece in bucket.pieces:
                pieces.setdefault(piece.variable, []).append((bucket, piece))
        return {name: sorted(found, key=lambda at: at[1].start) for name, found in pieces.items()}

    def bytes_on(self, ps: int) -> int:
        """Of all variables there."""
        return sum(b.size_bytes for b in (*self.buckets, *self.copies) if b.ps == ps)

    @property
    def marker(self) -> int:
        """The fingerprint as a positive int64, which a prepared ps carries."""
        return int(self.fingerprint[:15], 16) | 1


def make_plan(
    specs: Sequence[VariableSpec], num_ps: int, slice_bytes: int, pack_bytes: int = 0, min_ps_bytes: int = 0
) -> Plan:
    """Places every variable.

    pack_bytes: 0 packs none, and makes no table groups but for dynamic tables.
    min_ps_bytes: variables that are no tables are on no more ps than would have so many bytes of them each.  Where
        there are table groups it is LIGHT_BYTES at least, since every ps has rows of them anyway.

    Raises:
        ValueError: two variables or buckets share a name, a sparse one is a scalar, or no ps or slice size is given.
        UsageError: a dynamic table is too small for so many ps.
    """
    if num_ps < 1 or slice_bytes < 1:
        raise ValueError(f"num_ps ({num_ps}) and slice_bytes ({slice_bytes}) must be at least 1")
    _refuse_twins(spec.name for spec in specs)
    for spec in specs:
        if spec.sparse and not spec.shape:
            raise ValueError(f"sparse variable {spec.name} must have rows, it is a scalar")
        if spec.dynamic and spec.shape[0] < num_ps:
            raise UsageError(
                f"dynamic table {spec.name} must have a capacity of {num_ps * WAYS} or more on {num_ps} ps"
            )
    groups = grouped([spec for spec in specs if pack_bytes or spec.dynamic], num_ps)
    in_groups = {table.name for group in groups for table in group.tables}
    pieces = [piece for spec in specs if spec.name not in in_groups for piece in cut(spec, slice_bytes)]
    _refuse_twins(piece.name for piece in pieces)
    min_bytes = max(min_ps_bytes, LIGHT_BYTES if groups else 0) if pack_bytes else 0
    placed = spread(pieces, num_ps, min_bytes)
    with_buckets = {spec.name for spec in specs if spec.has_bucket}
    buckets = pack((bucket for bucket in placed if bucket.variable in with_buckets), pack_bytes)
    buckets += [bucket for group in groups for bucket in group.buckets]
    _refuse_twins(bucket.name for bucket in buckets)
    copies = [bucket for bucket in placed if bucket.variable not in with_buckets]
    sizes = [num_ps, slice_bytes, pack_bytes]
    fingerprint = _fingerprint(specs, sizes, [*buckets, *copies])
    return Plan(tuple(specs), tuple(buckets), tuple(copies), tuple(groups), num_ps, fingerprint)


def first_difference(ours: Sequence[VariableSpec], theirs: Sequence[VariableSpec]) -> str | None:
    """Names the first variable in which two models differ, with both shapes; None if they agree."""
    if ours is theirs:
        return None
    for mine, other in zip(ours, theirs, strict=False):
        if mine != other:
            texts = [_in_full(s) if str(mine) == str(other) else str(s) for s in (other, mine)]
            return f"{texts[0]} there, {texts[1]} here"
    if len(ours) > len(theirs):
        return f"{ours[len(theirs)]} is here only"
    if len(theirs) > len(ours):
        return f"{theirs[len(ours)]} is there only"
    return None


def _in_full(spec: VariableSpec) -> str:
    rows = spec.dynamic
    of_rows = f", admit_after {rows.admit_after}, expire_after {rows.expire_after}" if rows else ""
    return f"{spec} of group {spec.group}{of_rows}"


def _refuse_twins(names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"variable and slice names must differ, {name} is there {count} times")


def _fingerprint(specs: Sequence[VariableSpec], sizes: Sequence[int], buckets: Sequence[Bucket]) -> str:
    """Of what is given and of what came of it, which another version of this module may place otherwise."""
    facts = [[s.name, list(s.shape), s.dtype, s.sparse, s.trainable, s.whole, s.group, s.aggregation] for s in specs]
    facts += [[s.name, s.dynamic.admit_after, s.dynamic.expire_after] for s in specs if s.dynamic]
    places = [[b.name, b.ps, [[p.variable, p.start, p.size, p.stride] for p in b.pieces]] for b in buckets]
    return hashlib.sha256(json.dumps([facts, *sizes, places]).encode()).hexdigest()
