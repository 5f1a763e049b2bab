"""One buffer of the replicas of one ps: the copies on the ps itself, and those on the next ps."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow.compat.v1 as tf1

from psruntime.core.recovery.replicas import holder_of
from psruntime.graph.base.devices import ps_device
from psruntime.graph.base.types import Op, Tensor, Variable
from psruntime.graph.ops import row_chunks
from psruntime.graph.ops.variable_copy import VariableCopy
from psruntime.graph.push.guard import locked
from psruntime.graph.push.round_sum import APPLIED_ATTEMPT
from psruntime.graph.step.train_graph import TrainGraph
from psruntime.graph.store.bucket_store import ACCEPTED, GLOBAL_STEP, BucketStore


class ReplicaBuffer:
    """The copies of ps `ps` in buffer `buffer`.

    take, send, free_own: operations.  names: of its buckets, in the order of `counters`.
    global_step: int64 [], of the copy on the ps itself; only on the ps of the global step.
    restore, counters: by whether they are of the copy on the next ps, or in mode sync of the one on the ps itself.
    restore: operations that assign the variables, but for the counters, the copied values.
    counters: the copied counters, (versions int64 [buckets], ledgers [buckets, LEDGER_SIZE], attempts applied
    [buckets] in mode sync, accepted and received pushes of each worker that every bucket has [max_workers, 2]).
    """

    def __init__(self, graph: TrainGraph, ps: int, buffer: int) -> None:
        self._graph = graph
        holder = holder_of(ps, graph.plan.num_ps)
        self._device, self._next = ps_device(ps), ps_device(holder)
        self._ps = ps
        self._suffix = f"replica_{buffer}"
        self._rounds = {r.store.bucket.name: r for r in graph.rounds.stores} if graph.rounds else {}
        self._stores = graph.stores_on(ps)
        self._own: dict[str, VariableCopy] = {}  # by the name of the variable's handle
        self._on_next: dict[str, VariableCopy] = {}
        self.names = [store.bucket.name for store in self._stores]
        ps_copies = [graph.model.ps_copies.variables[copy.name] for copy in graph.plan.copies if copy.ps == ps]
        self._values = [*(v for store in self._stores for v in graph.values_of(store)), *ps_copies]
        alone = [self._copy(copy) for copy in ps_copies]
        graph.fence.guard(ps, alone)
        self.take = [*map(self._copy_bucket, self._stores), *alone]
        self.send = self._guarded(holder, (self._on_next[name].assign(copy.read()) for name, copy in self._own.items()))
        self.free_own = [copy.free() for copy in self._own.values()]
        graph.fence.guard(ps, self.free_own)
        if GLOBAL_STEP.ps == ps:
            self.global_step = self._own[graph.global_step.master.handle.op.name].read()[0]
        variants = (True, False) if graph.rounds else (True,)
        self.restore = {from_next: self._restore(from_next) for from_next in variants}
        self.counters = {from_next: self._counters(from_next) for from_next in variants}

    def _restore(self, from_next: bool) -> list[Op]:
        return self._guarded(self._ps, (self._copy_of(v, from_next).give_back() for v in self._values))

    def _guarded(self, ps: int, moves: Iterable[list[Op]]) -> list[Op]:
        """The last operations of these moves to a ps, all of which wait for the fence there.

        The fence is checked once for each group of at most CHUNK_BYTES, when that has arrived.
        """
        together: list[Op] = []
        size_bytes, last = 0, []
        for writes in moves:
            last.append(writes[-1])
            if len(writes) > 1:
                for write in writes:
                    self._graph.fence.guard(ps, [write])
                continue
            value = writes[0].inputs[1]
            value_bytes = value.shape.num_elements() * value.dtype.size
            if size_bytes + value_bytes > row_chunks.CHUNK_BYTES:
                self._graph.fence.guard(ps, together)
                together, size_bytes = [], 0
            together.append(writes[0])
            size_bytes += value_bytes
        self._graph.fence.guard(ps, together)
        return last

    def _counters(self, from_next: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        def read(variable: Variable) -> Tensor:
            return self._copy_of(variable, from_next).read()

        with tf1.device(self._next if from_next else self._device):
            rounds = [self._rounds[name].state for name in self.names if name in self._rounds]
            if not self._stores:
                none = tf1.zeros([0], tf1.int64)
                return none, none[:, None], none, tf1.zeros([0, 2], tf1.int64)
            pushed = tf1.reduce_min(tf1.stack([read(store.pushed)[:, ACCEPTED:] for store in self._stores]), axis=0)
            return (
                tf1.stack([read(store.version) for store in self._stores]),
                tf1.stack([read(store.ledger) for store in self._stores]),
                tf1.stack([read(state)[APPLIED_ATTEMPT] for state in rounds]) if rounds else tf1.zeros([0], tf1.int64),
                pushed,
            )

    def _copy_bucket(self, store: BucketStore) -> Op:
        rounds = self._rounds.get(store.bucket.name)
        variables = [*self._graph.values_of(store), *store.counters, *([rounds.state] if rounds else [])]

        def copy() -> tuple[Tensor, list[Op]]:
            return tf1.constant(0), [self._copy(variable) for variable in variables]

        with tf1.name_scope(f"{store.bucket.name}/"):
            return locked(store, [], self._graph.fence.inside(self._ps, copy))[1]

    def _copy(self, variable: Variable) -> Op:
        name = variable.handle.op.name
        self._own[name] = VariableCopy(variable, f"{self._suffix}_own")
        self._on_next[name] = VariableCopy(variable, self._suffix, self._next)
        return self._own[name].take()

    def _copy_of(self, variable: Variable, from_next: bool) -> VariableCopy:
        return (self._on_next if from_next else self._own)[variable.handle.op.name]
