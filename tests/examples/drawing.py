"""What a dataset gives, drawn as a worker draws it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.plan.plan import Plan, make_plan
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import record_specs
from psruntime.model import Context, Model, load_model


def context(mode: str = "train", worker: int = 0, workers: int = 1, data_dir: str = "", seed: int = 0) -> Context:
    return Context(mode, worker, workers, 8, str(data_dir), seed)


def drawn(input_fn: Callable[[Context], Any], of: Context) -> list[list[Any]]:
    """All batches of one pass over the data, each a list of arrays.

    Raises:
        UserCodeError: the input failed.
    """
    ends = replace(of, mode="eval")  # a stream for training begins again
    stream = InputStream(Model("a model", lambda _: input_fn(of), lambda *_: None), ends)
    try:
        return list(iter(stream.draw, None))
    finally:
        stream.close()


def computed(make: Callable[[], Any]) -> Any:
    """The values of tensors in a graph of their own, whose variables have their initial values."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        tensors = make()
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        return session.run(tensors)


def planned(model: str, num_ps: int) -> Plan:
    """The plan of a job with this model and the default settings."""
    job, loaded = JobConfig(), load_model(model)
    stream = InputStream(loaded, context())
    try:
        return make_plan(record_specs(loaded, stream, "train"), num_ps, *job.plan_sizes)
    finally:
        stream.close()
