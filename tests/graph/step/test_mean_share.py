"""Shares of a round's mean: what a gradient counts, and which models take none."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.graph.step.mean_share import make_shares, unit_of


@pytest.mark.parametrize(("examples", "shares", "unit"), [(8.0, 3.0, 24.0), (8.0, None, 8.0), (0.0, 3.0, 0.0)])
def test_the_unit_makes_up_for_the_division(examples: float, shares: float | None, unit: float) -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        given = None if shares is None else tf1.constant(shares, tf1.float64)
        assert session.run(unit_of(tf1.constant(examples, tf1.float64), given)) == unit


@pytest.mark.parametrize("nothing", [-1.0, float("nan")])
def test_a_weight_that_is_none_counts_nothing(nothing: float) -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        weight = tf1.constant(nothing, tf1.float64)
        assert session.run(unit_of(weight, tf1.constant(2.0, tf1.float64))) == 0.0


@pytest.mark.parametrize("dtype", [tf1.float16, tf1.bfloat16])
@pytest.mark.parametrize("wrap", [lambda function: function, tf.function], ids=["in the graph", "in a function"])
def test_half_precision_is_not_divided(wrap: Any, dtype: Any) -> None:
    with tf1.Graph().as_default():
        values = tf1.placeholder(tf1.float32, [3])
        wrap(tf1.square)(values)
        assert make_shares(0) is not None
        wrap(lambda values: tf1.cast(tf1.square(tf1.cast(values, dtype)), tf1.float32))(values)
        assert make_shares(0) is None
