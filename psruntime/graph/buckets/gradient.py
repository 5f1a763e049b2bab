"""The gradient of a bucket: as a worker pushes it, as it travels, as a ps applies it and keeps it.

The gradient of a flat bucket is dense.  That of a table is sparse: its rows are unique, and a row that a batch looked
up several times has the sum.  If the model uses the whole table as well, it is dense.

Float32 travels as it is, or rounded to nearest in half precision, once; of a dense gradient all entries or the largest.
Masters, slots and sums stay in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket
from psruntime.graph.base.server import may_be_on_gpu
from psruntime.graph.base.types import DType, Op, Tensor, Variable
from psruntime.graph.buckets.bucket_store import ps_variable


@dataclass(frozen=True)
class Wire:
    """dtype: in which float32 is sent.  feedback: whether the error of a push's rounding is added to the next one.

    top_k: fraction of the entries of a dense gradient that is sent; None: all.
    """

    dtype: DType = tf1.float32
    feedback: bool = False
    top_k: float | None = None

    def sparsifies(self, bucket: Bucket) -> bool:
        """Whether gradients of this bucket name the entries that they have."""
        return self.top_k is not None and bucket.can_be_sparsified

    def packed(self, tensor: Tensor) -> Tensor:
        """The tensor, of any shape, as it travels, on the current device: float32 in the wire's dtype, others as is.

        A number beyond the range of float16 becomes infinite.
        """
        return tf1.cast(tensor, self.dtype) if self.narrows(tensor) else tensor

    def saturated(self, gradient: Tensor) -> Tensor:
        """As `packed`, but a finite number beyond the range of float16 becomes its largest one."""
        if self.dtype == tf1.float16 and self.narrows(gradient):
            within = tf1.clip_by_value(gradient, tf1.float16.min, tf1.float16.max)
            gradient = tf1.where(tf1.is_finite(gradient), within, gradient)
        return self.packed(gradient)

    def narrows(self, tensor: Tensor) -> bool:
        """Whether it is sent in a less precise dtype."""
        return bool(tensor.dtype.base_dtype == tf1.float32 != self.dtype)


FULL = Wire()


def unpacked(tensor: Tensor, dtype: DType) -> Tensor:
    """A tensor that was sent, of any shape, in this dtype, in which it is used; on the current device."""
    return tensor if tensor.dtype.base_dtype == dtype else tf1.cast(tensor, dtype)


AS_IS = "PsruntimeAsIs"


@tf1.RegisterGradient(AS_IS)  # type: ignore[untyped-decorator]
def _as_is(operation: Op, gradient: Tensor) -> Tensor:  # noqa: ARG001 - as TensorFlow calls it
    """The gradient of a rounding on the way to the worker: it passes, and is rounded as a whole when it is pushed."""
    return gradient


@dataclass(frozen=True)
class BucketGradient:
    """The gradient of one bucket.

    values: dense, of the master's shape; sparse, [rows] + the shape of a row.
    indices: int64 [rows], or int32 until it is on the ps; unique; None if dense.
    """

    values: Tensor
    indices: Tensor = None

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that travel: values, and the indices of a sparse one."""
        return [self.values] if self.indices is None else [self.values, self.indices]

    def map(self, function: Callable[[Tensor], Tensor]) -> BucketGradient:
        """The gradient with each of its tensors passed through `function`."""
        return BucketGradient(function(self.values), None if self.indices is None else function(self.indices))

    @property
    def wide(self) -> BucketGradient:
        """The gradient with its indices as int64."""
        return self if self.indices is None else replace(self, indices=tf1.cast(self.indices, tf1.int64))

    def with_values(self, values: Tensor) -> BucketGradient:
        return replace(self, values=values)

    @property
    def for_optimizer(self) -> Tensor:
        """The gradient for apply_gradients: a tensor or IndexedSlices."""
        return self.values if self.indices is None else tf1.IndexedSlices(self.values, self.indices)


