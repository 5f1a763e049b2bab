"""How the model reads a variable whose master is on a ps, and the pull of the buckets that a worker reads whole.

A PulledRead has the whole value, pulled before the step and cut out of the buckets.  The reads of tables, which stay on
the ps, are in graph/embedding.

Where workers push the largest entries alone, a pull has the entries that the last updates have changed (`ChangeLog`): a
ring of indices on the bucket's ps.  A worker remembers how many indices had been noted when it pulled last, and is sent
those since, each once, with what the master has there; or all of the master, if they are no longer in the ring.  No
lock: an update counts the indices that it is about to note, writes them, changes the master, and then says that it has.
A reader looks first how far updates have ended, and last how far one may have written.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Protocol

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.core.plan.plan import ALIGNED_BYTES, Plan
from psruntime.graph.base.server import ps_device, worker_cpu, worker_device
from psruntime.graph.base.types import DType, Op, Tensor, Variable
from psruntime.graph.base.variable_values import worker_variable, write_rows
from psruntime.graph.buckets.apply import Update
from psruntime.graph.buckets.bucket_store import BucketStore, ps_variable
from psruntime.graph.buckets.gradient import BucketGradient, Wire, unpacked
from psruntime.graph.push.guard import only_if


class VariableRead(Protocol):
    """Reads of one variable, as operations of a worker.

    value: the whole variable, in its shape.  source: the tensor of which gradients are taken.
    handle_device: the device of the variable's own handle and initial value, None for that of the model.
    """

    value: Tensor
    source: Tensor
    handle_device: str | None

    def sparse_read(self, indices: Tensor, name: str | None = None) -> Tensor:
        """Rows: integer `indices` of any shape -> indices.shape + row shape."""

    def gather_nd(self, indices: Tensor, name: str | None = None) -> Tensor:
        """Entries or slices, as tf.gather_nd gives them."""


class PulledRead:
    """A variable whose value is on the worker.  value: of the variable's shape and dtype."""

    handle_device: str | None = None

    def __init__(self, value: Tensor) -> None:
        self.value = self.source = value

    def sparse_read(self, indices: Tensor, name: str | None = None) -> Tensor:
        return tf1.gather(self.value, indices, name=name)

    def gather_nd(self, indices: Tensor, name: str | None = None) -> Tensor:
        return tf1.gather_nd(self.value, indices, name=name)


def unpacked_buckets(plan: Plan, pulled: dict[str, Tensor]) -> dict[str, Tensor]:
    """Variable name -> its value, in its own shape, from [size] of each bucket that is pulled whole."""
    parts: dict[Piece, Tensor] = {}
    for bucket in plan.buckets:
        if not bucket.is_table:
            values = pulled[bucket.name]
            split = parted(values, [piece.size for piece in bucket.pieces]) if bucket.is_packed else [values]
            parts.update(zip(bucket.pieces, split, strict=True))
    variables = {}
    for spec in [*plan.trained, *plan.aggregated]:
        if not spec.sparse:
            pieces = [parts[piece] for _, piece in plan.pieces_of(spec.name)]
            whole = len(pieces) == 1
            variables[spec.name] = pieces[0] if whole else tf1.concat([tf1.reshape(p, [-1]) for p in pieces], axis=0)
    return variables


