"""The counters of the buckets in a recovery, and whether the coordinator knows of it.

A restored version leaps, which makes every push from before stale.  Updates that are undone move from applied to
rolled back.

Whether variables were restored without a report to the coordinator.

The chief may be lost between the end of a preparation and its report.  Then the next one finds prepared variables, and
must not adopt them as those whose position the coordinator has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import (
    APPLIED,
    EMPTY,
    LEDGER_SIZE,
    ROLLED_BACK,
    Column,
    Part,
    Row,
    brought_back,
)
from psruntime.core.accounting.saved_state import SavedState
from psruntime.core.plan.buckets import Bucket
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Array, Feed, Op, Session, Tensor
from psruntime.graph.buckets.bucket_store import (
    ACCEPTED,
    PUSHED_SIZE,
    RESTORE_LEAP,
    BucketStore,
    ChiefFence,
    Numbers,
    ps_variable,
)
from psruntime.graph.push.guard import locked
from psruntime.graph.step.train_graph import TrainGraph

KEPT_ALL = 1 << 62  # more than a job counts

Write = Callable[[list[Op], Feed], None]  # runs operations that write, with a feed


class RestoredCounters:
    """Restores the counters, or rolls them back; in the current graph."""

    def __init__(self, graph: TrainGraph) -> None:
        self._max_workers = int(graph.global_step.pushed.shape[0])
        self._of_ps = [_PsCounters(ps, graph, self._max_workers) for ps in range(graph.plan.num_ps)]

    def restore(self, write: Write, every_ps: Collection[int], state: SavedState) -> None:
        """Restores the saved counters on fresh ps."""
        for ps in every_ps:
            counters = self._of_ps[ps]
            saved = [state.buckets.get(bucket.name) for bucket in counters.buckets]
            versions = [of_bucket.version + RESTORE_LEAP if of_bucket else 0 for of_bucket in saved]
            ledgers = [brought_back(of_bucket.ledger) if of_bucket else EMPTY for of_bucket in saved]
            saved_ps = sorted({of_bucket.ps for of_bucket in saved if of_bucket})
            rows = [saved_ps.index(of_bucket.ps) + 1 if of_bucket else 0 for of_bucket in saved]
            feed = {counters.version: versions, counters.ledger: np.reshape(ledgers, [-1, LEDGER_SIZE])}
            write(counters.restore, {**feed, counters.counts: self._counts(state, saved_ps), counters.rows: rows})

    def roll_back(self, write: Write, every_ps: Collection[int], state: SavedState) -> None:
        """Rolls back, in live counters, the updates that the saved ones do not have."""
        for ps in every_ps:
            counters = self._of_ps[ps]
            saved = [state.buckets.get(bucket.name) for bucket in counters.buckets]
            kept = [_kept(of_bucket.ledger if of_bucket else EMPTY) for of_bucket in saved]
            write(counters.roll_back, {counters.kept: np.reshape(kept, [-1, LEDGER_SIZE])})

    def _counts(self, state: SavedState, saved_ps: list[int]) -> Array:
        """Zeros, and then the counts of each of these ps; int64 [1 + ps, max_workers, 2]."""
        counts = np.zeros([1 + len(saved_ps), self._max_workers, 2], np.int64)
        for row, ps in enumerate(saved_ps, start=1):
            for worker, (accepted, received) in state.counts.get(ps, {}).items():
                if worker < self._max_workers:
                    counts[row, worker] = accepted, received
        return counts


class _PsCounters:
    """The counters of one ps.  restore, roll_back: lists of operations.

    Placeholders, int64: version, rows [buckets], ledger, kept [buckets, LEDGER_SIZE], counts [any, max_workers, 2];
    `rows`: the index of each bucket's counts.
    """

    def __init__(self, ps: int, graph: TrainGraph, max_workers: int) -> None:
        stores = graph.stores_on(ps)
        self.buckets: list[Bucket] = [store.bucket for store in stores]
        count = len(stores)
        with tf1.device(ps_device(ps)):
            self.version = tf1.placeholder(tf1.int64, [count], name=f"saved_version_{ps}")
            self.ledger = tf1.placeholder(tf1.int64, [count, LEDGER_SIZE], name=f"saved_ledger_{ps}")
            self.counts = tf1.placeholder(tf1.int64, [None, max_workers, 2], name=f"saved_counts_{ps}")
            self.rows = tf1.placeholder(tf1.int64, [count], name=f"saved_rows_{ps}")
            self.kept = tf1.placeholder(tf1.int64, [count, LEDGER_SIZE], name=f"kept_{ps}")
            pushed = tf1.pad(self.counts, [[0, 0], [0, 0], [ACCEPTED, 0]])
            self.restore = [
                operation
                for i, store in enumerate(stores)
                for operation in (
                    store.version.assign(self.version[i], read_value=False),
                    store.ledger.assign(self.ledger[i], read_value=False),
                    store.pushed.assign(pushed[self.rows[i]], read_value=False),
                )
            ]
            graph.fence.guard(ps, self.restore)
            numbers = graph.controls[ps].numbers
            self.roll_back = [_roll_back(store, self.kept[i], numbers, graph.fence) for i, store in enumerate(stores)]


def _kept(saved: Row) -> list[int]:
    """The limit of each column after a return to the saved counters."""
    goes_back = [column is APPLIED or column.part is Part.SHARE for column in sorted(Column)]
    return [saved[column] if goes else KEPT_ALL for column, goes in enumerate(goes_back)]


def _roll_back(store: BucketStore, kept: Tensor, numbers: Numbers, fence: ChiefFence) -> Op:
    """Moves updates beyond `kept` to rolled back in the ledger, and clears the last push of every worker."""

    def move() -> tuple[Tensor, list[Op]]:
        ledger = store.ledger.read_value()
        left = tf1.minimum(ledger, kept)
        undone = (ledger - left)[APPLIED]
        counts_only = tf1.concat([tf1.zeros([ACCEPTED], tf1.int64), tf1.ones([PUSHED_SIZE - ACCEPTED], tf1.int64)], 0)
        return undone, [
            store.ledger.assign(left + undone * numbers.one(ROLLED_BACK), read_value=False),
            store.version.assign_add(RESTORE_LEAP, read_value=False),
            store.pushed.assign(store.pushed.read_value() * counts_only, read_value=False),
        ]

    with tf1.name_scope(f"roll_back/{store.bucket.name}/"):
        return locked(store, [kept], fence.inside(store.bucket.ps, move))[1]


class Unreported:
    """A number on ps 0: of the view in which variables are, or were, restored; 0 once that is reported.

    Builds its operations in the current graph.  variable: initialised by the chief that prepares a fresh ps 0.
    """

    def __init__(self, fence: ChiefFence) -> None:
        self._fence = fence
        with tf1.device(ps_device(0)):
            self.variable = ps_variable("unreported_view", [])
            self._view = tf1.placeholder(tf1.int64, [], name="unreported_view")
            self._begin = self.variable.assign(self._view, read_value=False)
            self._read = self.variable.read_value()
            others = tf1.where(tf1.equal(self._read, self._view), tf1.zeros_like(self._read), self._read)
            self._end = self.variable.assign(others, read_value=False)
        fence.guard(0, [self._begin])

    def begin(self, session: Session, incarnation: int, view: int) -> None:
        """To be called before the first variable is restored.  Raises ReplacedError if there is another chief."""
        self._fence.run(session, incarnation, [self._begin], {self._view: view})

    def is_left(self, session: Session) -> bool:
        """Whether a restore began in some view, and was not reported."""
        return int(session.run(self._read)) != 0

    def end(self, session: Session, view: int) -> None:
        """Clears the number: the coordinator reports the view as prepared.  Does nothing if it is another view's."""
        session.run(self._end, {self._view: view})
