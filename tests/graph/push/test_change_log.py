"""The log of what changed in a bucket: who pulls by it has what the master has, however far behind it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.graph.base.server import ps_device
from psruntime.graph.buckets.bucket_store import BucketSection
from psruntime.graph.buckets.gradient import FULL, BucketGradient
from psruntime.graph.model.variable_reads import APART, ChangeLog, pulled_changes
from tests.support.local_cluster import LocalCluster

SIZE = 64
ROOM = SIZE // APART


class Logged:
    """A bucket on a ps, and a worker that pulls what changed."""

    def __init__(self, cluster: LocalCluster) -> None:
        with tf1.Graph().as_default() as graph:
            section = BucketSection([Bucket("wide", 0, (Piece("wide", 0, SIZE),), "float32", group=1)], 8)
            (self.store,) = section.stores
            self.log = ChangeLog(self.store)
            self.given = tf1.placeholder(tf1.int64, [None]), tf1.placeholder(tf1.float32, [None])
            with tf1.device(ps_device(0)):
                gradient = BucketGradient(self.given[1], self.given[0])
                self.update = self.log.noting(self.write, is_by_entry=True)(gradient)
                self.update_all = self.log.noting(self.write, is_by_entry=False)(gradient)
                self.cut_off = self.log.noting(self.write_and_fail, is_by_entry=True)(gradient)
            ((self.version, self.pulled),) = pulled_changes([self.log], 0, FULL).values()
            self.start = [v.initializer for v in (self.store.master, *section.counters, *self.log.variables)]
            self.new_session = tf1.local_variables_initializer()
            self.position = tf1.placeholder(tf1.int64, [])
            self.sent = self.log.since(self.version, self.position)
        self.session = cluster.session(graph)
        self.session.run([*self.start, self.new_session])

    def write(self, gradient: BucketGradient) -> Any:
        return tf1.raw_ops.ResourceScatterUpdate(
            resource=self.store.master.handle, indices=gradient.indices, updates=gradient.values
        )

    def write_and_fail(self, gradient: BucketGradient) -> Any:
        with tf1.control_dependencies([self.write(gradient)]):
            return tf1.raw_ops.Assert(condition=tf1.equal(tf1.size(gradient.values), -1), data=["cut off"])

    def change(self, how: Any, indices: Any, values: Any) -> None:
        self.session.run(how, dict(zip(self.given, (indices, values), strict=True)))

    def since(self, position: int) -> tuple[int, list[int], Any]:
        told, values = self.session.run(self.sent, {self.position: position})
        return int(told[:2].view(np.int64)[0]), sorted(told[2:].tolist()), values


@pytest.fixture
def logged() -> Logged:
    return Logged(LocalCluster(1))


def test_what_is_pulled_is_what_the_master_has(logged: Logged) -> None:
    random = np.random.default_rng(3)
    master = np.zeros(SIZE, np.float32)
    few = whole = 0
    for _ in range(40):
        before = logged.session.run(logged.log.variables[1])[1]
        for _ in range(random.integers(4)):
            indices = random.choice(SIZE, random.integers(1, 9), replace=False)
            values = random.normal(size=len(indices)).astype(np.float32)
            kind = random.integers(12)
            if kind == 0:
                logged.change(logged.update_all, indices, values)
            elif kind == 1:
                with pytest.raises(tf1.errors.InvalidArgumentError):
                    logged.change(logged.cut_off, indices, values)
                logged.change(logged.update, indices[:1], values[:1])
            else:
                logged.change(logged.update, indices, values)
            master[indices] = values
        _, told, _ = logged.since(int(before))
        few, whole = few + (0 < len(told) <= ROOM), whole + (told == [])
        np.testing.assert_array_equal(logged.session.run(logged.pulled), master)
    assert few
    assert whole


def test_each_index_is_sent_once_and_all_of_the_master_to_whom_is_too_far_behind(logged: Logged) -> None:
    start, told, values = logged.since(-1)
    assert (told, len(values)) == ([], SIZE)
    assert logged.since(start)[1] == []
    assert len(logged.since(start)[2]) == 0
    logged.change(logged.update, [5, 9], [1.0, 2.0])
    logged.change(logged.update, [9, 7], [3.0, 4.0])
    end, told, values = logged.since(start)
    assert (end, told, sorted(values)) == (start + 4, [5, 7, 9], [1.0, 3.0, 4.0])
    logged.change(logged.update, np.arange(ROOM), np.ones(ROOM))
    assert logged.since(end)[1] == list(range(ROOM))
    assert len(logged.since(start)[2]) == SIZE
    assert len(logged.since(end + ROOM + 1)[2]) == SIZE, "of another log"


def test_a_log_that_is_made_anew_knows_no_position_of_the_one_before(logged: Logged) -> None:
    position, _, _ = logged.since(-1)
    for _ in range(3):
        logged.change(logged.update, np.arange(ROOM), np.ones(ROOM))
        last, _, _ = logged.since(-1)
    logged.session.run(logged.start)
    for known in (position, last):
        assert len(logged.since(known)[2]) == SIZE
    assert logged.since(-1)[0] > last


def test_while_an_update_writes_nobody_trusts_the_indices_that_it_overwrites(logged: Logged) -> None:
    """Its count goes up before it writes, and stays so if it is cut off."""
    start, _, _ = logged.since(-1)
    logged.change(logged.update, [1], [1.0])
    with pytest.raises(tf1.errors.InvalidArgumentError):
        logged.change(logged.cut_off, np.arange(ROOM), np.ones(ROOM))
    end, told, values = logged.since(start)
    assert (end, told, len(values)) == (start + 1, [], SIZE), "the first index is overwritten"
    assert logged.since(end)[1] == [], "what has not ended is not sent"
    logged.change(logged.update, [2], [1.0])
    assert len(logged.since(end)[2]) == SIZE
