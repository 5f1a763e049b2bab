"""A model of nothing but variables: what a step computes and feeds is small beside them.

A model module of psruntime, for ours and for the peer.  As in layer_stack its size stands in the environment, and
beside it which optimizer it has: a layer is a kernel [WIDTH, columns], of which the mean over the columns that belong
together goes to the next one.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from benchmarks.layer_stack import BYTES, VARIABLES
from benchmarks.step_times import StepTimes
from psruntime import Context, ModelSpec

OPTIMIZER = "BENCHMARK_OPTIMIZER"
HOLD = "BENCHMARK_HOLD"  # a file: while it is there no step begins
OPTIMIZERS = {"SGD": tf1.train.GradientDescentOptimizer, "Adam": tf1.train.AdamOptimizer}
WIDTH = 128  # of what goes from layer to layer; its square is the least number of entries of a kernel
EXAMPLES = 64


def columns(variables: int, total_bytes: int) -> int:
    """Of each kernel, float32: a multiple of WIDTH."""
    return WIDTH * max(1, round(total_bytes / 4 / variables / WIDTH**2))


def held_bytes(variables: int, total_bytes: int) -> int:
    """What the variables really hold."""
    return 4 * variables * WIDTH * columns(variables, total_bytes)


def environment(variables: int, total_bytes: int, optimizer: str, hold: Path) -> dict[str, str]:
    """Of a process that makes the model so large."""
    return {VARIABLES: str(variables), BYTES: str(total_bytes), OPTIMIZER: optimizer, HOLD: str(hold)}


class Held(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Waits after a step as long as the file is there; prints `held` when it begins to."""

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002
        if os.path.exists(os.environ[HOLD]):
            print("held", flush=True)
        while os.path.exists(os.environ[HOLD]):
            time.sleep(0.05)


def input_fn(context: Context) -> Any:
    """One pass of random features, [batch, WIDTH] float32."""
    features = np.random.RandomState(0).standard_normal([EXAMPLES, WIDTH]).astype("float32")
    dataset = tf1.data.Dataset.from_tensor_slices((features, features))
    return dataset.batch(context.batch_size, drop_remainder=True)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:  # noqa: ARG001 - the same in every mode
    """Squared error of the last layer with the labels."""
    variables = int(os.environ[VARIABLES])
    wide = columns(variables, int(os.environ[BYTES]))
    hidden = features
    for number in range(variables):
        kernel = tf1.get_variable(f"kernel_{number}", [WIDTH, wide], initializer=tf1.random_uniform_initializer(-1, 1))
        groups = tf1.reshape(tf1.matmul(hidden, kernel), [-1, WIDTH, wide // WIDTH])
        hidden = tf1.tanh(tf1.reduce_mean(groups, axis=2))
    loss = tf1.reduce_mean(tf1.square(hidden - labels))
    optimizer = OPTIMIZERS[os.environ[OPTIMIZER]]
    return ModelSpec(loss=loss, optimizer=optimizer, learning_rate=1e-3, hooks=[StepTimes(), Held()])
