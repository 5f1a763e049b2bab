"""Initial rows of a dynamic table: functions of the seed, the table's name and the id.

So they are the same on any process, at any time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from numbers import Real
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.base.types import DType, Tensor
from psruntime.graph.dynamic.hashing import GOLDEN, hashed
from psruntime.graph.ops.seeds import DEFAULT_SEED

BITS = 24  # of a random number, as many as a float32 between 0.5 and 1 has
CUT = 2.0  # standard deviations, where tf.truncated_normal_initializer cuts
UNIFORM, NORMAL, TRUNCATED = "uniform", "normal", "truncated normal"
_RANDOM = (
    (tf1.truncated_normal_initializer, TRUNCATED, "mean", "stddev"),
    (tf1.random_normal_initializer, NORMAL, "mean", "stddev"),
    (tf1.random_uniform_initializer, UNIFORM, "minval", "maxval"),
)


@dataclass(frozen=True)
class InitialRows:
    """kind: of the distribution; empty: every entry is `first`.

    first, second: least and largest, or mean and standard deviation.  salt: of the seed and the table.
    """

    kind: str
    first: float
    second: float = 0.0
    salt: int = 0

    def of(self, ids: Tensor, row_shape: Sequence[int], dtype: DType) -> Tensor:
        """int64 [ids] -> [ids] + row_shape, on the current device."""
        shape = tf1.concat([tf1.shape(ids), tf1.constant(list(row_shape), tf1.int32)], axis=0)
        if not self.kind:
            return tf1.fill(shape, tf1.constant(self.first, dtype))
        of_ids = hashed(tf1.bitcast(ids, tf1.uint64) + tf1.constant(self.salt, tf1.uint64))
        columns = np.arange(1, prod(row_shape) + 1, dtype=np.uint64) * np.uint64(GOLDEN)  # a list would lose bits
        of_entries = hashed(of_ids[:, None] + tf1.constant(columns))
        bits = tf1.bitwise.right_shift(of_entries, tf1.constant(64 - BITS, tf1.uint64))
        uniform = (tf1.cast(tf1.bitcast(bits, tf1.int64), tf1.float32) + 0.5) * 2.0**-BITS  # above 0 and below 1
        return tf1.reshape(tf1.cast(self._distributed(uniform), dtype), shape)

    def _distributed(self, uniform: Tensor) -> Tensor:
        if self.kind == UNIFORM:
            return self.first + (self.second - self.first) * uniform
        if self.kind == TRUNCATED:
            below = math.erfc(CUT / math.sqrt(2)) / 2  # of all numbers
            uniform = below + (1 - 2 * below) * uniform
        return self.first + self.second * tf1.math.ndtri(uniform)


def initial_rows(initializer: Any, table: str, seed: int | None) -> InitialRows:
    """The rows by an initializer of TensorFlow's, an instance or a class, or by a number; `seed` is the graph's.

    Raises:
        UsageError: the initializer does not draw each entry by itself.
    """
    if isinstance(initializer, Real) and not isinstance(initializer, bool):
        return InitialRows("", float(initializer))
    given = initializer() if isinstance(initializer, type) else initializer
    config = given.get_config() if hasattr(given, "get_config") else {}
    if isinstance(given, tf1.zeros_initializer):
        return InitialRows("", 0.0)
    if isinstance(given, tf1.ones_initializer):
        return InitialRows("", 1.0)
    if isinstance(given, tf1.constant_initializer) and isinstance(config["value"], Real):
        return InitialRows("", float(config["value"]))
    for kind, name, first, second in _RANDOM:
        if isinstance(given, kind):
            seeds = [config["seed"], DEFAULT_SEED if seed is None else seed]
            text = f"{table} {seeds[0] if seeds[0] is not None else ''} {seeds[1]}"
            salt = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
            return InitialRows(
                name, float(config[first]), float(config[second] if config[second] is not None else 1.0), salt
            )
    raise UsageError(
        f"initializer of dynamic table {table} must be a number, or zeros_initializer, ones_initializer, "
        "constant_initializer of a number, random_uniform_initializer, random_normal_initializer or "
        f"truncated_normal_initializer of tf.compat.v1, got {initializer!r}"
    )
