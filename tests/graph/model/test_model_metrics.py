"""Which metrics of a model are measured, and which are refused by name before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.checkpoint.measured import require_metric
from psruntime.graph.model.evaluate import Measuring, ModelMetrics, logged
from psruntime.model import ModelSpec

REFUSED: dict[str, Callable[[Any], dict[Any, Any]]] = {
    r"metric 'm' has values of dtype string": lambda _: {"m": (tf1.constant("a"), tf1.no_op())},
    r"metric 'm' is a EagerTensor|metric 'm' is a Tensor|metric 'm' is a SymbolicTensor": lambda x: {"m": x},
    r"metric 'm' has a NoneType as its update": lambda _: {"m": (tf1.constant(1.0), None)},
    r"metric 'm' has a value that is computed from one batch": lambda x: {"m": (tf1.reduce_sum(x), tf1.no_op())},
    r"metric 'm' has 10000 values, at most 1000": lambda _: {"m": (tf1.zeros([100, 100]), tf1.no_op())},
    r"'global_step' as a name": lambda _: {"global_step": (tf1.constant(1.0), tf1.no_op())},
    r"two metrics have a value of one name": lambda _: {
        "m": (tf1.zeros([2]), tf1.no_op()),
        "m/0": (tf1.constant(1.0), tf1.no_op()),
    },
}


@pytest.mark.parametrize("refusal", REFUSED)
def test_what_cannot_be_measured_is_refused_by_name(refusal: str) -> None:
    with tf1.Graph().as_default():
        x = tf1.placeholder(tf1.float32, [None])
        with pytest.raises(UsageError, match=refusal):
            ModelMetrics(ModelSpec(tf1.reduce_sum(x), metrics=REFUSED[refusal](x)), [x], "model_fn of m")


def test_several_values_are_scalars_by_their_places() -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf1.float32, [None])
        unknown = tf1.placeholder_with_default(np.ones([2, 1], np.float32), None)
        metrics = {
            "recall": tf1.metrics.recall_at_thresholds(x > 0, tf1.sigmoid(x), [0.2, 0.8]),
            "late": (unknown, [tf1.no_op(), tf1.constant(1)]),
        }
        measured = ModelMetrics(ModelSpec(tf1.reduce_sum(x), metrics=metrics), [x], "model_fn of m")
        assert measured.names == ["loss", "recall/0", "recall/1", "late"]
        session.run(measured.init)
        session.run(list(measured.updates.values()), {x: [1.0, 2.0], "examples:0": 2.0})
        assert session.run(measured.values)["loss"] == 3.0
        assert list(measured.scalars(session)) == ["loss", "recall/0", "recall/1", "late/0/0", "late/1/0"]
    with pytest.raises(UsageError, match=r"keep_best names recall, a metric of 2 values, .* for example recall/0"):
        require_metric("keep_best", "recall", measured.names)


def test_a_long_evaluation_says_every_ten_seconds_how_far_it_is_and_the_next_one_too() -> None:
    lines: list[object] = []
    on_batch = logged(lambda _, reason: lines.append(reason))
    for _ in range(2):
        for second in range(25):
            on_batch(Measuring(second, 8 * second, float(second)))
    assert (
        lines
        == [
            f"evaluates: {text}; --eval-batches N ends it after N"
            for text in ("10 batches, 80 examples, 10 s", "20 batches, 160 examples, 20 s")
        ]
        * 2
    )
