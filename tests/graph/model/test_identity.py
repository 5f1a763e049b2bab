"""What the identity of a model is made of: all by which two workers with the same variables would train otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.config.settings import Value
from psruntime.core.plan.identity import ModelIdentity, differences
from psruntime.graph.model.identity import identity_of
from psruntime.model import Model, ModelSpec

RMSPROP = tf1.train.RMSPropOptimizer


class Keeping(tf1.train.AdamOptimizer):  # type: ignore[misc]
    """A user's own, which keeps its arguments beside those of the class that it is made of."""

    def __init__(self, rate: Any, beta1: float = 0.9) -> None:
        super().__init__(rate, beta1=beta1)
        self.beta1 = beta1


def identity(optimizer: Callable[[Any], Any] = RMSPROP, learning_rate: Any = 0.01, **others: Any) -> ModelIdentity:
    with tf1.Graph().as_default():
        spec = ModelSpec(tf1.constant(0.0), optimizer, learning_rate, **others)
        return identity_of(spec, Model("tests.identity", lambda context: None, lambda *batch: spec))


DIFFERENT = {
    "optimizer: ": {"optimizer": tf1.train.AdamOptimizer},
    "slots of optimizer RMSPropOptimizer: ": {"optimizer": partial(RMSPROP, centered=True)},
    "optimizer RMSPropOptimizer, decay: 0.8": {"optimizer": partial(RMSPROP, decay=0.8)},
    "learning_rate: 0.02, where the job has 0.01": {"learning_rate": 0.02},
    "learning_rate: a function": {"learning_rate": lambda step: 0.01},
    "clip_norm: 1.0, where the job has none": {"clip_norm": 1.0},
    "clip_value: 1.0, where the job has none": {"clip_value": 1.0},
}


@pytest.mark.parametrize("said", DIFFERENT)
def test_what_differs_is_named_with_both_values(said: str) -> None:
    first = next(differences(identity(**DIFFERENT[said]), identity(), "the job"))
    assert first.startswith(said)


def test_the_same_model_has_the_same_identity_each_time_that_it_is_built() -> None:
    for settings in ({}, *DIFFERENT.values()):
        assert identity(**settings) == identity(**settings)


def test_the_first_difference_of_parameters_is_named_by_its_flag() -> None:
    def with_params(*params: tuple[str, Value]) -> ModelIdentity:
        with tf1.Graph().as_default():
            spec = ModelSpec(tf1.constant(0.0), RMSPROP, dict(params).get("lr", 0.01))
            return identity_of(spec, Model("m", lambda context: None, lambda *batch: spec, params=params))

    job = with_params(("lr", 0.1), ("hidden", 6))
    for params, said in (
        ([("hidden", 6), ("lr", 0.1)], None),
        ([("lr", 0.3), ("hidden", 6)], "--set lr: 0.3, where the job has 0.1"),
        ([("lr", 0.1), ("hidden", "6")], '--set hidden: "6", where the job has 6'),
        ([("lr", 0.1)], "--set hidden: none, where the job has 6"),
        ([("lr", 0.1), ("hidden", 6), ("deep", True)], "--set deep: true, where the job has none"),
    ):
        assert next(differences(with_params(*params), job, "the job"), None) == said


def test_functions_are_not_told_apart() -> None:
    assert identity(learning_rate=lambda step: 0.01) == identity(learning_rate=lambda step: 0.1 / step)


def test_an_optimizer_may_keep_a_constant_twice() -> None:
    names = [name for name, _ in identity(Keeping).facts]
    assert len(set(names)) == len(names)
    assert any(name.endswith(", beta1") for name in names)
