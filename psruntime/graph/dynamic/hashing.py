"""Hashes of ids, the same on every process: the last steps of splitmix64 (Steele, Lea and Flood, Fast splittable
pseudorandom number generators, OOPSLA 2014), a bijection of the numbers of 64 bits."""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import Tensor

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
