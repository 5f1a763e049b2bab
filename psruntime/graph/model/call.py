"""The call of the user's model_fn, in the graph that it builds into."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.faults import blame, users_line
from psruntime.graph.base.types import Variable
from psruntime.model import Model, ModelSpec

KERAS_3, OF_TENSORFLOW_1 = "keras", "tf_keras"  # packages of Keras


def call_model_fn(model: Model, features: Any, labels: Any, mode: str) -> ModelSpec:
    """What model_fn returns.  `tf.train.get_global_step()` makes the global step where it is not made yet.

    Raises:
        UsageError: it fails, returns something else, or uses layers of Keras 3 or metrics of Keras.
    """

    def creator(next_creator: Callable[..., Variable], **settings: Any) -> Variable:
        _refuse_keras(model.name)
        return next_creator(**settings)

    with (
        _global_step_on_demand(),
        tf1.variable_creator_scope(creator),
        blame(f"model_fn of {model.name} (mode {mode})"),
    ):
        spec = model.model_fn(features, labels, mode)
    if not isinstance(spec, ModelSpec):
        raise UsageError(
            f"model_fn of {model.name} returned {type(spec).__name__}; it must return a psruntime.ModelSpec"
        )
    return spec


@contextmanager
def _global_step_on_demand() -> Iterator[None]:
    """While open, `tf.train.get_global_step` is `get_or_create_global_step`.

    A step that is made before model_fn would collide with the model's own.
    """
    before = tf1.train.get_global_step
    tf1.train.get_global_step = tf1.train.get_or_create_global_step
    try:
        yield
    finally:
        tf1.train.get_global_step = before


def _refuse_keras(model: str) -> None:
    """Raises UsageError if the variable that is made now is of a layer of Keras 3, or of a metric of Keras.

    The names of the one differ from graph to graph; those of the other are in no collection that initialises them.
    """
    maker = _keras_maker()
    if maker is None:
        return
    kind, where = type(maker).__name__, f" at {users_line(traceback.extract_stack())}".removesuffix(" at ")
    if is_metric(maker):
        raise UsageError(f"model_fn of {model} uses metric {kind} of Keras{where}; use {metric_instead_of(kind)}")
    raise UsageError(
        f"model_fn of {model} uses {kind} of Keras 3{where}, which does not work in a graph of TensorFlow 1; "
        f"use tf_keras.layers or tf.layers, as tf_keras.layers.{kind}"
    )


def _keras_maker() -> object | None:
    """The outermost layer of Keras 3, or metric of Keras, of which code runs now; None if there is none."""
    maker, frame = None, sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in (KERAS_3, OF_TENSORFLOW_1) and (own := frame.f_locals.get("self")) is not None:
            maker = own if package == KERAS_3 or is_metric(own) else maker
    return maker


def is_metric(given: object) -> bool:
    """Whether this is a metric of Keras."""
    return hasattr(given, "update_state")


def metric_instead_of(kind: str) -> str:
    """What to take in place of a metric of Keras of this class: the one of tf.metrics, if there is one."""
    known = {name.replace("_", ""): name for name in dir(tf1.metrics) if not name.startswith("_")}
    name = known.get(kind.lower(), "accuracy" if kind.endswith("Accuracy") and "TopK" not in kind else "")
    return f"tf.metrics.{name}" if name else "one of tf.metrics"
