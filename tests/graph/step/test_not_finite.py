"""An infinite or undefined entry anywhere in a gradient keeps all of the push from being applied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, NOT_FINITE, RECEIVED
from psruntime.errors import JobFailedError
from psruntime.model import Context, Model, ModelSpec
from tests.support.local_cluster import LocalCluster, Run, train
from tests.support.selection import long_but

BAD = 3  # the batch whose gradient is not finite, from 1
MODES = ["async", "sync"]


def steep_model(**limits: Any) -> Model:
    """The square root of 0 has a slope that is infinite, and a value that is not."""

    def input_fn(context: Context) -> Any:
        return tf1.data.Dataset.range(1, 1000).map(lambda i: (tf1.cast(tf1.not_equal(i, BAD), tf1.float32)[None], i))

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        steep = tf1.get_variable("steep", [3], initializer=tf1.zeros_initializer())
        plain = tf1.get_variable("plain", [4], initializer=tf1.ones_initializer())
        loss = tf1.reduce_sum(tf1.sqrt(features[0] + tf1.square(steep))) + tf1.reduce_sum(plain * plain)
        return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 0.1, **limits)

    return Model("steep", input_fn, model_fn)


def masters(run: Run) -> dict[str, Any]:
    with run.cluster.session(run.graph.graph) as session:
        return dict(session.run({n: s.master.read_value() for n, s in run.graph.model.stores.items()}))


@pytest.mark.parametrize("mode", long_but(["async"], MODES))
def test_a_gradient_that_is_not_finite_stops_the_job_before_it_is_applied(mode: str) -> None:
    cluster = LocalCluster(2)
    with pytest.raises(JobFailedError, match=r"the gradient is not finite at global step 2, though the loss is"):
        train(cluster, steep_model(), 6, mode=mode)


@pytest.mark.parametrize("limits", long_but([{}], [{}, {"clip_norm": 1.0}]), ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_it_is_passed_over_and_counted_where_that_is_asked_for(mode: str, limits: dict[str, float]) -> None:
    run = train(LocalCluster(2), steep_model(**limits), 6, mode=mode, on_nan="continue")
    assert all(np.isfinite(value).all() for value in masters(run).values())
    assert [result.finite for result in run.results] == [number != BAD for number in range(1, 7)]
    for row in run.cluster.ledgers(run.graph.plan).values():
        assert (row[RECEIVED], row[APPLIED], row[NOT_FINITE]) == (6, 5, 1)


def test_a_limit_of_the_entries_makes_an_infinite_one_finite() -> None:
    """As with plain TensorFlow, where clip_by_value comes before the update; what is undefined stays so."""
    run = train(LocalCluster(1), steep_model(clip_value=0.5), 2, on_nan="continue")
    assert all(result.finite for result in run.results)


def rate_model(rate: Any) -> Model:
    def input_fn(context: Context) -> Any:
        return tf1.data.Dataset.from_tensors((np.ones([2, 1], np.float32), np.ones([2], np.float32))).repeat()

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        w = tf1.get_variable("w", [1], initializer=tf1.ones_initializer())
        return ModelSpec(tf1.reduce_sum(features * w), tf1.train.GradientDescentOptimizer, rate)

    return Model("rate", input_fn, model_fn)


@pytest.mark.parametrize("value", long_but([1e300], [float("nan"), float("inf"), 1e300]))
@pytest.mark.parametrize("mode", MODES)
def test_a_learning_rate_that_is_not_finite_stops_the_job_before_it_is_applied(mode: str, value: float) -> None:
    """Also one that float32 cannot hold."""
    cluster = LocalCluster(1)
    with pytest.raises(JobFailedError, match=r"the learning rate is (nan|inf|1e\+300) at global step 2"):
        train(cluster, rate_model(lambda step: 0.1 if step < 2 else value), 6, mode=mode)


def test_one_that_is_passed_over_is_refused_by_the_ps() -> None:
    rates = iter([0.1, float("nan"), 0.1, 0.1, 0.1])
    run = train(LocalCluster(1), rate_model(lambda _: next(rates)), 4, on_nan="continue")
    assert all(np.isfinite(value).all() for value in masters(run).values())
    for row in run.cluster.ledgers(run.graph.plan).values():
        assert (row[RECEIVED], row[APPLIED], row[NOT_FINITE]) == (4, 3, 1)
