"""The state of a ps as the ps itself reads it, and the ps of a worker that trains alone.

So status, metrics and fencing need no worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import is_balanced, stats_of
from psruntime.core.members.messages import PsStats, RowCounts
from psruntime.core.members.view import PsEntry, View
from psruntime.core.plan.buckets import Bucket
from psruntime.core.plan.plan import Plan
from psruntime.faults import first_line
from psruntime.graph.base.server import ps_device, start_server
from psruntime.graph.base.types import Array
from psruntime.graph.buckets.bucket_store import (
    ACCEPTED,
    ARRIVED,
    GLOBAL_STEP,
    NO_LIMIT,
    PsControl,
    sections_on,
)
from psruntime.graph.embedding.id_rows import IdRows
from psruntime.network.interfaces import LOOPBACK

HOST = "127.0.0.1"  # at which the worker reaches them; TensorFlow's servers listen at every address


class PrivatePs:
    """As many as the job has.  TensorFlow's servers never end, so they are kept, empty, for the next worker."""

    def __init__(self, num_ps: int) -> None:
        self._servers = [start_server("ps", ps, HOST, 0, LOOPBACK) for ps in range(num_ps)]
        self._states: list[PsState] = []
        self._views = 0

    def begin(self, worker: int, incarnation: int, max_workers: int, learning_rate_scale: float) -> View:
        """A new view of them, empty, in which this worker is admitted.  The rest as in PsState."""
        self.clear()
        self._views += 1
        for ps, (server, _) in enumerate(self._servers):
            self._states.append(PsState(server.target, ps, max_workers))
            self._states[ps].write_admitted({worker: incarnation}, None, learning_rate_scale)
        entries = (PsEntry(ps, address, self._views) for ps, (_, address) in enumerate(self._servers))
        return View(self._views, tuple(entries))

    def clear(self) -> None:
        """Gives all their memory back; their sessions are closed then."""
        self._states.clear()
        for server, _ in self._servers:
            tf1.Session.reset(server.target)


CLEAR_MS = 5000  # to end a dead worker's session, which takes milliseconds


class PsState:
    """`set_plan` belongs to one thread; everything else may be called by any."""

    def __init__(self, target: str, index: int, max_workers: int) -> None:
        self._target = target
        self._index = index
        self._max_workers = max_workers
        with tf1.Graph().as_default() as graph, tf1.device(ps_device(index)):
            control = PsControl(index, max_workers)
            self._table = tf1.placeholder(tf1.int64, [max_workers])
            self._limit = tf1.placeholder(tf1.int64, [])
            self._scale = tf1.placeholder(tf1.float32, [])
            write_limit = control.max_staleness.assign(self._limit, read_value=False)
            write_scale = control.learning_rate_scale.assign(self._scale, read_value=False)
            # First, so that no worker is admitted under an older, lower limit, or another scale.
            with tf1.control_dependencies([write_limit, write_scale]):
                self._write_admitted = control.admitted.assign(self._table, read_value=False)
            self._bytes = control.bytes_held.read_value()
            setup = [v.initializer for v in control.variables]
        with tf1.Graph().as_default():
            self._nothing = tf1.no_op()
        self._session = tf1.Session(target, graph=graph)
        self._session.run(setup)
        self._ledgers: LedgerReader | None = None

    def write_admitted(
        self, admitted: Mapping[int, int], max_staleness: int | None, learning_rate_scale: float = 1.0
    ) -> None:
        """From here on only these incarnations' pushes are applied, and none that is staler than the limit.

        admitted: worker index -> incarnation.  max_staleness: in versions; None: no limit.  learning_rate_scale: by
        which the learning rates of these pushes are multiplied.
        """
        table = np.zeros([self._max_workers], np.int64)
        for worker, incarnation in admitted.items():
            table[worker] = incarnation
        limit = NO_LIMIT if max_staleness is None else min(max_staleness, NO_LIMIT)
        fed = {self._table: table, self._limit: limit, self._scale: learning_rate_scale}
        self._session.run(self._write_admitted, fed)

    def clear_session(self, worker: int) -> str:
        """Ends what a worker that was killed has left of its session here; why not, if that failed.

        A session under its index from another process ends those of the one before.
        """
        config = tf1.ConfigProto(operation_timeout_in_ms=CLEAR_MS)
        config.experimental.share_session_state_in_clusterspec_propagation = True
        config.cluster_def.job.add(name="worker").tasks[worker] = self._target.removeprefix("grpc://")
        try:
            with tf1.Session(self._target, graph=self._nothing.graph, config=config) as session:
                session.run(self._nothing)
        except tf1.errors.OpError as error:
            return first_line(error)
        return ""

    def set_plan(self, plan: Plan) -> None:
        """Takes note of the buckets that are here; the plan is known once the view is prepared."""
        if self._ledgers is None:
            self._ledgers = LedgerReader(self._target, self._index, plan, self._max_workers)

    @property
    def has_plan(self) -> bool:
        return self._ledgers is not None

    def read(self) -> tuple[PsStats, int]:
        """(sums over the buckets, global step); the step is 0 on a ps that does not have it, or has no buckets."""
        if self._ledgers:
            return self._ledgers.read()
        return PsStats(bytes_held=int(self._session.run(self._bytes))), 0

    def accepted(self) -> dict[int, tuple[int, int]]:
        """Worker index -> pushes that the buckets accepted of it: the fewest and the most."""
        return self._ledgers.accepted() if self._ledgers else {}

    def unbalanced(self) -> list[str]:
        """Names of the buckets whose ledger says that an update is not accounted for: none, ever."""
        ledgers = self._ledgers.ledgers() if self._ledgers else {}
        return [name for name, row in ledgers.items() if not is_balanced(row)]


