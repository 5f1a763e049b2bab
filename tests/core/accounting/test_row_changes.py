"""What a delta says of its rows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psruntime.core.accounting.saved_state import RowChanges, TableRange, TouchedPart

numbers = st.integers(0, 2**40)
tables = st.builds(TableRange, st.text(max_size=4), numbers, numbers, numbers, numbers, numbers)
parts = st.builds(
    TouchedPart, st.sampled_from(["rows", "sets"]), st.text(max_size=4), st.lists(numbers, max_size=3).map(tuple),
    numbers, st.lists(tables, max_size=3).map(tuple),
)  # fmt: skip


@given(st.builds(RowChanges, numbers, st.lists(parts, max_size=3).map(tuple)))
def test_a_file_says_what_was_written(changes: RowChanges) -> None:
    assert RowChanges.of_text(changes.text()) == changes


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"since": 1}', '{"since": 1, "parts": [{"kind": "rows"}]}'])
def test_another_file_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        RowChanges.of_text(text)


@given(st.lists(st.integers(1, 9), max_size=6), st.data())
def test_the_portions_of_tables_are_all_rows_once(portions: list[int], data: st.DataObject) -> None:
    total = sum(portions)
    edges = sorted(data.draw(st.lists(st.integers(0, total), max_size=4)))
    edges = [0, *edges, total]
    ranges = [TableRange(f"{i}", begin, end, 0, 0, 1) for i, (begin, end) in enumerate(pairwise(edges))]
    part = TouchedPart("rows", "", tuple(portions), 0, tuple(ranges))
    found = [
        (number, row, table.name)
        for number, (rows, of_portion) in enumerate(zip(portions, part.by_portion(), strict=True))
        for (first, table), end in zip(of_portion, [*(first for first, _ in of_portion[1:]), rows], strict=True)
        for row in range(first, end)
    ]
    of_rows = [table.name for table in ranges for _ in range(table.begin, table.end)]
    places = [(number, row) for number, rows in enumerate(portions) for row in range(rows)]
    assert found == [(*place, name) for place, name in zip(places, of_rows, strict=True)]
