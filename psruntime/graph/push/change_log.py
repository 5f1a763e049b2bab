"""Which entries of a bucket its last updates have changed, so that a worker fetches these and no others.

It is a ring on the bucket's ps.  A worker remembers how many indices had been noted when it pulled last, and is sent
those since, each once, with what the master has there; or all of the master, if they are no longer in the ring.

No lock: an update counts the indices that it is about to note, writes them, changes the master, and then says that
it has.  A reader looks first how far updates have ended, and last how far one may have written.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import DType, Op, Tensor, Variable
from psruntime.graph.push.guard import only_if
from psruntime.graph.store.bucket_store import BucketStore, ps_variable
from psruntime.graph.store.gradient import BucketGradient
from psruntime.graph.update.apply import Update

# Entries of a bucket for each index that is remembered, so the ring is a quarter of it; what is sent is at most half.
APART = 4
NANOSECONDS = 1e9


class ChangeLog:
    """The log of one bucket, on its ps.

    counted: int64 [2] = (indices that were begun to be noted, indices whose update has ended).  It starts at the time,
        in ns, so one that is made anew is ahead of all that was ever read of the one before.
    indices: int32 [size / APART], the last ones, each where its number is, modulo the size.
    """

    def __init__(self, store: BucketStore) -> None:
        self.store = store
        self._size = store.bucket.size // APART
        with tf1.device(ps_device(store.bucket.ps)):
            self._indices = ps_variable(f"changes/{store.bucket.name}", [self._size], tf1.int32)
            self._counted = ps_variable(f"changed/{store.bucket.name}", [2], initializer=_now)

    @property
    def variables(self) -> list[Variable]:
        return [self._indices, self._counted]

    def noting(self, update: Update, is_by_entry: bool) -> Update:
        """The update of the bucket, which notes what it changes.

        is_by_entry: whether it changes those entries alone that the gradient names; if not, everybody will be sent all.
        """

        def noted(gradient: BucketGradient) -> Op:
            with tf1.control_dependencies(gradient.tensors):
                begun, ended = tf1.unstack(self._counted.read_value())
            count = tf1.size(gradient.indices, out_type=tf1.int64) if is_by_entry else self._size + 1
            end = begun + count
            with tf1.control_dependencies([self._counted.assign(tf1.stack([end, ended]), read_value=False)]):
                written = self._write(begun, gradient.indices) if is_by_entry else tf1.no_op()
            with tf1.control_dependencies([written]):
                updated = update(gradient)
            with tf1.control_dependencies([updated]):
                return self._counted.assign(tf1.stack([end, end]), read_value=False)

        return noted

    def since(self, version: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """What changed since a worker was at this position, int64 []: (int32 [2 + n], [n] or all of the master).

        The first is the position that it is at then, in two numbers, and the indices that it is sent; none with all.
        version: is read before.
        """
        master = self.store.master
        with tf1.device(ps_device(self.store.bucket.ps)):
            with tf1.control_dependencies([version]):
                ended = self._counted.read_value()[1]
            count = ended - position
            is_noted = tf1.logical_and(count >= 0, count <= self._size)
            found = self._indices.sparse_read(self._places(position, tf1.where(is_noted, count, tf1.zeros_like(count))))
            with tf1.control_dependencies([found]):
                begun = self._counted.read_value()[0]
            is_whole = tf1.logical_and(is_noted, begun - position <= self._size)
            indices = only_if(is_whole, tf1.unique(found)[0])
            some = master.sparse_read(indices)
            with tf1.control_dependencies([only_if(tf1.logical_not(is_whole), ended)]):
                none, every = tf1.zeros([0], tf1.int32), master.read_value()
            sent = tf1.raw_ops.Merge(inputs=[indices, none]).output
            return tf1.concat([tf1.bitcast(ended, tf1.int32), sent], 0), tf1.raw_ops.Merge(inputs=[some, every]).output

    def _write(self, start: Tensor, indices: Tensor) -> Op:
        return tf1.raw_ops.ResourceScatterUpdate(
            resource=self._indices.handle,
            indices=self._places(start, tf1.size(indices, out_type=tf1.int64)),
            updates=tf1.cast(indices, tf1.int32),
        )

    def _places(self, start: Tensor, count: Tensor) -> Tensor:
        return tf1.mod(start + tf1.range(count), self._size)


def _now(shape: tf1.TensorShape, dtype: DType, partition_info: object = None) -> Tensor:  # noqa: ARG001 - as TensorFlow calls it
    return tf1.fill(shape, tf1.cast(tf1.timestamp() * NANOSECONDS, dtype))
