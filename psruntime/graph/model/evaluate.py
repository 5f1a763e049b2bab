"""Held-out metrics, computed from the variables on the ps, or from a checkpoint without any ps.

A metric with several values is measured as one scalar for each: `recall/0`, `recall/1`, of a matrix `confusion/0/1`.
So the log, the history, summaries and --keep-best have only scalars.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.core.plan.plan import Plan
from psruntime.errors import UsageError, UserCodeError
from psruntime.graph.base.checkpoint_reader import BATCHES_BYTES, RowsInUse, name_of, readable, require_fit
from psruntime.graph.base.errors import users_errors
from psruntime.graph.base.graphs import ancestors, model_graph
from psruntime.graph.base.server import worker_device
from psruntime.graph.base.types import Array, Feed, Graph, Op, Session, Tensor, Variable
from psruntime.graph.buckets.bucket_store import PlanStores
from psruntime.graph.input.batches import BatchLayout
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.call import call_model_fn, is_metric, metric_instead_of
from psruntime.graph.model.pulled_model import build_pulled_model
from psruntime.graph.model.spec_checks import check_spec
from psruntime.model import EVAL, TRAIN, Context, Model, ModelSpec

MOST_VALUES = 1000  # of one metric; each is a curve of TensorBoard
RESERVED = frozenset({"event", "global_step", "kept", "reason", "traceback"})  # fields of the log beside the values
INSTEAD = "a metric is (value, update), two tensors, as tf.metrics makes them, for example tf.metrics.accuracy"


class Measuring(NamedTuple):
    """The progress of an evaluation.  examples: as the features count them.  seconds: since it started."""

    batches: int
    examples: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.batches} batches, {self.examples} examples, {self.seconds:.0f} s"


OnBatch = Callable[[Measuring], None]
LOGGED_EVERY_S = 10.0


def logged(log: Callable[..., None], on_batch: OnBatch = lambda _: None) -> OnBatch:
    """`on_batch`, and a line `evaluating` of the log every ten seconds: the data may be long, or endless."""
    logged_s = 0.0

    def after(measured: Measuring) -> None:
        nonlocal logged_s
        on_batch(measured)
        if measured.seconds < LOGGED_EVERY_S:
            logged_s = 0.0  # another evaluation
        elif measured.seconds - logged_s >= LOGGED_EVERY_S:
            logged_s = measured.seconds
            log("evaluating", reason=f"evaluates: {measured}; --eval-batches N ends it after N")

    return after


def require_time(measured: Measuring, took_s: float, limit_s: float) -> None:
    """Raises UserCodeError if an evaluation has taken the time that the end of the job waits for it."""
    if took_s >= limit_s:
        raise UserCodeError(
            f"it did not end within {limit_s:g} s (5 times --drain-timeout): {measured}; do the data end? "
            "--eval-batches N ends it after N batches"
        )


class ModelMetrics:
    """The metrics of a model, and its mean loss as "loss", on the current device; `batch` are its placeholders.

    values, updates: tensors by the names of the metrics; an update may be a list of them.

    Raises:
        UsageError: a metric cannot be measured; `where` is the model_fn, for messages.
    """

    def __init__(self, spec: ModelSpec, batch: list[Tensor], where: str) -> None:
        self._batch, self._where = batch, where
        self._examples = tf1.placeholder(tf1.float32, [], name="examples")
        given = {} if spec.metrics is None else spec.metrics
        if not isinstance(given, Mapping):
            raise UsageError(f"{where}: metrics must map names to metrics, got {type(given).__name__}; {INSTEAD}")
        fed = {tensor.op for tensor in batch}
        metrics = {"loss": tf1.metrics.mean(spec.loss, weights=self._examples)}
        metrics |= {name: _checked(where, name, metric, fed) for name, metric in given.items()}
        self.values = {name: value for name, (value, _) in metrics.items()}
        self.updates = {name: update for name, (_, update) in metrics.items()}
        self.init = [tf1.local_variables_initializer(), tf1.tables_initializer()]
        if len(set(self.names)) < len(self.names):
            raise UsageError(f"{where}: two metrics have a value of one name; the values are {', '.join(self.names)}")

    @property
    def names(self) -> list[str]:
        """Names of the values.  A metric whose shape is only known when it is run has its own name here."""
        found = []
        for name, value in self.values.items():
            shape = value.shape.as_list() if value.shape.is_fully_defined() else []
            found += _names(name, shape)
        return found

    def scalars(self, session: Session, names: list[str] | None = None) -> dict[str, float]:
        """The values now, by name; of these metrics alone, if any are given.

        Raises:
            UserCodeError: a metric has more values than are shown.
        """
        wanted = self.values if names is None else {name: self.values[name] for name in names}
        found: dict[str, float] = {}
        for name, value in session.run(wanted).items():
            array = np.asarray(value)
            if array.size > MOST_VALUES:
                raise UserCodeError(_too_many(self._where, name, array.size))
            found.update(zip(_names(name, list(array.shape)), map(float, array.ravel()), strict=True))
        return found

    def over(
        self,
        session: Session,
        inputs: InputStream,
        on_batch: OnBatch,
        load: Callable[[list[Feed]], None] | None = None,
    ) -> dict[str, float]:
        """Their values over the remaining data.  load: called with the next feeds before these are run."""
        updates = list(self.updates.values())
        batches, examples, began_s = 0, 0, time.monotonic()
        with users_errors(session.graph):
            session.run(self.init)
            for feeds in self._feeds(inputs, BATCHES_BYTES if load else 0):
                if load:
                    load(feeds)
                for feed in feeds:
                    session.run(updates, feed_dict=feed)
                    batches, examples = batches + 1, examples + int(feed[self._examples])
                    on_batch(Measuring(batches, examples, time.monotonic() - began_s))
            return self.scalars(session)

    def feed(self, inputs: InputStream, drawn: list[Array]) -> Feed:
        """The feed of one batch."""
        return {self._examples: inputs.examples(drawn), **dict(zip(self._batch, drawn, strict=True))}

    def _feeds(self, inputs: InputStream, together_bytes: int) -> Iterator[list[Feed]]:
        """The feeds of the remaining batches, in lists that end once they have `together_bytes`."""
        feeds: list[Feed] = []
        total_bytes = 0
        while (drawn := inputs.draw()) is not None:
            feeds.append(self.feed(inputs, drawn))
            total_bytes += sum(np.asarray(array).nbytes for array in drawn)
            if total_bytes >= together_bytes:
                yield feeds
                feeds, total_bytes = [], 0
        if feeds:
            yield feeds


def _names(name: str, shape: list[int]) -> list[str]:
    """The names of the values of a metric, in their order."""
    return ["/".join([name, *map(str, place)]) for place in np.ndindex(*shape)]


def _checked(where: str, name: object, metric: object, fed: set[Op]) -> tuple[Tensor, Any]:
    """(value, update) of a metric, as tensors.  fed: the placeholders of a batch."""
    if not isinstance(name, str) or not name or name in RESERVED:
        taken = ", ".join(sorted(RESERVED))
        raise UsageError(f"{where}: metrics has {name!r} as a name; a name is a text, and none of {taken}")
    what = f"{where}: metric '{name}'"
    if not isinstance(metric, tuple | list) or len(metric) != 2:
        raise UsageError(f"{what} is {_kind(metric)}; {INSTEAD}")
    value, update = metric
    for each in tf.nest.flatten(update):
        if not isinstance(each, tf1.Operation | tf1.Tensor | tf.Variable):
            raise UsageError(f"{what} has {_kind(each)} as its update; {INSTEAD}")
    try:
        value = tf1.convert_to_tensor(value)
    except (TypeError, ValueError):
        raise UsageError(f"{what} has {_kind(value)} as its value; {INSTEAD}") from None
    if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool):
        raise UsageError(f"{what} has values of dtype {value.dtype.name}; they must be numbers")
    if value.shape.is_fully_defined() and value.shape.num_elements() > MOST_VALUES:
        raise UsageError(_too_many(where, name, value.shape.num_elements()))
    if fed & ancestors([value]):
        raise UsageError(f"{what} has a value that is computed from one batch; {INSTEAD}")
    return value, update


def _kind(given: object) -> str:
    name = type(given).__name__
    return f"a {name} of Keras (use {metric_instead_of(name)})" if is_metric(given) else f"a {name}"


def _too_many(where: str, name: str, count: int) -> str:
    return (
        f"{where}: metric '{name}' has {count} values, at most {MOST_VALUES} are measured; reduce it, for example "
        "with tf.reduce_mean of its value"
    )


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
    tables that are only looked up, the rows of some batches (RowsInUse).

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
            spec = call_model_fn(self._model, features, labels, EVAL)
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
            call_model_fn(model, features, labels, TRAIN)
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
