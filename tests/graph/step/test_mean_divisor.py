"""The mean divisor and the gradient scale that makes up for it, and which models take none."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.graph.push.pushed_gradient import gradient_scale, make_divisor


@pytest.mark.parametrize(("examples", "divisor", "scale"), [(8.0, 3.0, 24.0), (8.0, None, 8.0), (0.0, 3.0, 0.0)])
def test_the_scale_makes_up_for_the_division(examples: float, divisor: float | None, scale: float) -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        given = None if divisor is None else tf1.constant(divisor, tf1.float64)
        assert session.run(gradient_scale(tf1.constant(examples, tf1.float64), given)) == scale


@pytest.mark.parametrize("nothing", [-1.0, float("nan")])
def test_a_weight_that_is_none_counts_nothing(nothing: float) -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        weight = tf1.constant(nothing, tf1.float64)
        assert session.run(gradient_scale(weight, tf1.constant(2.0, tf1.float64))) == 0.0


@pytest.mark.parametrize("dtype", [tf1.float16, tf1.bfloat16])
@pytest.mark.parametrize("wrap", [lambda function: function, tf.function], ids=["in the graph", "in a function"])
def test_half_precision_is_not_divided(wrap: Any, dtype: Any) -> None:
    with tf1.Graph().as_default():
        values = tf1.placeholder(tf1.float32, [3])
        wrap(tf1.square)(values)
        assert make_divisor(0) is not None
        wrap(lambda values: tf1.cast(tf1.square(tf1.cast(values, dtype)), tf1.float32))(values)
        assert make_divisor(0) is None
