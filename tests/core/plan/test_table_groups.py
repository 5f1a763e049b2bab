"""Table groups: every row of every table has one place, and the rows of each table are spread evenly over all ps."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.plan import ALONE_BYTES, Plan, in_sections, make_plan
from tests.support.selection import examples

CASES = settings(max_examples=examples(150), deadline=None, derandomize=True)
PACKED = 1 << 20

TABLES = st.lists(
    st.builds(
        VariableSpec,
        st.text("abc", min_size=1, max_size=4),
        st.tuples(st.integers(0, 30)) | st.tuples(st.integers(0, 30), st.integers(1, 3)),
        st.sampled_from(["float32", "float64"]),
        st.just(True),
        group=st.integers(0, 2),
    ),
    max_size=8,
    unique_by=lambda spec: spec.name,
)
NUM_PS = st.integers(1, 5)


def table(name: str, *shape: int, group: int = 1) -> VariableSpec:
    return VariableSpec(name, shape, "float32", sparse=True, group=group)


def places(plan: Plan, spec: VariableSpec) -> dict[int, tuple[str, int]]:
    """Row of a table -> (its bucket, row there), as the pieces say."""
    row_size = prod(spec.shape[1:])
    found = {}
    for bucket, piece in plan.pieces_of(spec.name):
        assert piece.start % row_size == piece.size % row_size == piece.offset % row_size == 0
        for number in range(piece.size // row_size):
            row = piece.start // row_size + number * piece.stride
            assert row not in found, "once"
            found[row] = bucket.name, piece.offset // row_size + number
    return found


@CASES
@given(TABLES, NUM_PS)
def test_every_row_has_one_place(specs: list[VariableSpec], num_ps: int) -> None:
    plan = make_plan(specs, num_ps, 1 << 20, PACKED)
    taken: Counter[tuple[str, int]] = Counter()
    for spec in specs:
        of_table = places(plan, spec)
        assert sorted(of_table) == (list(range(spec.shape[0])) if spec.size else [])
        taken.update(of_table.values())
    assert all(count == 1 for count in taken.values())
    rows = {bucket.name: bucket.master_shape[0] for bucket in plan.buckets}
    assert all(row < rows[bucket] for bucket, row in taken)


@CASES
@given(TABLES, NUM_PS)
def test_a_row_is_where_its_group_says(specs: list[VariableSpec], num_ps: int) -> None:
    plan = make_plan(specs, num_ps, 1 << 20, PACKED)
    by_name = {spec.name: spec for spec in specs}
    for group in plan.groups:
        for of_group in group.tables:
            found = places(plan, by_name[of_group.name])
            for row in range(of_group.rows):
                at = of_group.offset + row
                assert found[row] == (group.buckets[at % num_ps].name, at // num_ps)
        assert [bucket.ps for bucket in group.buckets] == list(range(num_ps))
        assert len({bucket.master_shape for bucket in group.buckets}) == 1


@CASES
@given(TABLES, NUM_PS)
def test_a_group_is_of_all_tables_that_are_alike(specs: list[VariableSpec], num_ps: int) -> None:
    plan = make_plan(specs, num_ps, 1 << 20, PACKED)
    kinds = [(group.dtype, group.row_shape, group.group) for group in plan.groups]
    assert len(set(kinds)) == len(kinds)
    group_of = {
        of_group.name: kind for group, kind in zip(plan.groups, kinds, strict=True) for of_group in group.tables
    }
    for spec in specs:
        joins = spec.group > 0 and spec.size > 0 and spec.shape[0] >= num_ps
        assert group_of.get(spec.name) == ((spec.dtype, spec.shape[1:], spec.group) if joins else None)


def test_the_first_rows_of_the_tables_are_on_all_ps() -> None:
    """They are the ones that are looked up most where ids are numbered by frequency."""
    specs = [table(f"t{i}", 100, 4) for i in range(8)]
    plan = make_plan(specs, 4, 1 << 20, PACKED)
    first = Counter(places(plan, spec)[0][0].rpartition("_")[2] for spec in specs)
    assert first == {str(ps): 2 for ps in range(4)}
    held = [plan.bytes_on(ps) for ps in range(4)]
    assert len(set(held)) == 1 and sum(held) <= sum(spec.size_bytes for spec in specs) * 1.05


@pytest.mark.parametrize("num_ps", [2, 3, 8])
@pytest.mark.parametrize(("tables", "exponent"), [(26, 1.2), (26, 2.0), (1, 1.2)])
def test_the_rows_that_zipf_ids_look_up_are_spread_evenly_over_the_ps(
    tables: int, exponent: float, num_ps: int
) -> None:
    """Of every batch each row travels once.  Within 10 % of even, also of tables whose low ids are nearly all."""
    rows, batch, batches = 100_000, 1024, 20
    specs = [table(f"t{i}", rows, 1) for i in range(tables)]
    plan = make_plan(specs, num_ps, 1 << 20, PACKED)
    random = np.random.RandomState(0)
    travelled = np.zeros(num_ps, np.int64)
    for spec in specs:
        copies = np.full(rows, -1)
        for bucket, piece in plan.pieces_of(spec.name):
            copies[piece.start : piece.start + piece.size * piece.stride : piece.stride] = bucket.ps
        assert copies.min() >= 0
        for _ in range(batches):
            ids = np.unique(np.minimum(random.zipf(exponent, batch) - 1, rows - 1))
            travelled += np.bincount(copies[ids], minlength=num_ps)
    even = travelled.sum() / num_ps
    assert 0.9 * even <= travelled.min() and travelled.max() <= 1.1 * even


@pytest.mark.parametrize(("width", "is_light"), [(64, True), (4096, False)])
def test_small_dense_variables_beside_a_group_are_one_bucket(width: int, is_light: bool) -> None:
    """Every ps has rows of the group, so another bucket on another ps would only cost messages."""
    dense = [VariableSpec(name, (32, width), "float32", group=1) for name in ("hidden", "head", "bias")]
    plan = make_plan([table("a", 100, 4), *dense], 3, 1 << 20, PACKED)
    assert len([bucket for bucket in plan.buckets if not bucket.is_table]) == (1 if is_light else 3)
    without = make_plan(dense, 3, 1 << 20, PACKED)
    assert {bucket.ps for bucket in without.buckets} == {0, 1, 2}


def test_without_packing_a_table_is_whole() -> None:
    plan = make_plan([table("a", 10, 4), table("b", 10, 4)], 2, 1 << 20)
    assert [bucket.name for bucket in plan.buckets] == ["a", "b"] and not plan.groups


def test_a_group_is_called_after_its_first_table() -> None:
    plan = make_plan([table("a", 10, 4), table("alone", 10, 3), table("b", 10, 4)], 2, 1 << 20, PACKED)
    assert [bucket.name for bucket in plan.buckets] == [
        "a.and_1/rows_0", "a.and_1/rows_1", "alone/rows_0", "alone/rows_1",
    ]  # fmt: skip


def test_a_section_has_tables_and_what_is_small_and_the_others_are_alone() -> None:
    def dense(name: str, size: int) -> VariableSpec:
        return VariableSpec(name, (size,), "float32")

    aggregated = VariableSpec("moving", (2,), "float32", trainable=False, aggregation="MEAN")
    large = ALONE_BYTES // 4
    model = [dense("small", 3), dense("large", large), aggregated, table("table", large, 4), dense("below", large - 1)]
    sections = [[bucket.name for bucket in section] for section in in_sections(make_plan(model, 1, 1 << 30).on(0))]
    assert sections == [["large"], ["moving"], ["small", "table", "below"]]
    assert in_sections([]) == []
