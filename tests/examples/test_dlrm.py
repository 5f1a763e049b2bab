"""DLRM: its interactions are those of the paper, and its tables travel as one group."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.examples.dlrm import Dlrm, interactions
from tests.examples.drawing import computed, planned


def test_interactions_are_the_dot_products_of_all_pairs() -> None:
    vectors = np.random.RandomState(0).normal(size=[4, 6, 3]).astype(np.float32)  # [n, batch, width]
    expected = [np.sum(vectors[i] * vectors[j], axis=1) for i in range(4) for j in range(i)]
    found = computed(lambda: interactions([tf1.constant(vector) for vector in vectors]))
    np.testing.assert_allclose(found, np.stack(expected, axis=1), rtol=1e-6)


def test_all_tables_are_one_group_with_rows_on_every_ps() -> None:
    plan = planned("psruntime.examples.dlrm", num_ps=2)
    (group,) = plan.groups
    assert [table.rows for table in group.tables] == [10_000] * 26
    assert not plan.copies and not [bucket for bucket in plan.buckets if bucket.is_table and not bucket.is_grouped]


@pytest.mark.parametrize("rows", [[10] * 25, [10] * 25 + [1]])
def test_rows_that_do_not_fit_the_format(rows: list[int]) -> None:
    with pytest.raises(UsageError, match="rows of Dlrm must be 26 numbers from 2, got "):
        Dlrm(rows=rows)
