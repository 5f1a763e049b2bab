"""The maps between the row spaces of a table group: each row of a table is one row of one bucket, and no other is."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.table_groups import (
    TableGroup,
    TableId,
    bucket_row,
    first_id_on,
    group_row,
    grouped,
    ids_on,
    ps_of,
)


@st.composite
def groups(draw: st.DrawFn) -> TableGroup:
    num_ps = draw(st.integers(1, 5))
    rows = draw(st.lists(st.integers(num_ps, 23), min_size=1, max_size=4))
    specs = [VariableSpec(f"t{n}", (count, 2), "float32", sparse=True, group=1) for n, count in enumerate(rows)]
    (group,) = grouped(specs, num_ps)
    return group


@given(groups())
def test_each_row_of_a_table_is_one_row_of_one_bucket(group: TableGroup) -> None:
    seen: Counter[tuple[int, int]] = Counter()
    for table in group.tables:
        for number in range(table.rows):
            row = group_row(TableId(number), table.offset)
            seen[ps_of(row, group.num_ps), bucket_row(row, group.num_ps)] += 1
    assert set(seen.values()) == {1} and seen.total() == sum(table.rows for table in group.tables)
    assert all(row < group.buckets[ps].own_shape[0] for ps, row in seen)


@given(groups())
def test_the_ids_on_a_ps_are_consecutive_rows_of_its_bucket(group: TableGroup) -> None:
    for table in group.tables:
        found = []
        for ps in range(group.num_ps):
            ids = ids_on(ps, table.offset, table.rows, group.num_ps)
            rows = [bucket_row(group_row(TableId(number), table.offset), group.num_ps) for number in ids]
            assert rows == list(range(rows[0], rows[0] + len(rows)))
            assert {ps_of(group_row(TableId(number), table.offset), group.num_ps) for number in ids} == {ps}
            assert ids[0] == first_id_on(ps, table.offset, group.num_ps)
            found += ids
        assert sorted(found) == list(range(table.rows))


@given(groups())
def test_arrays_are_mapped_as_their_elements_are(group: TableGroup) -> None:
    table = group.tables[-1]
    rows = group_row(np.arange(table.rows), table.offset)
    one_by_one = [group_row(TableId(number), table.offset) for number in range(table.rows)]
    assert list(ps_of(rows, group.num_ps)) == [ps_of(row, group.num_ps) for row in one_by_one]
    assert list(bucket_row(rows, group.num_ps)) == [bucket_row(row, group.num_ps) for row in one_by_one]
