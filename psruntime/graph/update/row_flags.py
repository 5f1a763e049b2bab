"""Which rows on a ps were updated since all of them were last saved, so that a checkpoint can save these alone.

A flag for each row; an update sets those of its rows, in the critical section that it is in.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.devices import ps_device
from psruntime.graph.base.types import Op, Tensor, Variable
from psruntime.graph.ops.fills import zeros
from psruntime.graph.store.bucket_store import BucketStore, ps_variable
from psruntime.graph.store.gradient import BucketGradient
from psruntime.graph.update.apply import Update


class RowFlags:
    """The flags of `rows` rows on the ps of a bucket.  All its operations run in the bucket's critical section, or
    while no worker trains.

    clock: a variable that counts, or None; `since` gives what it has counted.
    """

    def __init__(self, store: BucketStore, name: str, rows: int, clock: Variable = None) -> None:
        self._clock = clock
        with tf1.device(ps_device(store.bucket.ps)):
            self._flags = ps_variable(f"touched/{name}", [rows], tf1.bool)
            self._since = ps_variable(f"touched_since/{name}", [2])  # (stamp of the copy, the clock then)

    @property
    def variables(self) -> list[Variable]:
        return [self._flags, self._since]

    def noting(self, update: Update, rows: Callable[[Tensor], Tensor] = lambda indices: indices) -> Update:
        """The update, which also sets the flags of the rows that `rows` computes from the indices of its gradient."""

        def noted(gradient: BucketGradient) -> Op:
            with tf1.control_dependencies(gradient.tensors):
                touched = self.note(rows(gradient.indices))
            with tf1.control_dependencies([touched]):
                return update(gradient)

        return noted

    def note(self, rows: Tensor) -> Op:
        """An operation after which these rows, int64 [rows], are touched."""
        return tf1.raw_ops.ResourceScatterUpdate(resource=self._flags.handle, indices=rows, updates=tf1.constant(True))

    def begin(self, stamp: Tensor) -> list[Op]:
        """Operations after which no row was touched since the copy of this stamp, int64 []."""
        none = zeros(self._flags.shape.as_list(), tf1.bool)
        since = tf1.stack([stamp, self._now()])
        return [self._flags.assign(none, read_value=False), self._since.assign(since, read_value=False)]

    def forget(self) -> Op:
        """An operation that clears the stamp: which rows were touched is then unknown."""
        return self._since.assign([0, 0], read_value=False)

    def since(self) -> Tensor:
        """(stamp of the copy since which rows are noted, 0: none; how much the clock has counted since), int64 [2]."""
        stamp, clock = tf1.unstack(self._since.read_value())
        return tf1.stack([stamp, self._now() - clock])

    def touched(self) -> Tensor:
        """The rows, int64 [touched], ascending."""
        return tf1.where(self._flags.read_value())[:, 0]

    def _now(self) -> Tensor:
        return tf1.constant(0, tf1.int64) if self._clock is None else self._clock.read_value()
