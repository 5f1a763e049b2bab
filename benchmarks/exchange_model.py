"""A model that computes almost nothing, so that its steps are pull, push and apply.  Ours and the peer build it alike.

A model module of psruntime.  Its variables and their optimizer stand in the environment, since a worker takes no flags
for its model: SHAPES as JSON, a list of lists, and OPTIMIZER, a class of tf.compat.v1.train.

The loss reads one entry of each variable.  The gradient of each is its value, as it was pulled, times a number that
comes with the loss, so backward follows forward as in any network: one multiplication of each entry, in place, which
TensorFlow cannot leave out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tensorflow.compat.v1 as tf1

from benchmarks.step_times import StepTimes
from psruntime import Context, ModelSpec
from psruntime.observe.render import bytes_text

SHAPES = "BENCHMARK_SHAPES"
OPTIMIZER = "BENCHMARK_OPTIMIZER"
LEARNING_RATE = 1e-3
ENTRY_BYTES = 4  # float32

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Exchange:
    """A job that trains such a model; see jobs.Work.  title: what its variables are.  optimizer: name of its class."""

    title: str
    shapes: Sequence[Shape]
    optimizer: str
    ps: int
    workers: int = 1
    model: str = __name__
    batch_size: int = 1
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"async: {self.title}, {len(self.shapes)} dense variables of {bytes_text(self.total_bytes)} together, "
            f"{self.optimizer}, {self.ps} ps, {self.workers} worker{'s' * (self.workers != 1)}"
        )

    @property
    def total_bytes(self) -> int:
        """Of the variables; a step moves as many in each direction."""
        return ENTRY_BYTES * sum(map(prod, self.shapes))

    @property
    def environment(self) -> dict[str, str]:
        return {SHAPES: json.dumps(self.shapes), OPTIMIZER: self.optimizer}


def input_fn(context: Context) -> Any:
    """(1 [batch] float32, 0 [batch] int64), many times."""
    ones = tf1.data.Dataset.from_tensors((tf1.ones([context.batch_size]), tf1.zeros([context.batch_size], tf1.int64)))
    return ones.repeat(1 << 40 if context.mode == "train" else 1)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:  # noqa: ARG001 - the same in every mode
    """Half the square of the first entries of all variables together, divided by the number of variables."""
    shapes = json.loads(os.environ[SHAPES])
    ones = tf1.ones_initializer()
    variables = [tf1.get_variable(f"variable_{i}", shape, initializer=ones) for i, shape in enumerate(shapes)]
    firsts = tf1.add_n([first(tf1.convert_to_tensor(variable)) for variable in variables])
    optimizer = getattr(tf1.train, os.environ[OPTIMIZER])
    loss = tf1.square(firsts) * tf1.reduce_mean(features) / (2 * len(shapes))
    return ModelSpec(loss, optimizer, LEARNING_RATE, hooks=[StepTimes()])


@tf1.custom_gradient  # type: ignore[untyped-decorator]
def first(value: Any) -> Any:
    """The first entry, [] float32; its gradient is said to be the value."""
    entry = tf1.reshape(tf1.slice(value, [0] * value.shape.rank, [1] * value.shape.rank), [])
    return entry, lambda upstream: value * upstream
