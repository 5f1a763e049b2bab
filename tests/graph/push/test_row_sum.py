"""The sum of rows: whatever comes in whatever chunks, it is what numpy adds up, and there is room for most of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.graph.buckets.bucket_store import ps_variable
from psruntime.graph.buckets.gradient import BucketGradient
from psruntime.graph.push.guard import times
from psruntime.graph.push.round_sum import RowSum

ROWS, WIDTH = 30, 3


class SumByHand:
    """A RowSum in a session of its own."""

    def __init__(self, dtype: Any) -> None:
        with tf1.Graph().as_default() as graph:
            master = ps_variable("master", [ROWS, WIDTH], dtype)
            self.sum = RowSum("sum", master, dtype)
            self.values = tf1.placeholder(dtype, [None, WIDTH])
            self.indices = tf1.placeholder(tf1.int64, [None])
            self.factor = tf1.placeholder(tf1.float64, [])
            gradient = BucketGradient(self.values, self.indices)
            self.write = self.sum.write(gradient)
            self.add = self._one_of(self.sum.add(gradient, self.factor))
            self.total = self.sum.total(self.sum.read()).tensors
            self.room = tf1.shape(self.sum.variables[1].read_value())[0]
            indices = self.sum.variables[1]
            self.longer = indices.assign(tf1.concat([self.indices, self.indices], axis=0), read_value=False)
            init = [variable.initializer for variable in self.sum.variables]
        self.session = tf1.Session(graph=graph)
        self.session.run(init)

    def _one_of(self, operations: list[Any]) -> Any:
        """Is there when the one that is not dead has run."""
        done = []
        for operation in operations:
            with tf1.control_dependencies([operation]):
                done.append(tf1.constant(0))
        return tf1.raw_ops.Merge(inputs=done).output


@pytest.mark.parametrize("dtype", [tf1.float32, tf1.float64])
def test_what_comes_in_chunks_is_added_up_by_rows(dtype: Any) -> None:
    by_hand, random = SumByHand(dtype), np.random.RandomState(3)
    rooms = []
    for again in range(2):  # a new sum forgets the one before
        expected = np.zeros([ROWS, WIDTH])
        for number in range(40):
            rows = random.choice(ROWS, size=random.randint(0 if number else 5, 9), replace=False)
            values, factor = random.standard_normal([len(rows), WIDTH]), 0.5 if number % 3 == 1 else 1.0
            feed = {by_hand.values: values, by_hand.indices: rows, by_hand.factor: factor}
            by_hand.session.run(by_hand.add if number else by_hand.write, feed)
            expected[rows] += values * (factor if number else 1.0)
            rooms.append(int(by_hand.session.run(by_hand.room)))
        values, indices = by_hand.session.run(by_hand.total)
        assert len(set(indices.tolist())) == len(indices)
        ours = np.zeros([ROWS, WIDTH])
        ours[indices] = values
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5, err_msg=str(again))
    assert 3 <= len(set(rooms)) <= 18, "in most of the additions the rows are written where there is room"


def test_rows_that_were_moved_in_part_are_moved_again() -> None:
    """Who moves them may be cut off between values and indices."""
    by_hand = SumByHand(tf1.float32)
    feed = {by_hand.values: np.ones([4, WIDTH]), by_hand.indices: np.arange(4), by_hand.factor: 1.0}
    by_hand.session.run(by_hand.write, feed)
    by_hand.session.run(by_hand.longer, feed)
    by_hand.session.run(by_hand.add, {**feed, by_hand.indices: np.arange(2, 6)})
    values, indices = by_hand.session.run(by_hand.total)
    assert dict(zip(indices.tolist(), values[:, 0].tolist(), strict=True)) == {0: 1, 1: 1, 2: 2, 3: 2, 4: 1, 5: 1}


def test_a_factor_of_one_multiplies_nothing() -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        factor, values = tf1.placeholder(tf1.float32, []), tf1.constant([np.nan, 2.0])
        product = times(values, factor)
        (multiplied,) = (op for op in product.op.graph.get_operations() if op.type == "Mul")
        np.testing.assert_array_equal(session.run(product, {factor: 3.0}), [np.nan, 6.0])
        np.testing.assert_array_equal(session.run(product, {factor: 1.0}), [np.nan, 2.0])
        with pytest.raises(tf1.errors.InvalidArgumentError, match="does not have value"):
            session.run(multiplied.outputs[0], {factor: 1.0})
