"""A model whose steps take several times as long: the effect of one slow machine on a job, tried on a fast one.

The wait is between pull and push, where a slow processor spends its time: other workers continue meanwhile, and the
update is as stale as that of a slow machine.  It uses no processor time.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import Array
from psruntime.model import TRAIN, Model, ModelSpec

MEASURED = 9  # last steps, whose median is the time of a step


def slowed(model: Model, times: float) -> Model:
    """The model with training steps that take `times` as long as they did before; 1: as it is."""
    if times == 1:
        return model
    pause = _Pause(times)

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        spec = model.model_fn(features, labels, mode)
        if mode != TRAIN or not isinstance(spec, ModelSpec):
            return spec
        loss = tf1.convert_to_tensor(spec.loss)
        paused = tf1.numpy_function(pause, [loss], tf1.bool)  # after the loss is computed; the push waits for it
        with tf1.control_dependencies([paused]):
            return replace(spec, loss=tf1.identity(loss), hooks=[*spec.hooks, pause])

    return replace(model, model_fn=model_fn)


class _Pause(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Measures steps, and is called within each."""

    def __init__(self, times: float) -> None:
        self._more = times - 1
        self._own_s: deque[float] = deque(maxlen=MEASURED)  # of steps, without the pauses
        self._paused_s = 0.0

    def __call__(self, _loss: Array) -> bool:
        self._paused_s = self._more * statistics.median(self._own_s) if self._own_s else 0.0
        time.sleep(self._paused_s)
        return True

    def before_run(self, run_context: tf1.train.SessionRunContext) -> None:  # noqa: ARG002
        self._began_s = time.monotonic()

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:  # noqa: ARG002
        self._own_s.append(max(0.0, time.monotonic() - self._began_s - self._paused_s))
