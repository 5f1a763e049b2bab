"""The guard on one ps: who is let in, what a refusal leaves alone, and that no two updates mix."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, FENCED, MAX_STALENESS, NOT_FINITE, RECEIVED, REPEATED, STALE
from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.graph.buckets.bucket_store import BucketStore, PsControl
from psruntime.graph.buckets.gradient import BucketGradient
from psruntime.graph.push.guard import guarded_update
from psruntime.graph.push.step_messages import PUSH_ID_SIZE, Push, ReceivedPush
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import LocalCluster

pytestmark = pytest.mark.optimised

SIZE = 4
WORKERS = {0: 50, 1: 51, 2: 52, 3: 53}  # index -> incarnation


class GuardedBucket:
    """One bucket with its guard, driven by hand."""

    def __init__(self, cluster: LocalCluster, make_optimizer: Any) -> None:
        with tf1.Graph().as_default() as graph:
            control = PsControl(0, cluster.max_workers)
            self.store = BucketStore(Bucket("w", 0, (Piece("w", 0, SIZE),), "float32"), cluster.max_workers)
            with tf1.device("/job:ps/task:0"):
                self.identity = tf1.placeholder(tf1.int64, [PUSH_ID_SIZE])
                self.finite = tf1.placeholder(tf1.bool, [])
                self.pulled = tf1.placeholder(tf1.int64, [])
                self.gradient = tf1.placeholder(tf1.float32, [SIZE])
                optimizer = make_optimizer(0.1)
            request = ReceivedPush(Push.of(self.identity, self.finite), learning_rates=[], members=None, factor=None)
            self.outcome, _ = guarded_update(
                self.store, control, request, self.pulled, BucketGradient(self.gradient),
                lambda gradient: optimizer.apply_gradients([(gradient.values, self.store.master)]),
            )  # fmt: skip
            self.optimizer_variables = list(optimizer.variables())
            everything = [*self.store.variables, *self.optimizer_variables]
            init = [v.initializer for v in everything]
            self._values = [v.read_value() for v in [self.store.master, *self.optimizer_variables]]
            self._limit = tf1.placeholder(tf1.int64, [])
            self._set_limit = control.max_staleness.assign(self._limit, read_value=False)
            self._ledger, self._version = self.store.ledger.read_value(), self.store.version.read_value()
        self.session = cluster.session(graph)
        self.session.run(init)

    def push(
        self, worker: int, sequence: int, pulled: int, *, incarnation: int | None = None, finite: bool = True,
        origin: int | None = None,
    ) -> Any:  # fmt: skip
        """(verdict, staleness); the origin is the incarnation unless it is given."""
        admitted = WORKERS[worker] if incarnation is None else incarnation
        identity = [worker, admitted, sequence, admitted if origin is None else origin]
        feed = {self.identity: identity, self.finite: finite, self.pulled: pulled, self.gradient: np.ones(SIZE)}
        return tuple(self.session.run(self.outcome, feed))

    def limit(self, max_staleness: int) -> None:
        self.session.run(self._set_limit, {self._limit: max_staleness})

    def values(self) -> list[Any]:
        return self.session.run(self._values)

    def version(self) -> int:
        return int(self.session.run(self._version))

    def ledger(self) -> Any:
        return self.session.run(self._ledger)


@pytest.fixture(scope="module")
def cluster() -> LocalCluster:
    cluster = LocalCluster(1)
    cluster.fence(WORKERS)
    return cluster


def test_each_cause_of_a_refusal_and_its_column(cluster: LocalCluster) -> None:
    bucket = GuardedBucket(cluster, OPTIMIZERS["sgd"])
    bucket.limit(1)
    assert bucket.push(0, 1, pulled=0) == (APPLIED, 0)
    assert bucket.push(1, 1, pulled=0) == (APPLIED, 1)
    assert bucket.push(2, 1, pulled=0) == (STALE, 2)
    assert bucket.push(2, 2, pulled=9) == (STALE, -7)  # pulled before the bucket was made anew
    assert bucket.push(0, 1, pulled=2) == (REPEATED, 0)
    assert bucket.push(0, 2, pulled=2, incarnation=49) == (FENCED, 0)
    assert bucket.push(0, 2, pulled=2, finite=False) == (NOT_FINITE, 0)
    assert bucket.push(0, 2, pulled=2) == (APPLIED, 0)
    ledger = bucket.ledger()
    assert ledger[RECEIVED] == 8
    assert [ledger[c] for c in (APPLIED, STALE, REPEATED, FENCED, NOT_FINITE)] == [3, 2, 1, 1, 1]
    assert ledger[MAX_STALENESS] == 1
    assert bucket.version() == 3


def test_a_new_incarnation_counts_its_pushes_from_the_beginning(cluster: LocalCluster) -> None:
    bucket = GuardedBucket(cluster, OPTIMIZERS["sgd"])
    assert bucket.push(3, 7, pulled=0)[0] == APPLIED
    cluster.fence({**WORKERS, 3: 99})
    assert bucket.push(3, 8, pulled=1)[0] == FENCED
    assert bucket.push(3, 1, pulled=1, incarnation=99)[0] == APPLIED
    cluster.fence({w: i for w, i in WORKERS.items() if w != 3})
    assert bucket.push(3, 2, pulled=2, incarnation=99)[0] == FENCED
    cluster.fence(WORKERS)


def test_a_push_that_is_repeated_under_a_new_incarnation_is_applied_once(cluster: LocalCluster) -> None:
    bucket = GuardedBucket(cluster, OPTIMIZERS["sgd"])
    assert bucket.push(3, 7, pulled=0, origin=5)[0] == APPLIED
    cluster.fence({**WORKERS, 3: 99})
    assert bucket.push(3, 7, pulled=1, incarnation=99, origin=5)[0] == REPEATED
    assert bucket.push(3, 8, pulled=1, incarnation=99, origin=5)[0] == APPLIED
    cluster.fence(WORKERS)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_refused_push_changes_no_bit(cluster: LocalCluster, name: str) -> None:
    bucket = GuardedBucket(cluster, OPTIMIZERS[name])
    bucket.limit(0)
    assert bucket.push(0, 1, pulled=0)[0] == APPLIED
    before = bucket.values()
    assert bucket.push(1, 1, pulled=0)[0] == STALE
    assert bucket.push(1, 2, pulled=1, finite=False)[0] == NOT_FINITE
    for old, new in zip(before, bucket.values(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert bucket.push(1, 3, pulled=1)[0] == APPLIED
    assert any(np.any(old != new) for old, new in zip(before, bucket.values(), strict=True))


def test_concurrent_pushes_keep_limit_ledger_and_optimizer_exact(cluster: LocalCluster) -> None:
    bucket = GuardedBucket(cluster, partial(tf1.train.AdamOptimizer, beta1=0.999))
    bucket.limit(1)
    outcomes: list[Any] = []

    def worker(index: int) -> None:
        for sequence in range(1, 101):
            outcomes.append(bucket.push(index, sequence, pulled=bucket.version()))

    threads = [threading.Thread(target=worker, args=(index,)) for index in WORKERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger, version = bucket.ledger(), bucket.version()
    applied = [staleness for verdict, staleness in outcomes if verdict == APPLIED]
    stale = [staleness for verdict, staleness in outcomes if verdict == STALE]
    assert len(applied) + len(stale) == len(outcomes) == 400
    assert stale, "the threads never overlapped: nothing was tested"
    assert max(applied) == 1 and min(stale) == 2
    assert (ledger[RECEIVED], ledger[APPLIED], ledger[STALE]) == (400, len(applied), len(stale))
    assert version == len(applied)
    beta1_power = bucket.values()[1]
    np.testing.assert_allclose(beta1_power, 0.999 ** (version + 1), rtol=1e-4)


def test_a_failed_apply_releases_the_mutex(cluster: LocalCluster) -> None:
    bucket = GuardedBucket(cluster, OPTIMIZERS["sgd"])
    feed = {bucket.identity: [99, 1, 1, 1], bucket.finite: True, bucket.pulled: 0, bucket.gradient: np.ones(SIZE)}
    with pytest.raises(tf1.errors.InvalidArgumentError):  # worker 99 is outside the table
        bucket.session.run(bucket.outcome, feed)
    assert bucket.push(0, 1, pulled=0)[0] == APPLIED
