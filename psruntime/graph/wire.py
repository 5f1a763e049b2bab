"""How float32 travels between a worker and the ps: as it is, or rounded to half precision on the way.

Masters, slots and sums stay in float32; what is pulled and what is pushed is rounded to nearest, once.  (The gradient of
rows that a batch looks up in several places is rounded in each, and as a sum.)  What float16 cannot hold becomes its
largest number instead of infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1


@dataclass(frozen=True)
class Wire:
    """dtype: in which float32 travels.  feedback: whether what the rounding of a push leaves over is kept."""

    dtype: Any = tf1.float32
    feedback: bool = False

    def packed(self, tensor: Any) -> Any:
        """As it travels; on the current device."""
        if not self.rounds(tensor):
            return tensor
        if self.dtype == tf1.float16:
            tensor = tf1.clip_by_value(tensor, tf1.float16.min, tf1.float16.max)
        return tf1.cast(tensor, self.dtype)

    def rounds(self, tensor: Any) -> bool:
        """Whether it travels as something less precise."""
        return bool(tensor.dtype.base_dtype == tf1.float32 != self.dtype)


FULL = Wire()


def unpacked(tensor: Any, dtype: Any) -> Any:
    """What travelled, as it is used; on the current device."""
    return tensor if tensor.dtype.base_dtype == dtype else tf1.cast(tensor, dtype)
