"""A model that has one of each kind of state, and says in a folder, --data-dir, what is not on any server.

INDEX-PID.jsonl has a line {"seed": of its input} of each process, and for each step {"number": of the first example of
its batch}.  INDEX-PID-N.json has the variables of its N-th training graph, for tests/support/snapshot.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime import Context, ModelSpec
from tests.cluster.state_trial import SHARDS
from tests.support.snapshot import handles_of

ROWS = 16
EXAMPLES, SIZE = 512, 16  # that data shards are made of, and of one
ENDLESS = 1 << 20  # examples, where there are no shards
NO_AGGREGATION = tf1.VariableAggregation.NONE
_context: list[Context] = []  # of the training input of this process


def input_fn(context: Context) -> Any:
    """Batches of ({x [batch, 4], number [batch]}, y [batch])."""
    if context.mode == "eval":
        return tf1.data.Dataset.from_tensors(({"x": tf1.ones([8, 4]), "number": tf1.range(8)}, tf1.ones([8])))
    _context[:] = [context]
    _note({"seed": context.seed})

    def example(i: Any) -> Any:
        x = tf1.random.stateless_uniform([4], seed=[i, context.seed % 1000])
        return {"x": x, "number": i}, tf1.sin(3 * tf1.reduce_sum(x))

    begin, end = context.shards(EXAMPLES, SIZE) if _folder().name == SHARDS else (0, ENDLESS)
    return tf1.data.Dataset.range(begin, end).map(lambda i: example(tf1.cast(i, tf1.int32))).batch(context.batch_size)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    is_training = mode == "train"
    kernel = tf1.get_variable("kernel", [4, 8], initializer=tf1.glorot_uniform_initializer(seed=1))
    table = tf1.get_variable("table", [ROWS, 8], initializer=tf1.random_uniform_initializer(-0.1, 0.1, seed=2))
    clock = tf1.get_variable("clock", [], initializer=tf1.zeros_initializer())  # which every update moves on
    steps, shared = (
        tf1.get_variable(name, [], initializer=tf1.zeros_initializer(), trainable=False, aggregation=aggregation)
        for name, aggregation in (("steps", NO_AGGREGATION), ("shared", tf1.VariableAggregation.SUM))
    )
    rows = tf1.nn.embedding_lookup(table, features["number"] % ROWS)
    hidden = tf1.layers.batch_normalization(
        tf1.matmul(features["x"], kernel) + rows, training=is_training, center=False, scale=False, name="norm"
    )
    loss = tf1.reduce_mean(tf1.square(tf1.reduce_sum(hidden, axis=1) - labels)) - (clock - tf1.stop_gradient(clock))
    return ModelSpec(
        loss,
        {
            "table": tf1.train.AdagradOptimizer,
            "clock": tf1.train.GradientDescentOptimizer,
            "*": tf1.train.AdamOptimizer,
        },
        0.01,
        updates=[*tf1.get_collection(tf1.GraphKeys.UPDATE_OPS), steps.assign_add(1.0), shared.assign_add(2.0)],
        hooks=[Diary(features["number"])] if is_training else (),
        metrics=None if is_training else {"clock": tf1.metrics.mean(clock)},
        predictions={"hidden": hidden},
    )


class Diary(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Writes what the module says.  number: int32 [batch]."""

    def __init__(self, number: Any) -> None:
        self._number = number

    def begin(self) -> None:
        count = len(list(_folder().glob(f"{_name()}-*.json")))
        (_folder() / f"{_name()}-{count}.json").write_text(json.dumps(handles_of(tf1.get_default_graph())))

    def before_run(self, run_context: Any) -> Any:
        return tf1.train.SessionRunArgs(self._number)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        _note({"number": int(run_values.results[0])})


def _note(facts: dict[str, Any]) -> None:
    with (_folder() / f"{_name()}.jsonl").open("a") as file:
        file.write(json.dumps(facts) + "\n")


def _folder() -> Path:
    return Path(_context[0].data_dir)


def _name() -> str:
    return f"{_context[0].worker_index}-{os.getpid()}"
