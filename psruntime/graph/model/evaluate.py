"""Held-out metrics, computed from the variables on the ps, or from a checkpoint without any ps."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property, partial

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.plan import Plan
from psruntime.graph.base.checkpoint_reader import name_of, readable, require_fit
from psruntime.graph.base.seeds import model_graph
from psruntime.graph.base.server import worker_device
from psruntime.graph.base.types import Feed, Graph, Session, Variable
from psruntime.graph.buckets.bucket_store import PlanStores
from psruntime.graph.input.batch_layout import BatchLayout
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.model_metrics import ModelMetrics, OnBatch
from psruntime.graph.model.pulled_model import build_pulled_model
from psruntime.graph.model.rows_in_use import RowsInUse
from psruntime.graph.model.spec_checks import check_spec
from psruntime.model import EVAL, TRAIN, Context, Model
from psruntime.usercode import blame


class PulledEvaluation:
    """The model with mode "eval" on the parameters that are pulled from the ps.  graph: its own.

    Raises:
        UsageError: input_fn or model_fn fails, or makes variables that training does not have.
    """

    def __init__(self, model: Model, context: Context, plan: Plan, max_workers: int) -> None:
        self._model, self._context = model, context
        where = f"model_fn of {model.name}"
        inputs = InputStream(model, context)
        inputs.close()
        with model_graph().as_default() as self.graph:
            pulled = build_pulled_model(model, inputs, EVAL, PlanStores(plan, max_workers), context.worker_index)
            check_spec(pulled.spec, where, EVAL)
            with tf1.device(worker_device(context.worker_index)):
                self._metrics = ModelMetrics(pulled.spec, pulled.batch, where)

    def measure(self, session: Session, on_batch: OnBatch = lambda _: None) -> dict[str, float]:
        """The model's metrics, and its mean loss as "loss", over one pass of the data.

        session: of `graph`, on the current view.  on_batch: called after each batch with the evaluation's progress.

        Raises:
            UsageError: input_fn failed.
            UserCodeError: the input or an operation of the model did.
        """
        return _over_all(self._metrics, session, self._model, self._context, on_batch)


class CheckpointEvaluation:
    """Measures checkpoints on variables of its own, so it needs no ps and has all of the model in memory; of large
    tables that are only looked up, the rows of some batches (rows_in_use.py).

    Its graph is built when it is first needed.

    on_batch: called after each batch with the evaluation's progress.
    """

    def __init__(self, model: Model, context: Context, on_batch: OnBatch = lambda _: None) -> None:
        self._model, self._context, self._on_batch = model, context, on_batch

    def observed(self, on_batch: OnBatch) -> CheckpointEvaluation:
        """The same evaluation, with the graph if it is built, and this `on_batch`."""
        evaluation = copy(self)
        evaluation._on_batch = on_batch
        return evaluation

    @property
    def names(self) -> list[str]:
        """Names of the metrics.

        Raises:
            UsageError: input_fn or model_fn fails.
        """
        return self._built[1].names

    def measure(self, path: str) -> dict[str, float]:
        """As PulledEvaluation, of the variables in the checkpoint `path`.

        Raises:
            UsageError: input_fn or model_fn fails, or the checkpoint is of another model.
            OpError, ValueError: the checkpoint cannot be restored, or the metrics cannot be computed.
        """
        graph, metrics, saver, rows, variables = self._built
        with graph.as_default(), tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
            require_fit(variables, path, lambda: self._of_training)
            path = readable(path)
            if saver:
                saver.restore(session, path)
            load = partial(rows.load, session, path) if rows.variables else None
            return _over_all(metrics, session, self._model, self._context, self._on_batch, load)

    @cached_property
    def _of_training(self) -> set[str] | None:
        return training_names(self._model, self._layout)

    @cached_property
    def _built(self) -> tuple[Graph, ModelMetrics, tf1.train.Saver | None, RowsInUse, list[Variable]]:
        inputs = InputStream(self._model, self._context)
        inputs.close()
        self._layout = inputs.layout
        with model_graph().as_default() as graph:
            features, labels, batch = inputs.layout.placeholders()
            with blame(f"model_fn of {self._model.name} (mode {EVAL})"):
                spec = self._model.model_fn(features, labels, EVAL)
            metrics = ModelMetrics(spec, batch, f"model_fn of {self._model.name}")
            variables = tf1.global_variables()
            rows = RowsInUse(variables)
            whole = [variable for variable in variables if not any(variable is each for each in rows.variables)]
            return graph, metrics, tf1.train.Saver(whole) if whole else None, rows, variables


def training_names(model: Model, layout: BatchLayout) -> set[str] | None:
    """Names of the variables that the model has in mode train, with features and labels of this layout; None if it
    cannot be built with them."""
    with model_graph().as_default():
        features, labels, _ = layout.placeholders()
        try:
            model.model_fn(features, labels, TRAIN)
        except Exception:  # noqa: BLE001 - whatever it raises, the layout is that of another mode
            return None
        return {name_of(variable) for variable in tf1.global_variables()}


def _over_all(
    metrics: ModelMetrics,
    session: Session,
    model: Model,
    context: Context,
    on_batch: OnBatch,
    load: Callable[[list[Feed]], None] | None = None,
) -> dict[str, float]:
    inputs = InputStream(model, context)
    try:
        return metrics.over(session, inputs, on_batch, load)
    finally:
        inputs.close()
