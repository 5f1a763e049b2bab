"""layer_stack on simulated accelerators of unequal speed: what a step waits depends on its worker, and on chance.

A model module of psruntime.  How long stands in the environment, since a worker takes no flags for its model: STEP_S,
times SLOW_FACTOR for the worker SLOW_WORKER, and with PAUSE_CHANCE another PAUSE_S.  Chance is drawn
from the index of the worker: the n-th step of a worker waits as long in every job.

The wait of a step comes with its batch, uses no CPU, and lies where that of accelerator.py lies.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from benchmarks import accelerator, layer_stack
from psruntime import Context, ModelSpec

STEP_S = "BENCHMARK_STEP_S"
SLOW_WORKER = "BENCHMARK_SLOW_WORKER"
SLOW_FACTOR = "BENCHMARK_SLOW_FACTOR"
PAUSE_CHANCE = "BENCHMARK_PAUSE_CHANCE"
PAUSE_S = "BENCHMARK_PAUSE_S"
STEPS = 10_000  # that are drawn; then they come again


def waits_of(worker: int, environment: Mapping[str, str]) -> Any:
    """Seconds of each step of a worker, [STEPS]."""
    factor = float(environment[SLOW_FACTOR]) if worker == int(environment[SLOW_WORKER]) else 1.0
    pauses = np.random.RandomState(worker).random_sample(STEPS) < float(environment[PAUSE_CHANCE])
    return factor * float(environment[STEP_S]) + pauses * float(environment[PAUSE_S])


def input_fn(context: Context) -> Any:
    """Batches of (features, (labels, wait in seconds)): those of layer_stack, without end."""
    waits = tf1.data.Dataset.from_tensor_slices(waits_of(context.worker_index, os.environ)).repeat()
    pairs = tf1.data.Dataset.zip((layer_stack.input_fn(context).repeat(), waits))
    return pairs.map(lambda batch, wait_s: (batch[0], (batch[1], wait_s)))


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    """That of layer_stack; its gradients wait."""
    wanted, wait_s = labels
    spec = layer_stack.model_fn(features, wanted, mode)
    return replace(spec, loss=accelerator.waited(spec.loss, wait_s))
