"""How float32 travels between a worker and the ps: as it is, or rounded to half precision on the way; all entries, or
of a dense gradient the largest.

Masters, slots and sums stay in float32; pulled parameters and pushed gradients are rounded to nearest, once.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket
from psruntime.graph.base.types import DType, Op, Tensor


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
        return tf1.cast(tensor, self.dtype) if self.rounds(tensor) else tensor

    def saturated(self, gradient: Tensor) -> Tensor:
        """As `packed`, but a finite number beyond the range of float16 becomes its largest one."""
        if self.dtype == tf1.float16 and self.rounds(gradient):
            within = tf1.clip_by_value(gradient, tf1.float16.min, tf1.float16.max)
            gradient = tf1.where(tf1.is_finite(gradient), within, gradient)
        return self.packed(gradient)

    def rounds(self, tensor: Tensor) -> bool:
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
