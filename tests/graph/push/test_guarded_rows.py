"""Rows that several workers push through the guard: the optimizers for tables make of them what a reference in numpy
makes of the pushes that were applied, and of these alone."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, FENCED, NOT_FINITE, REPEATED, STALE
from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.graph.buckets.apply import bucket_update
from psruntime.graph.buckets.bucket_store import BucketSection, PsControl
from psruntime.graph.buckets.gradient import BucketGradient
from psruntime.graph.buckets.optimizers import BucketOptimizer, Rule
from psruntime.graph.push.guard import PushedBucket, guarded_update
from psruntime.graph.push.step_messages import PUSH_ID_SIZE, Push, ReceivedPush
from tests.optimizers.test_formulas import CASES, RATE
from tests.support.local_cluster import LocalCluster
from tests.support.selection import long_but

pytestmark = pytest.mark.optimised

TOLERANCE = 1e-4  # of 60 updates in float32; one more or less is 1e-2
ROWS, WIDTH, PUSHES, LIMIT = 20, 5, 30, 2
WORKERS = {0: 50, 1: 51}  # index -> incarnation
every_case = pytest.mark.parametrize("case", long_but(["RowwiseAdagrad"], CASES))


class GuardedTable:
    """The bucket of a table with its guard on ps 0, driven by hand."""

    def __init__(self, cluster: LocalCluster, make_optimizer: Any, initial: Any, limit: int = LIMIT) -> None:
        bucket = Bucket("table", 0, (Piece("table", 0, initial.size),), "float32", initial.shape, True, group=1)
        with tf1.Graph().as_default() as graph:
            control, section = PsControl(0, cluster.max_workers), BucketSection([bucket], cluster.max_workers)
            (store,) = section.stores
            with tf1.device("/job:ps/task:0"):
                self._identity = tf1.placeholder(tf1.int64, [PUSH_ID_SIZE])
                self._finite = tf1.placeholder(tf1.bool, [])
                self._values = tf1.placeholder(tf1.float32, [None, WIDTH])
                self._indices = tf1.placeholder(tf1.int64, [None])
                rate = tf1.constant(RATE)
            request = ReceivedPush(
                Push.of(self._identity, self._finite), learning_rates=[rate], members=None, factor=None
            )
            optimizer = BucketOptimizer([Rule("*", make_optimizer, RATE)], bucket, [rate])
            update = bucket_update(optimizer, store)
            gradient = BucketGradient(self._values, self._indices)
            self._outcome, _ = guarded_update(section, control, request, [PushedBucket(store, gradient, update)])
            self._pulled = section.pulled_version
            init = [store.master.assign(initial), *(v.initializer for v in [*section.counters, *optimizer.variables])]
            limited = control.max_staleness.assign(limit)
            slots = [v.read_value() for v in optimizer.variables if optimizer.is_slot(v, store.master)]
            self._held = [store.master.read_value(), *slots]
            self._version = store.version()
        self.session = cluster.session(graph)
        self.session.run([init, limited])

    def push(
        self, worker: int, sequence: int, rows: Any, values: Any, pulled: int, finite: bool = True, incarnation: int = 0
    ) -> int:
        """The verdict."""
        admitted = incarnation or WORKERS[worker]
        feed = {self._identity: [worker, admitted, sequence, admitted], self._finite: finite, self._pulled: [pulled]}
        return int(self.session.run(self._outcome, {**feed, self._indices: rows, self._values: values})[0])

    def held(self) -> list[Any]:
        """Master and slots."""
        return self.session.run(self._held)

    def version(self) -> int:
        return int(self.session.run(self._version))


@pytest.fixture(scope="module")
def cluster() -> LocalCluster:
    cluster = LocalCluster(1, max_staleness=LIMIT)
    cluster.fence(WORKERS)
    return cluster


def agree(table: GuardedTable, expected: Any) -> None:
    for mine, value in zip(table.held(), [expected.w, *expected.slots.values()], strict=True):
        np.testing.assert_allclose(mine, value, rtol=TOLERANCE, atol=TOLERANCE)


@every_case
def test_what_is_applied_of_two_workers_is_what_the_formula_makes_of_it(cluster: LocalCluster, case: str) -> None:
    """In turn, of rows that both have and rows that one has; what is refused in between moves nothing."""
    make, of_reference = CASES[case]
    random = np.random.RandomState(6)
    initial = random.standard_normal([ROWS, WIDTH]).astype("float32")
    table, expected = GuardedTable(cluster, make, initial), of_reference(initial, RATE)
    causes = []
    for sequence in range(1, PUSHES + 1):
        worker = int(random.randint(2))
        rows = random.choice(ROWS - 4, 6, replace=False) + 2 * worker
        values = random.standard_normal([6, WIDTH]).astype("float32")
        version = table.version()
        before = table.held()
        causes += [
            table.push(worker, 1000 + sequence, rows, values, version - LIMIT - 1),
            table.push(worker, 2000 + sequence, rows, values, version, finite=False),
            table.push(worker, 3000 + sequence, rows, values, version, incarnation=9),
        ]
        for mine, value in zip(table.held(), before, strict=True):
            np.testing.assert_array_equal(mine, value)
        assert table.push(worker, sequence, rows, values, max(0, version - sequence % (LIMIT + 1))) == APPLIED
        assert table.push(worker, sequence, rows, values, version) == REPEATED
        expected.update(rows, values)
    assert causes == [STALE, NOT_FINITE, FENCED] * PUSHES
    agree(table, expected)


@every_case
def test_pushes_at_the_same_time_are_applied_one_after_the_other(cluster: LocalCluster, case: str) -> None:
    """All are alike, so that their order makes no difference, and none is too stale, however long its worker sleeps."""
    make, of_reference = CASES[case]
    random = np.random.RandomState(7)
    initial = random.standard_normal([ROWS, WIDTH]).astype("float32")
    values = random.standard_normal([3, WIDTH]).astype("float32")
    table, expected = GuardedTable(cluster, make, initial, limit=2 * PUSHES), of_reference(initial, RATE)
    verdicts: list[int] = []

    def work(worker: int) -> None:
        for sequence in range(1, PUSHES + 1):
            verdicts.append(table.push(worker, sequence, [1, 5, 7], values, table.version()))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in WORKERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [APPLIED] * 2 * PUSHES
    for _ in verdicts:
        expected.update([1, 5, 7], values)
    agree(table, expected)
