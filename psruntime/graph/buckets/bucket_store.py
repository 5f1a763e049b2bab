"""The variables on the ps, the same declaration on every process that touches them, and the fence of a chief's writes.

Per ps, made by the ps itself (`PsControl`): the fence, the staleness limit, the learning rate scale, the prepared flag.
Per bucket, made by the chief (`BucketStore`): the master, its version, its ledger, the last push of each
worker, and a mutex that keeps an update's reads and writes together.
The global step is kept like a bucket of its own on ps 0, whose master counts.

A chief that prepares variables must not, after a standstill, overwrite what its successor prepared (`ChiefFence`).
The ps checks the admission when it writes: between a check of its own and its write a chief may stand still for
minutes, and operations that it has started continue meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import LEDGER_SIZE
from psruntime.core.members.membership import tag_of
from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.core.plan.plan import Plan
from psruntime.errors import ReplacedError
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Array, DType, Feed, Op, Proto, Session, Tensor, Variable


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


# Columns of a worker's row in `pushed`.
ORIGIN, SEQUENCE, WINDOW, ACCEPTED, ARRIVED = range(5)
PUSHED_SIZE = 5

NO_LIMIT = 1 << 31  # versions: more updates than a job makes while one worker computes a step
RESTORE_LEAP = 1 << 32  # added to a version by a restore: beyond every limit, so older pushes are stale

GLOBAL_STEP = Bucket("global_step", 0, (Piece("global_step", 0, 1),), "int64")


class PsControl:
    """The variables that a ps has once.

    admitted: int64 [max_workers], the incarnation whose pushes are accepted, 0 for none.
    max_staleness: int64 [], in versions.
    learning_rate_scale: float32 [], by which every learning rate is multiplied.
    prepared: int64 [], the marker of the plan whose variables are complete, 0 for none.
    bytes_held: int64 [], bytes of all its variables, the optimizer's too, known once prepared.
    numbers: the constants of the sections there.
    """

    def __init__(self, ps: int, max_workers: int) -> None:
        self.numbers = Numbers(ps_device(ps))
        with tf1.device(ps_device(ps)):
            self.admitted = ps_variable(f"control/ps_{ps}/admitted", [max_workers])
            self.max_staleness = ps_variable(f"control/ps_{ps}/max_staleness", [])
            ones = tf1.ones_initializer()
            self.learning_rate_scale = ps_variable(f"control/ps_{ps}/learning_rate_scale", [], tf1.float32, ones)
            self.prepared = ps_variable(f"control/ps_{ps}/prepared", [])
            self.bytes_held = ps_variable(f"control/ps_{ps}/bytes_held", [])

    @property
    def variables(self) -> list[Variable]:
        return [self.admitted, self.max_staleness, self.learning_rate_scale, self.prepared, self.bytes_held]


class BucketStore:
    """The variables of one bucket, all on its ps.

    master: [size] of the bucket's dtype; of a table, the variable's own shape, so that rows can be taken from it.
    version: int64 [], updates applied.
    ledger: int64 [LEDGER_SIZE].
    pushed: int64 [max_workers, 5], of each worker: the origin of its last accepted push; the highest sequence number
        that was accepted of it, and which of those below (guard.py); and how many pushes of its index were
        accepted, and received.
    """

    def __init__(self, bucket: Bucket, max_workers: int) -> None:
        self.bucket = bucket
        with tf1.device(ps_device(bucket.ps)):
            self.master = ps_variable(f"master/{bucket.name}", bucket.master_shape, tf1.as_dtype(bucket.dtype))
            self.version = ps_variable(f"version/{bucket.name}", [])
            self.ledger = ps_variable(f"ledger/{bucket.name}", [LEDGER_SIZE])
            self.pushed = ps_variable(f"pushed/{bucket.name}", [max_workers, PUSHED_SIZE])
            self.entry_mutex = tf1.raw_ops.MutexV2(shared_name=f"turn/{bucket.name}")
            self.mutex = tf1.raw_ops.MutexV2(shared_name=f"mutex/{bucket.name}")

    @property
    def variables(self) -> list[Variable]:
        return [self.master, *self.counters]

    @property
    def counters(self) -> list[Variable]:
        """The variables that account for updates: version, ledger and the pushes of each worker."""
        return [self.version, self.ledger, self.pushed]

    def pull(self) -> tuple[Tensor, Tensor]:
        """(version, int64 []; master, as its variable), read on the ps in this order.

        The tensor is never older than its version.
        """
        with tf1.device(ps_device(self.bucket.ps)):
            version = self.version.read_value()
            with tf1.control_dependencies([version]):
                return version, self.master.read_value()

    def pull_handle(self) -> tuple[Tensor, Tensor]:
        """(version, int64 []; handle of the master, resource []), for reads of single rows.

        The handle itself waits for the version: a control dependency of the reads would be lost where they
        are in a loop or a branch.
        """
        with tf1.device(ps_device(self.bucket.ps)):
            version = self.version.read_value()
            with tf1.control_dependencies([version]):
                return version, tf1.identity(self.master.handle)


class PlanStores:
    """The variables of all buckets of a plan: `buckets` by name, and the global step's."""

    def __init__(self, plan: Plan, max_workers: int) -> None:
        self.plan = plan
        self.global_step = BucketStore(GLOBAL_STEP, max_workers)
        self.buckets = {bucket.name: BucketStore(bucket, max_workers) for bucket in plan.buckets}


def counts_of(pushes: Array) -> dict[int, tuple[int, int]]:
    """Worker -> (accepted, received), of those that have any, from int64 [max_workers, 2]."""
    return {int(worker): (int(pushes[worker, 0]), int(pushes[worker, 1])) for worker in np.flatnonzero(pushes[:, 1])}


