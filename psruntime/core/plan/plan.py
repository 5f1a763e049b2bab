"""The plan: where each variable lives.  A pure function, the same on every process; and its report.

A trainable variable becomes one bucket, or, above `slice_bytes`, several slices of whole rows (entries along
its first axis); small ones of one group share buckets of up to `pack_bytes`.  One whose gradients are sparse becomes
a table: its rows are looked up and updated where they lie.  Where variables are packed, tables that are alike share a
table group, which has a bucket on every ps (table_groups.py); any other is one bucket, whatever its size.  A variable
whose updates need all of it is one bucket, too, in its own shape, and so is one with an aggregation.  Any other that is
not trainable has one home, whole.  All are spread over the ps by bytes before they are packed, longest processing time
first (Graham 1969): the fullest ps holds at most 4/3 of what the best spread would give it.  With `min_ps_bytes` few
bytes are on few ps.

Every bucket costs its messages and its update in each step, whatever its size; so there should be few, and of a few
megabytes each.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import gcd

from psruntime.core.plan.buckets import WAYS, Bucket, Piece, VariableSpec
from psruntime.core.plan.table_groups import TableGroup, grouped
from psruntime.errors import UsageError

# Which ps has variables of so few bytes together makes no difference to its load, and each ps of theirs costs a step a
# run, two messages and a critical section: about a millisecond of the processor.
LIGHT_BYTES = 64 << 10
ALIGNED_BYTES = 64  # at multiples of it TensorFlow cuts a tensor without copying (EIGEN_MAX_ALIGN_BYTES of its wheel)


def cut(spec: VariableSpec, slice_bytes: int) -> list[Bucket]:
    """One bucket, or the fewest slices of whole rows that are at most `slice_bytes` where rows allow it.  On ps 0.

    A slice begins at a multiple of ALIGNED_BYTES, unless so many rows are more than `slice_bytes`.
    """
    if spec.sparse or spec.whole or not spec.trainable:
        whole = Bucket(spec.name, 0, (_all_of(spec),), spec.dtype, spec.shape, spec.sparse)
        return [replace(whole, aggregation=spec.aggregation)]
    if spec.size_bytes <= slice_bytes or not spec.shape:
        return [Bucket(spec.name, 0, (_all_of(spec),), spec.dtype, group=spec.group)]
    rows = spec.shape[0]
    row_size = spec.size // rows
    row_bytes = spec.size_bytes // rows
    aligned = ALIGNED_BYTES // gcd(ALIGNED_BYTES, row_bytes)  # rows from one place where a slice may begin to the next
    step = aligned if aligned * row_bytes <= slice_bytes else 1
    steps = -(-rows // step)
    count = -(-steps // max(1, slice_bytes // (step * row_bytes)))
    edges = [min(rows, steps * i // count * step) * row_size for i in range(count + 1)]
    return [
        Bucket(f"{spec.name}/slice_{i}", 0, (Piece(spec.name, start, end - start),), spec.dtype, group=spec.group)
        for i, (start, end) in enumerate(pairwise(edges))
    ]


def pack(buckets: Iterable[Bucket], pack_bytes: int) -> list[Bucket]:
    """Joins those of the same ps, dtype and group, in their order, into buckets of at most `pack_bytes`.

    One that is larger, or of no group, stays as it is.  In a bucket of several those come first whose size is a
    multiple of ALIGNED_BYTES, so they begin at one; it has the name of the first.
    """
    groups: list[list[Bucket]] = []
    open_groups: dict[tuple[int, str, int], tuple[list[Bucket], int]] = {}  # that more may go into, and its bytes
    for bucket in buckets:
        kind = (bucket.ps, bucket.dtype, bucket.group)
        group, held_bytes = open_groups.get(kind, ([], 0))
        if not bucket.group or bucket.size_bytes > pack_bytes:
            groups.append([bucket])
            continue
        if not group or held_bytes + bucket.size_bytes > pack_bytes:
            group, held_bytes = [], 0
            groups.append(group)
        group.append(bucket)
        open_groups[kind] = group, held_bytes + bucket.size_bytes
    return [_joined(group) for group in groups]


def _all_of(spec: VariableSpec) -> Piece:
    return Piece(spec.name, 0, spec.size)


def _joined(group: Sequence[Bucket]) -> Bucket:
    if len(group) == 1:
        return group[0]
    group = sorted(group, key=lambda bucket: bucket.size_bytes % ALIGNED_BYTES > 0)
    starts = accumulate((bucket.size for bucket in group), initial=0)
    pieces = [
        replace(piece, offset=start + piece.offset)
        for bucket, start in zip(group, starts, strict=False)  # the last start is the end
        for piece in bucket.pieces
    ]
    return replace(group[0], name=f"{group[0].name}.and_{len(pieces) - 1}", pieces=tuple(pieces))


def spread(buckets: Sequence[Bucket], num_ps: int, min_bytes: int = 0) -> list[Bucket]:
    """Places the buckets by bytes, longest processing time first; in their order.

    min_bytes: those that are no tables are on no more ps than would have so many bytes of them each; on one at least.
    """
    units = [[bucket] for bucket in buckets]
    dense = [unit for unit in units if not unit[0].is_table]
    used = sum(bucket.size_bytes for (bucket,) in dense) // min_bytes if min_bytes else num_ps
    if used < num_ps:
        units = [unit for unit in units if unit[0].is_table]
        units += [unit for unit in _evenly(dense, max(1, used)) if unit]
    place = {bucket.name: ps for ps, of_ps in enumerate(_evenly(units, num_ps)) for bucket in of_ps}
    return [replace(bucket, ps=place[bucket.name]) for bucket in buckets]


def _evenly(units: Sequence[list[Bucket]], places: int) -> list[list[Bucket]]:
    """What is in each place: the largest unit first, each where the fewest bytes are."""
    load = [0] * places
    of_place: list[list[Bucket]] = [[] for _ in range(places)]
    sizes = [(sum(bucket.size_bytes for bucket in unit), unit) for unit in units]
    for size, unit in sorted(sizes, key=lambda sized: (-sized[0], sized[1][0].name)):
        place = min(range(places), key=lambda i: (load[i], i))
        load[place] += size
        of_place[place] += unit
    return of_place


ALONE_BYTES = 1 << 18  # of a dense bucket: from here on its update need not wait until the others have arrived, too


def in_sections(buckets: Sequence[Bucket]) -> list[list[Bucket]]:
    """The buckets of one ps by the critical section that a push updates them in: large dense ones, and those with an
    aggregation, each in one of its own; the others together, last."""
    alone = [b for b in buckets if b.aggregation or (not b.is_table and b.size_bytes >= ALONE_BYTES)]
    together = [bucket for bucket in buckets if bucket not in alone]
    return [*([bucket] for bucket in alone), *([together] if together else [])]


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


# Tensors of a step between a worker and a ps, in mode async and bounded, as TensorFlow cuts its graph.
DENSE_TENSORS = 2  # the master comes, the gradient goes
SPARSIFIED_TENSORS = 4  # what changed comes, and where; the largest entries of the gradient go, and where they are
SPARSIFIED_PS_TENSORS = 1  # with any of these: what the worker has of all of them goes
TABLE_TENSORS = 2  # the gradient's rows go, and their indices
LOOKUP_TENSORS = 2  # one lookup a table, or one level of them a table group, of each mini-batch: ids go, rows come
PS_TENSORS = 2  # with any update: the header goes, the outcomes come
STEP_PS = 0  # that counts the global step, which is updated like a bucket


@dataclass(frozen=True)
class PsReport:
    """What one ps has: buckets and homes, bytes of their values without the optimizer's, tensors in a step."""

    ps: int
    buckets: int
    copies: int
    size_bytes: int
    tensors: int


