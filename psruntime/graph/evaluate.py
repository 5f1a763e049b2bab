"""Held-out metrics, computed from the variables on the ps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.plan import Plan
from psruntime.errors import UsageError
from psruntime.graph.devices import worker_device
from psruntime.graph.inputs import InputStream, leading_dimension
from psruntime.graph.pulled import build_pulled_model, learn_specs
from psruntime.model import EVAL, Context, Model


def check_evaluation(model: Model, context: Context, plan: Plan) -> None:
    """Builds the model once with mode "eval", so that what is wrong with it is known before the training.

    Raises:
        UsageError: input_fn or model_fn fails, or makes variables that training does not have.
    """
    inputs = InputStream(model, context)
    try:
        found = learn_specs(model, inputs, EVAL)  # without gradients, so none is known to be sparse
        unknown = set(found) - {replace(spec, sparse=False) for spec in plan.specs}
    finally:
        inputs.close()
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise UsageError(f"model_fn of {model.name} makes variables with mode eval that mode train has not: {names}")


def evaluate(
    model: Model, context: Context, plan: Plan, max_workers: int, open_session: Callable[[Any], Any]
) -> dict[str, float]:
    """The model's metrics, and its mean loss as "loss", over one pass of the data of mode "eval".

    `open_session(graph)` gives a session on the current view.

    Raises:
        UsageError: input_fn or model_fn failed.
    """
    inputs = InputStream(model, context)
    index = context.worker_index
    with tf1.Graph().as_default() as graph:
        pulled = build_pulled_model(model, inputs, EVAL, plan, index, max_workers)
        with tf1.device(worker_device(index)):
            examples = tf1.placeholder(tf1.float32, [], name="examples")
            metrics = {"loss": tf1.metrics.mean(pulled.spec.loss, weights=examples), **(pulled.spec.metrics or {})}
            local_init = tf1.local_variables_initializer()
    session = open_session(graph)
    try:
        session.run(local_init)
        updates = [update for _, update in metrics.values()]
        while (batch := inputs.draw()) is not None:
            feed = {examples: leading_dimension(batch), **dict(zip(pulled.batch, batch, strict=True))}
            session.run(updates, feed_dict=feed)
        values = session.run({name: value for name, (value, _) in metrics.items()})
        return {name: float(value) for name, value in values.items()}
    finally:
        session.close()
        inputs.close()