def summed(gradient: BucketGradient, in_order: bool = True) -> BucketGradient:
    """A sparse gradient with the sum over duplicate rows, on the current device; the rows in ascending order, or in
    that of their first occurrences.
    """
    rows, positions = tf1.unique(tf1.cast(gradient.indices, tf1.int64))
    sums = row_sums(gradient.values, positions, tf1.size(rows))
    sums.set_shape([None, *gradient.values.shape[1:]])
    return ascending(BucketGradient(sums, rows)) if in_order else BucketGradient(sums, rows)


def ascending(gradient: BucketGradient) -> BucketGradient:
    """A sparse gradient with its rows in ascending order, on the current device."""
    order = tf1.argsort(gradient.indices)
    return gradient.map(lambda tensor: tf1.gather(tensor, order))


def clipped(
    gradients: Mapping[str, BucketGradient], clip_norm: float | None, clip_value: float | None
) -> dict[str, BucketGradient]:
    """Gradients within a limit, on the current device; at most one of the limits is given.

    clip_norm: limit of the norm over all gradients together: each is multiplied by
        clip_norm / max(norm, clip_norm), as tf.clip_by_global_norm does; if the norm is not finite, all
        become NaN, as there.
    clip_value: limit of the magnitude of every entry.
    """
    if clip_value is not None:
        return {
            name: g.with_values(tf1.clip_by_value(g.values, -clip_value, clip_value)) for name, g in gradients.items()
        }
    if clip_norm is None:
        return dict(gradients)
    norm = global_norm(list(gradients.values()))
    scale = clip_norm / tf1.maximum(norm, clip_norm) + (norm - norm)  # the last is 0, or NaN
    return {name: g.with_values(g.values * tf1.cast(scale, g.values.dtype)) for name, g in gradients.items()}


def all_finite(gradients: Iterable[BucketGradient]) -> list[Tensor]:
    """Whether all entries of each gradient of floats are finite numbers, bool [], on the current device."""
    return [tf1.reduce_all(tf1.is_finite(g.values)) for g in gradients if g.values.dtype.is_floating]


def global_norm(gradients: list[BucketGradient]) -> Tensor:
    """Euclidean norm over all entries of all gradients, [] float32, or float64 if one of them is."""
    wide = tf1.float64 if any(g.values.dtype == tf1.float64 for g in gradients) else tf1.float32
    squares = [tf1.reduce_sum(tf1.square(tf1.cast(g.values, wide))) for g in gradients]
    return tf1.sqrt(tf1.add_n(squares))


def summing(dtype: DType) -> DType:
    """The dtype in which gradients of this dtype are summed."""
    return tf1.float32 if dtype in (tf1.float16, tf1.bfloat16) else dtype


class GradientStore:
    """Variables on the current device for a gradient of `master`, in `dtype`."""

    def __init__(self, name: str, master: Variable, dtype: DType, is_sparse: bool = False) -> None:
        shape = master.shape.as_list()
        self.dtype = dtype
        if is_sparse:
            self._values = _rows(f"{name}/values", shape[1:], self.dtype)
            self._indices = _rows(f"{name}/indices", [], tf1.int64)
        else:
            self._values = ps_variable(name, shape, self.dtype)
            self._indices = None

    @property
    def variables(self) -> list[Variable]:
        return [self._values] if self._indices is None else [self._values, self._indices]

    def read(self) -> BucketGradient:
        """The gradient, on the current device."""
        return BucketGradient(*[variable.read_value() for variable in self.variables])

    def write(self, gradient: BucketGradient) -> Op:
        """An operation that replaces the stored gradient."""
        pairs = zip(self.variables, gradient.wide.tensors, strict=True)
        return tf1.group(*[variable.assign(tensor, read_value=False) for variable, tensor in pairs])

    def add(self, gradient: BucketGradient, factor: Tensor) -> list[Op]:
        """Operations that add a dense gradient times the factor, float64 [], to the stored one; see RowSum.add."""
        if self.dtype.is_integer:
            return [self._values.assign_add(gradient.values * tf1.cast(factor, self.dtype), read_value=False)]
        return [  # both in one pass over the memory
            tf1.raw_ops.ResourceApplyGradientDescent(
                var=self._values.handle,
                alpha=-tf1.cast(factor, self.dtype),
                delta=gradient.values,
                use_locking=False,
            )
        ]

    def total(self, gradient: BucketGradient) -> BucketGradient:
        """The gradient, from the one that was read."""
        return gradient


