"""One bucket of the sync mode on one ps, driven by hand: contribute, close, seal, and everything to look at."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import is_balanced
from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.graph.buckets.apply import bucket_update
from psruntime.graph.buckets.bucket_store import BucketSection, PsControl
from psruntime.graph.buckets.gradient import BucketGradient
from psruntime.graph.buckets.optimizers import BucketOptimizer, Rule
from psruntime.graph.push.round_sum import SectionRounds, close, contribute
from psruntime.graph.push.step_messages import PUSH_ID_SIZE, Push, ReceivedPush
from tests.support.local_cluster import LocalCluster

ROWS, WIDTH = 6, 2
WORKERS = {0: 50, 1: 51, 2: 52, 3: 53}  # index -> incarnation
KINDS = ("dense", "table")


class RoundBucket:
    """`kind`: one of KINDS.  Gradients are given as [ROWS, WIDTH]; of a table only the rows named are pushed."""

    def __init__(self, cluster: LocalCluster, kind: str, dtype: str = "float32") -> None:
        self.is_table = kind == "table"
        shape = (ROWS, WIDTH) if self.is_table else None
        bucket = Bucket(f"{kind}/{dtype}", 0, (Piece(kind, 0, ROWS * WIDTH),), dtype, shape)
        with tf1.Graph().as_default() as graph:
            control = PsControl(0, cluster.max_workers)
            section = BucketSection([bucket], cluster.max_workers)
            (self.store,), self.rounds = section.stores, SectionRounds(section)
            self.sums = self.rounds.of(self.store, self.is_table)
            with tf1.device("/job:ps/task:0"):
                self._identity = tf1.placeholder(tf1.int64, [PUSH_ID_SIZE])
                self._finite = tf1.placeholder(tf1.bool, [])
                self._unit = tf1.placeholder(tf1.float64, [])
                self._members = tf1.placeholder(tf1.int64, [])
                self._factor = tf1.placeholder(tf1.float64, [])
                self._fails = tf1.placeholder_with_default(False, [])
                self._holds = tf1.placeholder_with_default(False, [])
                gate = tf1.FIFOQueue(1, tf1.bool, [], shared_name=f"gate/{bucket.name}")
                self._gate, self._open_gate = gate, gate.enqueue(True)
                value_shape = [None, WIDTH] if self.is_table else [ROWS * WIDTH]
                self._values = tf1.placeholder(self.sums.sum.dtype, value_shape)
                self._indices = tf1.placeholder(tf1.int64, [None]) if self.is_table else None
                rates = [tf1.constant(1.0, tf1.as_dtype(dtype))]
            rule = Rule("*", partial(tf1.train.MomentumOptimizer, momentum=0.5), 1.0)
            self._optimizer = BucketOptimizer([rule], bucket, rates)
            self.rounds.add = self._held_after(self.rounds.add)  # type: ignore[method-assign]
            push = Push.of(self._identity, self._finite)
            gradient = BucketGradient(self._values, self._indices)
            request = ReceivedPush(push, [tf1.constant(1.0)], self._members, self._factor, self._unit)
            self._contribute = contribute(self.rounds, control, request, [gradient])
            self._close, _ = close(self.rounds, control, request, [(self._update, None)])
            self._seal = self.rounds.seal(lambda body: body)
            everything = [self.store.master, *section.counters, *self.rounds.variables, *self._optimizer.variables]
            self._init = [v.initializer for v in everything]
            self._held = {
                "master": [v.read_value() for v in [self.store.master, *self._optimizer.variables]],
                "version": self.store.version(),
                "ledger": self.store.ledger(),
                "books": self.rounds.state.read_value(),
                "sum": self.sums.sum.total(self.sums.sum.read()).tensors,
                "unit": self.rounds.scale.read_value(),
                "square": self.sums.square(),
            }
        self.session = cluster.session(graph)
        self.reset()

    def _held_after(self, add: Any) -> Any:
        """What adds to the sum, and then stops until `go_on` is called if it is to."""

        def held(*args: Any) -> Any:
            with tf1.control_dependencies([added := add(*args)]):
                through = tf1.cond(tf1.identity(self._holds), self._gate.dequeue, lambda: tf1.constant(True))
            with tf1.control_dependencies([through]):
                return tf1.identity(added)

        return held

    def _update(self, total: BucketGradient) -> Any:
        with tf1.control_dependencies(total.tensors):  # dead if they are
            fails, holds = tf1.identity(self._fails), tf1.identity(self._holds)
        joint = self.sums.joint(total, self._factor)
        with tf1.control_dependencies([tf1.debugging.Assert(tf1.logical_not(fails), ["cut off"])]):
            through = tf1.cond(holds, self._gate.dequeue, lambda: tf1.constant(True))
        with tf1.control_dependencies([through]):
            values = tf1.identity(joint.values)
        dtype = self.store.master.dtype.base_dtype
        return bucket_update(self._optimizer, self.store)(joint.with_values(tf1.cast(values, dtype)))

    def contribute(
        self,
        worker: int,
        attempt: int,
        gradient: Any = 1.0,
        rows: Any = range(ROWS),
        *,
        incarnation: int | None = None,
        finite: bool = True,
        unit: float = 1.0,
        holds: bool = False,
        timeout_ms: int = 0,
    ) -> int:
        """The verdict: a column of the ledger.  `unit` is 0 if it is not finite.

        holds: it stops, once it is added to the sum, until `go_on` is called.  timeout_ms: 0 for none.
        """
        feed = {self._identity: self._id(worker, attempt, incarnation), self._finite: finite, self._holds: holds}
        feed[self._unit] = unit if finite else 0.0
        whole = np.zeros([ROWS, WIDTH]) + np.asarray(gradient)
        if self.is_table:
            feed.update({self._values: whole[list(rows)], self._indices: list(rows)})
        else:
            kept = np.isin(np.arange(ROWS), list(rows))[:, None]
            feed[self._values] = (whole * kept).reshape(-1)
        options = tf1.RunOptions(timeout_in_ms=timeout_ms)
        verdict, _, self.position = map(int, self.session.run(self._contribute, feed, options=options))
        self.check_balance()
        return verdict

    def close(
        self,
        attempt: int,
        members: int,
        factor: float = 1.0,
        *,
        worker: int = 0,
        incarnation: int | None = None,
        fails: bool = False,
        holds: bool = False,
        timeout_ms: int = 0,
    ) -> list[int]:
        """The books after it.

        fails: its update does.  holds: its update stops until `go_on` is called.  timeout_ms: 0 for none.
        """
        feed = {self._identity: self._id(worker, attempt, incarnation), self._finite: True}
        feed.update({self._fails: fails, self._holds: holds})
        feed.update({self._members: members, self._factor: factor})
        books = self.session.run(self._close, feed, options=tf1.RunOptions(timeout_in_ms=timeout_ms))
        self.check_balance()
        return [int(n) for n in books]

    def ran_in_close(self, attempt: int, members: int, factor: float) -> list[str]:
        """The names of the operations that ran in a close."""
        feed = {self._identity: self._id(0, attempt, None), self._finite: True}
        feed.update({self._members: members, self._factor: factor})
        told = tf1.RunMetadata()
        self.session.run(self._close, feed, tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE), told)
        return [node.node_name for device in told.step_stats.dev_stats for node in device.node_stats]

    def go_on(self) -> None:
        self.session.run(self._open_gate)

    def seal(self) -> None:
        self.session.run(self._seal)

    def reset(self) -> None:
        """As if nobody had touched it."""
        self.session.run(self._init)

    def look(self) -> dict[str, Any]:
        """Everything that the ps holds of the bucket."""
        held: dict[str, Any] = self.session.run(self._held)
        return held

    def same(self, before: dict[str, Any], *but: str) -> bool:
        """Whether it holds, to the bit, what it held before."""
        pairs = [(before[name], value) for name, value in self.look().items() if name not in but]
        return all(
            np.array_equal(old, new)
            for olds, news in pairs
            for old, new in (zip(olds, news, strict=True) if isinstance(news, list) else [(olds, news)])
        )

    def master(self) -> Any:
        """[ROWS, WIDTH]"""
        return np.asarray(self.look()["master"][0], np.float64).reshape(ROWS, WIDTH)

    def total(self) -> Any:
        """The sum times its unit, as [ROWS, WIDTH]."""
        held = self.look()
        values, *indices = held["sum"]
        if not indices:
            return held["unit"] * values.reshape(ROWS, WIDTH)
        assert len(indices[0]) == len(set(indices[0])), "each row once"
        total = np.zeros([ROWS, WIDTH], values.dtype)
        total[indices[0]] = values
        return held["unit"] * total

    def books(self) -> list[int]:
        """(attempt, count, intent, applied attempt)"""
        return [int(n) for n in self.look()["books"]]

    def ledger(self, *columns: int) -> list[int]:
        ledger = self.look()["ledger"]
        return [int(ledger[column]) for column in columns]

    def check_balance(self) -> None:
        row = self.look()["ledger"]
        assert is_balanced(row)

    @staticmethod
    def _id(worker: int, attempt: int, incarnation: int | None) -> list[int]:
        admitted = WORKERS[worker] if incarnation is None else incarnation
        return [worker, admitted, attempt, admitted]
