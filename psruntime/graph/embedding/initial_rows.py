"""What a model says of a dynamic table, and the initial rows of its ids: functions of the seed, the name and the id.

Hashes of ids, the same on every process: the last steps of splitmix64 (Steele, Lea and Flood, Fast splittable
pseudorandom number generators, OOPSLA 2014), a bijection of the numbers of 64 bits.

Initial rows of a dynamic table: functions of the seed, the table's name and the id.

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

from psruntime.core.plan.buckets import DynamicRows
from psruntime.errors import UsageError
from psruntime.graph.base.seeds import DEFAULT_SEED
from psruntime.graph.base.types import DType, Tensor

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, odd: its multiples are far apart
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # (shift, factor)
_LAST_SHIFT = 31


def hashed(numbers: Tensor) -> Tensor:
    """int64 or uint64 -> uint64, of the same shape."""
    bits = numbers if numbers.dtype == tf1.uint64 else tf1.bitcast(numbers, tf1.uint64)
    for shift, factor in _MIXING:
        bits = _folded(bits, shift) * tf1.constant(factor, tf1.uint64)
    return _folded(bits, _LAST_SHIFT)


def sets_of(ids: Tensor, count: int) -> Tensor:
    """Which of `count` sets each id, int64 [ids], belongs to; int64 [ids]."""
    return tf1.cast(hashed(ids) % tf1.constant(count, tf1.uint64), tf1.int64)


def _folded(bits: Tensor, shift: int) -> Tensor:
    return tf1.bitwise.bitwise_xor(bits, tf1.bitwise.right_shift(bits, tf1.constant(shift, tf1.uint64)))


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


_NOTED = "psruntime/dynamic_tables"  # a collection


@dataclass(frozen=True)
class DynamicTable:
    """A table of the model, by the name of its variable.  initial: its rows before they are trained."""

    name: str
    rows: DynamicRows
    initial: InitialRows


def note(table: DynamicTable) -> None:
    """Notes the table in the current graph.

    Raises:
        UsageError: the model has noted the table with other settings.
    """
    before = noted().get(table.name)
    if before is None:
        tf1.add_to_collection(_NOTED, table)
    elif before != table:
        raise UsageError(
            f"dynamic table {table.name} is made twice, as {before} and as {table}; give both calls the same"
        )


def noted() -> dict[str, DynamicTable]:
    """The dynamic tables of the current graph, by name."""
    tables: list[DynamicTable] = tf1.get_collection(_NOTED)
    return {table.name: table for table in tables}
