"""Gradients as they are pushed: rounded for the wire, with or without the remainder of the rounding before.

With that error feedback small gradients add up instead of being lost (Seide et al., 1-bit stochastic gradient descent,
Interspeech 2014; Karimireddy et al., Error feedback fixes SignSGD, ICML 2019).
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.devices import worker_device
from psruntime.graph.base.types import Tensor
from psruntime.graph.ops.worker_variables import worker_variable
from psruntime.graph.store.gradient import BucketGradient
from psruntime.graph.store.wire import Wire


def packed_gradient(wire: Wire, name: str, gradient: BucketGradient, finite: Tensor, index: int) -> BucketGradient:
    """The gradient of bucket `name` as worker `index` pushes it.

    finite: bool [], whether it counts; if not, what is left stays.  What a push had in it that a ps
    refuses for another cause is dropped with it.

    There is no feedback for rows of a table: what is left of them would be as large as the table.
    """
    with tf1.device(worker_device(index)):
        values = gradient.values
        if not wire.feedback or gradient.indices is not None or not wire.rounds(values):
            return gradient.with_values(wire.saturated(values))
        residue = worker_variable(f"residue/{name}", values.shape, values.dtype, lasting=True)
        before = residue.read_value()
        total = tf1.where(finite, values + before, tf1.zeros_like(values))
        sent = wire.saturated(total)
        left = tf1.where(finite, total - tf1.cast(sent, values.dtype), before)
        with tf1.control_dependencies([residue.assign(left, read_value=False)]):
            return gradient.with_values(tf1.identity(sent))