@dataclass(frozen=True)
class PlanReport:
    """Of a plan as a whole.

    balance: bytes of the fullest ps over the mean of all, at least 1; 1 without any bytes.
    """

    every_ps: tuple[PsReport, ...]
    balance: float

    @property
    def buckets(self) -> int:
        return sum(ps.buckets for ps in self.every_ps)

    @property
    def tensors(self) -> int:
        """Between one worker and all ps in a step."""
        return sum(ps.tensors for ps in self.every_ps)


def report(plan: Plan, local_steps: int = 1, is_sparsified: bool = False) -> PlanReport:
    """Counts what the plan says, for so many mini-batches a step.

    is_sparsified: whether of dense gradients the largest entries are sent, where they can be.
    """
    every_ps = tuple(_on(plan, ps, local_steps, is_sparsified) for ps in range(plan.num_ps))
    total = sum(ps.size_bytes for ps in every_ps)
    fullest = max(ps.size_bytes for ps in every_ps)
    return PlanReport(every_ps, fullest * plan.num_ps / total if total else 1.0)


def tensors_of(bucket: Bucket, local_steps: int = 1, is_sparsified: bool = False) -> int:
    """That travel for it in a step."""
    if not bucket.is_table:
        return SPARSIFIED_TENSORS if is_sparsified and bucket.can_be_sparsified else DENSE_TENSORS
    ids_are_there = bucket.is_grouped and local_steps == 1  # those of the lookups of a group are the gradient's
    return TABLE_TENSORS + LOOKUP_TENSORS * local_steps - ids_are_there


def _on(plan: Plan, ps: int, local_steps: int, is_sparsified: bool) -> PsReport:
    buckets = plan.on(ps)
    copies = sum(copy.ps == ps for copy in plan.copies)
    tensors = sum(tensors_of(bucket, local_steps, is_sparsified) for bucket in buckets)
    if is_sparsified and any(bucket.can_be_sparsified for bucket in buckets):
        tensors += SPARSIFIED_PS_TENSORS
    if buckets or ps == STEP_PS:
        tensors += PS_TENSORS
    return PsReport(ps, len(buckets), copies, plan.bytes_on(ps), tensors)
