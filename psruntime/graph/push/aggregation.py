"""Variables with an aggregation: the model changes a copy on its worker, and the ps combines what the workers made.

The variable is a bucket on its ps.  The copy has the pulled value before the model first reads or changes it.  From
then on until a step has read the result, it has the copies of its worker exclusively: the steps of a pipeline share
them.

The ps aggregates as tf.VariableAggregation has it.  SUM and MEAN are over the workers of a round; a push of the other
modes is by itself, so both are what it has.  ONLY_FIRST_REPLICA is what the chief has.  What is aggregated are values
where the model assigns such as do not depend on the one before, and the changes elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import tensorflow.compat.v1 as tf1

from psruntime.config.schedule import LOCAL
from psruntime.core.accounting.accounts import PENDING
from psruntime.core.plan.buckets import VariableSpec
from psruntime.errors import UsageError
from psruntime.graph.base.graphs import Use, ancestors, uses_of
from psruntime.graph.base.server import worker_cpu, worker_device
from psruntime.graph.base.types import Op, Tensor
from psruntime.graph.buckets.apply import Update, counting_update, setting_update, subtracting_update
from psruntime.graph.buckets.bucket_store import BucketStore
from psruntime.graph.buckets.gradient import BucketGradient
from psruntime.graph.push.round_sum import BucketSum
from psruntime.graph.push.step_messages import ReceivedPush

ASSIGN = "AssignVariableOp"


@dataclass
class Copy:
    """The copy of one variable.

    value: as pulled, on the worker.  begun: an operation after which the step has the copies exclusively.
    handle: for the model's reads and changes, which waits for the value; own: that of the variable.
    """

    spec: VariableSpec
    value: Tensor
    begun: Op
    own: Tensor = field(init=False)
    handle: Tensor = field(init=False)

    def bind(self, handle: Tensor) -> Tensor:
        """Makes the variable with this handle, resource [], the copy.  Returns the handle for the model."""
        self.own = handle
        with tf1.control_dependencies(None), tf1.device(handle.device), tf1.name_scope(f"aggregated/{self.spec.name}/"):
            with tf1.control_dependencies([self.begun]):
                assigned = tf1.raw_ops.AssignVariableOp(resource=handle, value=self.value)
            with tf1.control_dependencies([assigned]):
                self.handle = tf1.identity(handle)
        return self.handle

    @property
    def uses(self) -> list[Use]:
        return uses_of(self.handle)

    @property
    def changing(self) -> set[str]:
        """Names of the operations of the model that change it."""
        return {use.operation for use in self.uses if use.changes}

    def read(self) -> Tensor:
        """The value, as the variable, after the current control dependencies."""
        with tf1.device(self.own.device):
            value = tf1.raw_ops.ReadVariableOp(resource=self.own, dtype=self.value.dtype.base_dtype)
            value.set_shape(self.spec.shape)
            return value

    def is_assigned(self, run: set[Op]) -> bool:
        """Whether each of the operations `run` that change it assigns, in every step, a value independent of it."""
        graph = self.own.graph
        changing = {graph.get_operation_by_name(name) for name in self.changing} & run
        return all(
            op.type == ASSIGN
            and op._get_control_flow_context() is None  # in a branch it may not run
            and self.handle.op not in ancestors([op.inputs[1]], data_only=True)
            for op in changing
        )


class Made(NamedTuple):
    """The result of a step in the copy.

    pushed: its value where the model assigns one that is independent of the one before, else its change; dense, of the
        variable's shape and dtype.
    """

    copy: Copy
    pushed: BucketGradient
    is_assigned: bool


class Aggregated:
    """The copies of worker `index`, in the graph that is being built, by the name of the variable.

    specs: of the variables.  values: as pulled, on the worker.
    """

    def __init__(self, specs: Iterable[VariableSpec], values: Mapping[str, Tensor], index: int) -> None:
        self._index = index
        self._lock: Tensor = None
        pulled = {spec: values[spec.name] for spec in specs}
        if pulled:
            with tf1.device(worker_cpu(index)), tf1.control_dependencies(list(pulled.values())):
                mutex = tf1.raw_ops.MutexV2(shared_name="psruntime/aggregated")
                self._lock = tf1.raw_ops.MutexLock(mutex=mutex)
        self.copies = {spec.name: Copy(spec, value, self._lock.op) for spec, value in pulled.items()}

    @property
    def sources(self) -> list[Tensor]:
        """The tensors that the model reads and changes: the values and the handles."""
        return [tensor for copy in self.copies.values() for tensor in (copy.value, copy.handle)]

    @property
    def changed(self) -> dict[str, set[str]]:
        """Names of the variables -> names of the operations of the model that change them."""
        return {name: copy.changing for name, copy in self.copies.items()}

    @property
    def touching(self) -> list[str]:
        """Names of all operations of the model that read or change one."""
        return [use.operation for copy in self.copies.values() for use in copy.uses]

    def made(self, ends: list[Tensor | Op]) -> dict[str, Made]:
        """The result of a step in each variable that it changes.  ends: all of the model that the step runs."""
        run = ancestors(ends)
        names = {op.name for op in run}
        changed = {name: copy for name, copy in self.copies.items() if copy.changing & names}
        if not changed:
            return {}
        with tf1.control_dependencies(ends):
            values = {name: copy.read() for name, copy in changed.items()}
        with tf1.device(worker_cpu(self._index)), tf1.control_dependencies(list(values.values())):
            ended = tf1.raw_ops.ConsumeMutexLock(mutex_lock=self._lock)
        made = {}
        with tf1.device(worker_device(self._index)), tf1.control_dependencies([ended]):
            for name, copy in changed.items():
                is_assigned = copy.is_assigned(run)
                pushed = tf1.identity(values[name]) if is_assigned else values[name] - copy.value
                made[name] = Made(copy, BucketGradient(pushed), is_assigned)
        return made


@dataclass(frozen=True)
class Aggregation:
    """kind: one of AGGREGATIONS.  is_assigned: whether values are aggregated, else changes."""

    kind: str
    is_assigned: bool

    @property
    def is_first_only(self) -> bool:
        return self.kind == "ONLY_FIRST_REPLICA"

    def push_update(self, store: BucketStore, request: ReceivedPush) -> Update:
        """The update by one push of this header."""
        apply = self._apply(store)

        def update(pushed: BucketGradient) -> Op:
            if self.is_first_only:
                nothing = store.master.read_value() if self.is_assigned else tf1.zeros_like(pushed.values)
                pushed = pushed.map(lambda values: tf1.where(request.is_chief, values, nothing))
            return apply(pushed)

        return update

    def contribution(self, request: ReceivedPush) -> ReceivedPush:
        """The header of a contribution to a round, with the scale at which it counts: 1, or 0 if it does not."""
        push = request.push
        counts = tf1.logical_and(push.finite, request.is_chief) if self.is_first_only else push.finite
        return replace(request, scale=tf1.cast(counts, tf1.float64))

    def round_update(self, own: BucketSum) -> Update:
        """The update by the sum of a round."""
        apply = self._apply(own.store)
        return lambda total: apply(self._joint(own, total, self.is_assigned))

    def local_update(self, own: BucketSum) -> Update:
        """The update by the sum of a local round, of what each variable was less what it is.

        Raises:
            UsageError: values are summed, of which such differences are none.
        """
        if self.is_assigned and self.kind == "SUM":
            raise UsageError(
                f"the schedule has stage '{LOCAL}', and the model assigns values to variable "
                f"{own.store.bucket.variable}, whose aggregation is SUM; leave out that stage, or use assign_add"
            )
        apply = subtracting_update(own.store)
        return lambda total: apply(self._joint(own, total, False))

    def _apply(self, store: BucketStore) -> Update:
        return setting_update(store) if self.is_assigned else counting_update(store)

    def _joint(self, own: BucketSum, total: BucketGradient, keeps: bool) -> BucketGradient:
        """What the workers have together, in the master's dtype.  keeps: where none counts it is the master."""
        factor, master = tf1.ones([], tf1.float64), own.store.master
        if self.kind == "MEAN":
            factor /= tf1.cast(own.store.ledger()[PENDING], tf1.float64)
        joint = own.joint(total, factor).map(lambda values: tf1.cast(values, master.dtype.base_dtype))
        if not keeps:
            return joint
        return joint.map(lambda values: tf1.where(own.section.scale.read_value() > 0, values, master.read_value()))
