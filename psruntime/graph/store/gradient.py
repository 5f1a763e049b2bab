"""The gradient of a bucket, as a worker pushes it and a ps applies it.

The gradient of a flat bucket is dense.  That of a table names its rows: the rows are unique and sorted, and
a row that a batch looked up several times has the sum.  If the model uses the whole table as well, it is dense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tensorflow.compat.v1 as tf1


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
