"""Combinations of the settings that change what travels, and a model whose updates can be added up to the bit.

VALUES are the settings and what is tried of each.  SETTINGS are jobs in which every two of these values meet that a job
may have together (a test proves it): what two settings do to each other shows in one of them, and 400 become 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.config.job_settings import PLANS, SWITCH, WIRES
from psruntime.core.clocks.pace import Pace
from psruntime.core.members.membership import JudgedClock
from psruntime.errors import UsageError
from psruntime.graph.input.input_stream import InputStream
from psruntime.model import Context, Model, ModelSpec
from tests.support.local_cluster import LocalCluster

CUT, WHOLE = 64, 1 << 24  # slice_bytes: below the size of the dense variable, and above
MODES = {"async": {"mode": "async"}, "bounded": {"mode": "bounded", "bound": 2}, "sync": {"mode": "sync"}}
VALUES: dict[str, tuple[Any, ...]] = {
    "mode": tuple(MODES), "plan": PLANS, "wire": WIRES, "wire_error_feedback": SWITCH, "pipeline": (1, 2, 3),
    "local_steps": (1, 2), "slice_bytes": (CUT, WHOLE), "ps": (1, 2),
}  # fmt: skip
_ROWS = [  # each unlike the one before it in nearly all, so that a checkpoint can go from each to the next
    ("async", "packed", "float16", "on", 1, 1, WHOLE, 1),
    ("bounded", "per-variable", "float32", "off", 2, 2, CUT, 1),
    ("async", "packed", "bfloat16", "off", 3, 1, CUT, 2),
    ("bounded", "per-variable", "float16", "off", 3, 2, CUT, 1),
    ("async", "packed", "bfloat16", "off", 2, 2, WHOLE, 1),
    ("bounded", "per-variable", "float16", "off", 2, 1, WHOLE, 2),
    ("bounded", "packed", "bfloat16", "on", 1, 2, CUT, 1),
    ("async", "per-variable", "float32", "off", 3, 2, WHOLE, 2),
    ("sync", "packed", "float32", "off", 1, 1, CUT, 1),
    ("sync", "per-variable", "bfloat16", "on", 1, 2, WHOLE, 2),
    ("sync", "packed", "float16", "off", 1, 1, CUT, 1),
]
SETTINGS = {" ".join(map(str, row)): {**dict(zip(VALUES, row, strict=True)), **MODES[row[0]]} for row in _ROWS}
QUICK = [" ".join(map(str, _ROWS[row])) for row in (3, 9)]  # for make test: unlike each other in nearly all

WIDTH, ROWS, BATCH = 40, 7, 8  # entries of the dense variable, rows of the table, examples of a mini-batch


def every_job() -> Iterator[dict[str, Any]]:
    """All combinations that a job may have."""
    for row in product(*VALUES.values()):
        settings = {**dict(zip(VALUES, row, strict=True)), **MODES[row[0]]}
        try:
            JobConfig(**settings)
        except UsageError:
            continue
        yield settings


def cluster_of(settings: dict[str, Any]) -> LocalCluster:
    """Empty, and with the limit of staleness that the coordinator would tell the ps for one worker."""
    return LocalCluster(settings["ps"], Pace(JobConfig(**settings), JudgedClock(0.0)).max_staleness(live=1))


def adding_model(optimizer: Callable[[Any], Any], learning_rate: float = 1.0) -> Model:
    """A loss that is linear in its variables, so its gradients are means of the features whatever the variables are.

    dense [WIDTH], scalar [] with the gradient 1, and table [ROWS, 2], all from 0.  The gradients are multiples of 1/64
    below 1024: float32 holds a few hundred of them and their sums exactly, half precision does not hold most.
    """
    random = np.random.default_rng(5)
    data = (random.integers(-4000, 4000, [40 * BATCH, WIDTH]) / 4).astype(np.float32), random.integers(ROWS, size=320)

    def input_fn(context: Context) -> Any:
        return tf1.data.Dataset.from_tensor_slices(data).batch(context.batch_size)

    def model_fn(x: Any, ids: Any, mode: str) -> ModelSpec:
        zeros = tf1.zeros_initializer()
        dense = tf1.get_variable("dense", [WIDTH], initializer=zeros)
        scalar = tf1.get_variable("scalar", [], initializer=zeros)
        rows = tf1.gather(tf1.get_variable("table", [ROWS, 2], initializer=zeros), ids)
        each = tf1.linalg.matvec(x, dense) + tf1.reduce_sum(x[:, :2] * rows, axis=1)
        return ModelSpec(tf1.reduce_mean(each) + scalar, optimizer, learning_rate)

    return Model("tests.adding", input_fn, model_fn)


def gradients(model: Model, local_steps: int, steps: int) -> dict[str, list[Any]]:
    """Variable of the adding model -> its gradient in each step."""
    found: dict[str, list[Any]] = {"dense": [], "scalar": [], "table": []}
    for batch in batches(model, local_steps, steps):
        x, ids = np.concatenate(batch[0::2]), np.concatenate(batch[1::2])
        rows = np.zeros([ROWS, 2], np.float32)
        np.add.at(rows, ids, x[:, :2])
        found["dense"].append(x.mean(axis=0))
        found["scalar"].append(np.float32(1))
        found["table"].append(rows / np.float32(len(x)))
    return found


def batches(model: Model, local_steps: int, steps: int) -> list[list[Any]]:
    """What the first steps of worker 0 take."""
    inputs = InputStream(model, Context("train", 0, 1, BATCH, "", 3), local_steps)
    drawn = [inputs.draw_endlessly() for _ in range(steps)]
    inputs.close()
    return drawn
