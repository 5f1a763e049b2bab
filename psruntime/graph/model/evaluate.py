"""Held-out metrics, computed from the variables on the ps, or from a checkpoint without any ps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.plan import Plan
from psruntime.errors import UsageError
from psruntime.graph.base.devices import worker_device
from psruntime.graph.base.failed_operation import users_errors
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import build_pulled_model, learn_specs
from psruntime.graph.store.bucket_store import PlanStores
from psruntime.model import EVAL, Context, Model, ModelSpec
from psruntime.usercode import blame


def check_evaluation(model: Model, context: Context, plan: Plan) -> None:
    """Builds the model once with mode "eval", so that what is wrong with it is known before the training.

    Raises:
        UsageError: input_fn or model_fn fails, or makes variables that training does not have.
    """
    inputs = InputStream(model, context)
    try:
        found = learn_specs(model, inputs, EVAL)
        known = {_declared(spec) for spec in plan.specs}
        unknown = [spec for spec in found if _declared(spec) not in known]
    finally:
        inputs.close()
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise UsageError(f"model_fn of {model.name} makes variables with mode eval that mode train has not: {names}")


def _declared(spec: VariableSpec) -> VariableSpec:
    """Without what follows from the gradients and the optimizer."""
    return replace(spec, sparse=False, whole=False, group=0)


def evaluate(
    model: Model,
    context: Context,
    plan: Plan,
    max_workers: int,
    open_session: Callable[[Any], Any],
    on_batch: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """The model's metrics, and its mean loss as "loss", over one pass of the data of mode "eval".

    `open_session(graph)` gives a session on the current view.  on_batch: called after each batch.

    Raises:
        UsageError: input_fn or model_fn failed.
        UserCodeError: the input or an operation of the model did.
    """
    inputs = InputStream(model, context)
    index = context.worker_index
    with tf1.Graph().as_default() as graph:
        pulled = build_pulled_model(model, inputs, EVAL, PlanStores(plan, max_workers), index)
        with tf1.device(worker_device(index)):
            metrics = _Metrics(pulled.spec, pulled.batch)
    session = open_session(graph)
    try:
        return metrics.over(session, inputs, on_batch)
    finally:
        session.close()
        inputs.close()


class CheckpointEvaluation:
    """The model with mode "eval" in a graph of its own, with variables of its own: needs no ps, holds all of the model.

    on_batch: called after each batch.

    Raises:
        UsageError: input_fn or model_fn failed.
    """

    def __init__(self, model: Model, context: Context, on_batch: Callable[[], None] = lambda: None) -> None:
        self._model, self._context, self._on_batch = model, context, on_batch
        inputs = InputStream(model, context)
        inputs.close()
        with tf1.Graph().as_default() as self._graph:
            features, labels, batch = inputs.layout.placeholders()
            with blame(f"model_fn of {model.name} (mode {EVAL})"):
                spec = model.model_fn(features, labels, EVAL)
            self._metrics = _Metrics(spec, batch)
            self._saver = tf1.train.Saver(tf1.global_variables())

    @property
    def names(self) -> list[str]:
        """What is measured."""
        return self._metrics.names

    def measure(self, path: str) -> dict[str, float]:
        """As `evaluate`, of the variables in the checkpoint `path`.

        Raises:
            UsageError: input_fn failed.
            OpError, ValueError: the checkpoint cannot be restored, or the metrics cannot be computed.
        """
        inputs = InputStream(self._model, self._context)
        try:
            with self._graph.as_default(), tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
                self._saver.restore(session, path)
                return self._metrics.over(session, inputs, self._on_batch)
        finally:
            inputs.close()


class _Metrics:
    """The metrics of a model, and its mean loss as "loss", on the current device; `batch` are its placeholders."""

    def __init__(self, spec: ModelSpec, batch: list[Any]) -> None:
        self._batch = batch
        self._examples = tf1.placeholder(tf1.float32, [], name="examples")
        metrics = {"loss": tf1.metrics.mean(spec.loss, weights=self._examples), **(spec.metrics or {})}
        self._values = {name: value for name, (value, _) in metrics.items()}
        self._updates = [update for _, update in metrics.values()]
        self._init = [tf1.local_variables_initializer(), tf1.tables_initializer()]

    @property
    def names(self) -> list[str]:
        return list(self._values)

    def over(self, session: Any, inputs: InputStream, on_batch: Callable[[], None]) -> dict[str, float]:
        """Their values over the rest of the data."""
        with users_errors(session.graph):
            session.run(self._init)
            while (drawn := inputs.draw()) is not None:
                feed = {self._examples: inputs.examples(drawn), **dict(zip(self._batch, drawn, strict=True))}
                session.run(self._updates, feed_dict=feed)
                on_batch()
            return {name: float(value) for name, value in session.run(self._values).items()}
