"""How variables become buckets: large ones are cut into slices, small ones of a ps are packed together.

Every bucket costs its messages, its mutex and its counters in each step, whatever its size; so there should be few, and
of a few megabytes each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import gcd

from psruntime.core.plan.buckets import Bucket, Piece, VariableSpec

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
    place = {bucket.name: ps for ps, held in enumerate(_evenly(units, num_ps)) for bucket in held}
    return [replace(bucket, ps=place[bucket.name]) for bucket in buckets]


def _evenly(units: Sequence[list[Bucket]], places: int) -> list[list[Bucket]]:
    """What is in each place: the largest unit first, each where the fewest bytes are."""
    load = [0] * places
    held: list[list[Bucket]] = [[] for _ in range(places)]
    sizes = [(sum(bucket.size_bytes for bucket in unit), unit) for unit in units]
    for size, unit in sorted(sizes, key=lambda sized: (-sized[0], sized[1][0].name)):
        place = min(range(places), key=lambda i: (load[i], i))
        load[place] += size
        held[place] += unit
    return held
