"""The buckets of a plan in plain TensorFlow: the user's optimizer updates each as a whole, as on its ps.

The model's variables then read it.  Gradients are summed in NumPy, and rounded as the training rounds them: float32
additions in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.core.plan.plan import Plan
from psruntime.graph.base.types import Array, DType, Feed, Op, Session, Tensor, Variable
from psruntime.graph.buckets.optimizers import Rule, is_by_row, make_optimizer, rule_of


class Gradient(NamedTuple):
    """values: dense, of the variable's shape; sparse, [rows] + the shape of a row.  indices: int64 [rows], or None."""

    values: Array
    indices: Array = None

    @property
    def is_dense(self) -> bool:
        return self.indices is None


def _summing(dtype: DType) -> DType:
    """The dtype in which gradients of this dtype are summed."""
    return np.float64 if dtype == np.float64 else np.float32


def unique(gradient: Gradient, in_order: bool = True) -> Gradient:
    """A sparse gradient with the sum over duplicate rows, added in their order; the rows in ascending order, or in that
    of their first occurrences."""
    rows, first, places = np.unique(gradient.indices, return_index=True, return_inverse=True)
    if not in_order:
        came = np.argsort(first)
        rows, places = rows[came], np.argsort(came)[places]
    sums = np.zeros((len(rows), *gradient.values.shape[1:]), gradient.values.dtype)
    np.add.at(sums, places, gradient.values)
    return Gradient(sums, rows)


def mean_of(minibatches: Sequence[tuple[float, Gradient]]) -> Gradient:
    """The mean gradient of several mini-batches by their weights, as a worker makes it (graph/model/gradients.py)."""
    (weight, first), *others = minibatches
    if not others:
        return first
    dtype = _summing(first.values.dtype)
    total, weights = _weighted(first, weight, dtype), np.float64(weight)
    for weight, more in others:
        weights += np.float64(weight)
        more = _weighted(more, weight, dtype)
        if total.is_dense:
            total = Gradient(total.values + more.values)
        else:
            both = zip(total, more, strict=True)
            total = unique(Gradient(*[np.concatenate(parts) for parts in both]))
    mean = total.values / weights.astype(dtype) if weights else np.zeros_like(total.values)
    return Gradient(mean.astype(first.values.dtype), total.indices)


def _weighted(gradient: Gradient, weight: float, dtype: DType) -> Gradient:
    values = gradient.values.astype(dtype)
    return Gradient(values * dtype(weight) if weight else np.zeros_like(values), gradient.indices)


def of_bucket(bucket: Bucket, gradients: Mapping[str, Gradient]) -> Gradient:
    """The gradient of a bucket from those of its variables, whose sparse ones have unique rows."""
    if bucket.own_shape is None:
        flat = [gradients[p.variable].values.reshape(-1)[p.start : p.start + p.size] for p in bucket.pieces]
        return Gradient(np.concatenate(flat))
    if not bucket.is_table:
        return Gradient(gradients[bucket.variable].values.reshape(bucket.own_shape))
    of_pieces = [(piece, gradients[piece.variable]) for piece in bucket.pieces]
    own = [_rows_of(piece, bucket, gradient) for piece, gradient in of_pieces]
    if all(not gradient.is_dense for _, gradient in of_pieces):
        return Gradient(*[np.concatenate(parts) for parts in zip(*own, strict=True)])
    values = np.zeros(bucket.own_shape, own[0].values.dtype)
    for rows in own:
        values[rows.indices] += rows.values
    return Gradient(values)


def _place_of(piece: Piece, bucket: Bucket) -> tuple[int, int, int]:
    """(first row in the table, number of rows, first row in the bucket) of a piece with rows of a table."""
    assert bucket.own_shape is not None
    size = prod(bucket.own_shape[1:])
    return piece.start // size, piece.size // size, piece.offset // size


