"""The backward pass: the gradients of a model's loss, taken on the worker and laid out as the plan's buckets."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Piece
from psruntime.core.plan.plan import Plan
from psruntime.graph.base.devices import worker_device
from psruntime.graph.model.pulled_model import PulledModel
from psruntime.graph.store.gradient import BucketGradient, summed


def bucket_gradients(pulled: PulledModel, plan: Plan, index: int, divisor: Any = None) -> dict[str, BucketGradient]:
    """Bucket name -> its gradient on worker `index`; a bucket that the loss does not depend on has none.

    divisor: float64 [], the gradient is divided by it, at the loss; None: by nothing.
    """
    loss = pulled.spec.loss
    with tf1.device(worker_device(index)):
        at_loss = None if divisor is None else [tf1.cast(1 / divisor, loss.dtype)]
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
