"""A model that fails where, and with what, its --data-dir names: PLACE=ERROR.

PLACE: a name of faults.py: Place.  ERROR: OSError-N of this number, or the name of an error of TensorFlow or Python.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime import Context, ModelSpec
from psruntime.faults import Place
from tests.cluster import models

WORKS = 3  # calls of one place before it fails, so that something was trained
EVERY_TIME = (
    Place.BUILD, Place.INITIAL, Place.EVALUATION, Place.BEST, Place.EVALUATOR, Place.HOOK_END, Place.FOLDER, Place.SAVE,
    Place.LAST_SAVE, Place.OUT,
)  # fmt: skip
PASSES = 2  # failures at a place that is passed over, of which the next one is seen to work

_wanted = {"fault": ""}
_calls: Counter[Place] = Counter()


def error_named(name: str) -> BaseException:
    kind, _, number = name.partition("-")
    if number:
        return OSError(int(number), os.strerror(int(number)), "/data/part-1")
    if hasattr(tf1.errors, kind):
        error: BaseException = getattr(tf1.errors, kind)(None, None, "it failed")
        return error
    error = getattr(builtins, kind)("it failed")
    return error


def fail_at(*places: Place) -> None:
    """Raises what is wanted if it is wanted at one of these places, from its fourth call there."""
    name, _, error = _wanted["fault"].partition("=")
    place = next((place for place in places if place.name == name), None)
    if place is None:
        return
    _calls[place] += 1
    if place in (Place.SAVE, Place.BEST) and _calls[place] > PASSES:
        return
    if place in EVERY_TIME or _calls[place] > WORKS:
        sys.stderr.write(f"provoked {name}={error}\n")
        raise error_named(error)


def _failing(*places: Place) -> Callable[[Any], Any]:
    def same(value: Any) -> Any:
        fail_at(*places)
        return value

    return same


def _mkdir(path: Any, *args: Any, **more: Any) -> None:
    """Folders fail in which a checkpoint is written, or an export."""
    parent, name = os.path.split(os.fspath(path))
    if name.startswith(".unfinished-"):
        has_some = os.path.exists(os.path.join(parent, "checkpoint"))
        fail_at(*((Place.SAVE, Place.LAST_SAVE) if has_some else (Place.FOLDER,)))
    if name.startswith(".exported-"):
        fail_at(Place.OUT)
    _real_mkdir(path, *args, **more)


_real_mkdir, os.mkdir = os.mkdir, _mkdir  # type: ignore[assignment]


def input_fn(context: Context) -> Any:
    _wanted["fault"] = os.path.basename(context.data_dir)
    fail_at(Place.BUILD)
    dataset = models.input_fn(context)
    of_eval = context.mode == "eval"
    places = (Place.EVALUATION, Place.BEST, Place.EVALUATOR) if of_eval else (Place.INPUT,)

    def passed(features: Any, labels: Any) -> Any:
        same = tf1.numpy_function(_failing(*places), [features], tf1.float32)
        return tf1.ensure_shape(same, features.shape), labels

    return dataset.map(passed)


class Hook(tf1.train.SessionRunHook):  # type: ignore[misc]
    def after_run(self, run_context: Any, run_values: Any) -> None:
        fail_at(Place.HOOK)

    def end(self, session: Any) -> None:
        fail_at(Place.HOOK_END)


def _rate(step: int) -> float:
    fail_at(Place.RATE)
    return 0.01 + 0 * step


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    if mode == "train":
        same = tf1.numpy_function(_failing(Place.STEP), [features], tf1.float32)
        features = tf1.ensure_shape(same, features.shape)
    initial = tf1.numpy_function(_failing(Place.INITIAL), [tf1.zeros([2])], tf1.float32)
    tf1.get_variable("drawn", initializer=lambda: tf1.ensure_shape(initial, [2]), trainable=False)
    spec = models.model_fn(features, labels, mode)
    return replace(spec, learning_rate=_rate, hooks=[Hook()], predictions={"mean": tf1.reduce_mean(features, 1)})
