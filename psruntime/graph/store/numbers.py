"""The constants of the critical sections on a ps, made once there, outside of all sections.

A constant that is built in a section is an operation of that section: run while the mutex is locked, and kept on the
ps with the graph of every worker's session.  They were two fifths of a bucket's operations in a step.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.ledger import LEDGER_SIZE
from psruntime.graph.base.types import DType, Tensor


class Numbers:
    """Constants on a device, in the current graph."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._made: dict[tuple[Any, DType], Tensor] = {}

    def __call__(self, value: float | tuple[int, ...], dtype: DType = tf1.int64) -> Tensor:
        """The number, [], or the numbers of a tuple."""
        key = (value, dtype)
        if key not in self._made:
            with tf1.control_dependencies(None), tf1.device(self._device):
                self._made[key] = tf1.constant(value, dtype)
        return self._made[key]

    def one(self, column: int) -> Tensor:
        """1 in this column of a ledger, int64 [LEDGER_SIZE]."""
        return self(tuple(int(each == column) for each in range(LEDGER_SIZE)))

    def moved(self, column: int, to: int) -> Tensor:
        """The change that moves 1 from a column of a ledger to another, int64 [LEDGER_SIZE]."""
        return self(tuple(int(each == to) - int(each == column) for each in range(LEDGER_SIZE)))

    def one_at(self, column: Tensor) -> Tensor:
        """As `one`, of a column that is a tensor, an integer []; on the current device."""
        depth = self(LEDGER_SIZE, tf1.int32)
        return tf1.raw_ops.OneHot(indices=column, depth=depth, on_value=self(1), off_value=self(0))