class LedgerReader:
    """Reads the ledgers of a ps's buckets.  The view must be prepared."""

    def __init__(self, target: str, index: int, plan: Plan, max_workers: int) -> None:
        with tf1.Graph().as_default() as graph, tf1.device(ps_device(index)):
            sections = sections_on(plan, index, max_workers)
            stores = [store for section in sections for store in section.stores]
            self.names = [store.bucket.name for store in stores]
            self._ledgers = [section.ledger.read_value() for section in sections]
            self._counts = [section.counts.read_value() for section in sections]
            arrived = [tf1.reduce_min(counts[:, :, ARRIVED], axis=1) for counts in self._counts]
            self._arrived = tf1.reduce_min(tf1.stack(arrived), axis=0) if arrived else tf1.zeros([0], tf1.int64)
            self._dynamic = [store.bucket for store in stores if _is_dynamic(store.bucket, plan)]
            id_rows = [IdRows(s, plan.group_of[s.bucket.name]) for s in stores if s.bucket in self._dynamic]
            self._row_counts = [tf1.reduce_sum(rows.counts.read_value(), axis=0) for rows in id_rows]
            self._bytes = PsControl(index, max_workers).bytes_held.read_value()
            step = stores[-1].master.read_value()[0] if GLOBAL_STEP.ps == index else tf1.constant(0)
            self._step = step
        self._session = tf1.Session(target, graph=graph)

    def ledgers(self) -> dict[str, Array]:
        """Bucket name -> int64 [LEDGER_SIZE]."""
        rows = [row for of_section in self._session.run(self._ledgers) for row in of_section]
        return dict(zip(self.names, rows, strict=True))

    def accepted(self) -> dict[int, tuple[int, int]]:
        """Worker index -> pushes that the buckets accepted of it: the fewest and the most."""
        if not self.names:
            return {}
        counts = np.concatenate(self._session.run(self._counts), axis=1)[:, :, ACCEPTED]
        fewest, most = counts.min(axis=1), counts.max(axis=1)
        return {int(worker): (int(fewest[worker]), int(most[worker])) for worker in np.flatnonzero(most)}

    def read(self) -> tuple[PsStats, int]:
        """(sums over the buckets, global step)."""
        ledgers, arrived, bytes_held, step, row_counts = self._session.run(
            [self._ledgers, self._arrived, self._bytes, self._step, self._row_counts]
        )
        stats = replace(
            stats_of([row for of_section in ledgers for row in of_section.tolist()]),
            bytes_held=int(bytes_held),
            received_of={int(worker): int(arrived[worker]) for worker in np.flatnonzero(arrived)},
            row_counts=tuple(
                RowCounts(bucket.variable, _rows_of(bucket), *map(int, counts))
                for bucket, counts in zip(self._dynamic, row_counts, strict=True)
            ),
        )
        return stats, int(step)


def _is_dynamic(bucket: Bucket, plan: Plan) -> bool:
    group = plan.group_of.get(bucket.name)
    return group is not None and group.dynamic is not None


def _rows_of(bucket: Bucket) -> int:
    """Rows of its table there; the bucket may have a few more, so that it is as large on every ps."""
    return bucket.pieces[0].size // prod(bucket.master_shape[1:])
