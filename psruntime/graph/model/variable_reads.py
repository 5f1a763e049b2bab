"""How the model reads a variable whose master is on a ps, and the pull of the buckets that a worker reads whole.

A PulledRead has the whole value, pulled before the step and cut out of the buckets.  The reads of tables, which stay on
the ps, are in graph/tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Protocol

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.core.plan.packing import ALIGNED_BYTES
from psruntime.core.plan.plan import Plan
from psruntime.graph.base.server import ps_device, worker_cpu, worker_device
from psruntime.graph.base.types import Tensor
from psruntime.graph.base.variable_values import worker_variable
from psruntime.graph.push.change_log import ChangeLog
from psruntime.graph.push.guard import only_if
from psruntime.graph.store.bucket_store import BucketStore
from psruntime.graph.store.gradient import Wire, unpacked


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
                version = log.store.version.read_value()
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
