"""The variables on the ps, the same declaration on every process that touches them, and the fence of a chief's writes.

Per ps, made by the ps itself (`PsControl`): the fence, the staleness limit, the learning rate scale, the prepared flag.
Per bucket, made by the chief (`BucketStore`): the master.
Per section, which is one bucket or several of a ps (`BucketSection`): the version and the ledger of each bucket, the
pushes of each worker, and a mutex that keeps an update's reads and writes together.
The global step is kept like a bucket of its own on ps 0, whose master counts.

A chief that prepares variables must not, after a standstill, overwrite what its successor prepared (`ChiefFence`).
The ps checks the admission when it writes: between a check of its own and its write a chief may stand still for
minutes, and operations that it has started continue meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import LEDGER_SIZE
from psruntime.core.members.membership import tag_of
from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.core.plan.plan import Plan, in_sections
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


ORIGIN, SEQUENCE, WINDOW = range(3)  # of a worker's row in `window`
ACCEPTED, ARRIVED = range(2)  # of the row of a worker and a bucket in `counts`

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


class BucketSection:
    """The counters of buckets of one ps that every push updates together, in one critical section.

    What is decided about a push is decided once for all of them.  Columns and rows are in the order of `stores`.

    version: int64 [buckets], updates applied.
    ledger: int64 [buckets, LEDGER_SIZE].
    window: int64 [max_workers, 3], of each worker: the origin of its last accepted push; the highest sequence number
        that was accepted of it, and which of those below (guard.py).
    counts: int64 [max_workers, buckets, 2], how many pushes of each worker were accepted, and received.
    """

    def __init__(self, buckets: Sequence[Bucket], max_workers: int) -> None:
        self.ps = buckets[0].ps
        self.name = f"bucket/{buckets[0].name}" if len(buckets) == 1 else f"buckets/ps_{self.ps}"
        self.max_workers = max_workers
        self.stores = [BucketStore(bucket, self, place) for place, bucket in enumerate(buckets)]
        with tf1.device(ps_device(self.ps)):
            self.version = ps_variable(f"version/{self.name}", [len(buckets)])
            self.ledger = ps_variable(f"ledger/{self.name}", [len(buckets), LEDGER_SIZE])
            self.window = ps_variable(f"window/{self.name}", [max_workers, 3])
            self.counts = ps_variable(f"counts/{self.name}", [max_workers, len(buckets), 2])
            self.entry_mutex = tf1.raw_ops.MutexV2(shared_name=f"turn/{self.name}")
            self.mutex = tf1.raw_ops.MutexV2(shared_name=f"mutex/{self.name}")
        self._pulled: Tensor = None

    @property
    def counters(self) -> list[Variable]:
        """The variables that account for updates."""
        return [self.version, self.ledger, self.window, self.counts]

    @property
    def pulled_version(self) -> Tensor:
        """int64 [buckets]: a pull reads it before any of the masters, so none of them is older."""
        if self._pulled is None:
            with tf1.control_dependencies(None), tf1.device(ps_device(self.ps)):
                self._pulled = self.version.read_value()
        return self._pulled


class BucketStore:
    """One bucket on its ps, number `place` of its section.

    master: [size] of the bucket's dtype; of a table, the variable's own shape, so that rows can be taken from it.
    """

    def __init__(self, bucket: Bucket, section: BucketSection, place: int) -> None:
        self.bucket, self.section, self.place = bucket, section, place
        with tf1.device(ps_device(bucket.ps)):
            self.master = ps_variable(f"master/{bucket.name}", bucket.master_shape, tf1.as_dtype(bucket.dtype))

    def version(self) -> Tensor:
        """int64 [], as it is now."""
        return self.section.version.read_value()[self.place]

    def ledger(self) -> Tensor:
        """int64 [LEDGER_SIZE], as it is now."""
        return self.section.ledger.read_value()[self.place]

    def counts(self) -> Tensor:
        """int64 [max_workers, 2], accepted and received pushes, as they are now.

        Gathered: TensorFlow copies all of a variable that rows were written into when it is read.
        """
        workers = tf1.range(self.section.max_workers)
        rows = tf1.stack([workers, tf1.fill([self.section.max_workers], self.place)], axis=1)
        return tf1.raw_ops.ResourceGatherNd(resource=self.section.counts.handle, indices=rows, dtype=tf1.int64)

    def pull(self) -> tuple[Tensor, Tensor]:
        """(version of the section; master, as its variable), read on the ps in this order."""
        with tf1.device(ps_device(self.bucket.ps)):
            version = self.section.pulled_version
            with tf1.control_dependencies([version]):
                return version, self.master.read_value()

    def pull_handle(self) -> tuple[Tensor, Tensor]:
        """(version of the section; handle of the master, resource []), for reads of single rows.

        The handle itself waits for the version: a control dependency of the reads would be lost where they
        are in a loop or a branch.
        """
        with tf1.device(ps_device(self.bucket.ps)):
            version = self.section.pulled_version
            with tf1.control_dependencies([version]):
                return version, tf1.identity(self.master.handle)


def sections_on(plan: Plan, ps: int, max_workers: int) -> list[BucketSection]:
    """The sections of a ps, made anew; the global step is the last bucket of ps 0's last."""
    buckets = [*plan.on(ps), *([GLOBAL_STEP] if GLOBAL_STEP.ps == ps else [])]
    return [BucketSection(together, max_workers) for together in in_sections(buckets)]


class _OfBucket(Protocol):
    @property
    def store(self) -> BucketStore: ...


OfBucket = TypeVar("OfBucket", bound=_OfBucket)


def by_section(each: Iterable[OfBucket]) -> list[tuple[BucketSection, list[OfBucket]]]:
    """What there is of each bucket, by section, in the order that it has."""
    found: dict[str, list[OfBucket]] = {}
    for of_bucket in each:
        found.setdefault(of_bucket.store.section.name, []).append(of_bucket)
    return [(together[0].store.section, together) for together in found.values()]


class PlanStores:
    """The variables of all buckets of a plan: `buckets` by name, in the order of the plan, and the global step's."""

    def __init__(self, plan: Plan, max_workers: int) -> None:
        self.plan = plan
        sections = [section for ps in range(plan.num_ps) for section in sections_on(plan, ps, max_workers)]
        stores = {store.bucket.name: store for section in sections for store in section.stores}
        self.global_step = stores[GLOBAL_STEP.name]
        self.buckets = {bucket.name: stores[bucket.name] for bucket in plan.buckets}


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
