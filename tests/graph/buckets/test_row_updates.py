"""Sparse updates that are made another way than TensorFlow's own give what they give, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.graph.buckets.gradient import row_sums
from psruntime.graph.buckets.update_rules import take_unique_rows
from tests.graph.step.test_against_tensorflow import OPTIMIZERS

pytestmark = pytest.mark.optimised

ROWS, STEPS = 500, 10


@pytest.mark.parametrize("width", [3, 16, 32])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_unique_rows_are_updated_as_tensorflow_updates_them(optimizer: str, width: int) -> None:
    random = np.random.RandomState(1)
    with tf1.Graph().as_default() as graph:
        indices = tf1.placeholder(tf1.int64, [None])
        values = tf1.placeholder(tf1.float32, [None, width])
        initial = random.standard_normal([ROWS, width]).astype("float32")
        variables, updates = [], []
        for name in ("theirs", "ours"):
            made = OPTIMIZERS[optimizer](0.05)
            if name == "ours":
                take_unique_rows(made)
            with tf1.variable_scope(name):
                variable = tf1.get_variable("v", initializer=initial, use_resource=True)
                updates.append(made.apply_gradients([(tf1.IndexedSlices(values, indices), variable)]))
                slots = [made.get_slot(variable, slot) for slot in made.get_slot_names()]
            variables.append([variable, *slots])
        init = tf1.global_variables_initializer()
    with tf1.Session(graph=graph) as session:
        session.run(init)
        for _ in range(STEPS):
            rows = random.choice(ROWS, 60, replace=False)
            session.run(updates, {indices: rows, values: random.standard_normal([60, width])})
        for theirs, ours in zip(*session.run(variables), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("row_shape", [(), (1,), (16,), (31,), (32,), (2, 3)])
@pytest.mark.parametrize("dtype", [tf1.float16, tf1.bfloat16, tf1.float32, tf1.float64])
def test_row_sums_are_those_of_unsorted_segment_sum(row_shape: tuple[int, ...], dtype: Any) -> None:
    random = np.random.RandomState(2)
    with tf1.Graph().as_default(), tf1.Session() as session:
        for rows, count in [(200, 40), (1, 1), (0, 3), (0, 0)]:
            values = tf1.cast(random.standard_normal([rows, *row_shape]), dtype)
            places = tf1.constant(random.randint(0, max(1, count), [rows]), tf1.int32)
            count_of = tf1.constant(count)
            ours = row_sums(values, places, count_of)
            theirs = tf1.math.unsorted_segment_sum(values, places, count_of)
            ours, theirs = session.run([tf1.cast(ours, tf1.float64), tf1.cast(theirs, tf1.float64)])
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("decays", [(0.0, 0.999), (0.9, 0.0), (0.0, 0.0), (1.0, 0.999)])
def test_decays_of_0_and_1_are_as_tensorflows(decays: tuple[float, float]) -> None:
    """A product with 0 may be rewritten to a constant, which rows must not be added to in place."""
    random = np.random.RandomState(4)
    with tf1.Graph().as_default() as graph:
        indices = tf1.placeholder(tf1.int64, [None])
        values = tf1.placeholder(tf1.float32, [None, 16])
        variables, updates = [], []
        for name in ("theirs", "ours"):
            made = tf1.train.AdamOptimizer(0.05, *decays)
            if name == "ours":
                take_unique_rows(made)
            with tf1.variable_scope(name):
                variable = tf1.get_variable("v", [ROWS, 16], initializer=tf1.ones_initializer(), use_resource=True)
                updates.append(made.apply_gradients([(tf1.IndexedSlices(values, indices), variable)]))
                variables.append([variable, made.get_slot(variable, "m"), made.get_slot(variable, "v")])
        init = tf1.global_variables_initializer()
    with tf1.Session(graph=graph) as session:
        session.run(init)
        for _ in range(3):
            rows = random.choice(ROWS, 60, replace=False)
            session.run(updates, {indices: rows, values: random.standard_normal([60, 16])})
        for theirs, ours in zip(*session.run(variables), strict=True):
            np.testing.assert_array_equal(ours, theirs)