def _rows(name: str, row_shape: list[int], dtype: DType) -> Variable:
    """A variable of any number of rows, without a value until it is assigned."""
    with tf1.variable_scope(tf1.VariableScope(reuse=False), auxiliary_name_scope=False):
        return tf1.get_variable(
            f"psruntime/{name}",
            initializer=lambda: tf1.placeholder_with_default(tf1.zeros([0, *row_shape], dtype), [None, *row_shape]),
            trainable=False,
            use_resource=True,
            validate_shape=False,
            collections=[],
        )


WIDE_ROW = 32  # entries
HIGH = 1 << 32  # one in the second of the two int32 that an int64 is, on a little-endian machine


def row_sums(values: Tensor, places: Tensor, count: Tensor) -> Tensor:
    """[rows] + row shape -> [count] + row shape, sums over the rows of each place; int32 `places` [rows] are below
    `count`, an integer [].

    For 26,624 narrow rows of 16 float32 in 8,711 places the product took 0.14 ms, and unsorted_segment_sum 0.7 to 1.0.
    From 32 entries on both take as long.  On a GPU unsorted_segment_sum is as fast (1,350,985 places of 5,570,000 rows:
    2.3 and 2.5 ms), and has a deterministic kernel.
    """
    if not are_narrow(values):
        return tf1.math.unsorted_segment_sum(values, places, count)
    rows = tf1.shape(places, out_type=tf1.int64)[0]
    if may_be_on_gpu(rows.op):
        return tf1.math.unsorted_segment_sum(values, places, count)
    return _product(values, tf1.cast(places, tf1.int64) + tf1.range(0, rows * HIGH, HIGH), count)


def are_narrow(rows: Tensor) -> bool:
    """Whether `narrow_sums` is the faster way to add up such rows, [rows, ...]."""
    shape = rows.shape
    is_known = shape.rank is not None and shape[1:].is_fully_defined()
    return is_known and prod(shape[1:]) < WIDE_ROW and rows.dtype in (tf1.float32, tf1.float64)


def narrow_sums(values: Tensor, taken: Tensor, places: Tensor, count: Tensor, weights: Tensor = None) -> Tensor:
    """[count] + row shape: to each place the sum of the rows that are taken there.

    values: [rows] + row shape.  taken, places: integers [terms], below the number of rows, and below `count`.
    count: an integer [].  weights: [terms], by which each row that is taken is multiplied; None: by 1.
    """
    return _product(values, tf1.cast(places, tf1.int64) + tf1.cast(taken, tf1.int64) * HIGH, count, weights)


def _product(values: Tensor, pairs: Tensor, count: Tensor, weights: Tensor = None) -> Tensor:
    """pairs: int64 [terms], place + HIGH * row, seen as two int32; `stack` would put these together slowly."""
    row_shape = values.shape.as_list()[1:]
    sums = tf1.raw_ops.SparseTensorDenseMatMul(
        a_indices=tf1.bitcast(pairs, tf1.int32),
        a_values=tf1.ones_like(pairs, values.dtype) if weights is None else weights,
        a_shape=tf1.stack([tf1.cast(count, tf1.int64), tf1.shape(values, out_type=tf1.int64)[0]]),
        b=tf1.reshape(values, [-1, prod(row_shape)]),
    )
    return tf1.reshape(sums, [-1, *row_shape]) if len(row_shape) != 1 else sums