def _rows_of(piece: Piece, bucket: Bucket, gradient: Gradient) -> Gradient:
    """The rows of a variable's gradient that are in a piece, by their rows in the bucket."""
    first, count, begin = _place_of(piece, bucket)
    if gradient.is_dense:
        values = gradient.values[first :: piece.stride][:count]
        return Gradient(values, begin + np.arange(count))
    behind = gradient.indices - first
    is_there = (behind >= 0) & (behind % piece.stride == 0) & (behind < count * piece.stride)
    return Gradient(gradient.values[is_there], begin + behind[is_there] // piece.stride)


def sum_of(contributions: Sequence[tuple[float, Gradient]]) -> tuple[Gradient, float]:
    """The sum of a round in one bucket, and its scale, as its ps makes it (graph/push/round_sum.py).

    contributions: (scale, gradient) in the order in which the bucket added them, with scales above 0.  The sum has the
    scale of the first; a later gradient is multiplied by its own scale over that one.
    """
    scale, first = contributions[0]
    dtype = _summing(first.values.dtype)
    total = [first._replace(values=first.values.astype(dtype))]
    for own, gradient in contributions[1:]:
        more = times(gradient._replace(values=gradient.values.astype(dtype)), own / scale)
        total = [Gradient(total[0].values + more.values)] if gradient.is_dense else [*total, more]
    if first.is_dense:
        return total[0], scale
    return unique(Gradient(*[np.concatenate(parts) for parts in zip(*total, strict=True)]), in_order=False), scale


def times(gradient: Gradient, factor: float) -> Gradient:
    """factor: rounded to the dtype of the gradient before it multiplies."""
    rounded = gradient.values.dtype.type(factor)
    return gradient if rounded == 1 else gradient._replace(values=gradient.values * rounded)


EVERYTHING: Any = ...


class Slice(NamedTuple):
    """The entries of a checkpoint that a variable of a bucket has: `region` of tensor `key`, of this shape.

    own: where they are in the variable.
    """

    key: str
    shape: tuple[int, ...]
    region: tuple[slice, ...]
    own: Any


class PlainBucket:
    """One bucket, in the current graph.  Its first variable is its master, the others are its optimizer's.

    model: the variables of the model, by name.  sparse: whether its gradient is.
    """

    def __init__(
        self, bucket: Bucket, model: Mapping[str, Variable], rules: list[Rule], rates: Sequence[Tensor], sparse: bool
    ) -> None:
        self.bucket = bucket
        self._model = model
        dtype, number = tf1.as_dtype(bucket.dtype), rule_of(bucket.variable, rules)
        with tf1.variable_scope(tf1.VariableScope(reuse=False), auxiliary_name_scope=False):
            name, zeros = f"psruntime/master/{bucket.name}", tf1.zeros_initializer()  # as on its ps
            self._master = tf1.get_variable(name, bucket.master_shape, dtype, zeros, collections=[], use_resource=True)
        self.variables = [self._master]
        shape = [None, *bucket.master_shape[1:]] if sparse else bucket.master_shape
        self.values = tf1.placeholder(dtype, shape)
        self.rows = tf1.placeholder(tf1.int64, [None]) if sparse else None
        gradient = tf1.IndexedSlices(self.values, self.rows) if sparse else self.values
        with tf1.variable_creator_scope(self._own):
            self._optimizer = make_optimizer(rules[number], rates[number])
            self.update = self._optimizer.apply_gradients([(gradient, self._master)])
        if (constraint := model[bucket.variable].constraint) is not None:
            with tf1.control_dependencies([self.update]):
                self.update = self._master.assign(constraint(self._master), read_value=False)
        self.changes_rows = sparse and is_by_row(self._optimizer)  # those that the gradient names, and no others

    def _own(self, next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        """A variable of the optimizer's, under a name that ends with its own name."""
        with tf1.name_scope(f"replay/{self.bucket.name}/optimizer/"):
            variable = next_creator(**{**kwargs, "use_resource": True, "collections": [], "trainable": False})
        self.variables.append(variable)
        return variable

    def fed(self, gradient: Gradient) -> Feed:
        """gradient: of the mean, in the dtype in which it was summed."""
        feed = {self.values: gradient.values.astype(self.values.dtype.as_numpy_dtype)}
        return feed if self.rows is None else {**feed, self.rows: gradient.indices}

    def changed_rows(self) -> list[Op]:
        """Operations that copy the rows of a sparse gradient to tables of the model."""
        written: list[Op] = []
        assert self.rows is not None
        for piece in self.bucket.pieces:
            first, count, begin = _place_of(piece, self.bucket)
            own = tf1.boolean_mask(self.rows, (self.rows >= begin) & (self.rows < begin + count))
            rows = tf1.gather(self._master.read_value(), own)
            changes = tf1.IndexedSlices(rows, first + (own - begin) * piece.stride)
            written.append(self._model[piece.variable].scatter_update(changes))
        return written

    def of_piece(self, piece: Piece) -> Tensor:
        """The piece's entries of the master, [size]; of a table its rows, [rows, ...]."""
        master = self._master.read_value()
        if self.bucket.own_shape is None:
            return master[piece.offset : piece.offset + piece.size]
        if not self.bucket.is_table:
            return tf1.reshape(master, [-1])
        _, count, begin = _place_of(piece, self.bucket)
        return master[begin : begin + count]

    def slices(self) -> Iterator[tuple[Variable, list[Slice]]]:
        """(variable, its slices) of each; a variable that the optimizer has once is that of the first of the model's
        variables."""
        for variable in self.variables:
            suffix = "" if variable is self._master else f"/{variable.op.name.rpartition('/')[2]}"
            if variable is self._master or self._is_slot(variable):
                yield variable, [self._slice(piece, suffix, variable) for piece in self.bucket.pieces]
            else:
                shape = tuple(variable.shape.as_list())
                yield variable, [Slice(self.bucket.variable + suffix, shape, (slice(None),) * len(shape), EVERYTHING)]

    def _is_slot(self, variable: Variable) -> bool:
        slots = [self._optimizer.get_slot(self._master, name) for name in self._optimizer.get_slot_names()]
        if any(slot is variable for slot in slots) and variable.shape[:1] == self._master.shape[:1]:
            return True
        return bool(variable.shape.rank and variable.shape == self._master.shape)

    def _slice(self, piece: Piece, suffix: str, variable: Variable) -> Slice:
        of_model = self._model[piece.variable]
        shape, part = tuple(of_model.shape.as_list()), of_model._get_save_slice_info()
        name, whole, offset = piece.variable, shape, (0,) * len(shape)
        if part is not None:
            name, whole, offset = part.full_name, tuple(part.full_shape), tuple(part.var_offset)
        if not shape:
            own = slice(piece.offset, piece.offset + 1) if self.bucket.own_shape is None else EVERYTHING
            return Slice(name + suffix, (), (), own)
        size = prod(shape[1:])
        start, count, own = piece.start // size, piece.size // size, slice(piece.offset, piece.offset + piece.size)
        if self.bucket.own_shape is not None:
            own = slice(piece.offset // size, piece.offset // size + count)
            row = tuple(variable.shape.as_list()[1:])
            if row != shape[1:]:  # a slot may have other entries for each row
                shape, whole, offset = (shape[0], *row), (whole[0], *row), (offset[0], *[0] * len(row))
        first = offset[0] + start
        rows = slice(first, first + (count - 1) * piece.stride + 1, piece.stride)
        columns = [slice(begin, begin + length) for begin, length in zip(offset[1:], shape[1:], strict=True)]
        return Slice(name + suffix, whole, (rows, *columns), own)


class PlainBuckets:
    """All buckets of a plan that are trained, ps by ps in the order of the plan, in the current graph.

    update: updates all, and then the model's variables.
    """

    def __init__(self, plan: Plan, buckets: Sequence[PlainBucket], model: Mapping[str, Variable]) -> None:
        self._buckets = {each.bucket.name: each for each in buckets}
        updates = [each.update for each in buckets]
        pieces = {
            name: [(self._buckets[b.name], piece) for b, piece in plan.pieces_of(name) if b.name in self._buckets]
            for name in model
        }
        trained = {name: of_one for name, of_one in pieces.items() if of_one}
        with tf1.control_dependencies(updates):
            by_row = [write for each in buckets if each.changes_rows for write in each.changed_rows()]
            whole = [_whole(model[name], own) for name, own in trained.items() if not own[0][0].changes_rows]
            self.update = tf1.group(*updates, *by_row, *whole)
        self._refresh = tf1.group(*[_whole(model[name], own) for name, own in trained.items()])
        self.initial = tf1.group(*[variable.initializer for each in buckets for variable in each.variables])

    def take(self, session: Session, value: Callable[[str], Array]) -> None:
        """Assigns all variables the values of a checkpoint.  value: of the tensor of this name there."""
        for each in self._buckets.values():
            for variable, slices in each.slices():
                array = np.zeros(variable.shape.as_list(), variable.dtype.as_numpy_dtype)
                for part in slices:
                    array[part.own] = value(part.key)[part.region].reshape(array[part.own].shape)
                session.run(variable.initializer, {variable.initializer.inputs[1]: array})
        session.run(self._refresh)

    def values(self, session: Session) -> dict[str, Array]:
        """All values of a checkpoint, by the name of the tensor there."""
        found: dict[str, Array] = {}
        for each in self._buckets.values():
            for variable, slices in each.slices():
                array = session.run(variable)
                for part in slices:
                    whole = found.setdefault(part.key, np.zeros(part.shape, array.dtype))
                    whole[part.region] = array[part.own].reshape(whole[part.region].shape)
        return found


def _whole(variable: Variable, pieces: Sequence[tuple[PlainBucket, Piece]]) -> Op:
    """An operation that assigns a variable of the model the values of its buckets."""
    if pieces[0][0].bucket.is_table:
        places = [tf1.range(_place_of(p, each.bucket)[0], variable.shape[0], p.stride) for each, p in pieces]
        value = tf1.dynamic_stitch(places, [each.of_piece(piece) for each, piece in pieces])
    else:
        value = tf1.concat([each.of_piece(piece) for each, piece in pieces], axis=0)
    return variable.assign(tf1.reshape(value, variable.shape), read_value=False)
