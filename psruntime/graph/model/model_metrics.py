"""The metrics of a model: checked when they are built, and measured over held-out data.

A metric with several values is measured as one scalar for each: `recall/0`, `recall/1`, of a matrix `confusion/0/1`.
So the log, the history, summaries and --keep-best have only scalars.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError, UserCodeError
from psruntime.graph.base.errors import users_errors
from psruntime.graph.base.subgraphs import ancestors
from psruntime.graph.base.types import Array, Feed, Op, Session, Tensor
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.rows_in_use import BATCHES_BYTES
from psruntime.model import ModelSpec

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
    kind = type(given)
    keras = " of Keras" if hasattr(given, "update_state") else ""
    return f"a {kind.__name__}{keras}"


def _too_many(where: str, name: str, count: int) -> str:
    return (
        f"{where}: metric '{name}' has {count} values, at most {MOST_VALUES} are measured; reduce it, for example "
        "with tf.reduce_mean of its value"
    )
