"""The backward pass: the gradients of a model's loss, computed on the worker and laid out as the plan's buckets."""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.core.plan.plan import Plan
from psruntime.core.plan.table_groups import TableGroup
from psruntime.graph.base.server import worker_device
from psruntime.graph.base.types import Tensor
from psruntime.graph.buckets.gradient import BucketGradient, summed
from psruntime.graph.embedding.group_lookups import take_products
from psruntime.graph.model.pulled_model import PulledModel


def bucket_gradients(pulled: PulledModel, plan: Plan, index: int, divisor: Tensor = None) -> dict[str, BucketGradient]:
    """Bucket name -> its gradient on worker `index`; a bucket that the loss does not depend on has none.

    divisor: float64 [], by which the loss is divided; None: by nothing.
    """
    with tf1.device(worker_device(index)):
        taken = _Taken(pulled, plan, divisor)
        of_buckets = {}
        for bucket in (bucket for bucket in plan.buckets if not bucket.aggregation):
            gradient = taken.of_grouped(bucket) if bucket.is_grouped else taken.of(bucket)
            if gradient is not None:
                of_buckets[bucket.name] = gradient
        return of_buckets


class _Taken:
    """The gradients of the loss with respect to all that the model reads."""

    def __init__(self, pulled: PulledModel, plan: Plan, divisor: Tensor) -> None:
        loss = pulled.spec.loss
        self._pulled = pulled
        self._group_of = plan.group_of
        tables = {table.name for group in plan.groups for table in group.tables}
        reads = [pulled.reads[spec.name].source for spec in plan.trained if spec.name not in tables]
        rows = [rows for group in plan.groups for each in pulled.lookups.fetched(group) for rows in each.results]
        handles = [handle for group in plan.groups for handle in pulled.lookups.handles(group)]
        sources = [*reads, *rows, *handles]
        take_products(loss.graph.get_operations())
        at_loss = None if divisor is None else [tf1.cast(1 / divisor, loss.dtype)]
        gradients = tf1.gradients(loss, sources, at_loss, stop_gradients=rows)
        self._of_source = {id(source): gradient for source, gradient in zip(sources, gradients, strict=True)}
        self._of_fetched = {group.name: self._fetched(group) for group in plan.groups}

    def _fetched(self, group: TableGroup) -> list[list[BucketGradient]]:
        """For each fetch, the gradients of its rows, of each ps."""
        fetched = self._pulled.lookups.fetched(group)
        gradients = [each.gradients([self._of_source[id(result)] for result in each.results]) for each in fetched]
        return [of_ps for of_ps in gradients if of_ps is not None]

    def of(self, bucket: Bucket) -> BucketGradient | None:
        """The gradient of a bucket that is in no table group."""
        gradients = [self._of_source[id(self._pulled.reads[piece.variable].source)] for piece in bucket.pieces]
        if gradients[0] is None:
            return None
        if bucket.is_table and isinstance(gradients[0], tf1.IndexedSlices):
            return summed(BucketGradient(gradients[0].values, gradients[0].indices))
        pieces = [_piece(gradient, piece) for gradient, piece in zip(gradients, bucket.pieces, strict=True)]
        flat = tf1.concat(pieces, axis=0) if bucket.is_packed else pieces[0]
        return BucketGradient(tf1.reshape(flat, bucket.master_shape))

    def of_grouped(self, bucket: Bucket) -> BucketGradient | None:
        """The gradient of a bucket of a table group: of rows that were fetched, and of reads through its handle."""
        group, ps = self._group_of[bucket.name], bucket.ps
        parts = [of_ps[ps] for of_ps in self._of_fetched[group.name]]
        through_handle = self._of_source[id(self._pulled.lookups.handles(group)[ps])]
        if through_handle is None:
            return _joint(parts) if parts else None
        if isinstance(through_handle, tf1.IndexedSlices):
            return _joint([*parts, BucketGradient(through_handle.values, through_handle.indices)], unique=False)
        for part in parts:
            through_handle = tf1.tensor_scatter_nd_add(through_handle, part.indices[:, tf1.newaxis], part.values)
        return BucketGradient(tf1.reshape(through_handle, bucket.master_shape))


def _joint(parts: list[BucketGradient], unique: bool = True) -> BucketGradient:
    """The sum of sparse gradients.  unique: whether the rows of each are."""
    if len(parts) == 1 and unique:
        return parts[0]
    values = tf1.concat([part.values for part in parts], axis=0)
    return summed(BucketGradient(values, tf1.concat([part.wide.indices for part in parts], axis=0)))


def _piece(gradient: Tensor, piece: Piece) -> Tensor:
    """The piece's entries of its variable's gradient, flat."""
    flat = tf1.reshape(tf1.convert_to_tensor(gradient), [-1])
    return flat if flat.shape == (piece.size,) else flat[piece.start : piece.start + piece.size]