def parted(values: Tensor, sizes: list[int]) -> list[Tensor]:
    """[entries] in parts of these sizes, one after the other, of any shape.

    TensorFlow copies the parts of a vector.  Those of a matrix share its memory if its rows are as long as memory is
    aligned.  So the parts before the first that is not of whole such rows are rows of a matrix.
    """
    row = ALIGNED_BYTES // values.dtype.size
    count = next((number for number, size in enumerate(sizes) if size % row), len(sizes))
    aligned = sum(sizes[:count])
    first, remainder = (values[:aligned], values[aligned:]) if count < len(sizes) else (values, None)
    parts = tf1.split(tf1.reshape(first, [-1, row]), [size // row for size in sizes[:count]]) if count else []
    return [*parts, *([] if remainder is None else tf1.split(remainder, sizes[count:]))]


Pulled = tuple[Tensor, Tensor]  # (version, on the ps; values [size], on the worker)


def pulled_whole(store: BucketStore, index: int, wire: Wire) -> Pulled:
    """All of a bucket, sent to worker `index`.

    It arrives in the worker's host memory, from where one copy moves it to a GPU, as it was sent.  A tensor that is
    sent to a GPU directly is decoded into a message first, and copied twice more: 90 MB took 77 ms, through host
    memory 57, and 40 where that is pinned (graph/base/server.py).
    """
    version, master = store.pull()
    with tf1.device(ps_device(store.bucket.ps)):
        packed = wire.packed(master)
    with tf1.device(worker_cpu(index)):
        packed = tf1.identity(packed)
    with tf1.device(worker_device(index)):
        return version, unpacked(packed, master.dtype)


def pulled_changes(logs: Iterable[ChangeLog], index: int, wire: Wire) -> dict[str, Pulled]:
    """Bucket name -> its values on worker `index`, which keeps a copy and receives the changes."""
    pulled = {}
    for ps, of_ps in groupby(sorted(logs, key=_ps_of), key=_ps_of):
        copies = [(log, _PulledCopy(log.store.bucket, index)) for log in of_ps]
        with tf1.device(worker_cpu(index)):
            positions = tf1.stack([copy.position.read_value() for _, copy in copies])
        with tf1.device(ps_device(ps)):
            arrived = tf1.unstack(tf1.identity(positions))  # one message
        for (log, copy), position in zip(copies, arrived, strict=True):
            with tf1.device(ps_device(ps)):
                version = log.store.section.pulled_version
                changes, values = log.since(version, position)
                packed = wire.packed(values)
            pulled[log.store.bucket.name] = version, copy.updated(changes, packed)
    return pulled


class _PulledCopy:
    """Worker `index`'s copy of a bucket, as of its last pull.

    position: of the bucket's log then, int64 []; before the first pull of a session one that no log has.
    """

    def __init__(self, bucket: Bucket, index: int) -> None:
        self._cpu, self._device = worker_cpu(index), worker_device(index)
        with tf1.device(self._cpu):
            self.position = worker_variable(f"position/{bucket.name}", [], tf1.int64, -1)
        with tf1.device(self._device):
            self._values = worker_variable(f"pulled/{bucket.name}", bucket.master_shape, tf1.as_dtype(bucket.dtype))

    def updated(self, changes: Tensor, packed: Tensor) -> Tensor:
        """The bucket with these changes, see ChangeLog.since, as they were sent."""
        with tf1.device(self._cpu):
            position, indices = tf1.bitcast(changes[:2], tf1.int64), changes[2:]
        with tf1.device(self._device):
            sent, shape = tf1.identity(packed), self._values.shape  # a Switch would be moved to where its data is from
            values, is_all = unpacked(sent, self._values.dtype), tf1.equal(tf1.size(sent), shape.num_elements())
            before = only_if(tf1.logical_not(is_all), self._values.read_value())
            some = tf1.tensor_scatter_nd_update(before, indices[:, tf1.newaxis], values)
            merged = tf1.raw_ops.Merge(inputs=[some, only_if(is_all, values)]).output
            merged.set_shape(shape)
            assigned = self._values.assign(merged, read_value=False)
        with tf1.control_dependencies([assigned]):  # a copy that is newer than its position is updated once more
            moved = self.position.assign(position, read_value=False)
        with tf1.device(self._device), tf1.control_dependencies([moved]):
            return tf1.identity(merged)


def _ps_of(log: ChangeLog) -> int:
    return log.store.bucket.ps


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

        is_by_entry: whether it changes those entries alone that the gradient names; if not, each worker is sent all.
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
        places = self._places(start, tf1.size(indices, out_type=tf1.int64))
        return write_rows(self._indices, places, tf1.cast(indices, tf1.int32))

    def _places(self, start: Tensor, count: Tensor) -> Tensor:
        return tf1.mod(start + tf1.range(count), self._size)


def _now(shape: tf1.TensorShape, dtype: DType, partition_info: object = None) -> Tensor:  # noqa: ARG001 - as TensorFlow calls it
    return tf1.fill(shape, tf1.cast(tf1.timestamp() * NANOSECONDS, dtype))
