"""The training of one process with plain TensorFlow, for comparison: one update for each joint batch of a round.

Nothing here is shared with the training on ps but the model's own functions: the update is that of the user's
optimizer on variables of this process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.base.errors import first_line
from psruntime.graph.base.literal_paths import readable
from psruntime.graph.dynamic.settings import noted
from psruntime.graph.input.batch_layout import BatchLayout
from psruntime.graph.ops.seeds import model_graph
from psruntime.model import TRAIN, Model, ModelSpec
from psruntime.usercode import blame

EVERY = "*"


class OneProcess:
    """Variables, a session and an update.  Close it at the end.

    not_compared: names of variables that are not trained; each worker has copies of its own.

    It makes what mode sync makes of a joint batch: clip_norm and clip_value are of the joint gradient, in which a row
    of a table counts once, and the learning rate is that of the global step before.

    Raises:
        UsageError: batches are not dense, the model has a dynamic table, or it failed.
    """

    def __init__(self, model: Model, layout: BatchLayout) -> None:
        if not layout.is_dense:
            raise UsageError("the batches have sparse, ragged or scalar tensors, which the replay cannot put together")
        with model_graph().as_default() as self._graph:
            features, labels, self._feeds = layout.placeholders(any_size=True)
            with blame(f"model_fn of {model.name}"):
                spec = model.model_fn(features, labels, TRAIN)
            if tables := noted():
                raise UsageError(f"model_fn of {model.name} has dynamic table {min(tables)}, which no replay knows")
            self._spec = spec
            self._variables = tf1.trainable_variables()
            made_by_model = set(tf1.global_variables()) - set(self._variables)
            of_all = zip(tf1.gradients(spec.loss, self._variables), self._variables, strict=True)
            used = [(gradient, variable) for gradient, variable in of_all if gradient is not None]
            pairs = list(zip(_clipped(spec, [g for g, _ in used]), [v for _, v in used], strict=True))
            optimizers: Mapping[str, Any] = (
                spec.optimizer if isinstance(spec.optimizer, Mapping) else {EVERY: spec.optimizer}
            )
            self._rates = {pattern: tf1.placeholder(tf1.float32, []) for pattern in optimizers}
            self._update = tf1.group(
                *[
                    make(self._rates[pattern]).apply_gradients(own)
                    for pattern, make in optimizers.items()
                    if (own := [(g, v) for g, v in pairs if _first_match(v.op.name, optimizers) == pattern])
                ]
            )
            self._compared = [variable for variable in tf1.global_variables() if variable not in made_by_model]
            self.not_compared = sorted(variable.op.name for variable in made_by_model)
            self._initial = tf1.global_variables_initializer()
            self._saver = tf1.train.Saver(self._compared)
        self._session = tf1.Session(graph=self._graph, config=tf1.ConfigProto(device_count={"GPU": 0}))

    def restore(self, checkpoint: str) -> None:
        """Takes variables and slots from a checkpoint.

        Raises:
            UsageError: it cannot be read, or is of another model.
        """
        self._session.run(self._initial)
        try:
            with self._graph.as_default():
                self._saver.restore(self._session, checkpoint)
        except (tf1.errors.OpError, ValueError) as error:
            raise UsageError(f"checkpoint {checkpoint} does not fit the model: {first_line(error)}") from error

    def step(self, batches: Sequence[Sequence[Any]], global_step: int, learning_rate_scale: float = 1.0) -> None:
        """One update of the mean loss over all examples.

        batches: of each mini-batch its arrays, in the order of the layout.  global_step: before this update.
        learning_rate_scale: by which every learning rate is multiplied.

        Raises:
            UsageError: an operation of the model failed.
        """
        joint = [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]
        given = self._spec.learning_rate
        rates = given if isinstance(given, Mapping) else dict.fromkeys(self._rates, given)
        at = {pattern: rate(global_step) if callable(rate) else rate for pattern, rate in rates.items()}
        feed = {self._rates[pattern]: rate * learning_rate_scale for pattern, rate in at.items()}
        try:
            self._session.run(self._update, {**feed, **dict(zip(self._feeds, joint, strict=True))})
        except (tf1.errors.OpError, ValueError) as error:
            raise UsageError(f"the update of global step {global_step} failed: {first_line(error)}") from error

    def differences(self, checkpoint: str) -> dict[str, float]:
        """Of each variable and slot the largest difference to the checkpoint's, over the largest entry here.

        A variable that a partitioner has cut counts by its parts.  What is not a finite number differs without limit.

        Raises:
            UsageError: the checkpoint cannot be read.
        """
        largest = {}
        try:
            reader = tf1.train.load_checkpoint(readable(checkpoint))
            for variable in self._compared:
                ours, theirs = self._session.run(variable), _value_in(reader, variable)
                difference = float(np.abs(theirs - ours).max() / max(np.abs(ours).max(), 1e-30))
                largest[variable.op.name] = difference if np.isfinite(difference) else np.inf
        except (tf1.errors.OpError, ValueError) as error:
            raise UsageError(f"checkpoint {checkpoint} cannot be compared: {first_line(error)}") from error
        return largest

    def close(self) -> None:
        self._session.close()


def _first_match(name: str, patterns: Iterable[str]) -> str | None:
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def _value_in(reader: Any, variable: Any) -> Any:
    """What a checkpoint has of a variable, which may be a part of one that it has as a whole."""
    part = variable._save_slice_info
    if part is None:
        return reader.get_tensor(variable.op.name)
    rows = tuple(slice(start, start + size) for start, size in zip(part.var_offset, part.var_shape, strict=True))
    return reader.get_tensor(part.full_name)[rows]


def _clipped(spec: ModelSpec, gradients: list[Any]) -> list[Any]:
    gradients = [_summed(gradient) for gradient in gradients]
    norm = tf1.global_norm(gradients)
    clip_norm, clip_value = spec.clip_norm, spec.clip_value or np.inf

    def clipped(values: Any) -> Any:
        scale = clip_norm / tf1.maximum(norm, clip_norm) if clip_norm else 1.0
        return tf1.clip_by_value(values * scale, -clip_value, clip_value)

    return [
        tf1.IndexedSlices(clipped(g.values), g.indices) if isinstance(g, tf1.IndexedSlices) else clipped(g)
        for g in gradients
    ]


def _summed(gradient: Any) -> Any:
    """Without duplicate rows: the limits are of the joint gradient, and a row has one entry there."""
    if not isinstance(gradient, tf1.IndexedSlices):
        return gradient
    rows, positions = tf1.unique(gradient.indices)
    return tf1.IndexedSlices(tf1.math.unsorted_segment_sum(gradient.values, positions, tf1.size(rows)), rows)
