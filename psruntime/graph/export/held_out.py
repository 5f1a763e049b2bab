"""Measures an exported model on held-out data: how far its predictions are from those of the checkpoint, and the
model's own metrics of them.

A metric is part of the model's graph, so it is computed there: the predictions of a runtime are fed in the place of the
model's.  A metric that does not depend on them, or also depends on a variable of the model by another way, would not
measure the exported model; it is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.faults import blame
from psruntime.graph.base.errors import users_errors
from psruntime.graph.base.graphs import ancestors
from psruntime.graph.base.types import Array, Feed, Tensor
from psruntime.graph.export.runtimes import Latency, Parts, Runtime, config, latency
from psruntime.graph.export.saved_model import restore_model
from psruntime.graph.export.serving_graph import FEATURES, named_tensors, parts_of, predictions_of
from psruntime.graph.input.batches import BatchLayout
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.call import call_model_fn
from psruntime.graph.model.evaluate import ModelMetrics
from psruntime.model import EVAL, TRAIN, Context, Model


@dataclass(frozen=True)
class Difference:
    """The difference of one prediction from that of the checkpoint, over all entries of all examples.

    largest: of the magnitudes of the differences; None if it is no float.  unequal: how many of `entries` differ.
    """

    largest: float | None
    unequal: int
    entries: int


@dataclass(frozen=True)
class Measured:
    """The results of one runtime on the held-out data.  one, batch: the latency of one example, if the examples can
    be cut, and of a batch.
    """

    metrics: dict[str, float]
    differences: dict[str, Difference]
    one: Latency | None
    batch: Latency


class HeldOut:
    """The model with the values of a checkpoint, in a session of its own, and the held-out data.

    given: the tensors of the signature that is measured, by name.
    left_out: names of metrics -> why they are not computed of the exported model.
    why_not: why the data do not have the tensors of the signature, so nothing can be measured; empty if they do.
    """

    def __init__(self, model: Model, context: Context, checkpoint: str, given: Mapping[str, Tensor]) -> None:
        """Raises UsageError if input_fn or model_fn fails, CheckpointError as restore_model."""
        self._model, self._context, self._signature = model, context, given
        inputs = InputStream(model, context)
        inputs.close()
        self.is_cut = inputs.layout.is_dense
        self._graph = tf1.Graph()
        with self._graph.as_default():
            features, labels, batch = inputs.layout.placeholders(any_size=True)
            spec = call_model_fn(model, features, labels, EVAL)
            self._outputs = predictions_of(model, spec)
            self._metrics = ModelMetrics(spec, batch, f"model_fn of {model.name}")
            self._given, self.why_not = _found(features, batch, given, f"input_fn of {model.name}")
            self.left_out = _left_out(self._metrics, self._outputs)
            self._session = tf1.Session(config=config())
            with users_errors(self._graph):
                self._session.run(self._metrics.init)
            restore_model(self._session, checkpoint, lambda: None)  # the export was refused else
        self._batch = batch

    def close(self) -> None:
        self._session.close()

    def of_checkpoint(self) -> Measured:
        """All metrics of the checkpoint."""
        names = list(self._metrics.updates)
        updates = [self._metrics.updates[name] for name in names]
        self._session.run(self._metrics.init)
        with self._batches() as batches, users_errors(self._graph):
            for feed in batches:
                self._session.run(updates, feed)
        outputs = {name: parts_of(tensor) for name, tensor in self._outputs.items()}
        run = self._session.make_callable(outputs, self._batch)
        one, batch = self._latencies(lambda drawn: run(*drawn), lambda drawn: drawn)
        return Measured(self._metrics.scalars(self._session, names), {}, one, batch)

    def of(self, runtime: Runtime) -> Measured:
        """The metrics that depend on predictions alone, of those of a runtime."""
        names = [name for name in self._metrics.updates if name not in self.left_out]
        updates = [self._metrics.updates[name] for name in names]
        outputs = {name: parts_of(tensor) for name, tensor in self._outputs.items()}
        counts = {name: _Counting() for name in outputs}
        self._session.run(self._metrics.init)
        with self._batches() as batches, users_errors(self._graph):
            for feed in batches:
                expected = self._session.run(outputs, feed)
                found = runtime(self._features([feed[each] for each in self._batch]))
                fed = dict(feed)
                for name, tensors in outputs.items():
                    for tensor, theirs, ours in zip(tensors, expected[name], found[name], strict=True):
                        counts[name].add(np.asarray(theirs), np.asarray(ours))
                        fed[tensor] = ours
                self._session.run(updates, fed)
        one, batch = self._latencies(runtime, self._features)
        values = self._metrics.scalars(self._session, names)
        return Measured(values, {name: each.difference for name, each in counts.items()}, one, batch)

    def calibration(self, count: int) -> list[dict[str, Array]]:
        """At most `count` batches of the training data, as features by name, of dense tensors.

        Raises:
            UsageError: input_fn fails, or the training data do not have the tensors of the signature.
        """
        what = f"input_fn of {self._model.name} (mode {TRAIN})"
        context = Context(TRAIN, 0, 1, self._context.batch_size, self._context.data_dir, self._context.seed)
        drawn: list[dict[str, Array]] = []
        with tf1.Graph().as_default(), blame(what):
            tf1.set_random_seed(context.seed)
            iterator = tf1.data.make_initializable_iterator(self._model.input_fn(context))
            layout = BatchLayout(iterator.get_next())
            places, why_not = _found(layout.features, layout.tensors, self._signature, what)
            if why_not:
                raise UsageError(f"--quantize int8 measures ranges on the training data, but {why_not}")
            tensors = {name: layout.tensors[place] for name, (place,) in places.items()}
            with tf1.Session(config=config()) as session:
                session.run(tf1.tables_initializer())
                session.run(iterator.initializer)
                try:
                    while len(drawn) < count:
                        drawn.append(session.run(tensors))
                except tf1.errors.OutOfRangeError:
                    pass
        return drawn

    @property
    def examples(self) -> int:
        """The number of examples in the first batch."""
        return len(self._first[0]) if self.is_cut else 0

    def _features(self, drawn: list[Array]) -> Parts:
        return {name: [drawn[place] for place in places] for name, places in self._given.items()}

    def _latencies(
        self, runtime: Callable[..., object], as_given: Callable[[list[Array]], object]
    ) -> tuple[Latency | None, Latency]:
        first = self._first
        one = latency(runtime, as_given([array[:1] for array in first])) if self.is_cut else None
        return one, latency(runtime, as_given(first))

    @cached_property
    def _first(self) -> list[Array]:
        with self._batches() as batches:
            feed = next(batches, None)
        if feed is None:
            raise UsageError(f"input_fn of {self._model.name} (mode {EVAL}) gives no batch to measure on")
        return [feed[each] for each in self._batch]

    @contextmanager
    def _batches(self) -> Iterator[Iterator[Feed]]:
        inputs = InputStream(self._model, self._context)
        try:
            yield (self._metrics.feed(inputs, drawn) for drawn in iter(inputs.draw, None))
        finally:
            inputs.close()


class _Counting:
    """Adds up how predictions differ."""

    def __init__(self) -> None:
        self.difference = Difference(None, 0, 0)

    def add(self, theirs: Array, ours: Array) -> None:
        """Arrays of one shape; where both are the same infinity, or no number, they do not differ."""
        before = self.difference
        if theirs.shape != ours.shape:
            raise UsageError(f"the predictions have shape {list(ours.shape)}, in the checkpoint {list(theirs.shape)}")
        largest, unequal = None, int(np.sum(theirs != ours))
        if theirs.dtype.kind == "f":
            same = (theirs == ours) | (np.isnan(theirs) & np.isnan(ours))
            apart = np.abs(np.where(same, 0, theirs.astype(np.float64) - ours.astype(np.float64)))
            largest, unequal = max(before.largest or 0.0, float(apart.max(initial=0.0))), int(np.sum(~same))
        self.difference = Difference(largest, before.unequal + unequal, before.entries + theirs.size)


def _found(
    features: Any, batch: list[Tensor], given: Mapping[str, Tensor], what: str
) -> tuple[dict[str, list[int]], str]:
    """(the tensors of a batch for each tensor of the signature; why there are none for one of them)."""
    named = named_tensors(FEATURES, features, what)
    places = {id(tensor): number for number, tensor in enumerate(batch)}
    found: dict[str, list[int]] = {}
    for name, tensor in given.items():
        ours = named.get(name)
        if ours is None or type(ours) is not type(tensor):
            return {}, f"the signature takes {name}, which {what} does not give"
        if ours.dtype != tensor.dtype:
            return {}, f"the signature takes {name} as {tensor.dtype.name}, which {what} gives as {ours.dtype.name}"
        found[name] = [places[id(part)] for part in tf.nest.flatten(ours, expand_composites=True)]
    return found, ""


def _left_out(metrics: ModelMetrics, outputs: Mapping[str, Tensor]) -> dict[str, str]:
    parts = [part for tensor in outputs.values() for part in parts_of(tensor)]
    predicted, fed = {part.op for part in parts}, {part.ref() for part in parts}
    variables = {variable.op for variable in tf1.global_variables()}
    reasons = {}
    for name, update in metrics.updates.items():
        computed = [*tf.nest.flatten(update), metrics.values[name]]
        needed = ancestors(computed, stops_at=lambda op: op in predicted)
        # Of an operation with several outputs those that are no prediction are still the checkpoint's.
        read = [tensor for op in needed for tensor in op.inputs]
        is_beside = any(tensor.op in predicted and tensor.ref() not in fed for tensor in read)
        if not predicted & ancestors(computed):
            reasons[name] = "it does not depend on the predictions"
        elif is_beside or needed & variables:
            reasons[name] = "it depends on the model's variables other than through the predictions"
    return reasons
