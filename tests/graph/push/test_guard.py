"""The guard on one ps: who is let in, what a refusal leaves alone, and that no two updates mix."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, FENCED, MAX_STALENESS, NOT_FINITE, RECEIVED, REPEATED, STALE
from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.graph.buckets.bucket_store import BucketSection, BucketStore, PsControl
from psruntime.graph.buckets.gradient import BucketGradient
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.push.guard import PushedBucket, guarded_update
from psruntime.graph.push.step_messages import PUSH_ID_SIZE, Push, ReceivedPush
from psruntime.model import Context
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import INCARNATION, LocalCluster, linear_model, train

pytestmark = pytest.mark.optimised

SIZE = 4
WORKERS = {0: 50, 1: 51, 2: 52, 3: 53}  # index -> incarnation


class GuardedBucket:
    """One bucket with its guard, driven by hand."""

    def __init__(self, cluster: LocalCluster, make_optimizer: Any) -> None:
        with tf1.Graph().as_default() as graph:
            control = PsControl(0, cluster.max_workers)
            section = BucketSection([Bucket("w", 0, (Piece("w", 0, SIZE),), "float32")], cluster.max_workers)
            (self.store,) = section.stores
            with tf1.device("/job:ps/task:0"):
                self.identity = tf1.placeholder(tf1.int64, [PUSH_ID_SIZE])
                self.finite = tf1.placeholder(tf1.bool, [])
                self.gradient = tf1.placeholder(tf1.float32, [SIZE])
                optimizer = make_optimizer(0.1)
            request = ReceivedPush(Push.of(self.identity, self.finite), learning_rates=[], members=None, factor=None)
            self.pulled = section.pulled_version
            pushed = PushedBucket(
                self.store,
                BucketGradient(self.gradient),
                lambda gradient: optimizer.apply_gradients([(gradient.values, self.store.master)]),
            )
            self.outcome, _ = guarded_update(section, control, request, [pushed])
            self.optimizer_variables = list(optimizer.variables())
            everything = [self.store.master, *section.counters, *self.optimizer_variables]
            init = [v.initializer for v in everything]
            self._values = [v.read_value() for v in [self.store.master, *self.optimizer_variables]]
            self._limit = tf1.placeholder(tf1.int64, [])
            self._set_limit = control.max_staleness.assign(self._limit, read_value=False)
            self._ledger, self._version = self.store.ledger(), self.store.version()
        self.session = cluster.session(graph)
        self.session.run(init)

    def push(
        self, worker: int, sequence: int, pulled: int, *, incarnation: int | None = None, finite: bool = True,
        origin: int | None = None,
    ) -> Any:  # fmt: skip
        """(verdict, staleness); the origin is the incarnation unless it is given."""
        admitted = WORKERS[worker] if incarnation is None else incarnation
        identity = [worker, admitted, sequence, admitted if origin is None else origin]
        feed = {self.identity: identity, self.finite: finite, self.pulled: [pulled], self.gradient: np.ones(SIZE)}
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
    feed = {bucket.identity: [99, 1, 1, 1], bucket.finite: True, bucket.pulled: [0], bucket.gradient: np.ones(SIZE)}
    with pytest.raises(tf1.errors.InvalidArgumentError):  # worker 99 is outside the table
        bucket.session.run(bucket.outcome, feed)
    assert bucket.push(0, 1, pulled=0)[0] == APPLIED


class GuardedSection:
    """A section of two buckets that are pushed, and one that is not."""

    def __init__(self, cluster: LocalCluster) -> None:
        names = ("first", "second", "untrained")
        with tf1.Graph().as_default() as graph:
            control = PsControl(0, cluster.max_workers)
            buckets = [Bucket(name, 0, (Piece(name, 0, SIZE),), "float32") for name in names]
            section = BucketSection(buckets, cluster.max_workers)
            with tf1.device("/job:ps/task:0"):
                self.identity = tf1.placeholder(tf1.int64, [PUSH_ID_SIZE])
                self.seconds = tf1.placeholder(tf1.float64, [])
                gradient = BucketGradient(tf1.ones([SIZE]))
            request = ReceivedPush(Push.of(self.identity, tf1.constant(True)), [], members=None, factor=None)
            *pushed, _ = section.stores
            each = [PushedBucket(store, gradient, partial(self._update, store)) for store in pushed]
            self.pulled = section.pulled_version
            self.outcome, _ = guarded_update(section, control, request, each)
            self._masters = [store.master.read_value() for store in section.stores]
            self._counters = [variable.read_value() for variable in section.counters]
            init = [v.initializer for v in [*(store.master for store in section.stores), *section.counters]]
        self.session = cluster.session(graph)
        self.session.run(init)

    def _update(self, store: BucketStore, gradient: BucketGradient) -> Any:
        def wait(seconds: Any, values: Any) -> Any:
            time.sleep(seconds)
            return values

        added = tf1.py_func(wait, [self.seconds, gradient.values], tf1.float32)
        return store.master.assign_add(tf1.reshape(added, [SIZE]), read_value=False)

    def push(self, sequence: int, pulled: int = 0, seconds: float = 0.0, timeout_ms: int = 0) -> int:
        """The verdict.  seconds: that each update takes.  timeout_ms: of the run; 0: none."""
        feed = {self.identity: [0, WORKERS[0], sequence, 5], self.pulled: [pulled] * 3, self.seconds: seconds}
        return int(self.session.run(self.outcome, feed, tf1.RunOptions(timeout_in_ms=timeout_ms))[0])

    def values(self) -> list[float]:
        """The first entry of each bucket."""
        return [float(master[0]) for master in self.session.run(self._masters)]

    def counters(self) -> tuple[list[int], list[list[int]], list[list[int]]]:
        """Of each bucket: its version; (received, applied, repeated, stale); (accepted, received) of worker 0."""
        version, ledger, _, counts = self.session.run(self._counters)
        return version.tolist(), ledger[:, [RECEIVED, APPLIED, REPEATED, STALE]].tolist(), counts[0].tolist()


def test_one_decision_counts_for_the_buckets_that_are_pushed(cluster: LocalCluster) -> None:
    section = GuardedSection(cluster)
    assert section.push(1) == APPLIED
    assert section.push(1, pulled=1) == REPEATED
    assert section.push(2, pulled=2) == STALE, "pulled before the buckets were made anew"
    assert section.values() == [1.0, 1.0, 0.0]
    version, ledger, counts = section.counters()
    assert version == [1, 1, 0]
    assert ledger == [[3, 1, 1, 1], [3, 1, 1, 1], [0, 0, 0, 0]]
    assert counts == [[1, 3], [1, 3], [0, 0]]


def test_a_section_that_has_begun_ends_when_its_run_is_cut_off(cluster: LocalCluster) -> None:
    section = GuardedSection(cluster)
    with pytest.raises(tf1.errors.UnavailableError):
        section.push(1, seconds=1.0, timeout_ms=300)
    assert section.push(1, pulled=1) == REPEATED, "it waits for the first"
    assert section.values() == [1.0, 1.0, 0.0]
    assert section.counters()[1][:2] == [[2, 1, 1, 0]] * 2


def test_outcomes_are_in_the_order_of_the_plan_whatever_the_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """In which a replay of the rounds log reads the positions of contributions."""

    def with_bias_alone(buckets: list[Bucket]) -> list[list[Bucket]]:
        alone = [bucket for bucket in buckets if bucket.name == "hidden/bias"]
        return [alone, [bucket for bucket in buckets if bucket not in alone]]

    monkeypatch.setattr("psruntime.graph.buckets.bucket_store.in_sections", with_bias_alone)
    model = linear_model(tf1.train.GradientDescentOptimizer)
    run = train(LocalCluster(1, max_staleness=0), model, 2, plan="per-variable")
    stores = run.graph.model.stores
    names = [*stores, "global_step"]
    assert [len(store.section.stores) for store in stores.values()] == [3, 1, 3]
    batch = InputStream(model, Context("train", 0, 1, 8, "", 3)).draw_endlessly()
    feed = dict(zip(run.graph.model.batch, batch, strict=True))
    for number, (stale, version) in enumerate([("hidden/bias", [0]), ("out", [0] * 3)], start=100):
        request = {run.graph.request.fed: run.graph.request.values((0, INCARNATION, number, 1))}
        pulled = {stores[stale].section.pulled_version: version}
        with run.cluster.session(run.graph.graph) as session:
            (outcomes,) = session.run(run.graph.step, {**feed, **request, **pulled})["outcomes"]
        of_section = {name for name in names if name in [s.bucket.name for s in stores[stale].section.stores]}
        assert [names[row] for row in np.flatnonzero(outcomes[:, 0] == STALE)] == [n for n in names if n in of_section]