def ps_variable(name: str, shape: Sequence[int], dtype: DType = tf1.int64, initializer: Any = None) -> Variable:
    """A variable outside the collections, known to every process by its name.  Zeros by default, until assigned."""
    with tf1.variable_scope(tf1.VariableScope(reuse=False), auxiliary_name_scope=False):
        return tf1.get_variable(
            f"psruntime/{name}",
            shape,
            dtype,
            initializer=initializer or tf1.zeros_initializer(),
            trainable=False,
            use_resource=True,
            collections=[],
        )


Built = TypeVar("Built")

NO_WRITER = -1  # as incarnation: the run names no writer, and writes unasked
_ADMITTED_NOWHERE = -2  # no incarnation is negative


class ChiefFence:
    """Admits writes of worker `index` while each ps admits its incarnation; in the current graph.

    unnamed: whether a run that names no writer writes unasked, as those of a script's own code.  Else it fails.
    """

    def __init__(self, controls: Sequence[PsControl], index: int, unnamed: bool = False) -> None:
        self._controls = controls
        self._indices, self._writers, self._is_writer, self._has_no_writer = [], [], [], []
        self._admitted, self._at_once = [], []
        for ps, control in enumerate(controls):
            with tf1.device(ps_device(ps)):
                no_writer = tf1.constant(NO_WRITER, tf1.int64)
                if unnamed:
                    writer = tf1.placeholder_with_default(no_writer, [], name=f"writer_{ps}")
                else:
                    writer = tf1.placeholder(tf1.int64, [], name=f"writer_{ps}")
                self._indices.append(tf1.constant(index))
                self._writers.append(writer)
                self._is_writer.append(writer >= no_writer)
                self._has_no_writer.append(tf1.equal(writer, no_writer))
                self._admitted.append(control.admitted.sparse_read(self._indices[ps]))
            self._at_once.append(self.passed(ps, []))

    def passed(self, ps: int, values: Sequence[Tensor]) -> Op:
        """An operation on the ps that runs when these tensors, of any shape, are there, and fails unless the ps admits
        the writer.

        No optimization of graphs moves the operation that waits for them to another device.
        """
        with tf1.device(ps_device(ps)):
            arrived = [tf1.raw_ops.Assert(condition=self._is_writer[ps], data=list(values))] if values else []
            with tf1.control_dependencies(arrived):
                admitted = tf1.raw_ops.ResourceGather(
                    resource=self._controls[ps].admitted.handle, indices=self._indices[ps], dtype=tf1.int64
                )
            may_write = tf1.logical_or(self._has_no_writer[ps], tf1.equal(self._writers[ps], admitted))
            return tf1.raw_ops.Assert(condition=may_write, data=[self._writers[ps]])

    def guard(self, ps: int, operations: Sequence[Op]) -> None:
        """Makes these operations on the ps, which are built, start only when all their inputs are there and the ps
        admits the writer."""
        values = [tensor for each in operations for tensor in each.inputs if not _is_held(tensor)]
        passed = self.passed(ps, values) if values else self._at_once[ps]
        for operation in operations:
            operation._add_control_input(passed)

    def inside(self, ps: int, body: Callable[[], Built]) -> Callable[[], Built]:
        """The body of a critical section on the ps, which starts only if it admits the writer.

        Placeholders for the body must be made outside: TensorFlow drops the control inputs of fed tensors.
        """

        def fenced() -> Built:
            with tf1.control_dependencies([self.passed(ps, [])]):
                return body()

        return fenced

    def run(self, session: Session, incarnation: int, fetches: Any, feed: Feed | None = None, *more: Proto) -> Any:
        """Runs operations that write, as this incarnation.  feed, more: further arguments of the session's `run`.

        Raises:
            ReplacedError: a ps no longer admits the incarnation.
        """
        try:
            return session.run(fetches, {**(feed or {}), **dict.fromkeys(self._writers, incarnation)}, *more)
        except tf1.errors.InvalidArgumentError:
            self.require_admitted(session, incarnation)
            raise

    def warm_up(self, session: Session, fetches: Any, feed: Feed | None = None) -> None:
        """Makes a session ready for `run`, and writes nothing: no ps admits its incarnation.  feed: also fed by it."""
        with suppress(tf1.errors.InvalidArgumentError):
            session.run(fetches, {**(feed or {}), **dict.fromkeys(self._writers, _ADMITTED_NOWHERE)})

    def require_admitted(self, session: Session, incarnation: int) -> None:
        """Checks that every ps still admits this incarnation.

        Raises:
            ReplacedError: a ps no longer does.
        """
        for ps, admitted in enumerate(session.run(self._admitted)):
            if admitted != incarnation:
                tag = tag_of(incarnation)
                raise ReplacedError(f"ps {ps} does not admit incarnation {tag}: another chief may be at work")


class FencedSession:
    """A session that writes as this incarnation, for code that runs operations of its own in a session."""

    def __init__(self, session: Session, fence: ChiefFence, incarnation: int) -> None:
        self._session, self._fence, self._incarnation = session, fence, incarnation

    def run(
        self, fetches: Any, feed_dict: Feed | None = None, options: Proto = None, run_metadata: Proto = None
    ) -> Any:
        """As tf.Session.  Raises ReplacedError, as ChiefFence.run."""
        return self._fence.run(self._session, self._incarnation, fetches, feed_dict, options, run_metadata)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def _is_held(tensor: Tensor) -> bool:
    """Whether it stands for a variable, which stays where it is."""
    return tensor.dtype in (tf1.resource, tf1.variant) or tensor.dtype._is_ref_dtype
