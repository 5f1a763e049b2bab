"""A model in plain TensorFlow, with variables of its own, and the gradient of its loss over one mini-batch.

It shares only the model's own functions with the training on ps.

Two trainings that round differently, by another processor or another order of sums, diverge by much more than rounding
at a kink: an edge where rounding decides on which side an input is, and with it the whole gradient there.  It was 6e-4
in a parameter in one case, from one input of a ReLU at 1.2e-7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket
from psruntime.errors import UsageError
from psruntime.faults import Place, fate_of, first_line
from psruntime.graph.base.graphs import ancestors, uses_of
from psruntime.graph.base.types import Array, Feed, Op, Session, Tensor, Variable
from psruntime.graph.embedding.dynamic_table import noted
from psruntime.graph.input.batches import BatchLayout
from psruntime.graph.model.call import call_model_fn
from psruntime.graph.model.spec_checks import aggregation_of
from psruntime.graph.replay.plain_buckets import Gradient, unique
from psruntime.model import TRAIN, Model

NEAR = 2e-7  # of the largest input: some four roundings of float32


def _to_zero(op: Op) -> Tensor:
    return tf1.abs(op.inputs[0])


def _to_six(op: Op) -> Tensor:
    return tf1.minimum(tf1.abs(op.inputs[0]), tf1.abs(op.inputs[0] - 6.0))


def _between(op: Op) -> Tensor:
    return tf1.abs(op.inputs[0] - op.inputs[1])


def _to_best(sign: float) -> Callable[[Op], Tensor]:
    """The distance of every entry to the largest along the axes that are reduced, or to the smallest."""

    def distance(op: Op) -> Tensor:
        x = op.inputs[0] * tf1.cast(sign, op.inputs[0].dtype)
        return tf1.reduce_max(x, op.inputs[1], keepdims=True) - x

    return distance


def _to_last_taken(op: Op) -> Tensor:
    """The distance of every entry to the smallest of the k largest, and of those to the largest of the others."""
    x, last = op.inputs[0], op.outputs[0][..., -1:]
    return tf1.abs(x - last)


DISTANCES: dict[str, Callable[[Op], Tensor]] = {
    "Relu": _to_zero,
    "LeakyRelu": _to_zero,
    "Selu": _to_zero,
    "Abs": _to_zero,
    "Relu6": _to_six,
    "Maximum": _between,
    "Minimum": _between,
    "ClipByValue": lambda op: tf1.minimum(tf1.abs(op.inputs[0] - op.inputs[1]), tf1.abs(op.inputs[0] - op.inputs[2])),
    "Max": _to_best(1.0),
    "Min": _to_best(-1.0),
    "TopKV2": _to_last_taken,
}  # operation -> how far each entry of its input is from an edge; those of loops and functions are not looked at


class Kinks:
    """The edges of a loss, a scalar, in the current graph.

    measures: of each operation (the smallest distance above 0, the largest input), float64 [], to be fetched.  A
    distance of 0 does not depend on rounding, as that of padding.
    """

    def __init__(self, loss: Tensor) -> None:
        found = [op for op in ancestors([loss]) if op.type in DISTANCES and op.inputs[0].dtype.is_floating]
        self._ops = sorted((op for op in found if op._get_control_flow_context() is None), key=lambda op: op.name)
        self.measures = [_measured(op) for op in self._ops]

    def near(self, measured: list[Array]) -> list[str]:
        """One text for each operation with an input within NEAR of an edge."""
        return [
            f"an input of {op.type} {op.name} is {distance:.1e} from its kink, and inputs there are up to {largest:.1e}"
            for op, (distance, largest) in zip(self._ops, measured, strict=True)
            if distance <= NEAR * largest
        ]


def _measured(op: Op) -> tuple[Tensor, Tensor]:
    distance = tf1.cast(DISTANCES[op.type](op), tf1.float64)
    smallest = tf1.reduce_min(tf1.where(distance > 0, distance, tf1.fill(tf1.shape(distance), tf1.float64.max)))
    return smallest, tf1.reduce_max(tf1.abs(tf1.cast(op.inputs[0], tf1.float64)))


DRAWS = ("Random", "Stateful", "StatelessRandom", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial")


class PlainModel:
    """Made in the current graph.

    variables: the trainable ones, by name.  used: names of those that the loss depends on.
    not_compared: names of variables that are not trained: each worker has copies of its own, or changes them together
        with others.
    draws: names of the operations that draw random numbers.
    reads: names of variables that the model changes, on each worker by itself, and on which the gradients depend.

    Raises:
        UsageError: the model failed, has a dynamic table, or a variable with an aggregation on which the gradients
            depend: the workers' results of it are in no log.
    """

    def __init__(self, model: Model, layout: BatchLayout, tables: Collection[str], any_size: bool = False) -> None:
        """tables: names of the variables that the model only looks up, outside of loops and branches.

        any_size: whether a mini-batch may have any number of examples, of which all tensors are dense.
        """
        if any_size and not layout.is_dense:
            raise UsageError("the batches have sparse, ragged or scalar tensors, which --joint cannot put together")
        features, labels, self._feeds = layout.placeholders(any_size=any_size)
        with tf1.variable_creator_scope(_as_in_tf1):
            self.spec = call_model_fn(model, features, labels, TRAIN)
        if dynamic := noted():
            raise UsageError(f"model_fn of {model.name} has dynamic table {min(dynamic)}, which a replay cannot repeat")
        loss = self.spec.loss
        self.variables = {variable.op.name: variable for variable in tf1.trainable_variables()}
        self._divisor = tf1.placeholder(tf1.float64, [], name="mean_divisor")
        self._gradients = self._taken(tables)
        self.used = set(self._gradients)
        self.reads = self._read_of_others(model.name)
        self._step = tf1.train.get_global_step()
        others = {
            v.op.name: v for v in tf1.global_variables() if v is not self._step and v.op.name not in self.variables
        }
        self._others = list(others.values())
        self.not_compared = sorted(others)
        unused = [variable for name, variable in self.variables.items() if name not in self.used]
        self._initial = [v.initializer for v in [*unused, *others.values(), *tf1.local_variables()]]
        self._tables = tf1.tables_initializer()
        examples = layout.examples(self._feeds, tf1.shape) if self.spec.examples is None else self.spec.examples
        self._weight = tf1.cast(examples, tf1.float64)
        self.draws = sorted(op.name for op in ancestors([loss]) if op.type.startswith(DRAWS))
        self.kinks = Kinks(loss)

    def _taken(self, tables: Collection[str]) -> dict[str, list[Tensor]]:
        """The gradient of each variable: one tensor or IndexedSlices, or IndexedSlices for each lookup of a table, in
        the order in which they were made."""
        lookups = {name: _lookups(variable) for name, variable in self.variables.items() if name in tables}
        sources = {name: [v] for name, v in self.variables.items()}
        sources |= {name: [op.outputs[0] for op in found] for name, found in lookups.items() if found}
        flat = [(name, number, source) for name, own in sources.items() for number, source in enumerate(own)]
        at_loss = [tf1.cast(1 / self._divisor, self.spec.loss.dtype)]
        gradients = tf1.gradients(self.spec.loss, [source for _, _, source in flat], at_loss)
        taken: dict[str, list[Tensor]] = {}
        for (name, number, _), gradient in zip(flat, gradients, strict=True):
            if gradient is not None and lookups.get(name):
                row_shape, ids = self.variables[name].shape.as_list()[1:], lookups[name][number].inputs[1]
                values = tf1.reshape(tf1.convert_to_tensor(gradient), [-1, *row_shape])
                gradient = tf1.IndexedSlices(values, tf1.reshape(ids, [-1]))
            if gradient is not None:
                taken.setdefault(name, []).append(gradient)
        return taken

    def _read_of_others(self, model: str) -> list[str]:
        gradients = [gradient for own in self._gradients.values() for gradient in own]
        read, found = ancestors(tf1.nest.flatten(gradients, expand_composites=True), data_only=True), []
        for variable in set(tf1.global_variables()) - set(self.variables.values()):
            uses = uses_of(variable.op.outputs[0], {variable.initializer.name})
            if variable.op in read and aggregation_of(variable, uses):
                raise UsageError(
                    f"the gradients of {model} depend on variable {variable.op.name}, which the model changes itself "
                    f"with aggregation {variable.aggregation.name}; a replay lacks the workers' results of it"
                )
            found += [variable.op.name] * (variable.op in read and any(use.changes for use in uses))
        return sorted(found)

    def initialise(self, session: Session, value: Callable[[str], Array]) -> None:
        """Assigns the variables that are not trained their values in a checkpoint, once the others have theirs.

        value: of the tensor of this name there.
        """
        if self._step is not None:
            session.run(self._step.initializer)
        session.run(self._initial)
        for variable in self._others:
            with suppress(KeyError, tf1.errors.NotFoundError):
                assigned = variable.initializer
                session.run(assigned, {assigned.inputs[1]: _part_of(variable, value)})
        session.run(self._tables)

    def at(self, session: Session, global_step: int) -> None:
        """Sets the global step that the model reads."""
        if self._step is not None:
            session.run(self._step.initializer, {self._step.initializer.inputs[1]: global_step})

    def gradient(self, session: Session, arrays: Sequence[Array], divisor: float) -> tuple[float, dict[str, Gradient]]:
        """(the weight of a mini-batch, its gradient over the divisor, by variable); arrays: in the order of the layout.

        Raises:
            UserCodeError, PassingError: an operation of the model failed, as the table of faults has it.
        """
        feed = {**self._fed(arrays), self._divisor: divisor}
        weight, found = self._run(session, (self._weight, self._gradients), feed)
        return float(weight), {name: _gradient(own) for name, own in found.items()}

    def is_sparse(self, bucket: Bucket) -> bool:
        """Whether the gradient of a bucket is sparse."""
        gradients = [gradient for piece in bucket.pieces for gradient in self._gradients[piece.variable]]
        return bucket.is_table and all(isinstance(gradient, tf1.IndexedSlices) for gradient in gradients)

    def near_kinks(self, session: Session, arrays: Sequence[Array]) -> list[str]:
        """Which inputs of a mini-batch are within rounding of a kink, one text for each operation."""
        return self.kinks.near(self._run(session, self.kinks.measures, self._fed(arrays)))

    def _fed(self, arrays: Sequence[Array]) -> Feed:
        return dict(zip(self._feeds, arrays, strict=True))

    @staticmethod
    def _run(session: Session, fetches: Any, feed: Feed) -> Any:
        try:
            return session.run(fetches, feed)
        except (tf1.errors.OpError, ValueError) as error:
            raise fate_of(error, Place.EVALUATOR, f"the model failed: {first_line(error)}") from error


def _part_of(variable: Variable, value: Callable[[str], Array]) -> Array:
    """The value of a variable in a checkpoint, where it may be a part of a larger one."""
    part = variable._get_save_slice_info()
    if part is None:
        return value(variable.op.name)
    region = tuple(slice(start, start + size) for start, size in zip(part.var_offset, part.var_shape, strict=True))
    return value(part.full_name)[region]


def _lookups(variable: Variable) -> list[Op]:
    """The operations that look up rows of a table, in the order in which they were made; none if there are others."""
    reads = [op for op in variable.handle.consumers() if op.type in ("ResourceGather", "ResourceGatherNd")]
    return sorted(reads, key=lambda op: op._id) if all(op.type == "ResourceGather" for op in reads) else []


def _gradient(fetched: Sequence[Array]) -> Gradient:
    if not hasattr(fetched[0], "indices"):
        return Gradient(fetched[0])
    values, indices = (np.concatenate(parts) for parts in zip(*[(g.values, g.indices) for g in fetched], strict=True))
    return unique(Gradient(values, indices.astype(np.int64)))


def _as_in_tf1(next_creator: Callable[..., Variable], **settings: Any) -> Variable:
    """A resource variable, with the one method that only those of the old kind have."""
    variable = next_creator(**settings)
    variable.initialized_value = lambda: variable.initial_value
    return variable
