"""Held-out metrics, computed from the variables on the ps, or from a checkpoint without any ps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.plan.plan import Plan
from psruntime.graph.base.devices import worker_device
from psruntime.graph.base.failed_operation import users_errors
from psruntime.graph.base.literal_paths import readable
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import build_pulled_model
from psruntime.graph.model.rows_in_use import BATCHES_BYTES, RowsInUse
from psruntime.graph.model.spec_checks import check_spec
from psruntime.graph.ops.checkpoint_fit import require_fit
from psruntime.graph.ops.seeds import model_graph
from psruntime.graph.store.bucket_store import PlanStores
from psruntime.model import EVAL, Context, Model, ModelSpec
from psruntime.usercode import blame

Feed = dict[Any, Any]


class PulledEvaluation:
    """The model with mode "eval" on the parameters that are pulled from the ps.  graph: its own.

    Raises:
        UsageError: input_fn or model_fn fails, or makes variables that training does not have.
    """

    def __init__(self, model: Model, context: Context, plan: Plan, max_workers: int) -> None:
        self._model, self._context = model, context
        inputs = InputStream(model, context)
        inputs.close()
        with model_graph().as_default() as self.graph:
            pulled = build_pulled_model(model, inputs, EVAL, PlanStores(plan, max_workers), context.worker_index)
            check_spec(pulled.spec, f"model_fn of {model.name}", EVAL)
            with tf1.device(worker_device(context.worker_index)):
                self._metrics = ModelMetrics(pulled.spec, pulled.batch)

    def measure(self, session: Any, on_batch: Callable[[], None] = lambda: None) -> dict[str, float]:
        """The model's metrics, and its mean loss as "loss", over one pass of the data.

        session: of `graph`, on the current view.  on_batch: called after each batch.

        Raises:
            UsageError: input_fn failed.
            UserCodeError: the input or an operation of the model did.
        """
        return _over_all(self._metrics, session, self._model, self._context, on_batch)


class CheckpointEvaluation:
    """Measures checkpoints on variables of its own, so it needs no ps and holds all of the model; of large tables that
    are only looked up, the rows of some batches (rows_in_use.py).

    Its graph is built when it is first needed.

    on_batch: called after each batch.
    """

    def __init__(self, model: Model, context: Context, on_batch: Callable[[], None] = lambda: None) -> None:
        self._model, self._context, self._on_batch = model, context, on_batch

    @property
    def names(self) -> list[str]:
        """What is measured.

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
            require_fit(variables, path)
            path = readable(path)
            if saver:
                saver.restore(session, path)
            load = partial(rows.load, session, path) if rows.variables else None
            return _over_all(metrics, session, self._model, self._context, self._on_batch, load)

    @cached_property
    def _built(self) -> tuple[Any, ModelMetrics, Any, RowsInUse, list[Any]]:
        inputs = InputStream(self._model, self._context)
        inputs.close()
        with model_graph().as_default() as graph:
            features, labels, batch = inputs.layout.placeholders()
            with blame(f"model_fn of {self._model.name} (mode {EVAL})"):
                spec = self._model.model_fn(features, labels, EVAL)
            metrics = ModelMetrics(spec, batch)
            variables = tf1.global_variables()
            rows = RowsInUse(variables)
            held = [variable for variable in variables if not any(variable is each for each in rows.variables)]
            return graph, metrics, tf1.train.Saver(held) if held else None, rows, variables


def _over_all(
    metrics: ModelMetrics,
    session: Any,
    model: Model,
    context: Context,
    on_batch: Callable[[], None],
    load: Callable[[list[Feed]], None] | None = None,
) -> dict[str, float]:
    inputs = InputStream(model, context)
    try:
        return metrics.over(session, inputs, on_batch, load)
    finally:
        inputs.close()


class ModelMetrics:
    """The metrics of a model, and its mean loss as "loss", on the current device; `batch` are its placeholders.

    values, updates: tensors by the names of the metrics.
    """

    def __init__(self, spec: ModelSpec, batch: list[Any]) -> None:
        self._batch = batch
        self._examples = tf1.placeholder(tf1.float32, [], name="examples")
        metrics = {"loss": tf1.metrics.mean(spec.loss, weights=self._examples), **(spec.metrics or {})}
        self.values = {name: value for name, (value, _) in metrics.items()}
        self.updates = {name: update for name, (_, update) in metrics.items()}
        self.init = [tf1.local_variables_initializer(), tf1.tables_initializer()]

    @property
    def names(self) -> list[str]:
        return list(self.values)

    def over(
        self,
        session: Any,
        inputs: InputStream,
        on_batch: Callable[[], None],
        load: Callable[[list[Feed]], None] | None = None,
    ) -> dict[str, float]:
        """Their values over the rest of the data.  load: called with the next feeds before these are run."""
        updates = list(self.updates.values())
        with users_errors(session.graph):
            session.run(self.init)
            for feeds in self._feeds(inputs, BATCHES_BYTES if load else 0):
                if load:
                    load(feeds)
                for feed in feeds:
                    session.run(updates, feed_dict=feed)
                    on_batch()
            return {name: float(value) for name, value in session.run(self.values).items()}

    def feed(self, inputs: InputStream, drawn: list[Any]) -> Feed:
        """Of one batch."""
        return {self._examples: inputs.examples(drawn), **dict(zip(self._batch, drawn, strict=True))}

    def _feeds(self, inputs: InputStream, together_bytes: int) -> Iterator[list[Feed]]:
        """Of the batches that are left; as many together as have so many bytes, one at least."""
        feeds: list[Feed] = []
        held = 0
        while (drawn := inputs.draw()) is not None:
            feeds.append(self.feed(inputs, drawn))
            held += sum(np.asarray(array).nbytes for array in drawn)
            if held >= together_bytes:
                yield feeds
                feeds, held = [], 0
        if feeds:
            yield feeds
