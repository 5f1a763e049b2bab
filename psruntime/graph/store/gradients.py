"""Gradients of buckets: taken on the worker, brought into the form in which they are pushed, and applied.

The gradient of a flat bucket is dense.  That of a table names its rows: the rows are unique and sorted, and
a row that a batch looked up several times has the sum.  If the model uses the whole table as well, it is dense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Piece
from psruntime.core.plan.plan import Plan
from psruntime.errors import UsageError
from psruntime.graph.base.ancestors import ancestors
from psruntime.graph.base.devices import worker_device
from psruntime.graph.model.pulled_model import PulledModel
from psruntime.graph.store.bucket_store import BucketStore
from psruntime.graph.store.optimizers import BucketOptimizer


@dataclass(frozen=True)
class BucketGradient:
    """The gradient of one bucket.

    values: dense, of the master's shape; sparse, [rows] + the shape of a row.
    indices: int64 [rows], unique and ascending; None if dense.
    """

    values: Any
    indices: Any = None

    @property
    def tensors(self) -> list[Any]:
        """All that travels."""
        return [self.values] if self.indices is None else [self.values, self.indices]

    def map(self, function: Callable[[Any], Any]) -> BucketGradient:
        """The gradient with each of its tensors passed through `function`."""
        return BucketGradient(function(self.values), None if self.indices is None else function(self.indices))

    def with_values(self, values: Any) -> BucketGradient:
        return replace(self, values=values)

    @property
    def for_optimizer(self) -> Any:
        """What apply_gradients takes: a tensor or IndexedSlices."""
        return self.values if self.indices is None else tf1.IndexedSlices(self.values, self.indices)


def bucket_gradients(pulled: PulledModel, plan: Plan, index: int, shares: Any = None) -> dict[str, BucketGradient]:
    """Bucket name -> gradient on worker `index`; buckets that the loss does not depend on are absent.

    shares: float64 [], by which the gradient is divided, at the loss.
    """
    loss = pulled.spec.loss
    with tf1.device(worker_device(index)):
        at_loss = None if shares is None else [tf1.cast(1 / shares, loss.dtype)]
        names = [spec.name for spec in plan.trained]
        sources = [pulled.views[name].source for name in names]
        gradients = dict(zip(names, tf1.gradients(loss, sources, at_loss), strict=True))
        of_buckets = {}
        for bucket in plan.buckets:
            gradient = gradients[bucket.variable]
            if gradient is None:
                continue
            if bucket.is_table and isinstance(gradient, tf1.IndexedSlices):
                of_buckets[bucket.name] = summed(BucketGradient(gradient.values, gradient.indices))
            else:
                pieces = [_piece(gradients[piece.variable], piece) for piece in bucket.pieces]
                flat = tf1.concat(pieces, axis=0) if bucket.is_packed else pieces[0]
                of_buckets[bucket.name] = BucketGradient(tf1.reshape(flat, bucket.master_shape))
        return of_buckets


def _piece(gradient: Any, piece: Piece) -> Any:
    """The piece's entries of its variable's gradient, flat."""
    flat = tf1.reshape(tf1.convert_to_tensor(gradient), [-1])
    return flat if flat.shape == (piece.size,) else flat[piece.start : piece.start + piece.size]


def summed(gradient: BucketGradient) -> BucketGradient:
    """A sparse gradient with the sum over duplicate rows, the rows in ascending order; on the current device."""
    rows, positions = tf1.unique(tf1.cast(gradient.indices, tf1.int64))
    values = tf1.math.unsorted_segment_sum(gradient.values, positions, tf1.size(rows))
    order = tf1.argsort(rows)
    sums = tf1.gather(values, order)
    sums.set_shape([None, *gradient.values.shape[1:]])
    return BucketGradient(sums, tf1.gather(rows, order))


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


def global_norm(gradients: list[BucketGradient]) -> Any:
    """Euclidean norm over all entries of all gradients, [] float32, or float64 if one of them is."""
    wide = tf1.float64 if any(g.values.dtype == tf1.float64 for g in gradients) else tf1.float32
    squares = [tf1.reduce_sum(tf1.square(tf1.cast(g.values, wide))) for g in gradients]
    return tf1.sqrt(tf1.add_n(squares))


Apply = Callable[[BucketGradient], Any]  # makes the operation that updates a bucket


def applying(optimizer: BucketOptimizer, store: BucketStore, constraint: Any = None, step_view: Any = None) -> Apply:
    """The update of a bucket from a gradient, which may be dead, and then what `constraint` makes of the master.

    step_view: the global step on the worker; an update that reads it is refused.

    Everything that the optimizer makes depends on the gradient, also what does not read it: a sparse update of
    AdamOptimizer decays its slots first, whole (4.7 s for two rows of a 1 GB table; that is TensorFlow's own
    behaviour, and kept), and a refused push must leave them alone.
    """
    variable, master = store.bucket.variable, store.master

    def apply(gradient: BucketGradient) -> Any:
        try:
            with tf1.control_dependencies(gradient.tensors):
                update = optimizer.apply(gradient.for_optimizer, master)
        except NotImplementedError as error:
            raise UsageError(
                f"optimizer {optimizer.kind} cannot update variable {variable}, whose gradient is "
                f"{'dense' if gradient.indices is None else 'sparse'}: it does not implement that"
            ) from error
        if step_view is not None and step_view.op in _read_by(update, [*gradient.tensors, optimizer.learning_rate]):
            raise UsageError(
                f"optimizer {optimizer.kind} reads the global step in the graph, for variable {variable}; give "
                "ModelSpec.learning_rate a Python function of the global step, for example "
                "lambda step: 0.1 * 0.96 ** (step / 1000), and use the learning rate that the factory is called with"
            )
        if constraint is None:
            return update
        with tf1.control_dependencies([update]):
            return master.assign(constraint(master), read_value=False)

    return apply


def _read_by(update: Any, given: list[Any]) -> set[Any]:
    """The operations that belong to an update alone, not to what it is given or to the section that it is in."""
    of_given = {tensor.op for tensor in given}
    return ancestors([update], lambda op: op in of_given or op.type == "MutexLock")
