"""layer_stack on simulated accelerators of unequal speed, where a step waits in proportion to its examples.

A model module of psruntime.  The environment is that of straggling.py, but for pauses: BATCH_SIZE examples take STEP_S,
times SLOW_FACTOR on the worker SLOW_WORKER.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf1

from benchmarks import accelerator, layer_stack, straggling
from psruntime import Context, ModelSpec

BATCH_SIZE = 32


def input_fn(context: Context) -> Any:
    """Batches of (features, (labels, wait in seconds [batch])): those of layer_stack."""
    is_slow = context.worker_index == int(os.environ[straggling.SLOW_WORKER])
    factor = float(os.environ[straggling.SLOW_FACTOR]) if is_slow else 1.0
    wait_s = factor * float(os.environ[straggling.STEP_S]) / BATCH_SIZE

    def with_waits(features: Any, labels: Any) -> Any:
        return features, (labels, tf1.fill(tf1.shape(features)[:1], tf1.constant(wait_s, tf1.float64)))

    return layer_stack.input_fn(context).map(with_waits)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    """That of layer_stack; its gradients wait."""
    wanted, waits_s = labels
    spec = layer_stack.model_fn(features, wanted, mode)
    return replace(spec, loss=accelerator.waited(spec.loss, tf1.reduce_sum(waits_s)))
