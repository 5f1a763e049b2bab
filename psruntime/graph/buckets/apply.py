"""The update of one bucket: its rate, what the optimizer makes of a gradient, the constraint after it, its rows' flags.

The staleness lowers the learning rate of an update in the critical section, since only the ps has it.  The optimizer is
made before the section is, and needs a tensor as its rate.  So it has a tensor whose source is replaced by the lowered
rate once the section computes that.  Where the parameters are computed from sums over all updates, as in Ftrl, all of
them share the learning rate: half the rate for one update would halve the parameters.  There the gradient is multiplied
instead.

A row's flag is set by an update of the row, in the same section: a checkpoint can save those rows alone that were
updated since all of them were last saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf1

from psruntime.config.values import StalenessLr
from psruntime.core.accounting.accounts import DOWN_WEIGHTED
from psruntime.errors import UsageError
from psruntime.graph.base.graphs import ancestors
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Op, Tensor, Variable
from psruntime.graph.base.variable_values import zeros
from psruntime.graph.buckets.bucket_store import BucketStore, Numbers, ps_variable
from psruntime.graph.buckets.gradient import BucketGradient
from psruntime.graph.buckets.optimizers import BucketOptimizer


class StalenessWeight:
    """The weights of the updates of a bucket on this ps, by a rule.

    rates: the optimizer's instead of the learning rates it was given, float32 [] of each rule.
    of_gradient: whether the gradient is multiplied instead of the rate; to be set before `of` is called.
    """

    def __init__(self, rule: StalenessLr, ps: int, numbers: Numbers, rates: Sequence[Tensor], number: int) -> None:
        """rates: as in the header.  number: which of them the bucket has."""
        self._rule = rule
        self._numbers = numbers
        self._given = rates[number]
        with tf1.device(ps_device(ps)):
            self._rate = tf1.identity(self._given, name="rate_by_staleness")
        self.rates = [*rates[:number], self._rate, *rates[number + 1 :]]
        self.of_gradient = False

    def of(self, staleness: Tensor) -> Tensor:
        """The weight of the update with this staleness, int64 [], from 0 to 1, float32 [].

        To be called once, in the section: from then on the rate is the lowered one.
        """
        numbers, decay = self._numbers, self._rule.decay
        if decay is None:
            weight = tf1.math.reciprocal(tf1.cast(tf1.maximum(staleness, numbers(1)), tf1.float32))
        else:
            late = tf1.cast(tf1.maximum(staleness, numbers(0)), tf1.float32)
            weight = tf1.exp(late * numbers(-decay, tf1.float32))
        if not self.of_gradient:
            self._rate.op._update_input(0, self._given * weight)
        return weight

    def weighted(self, gradient: BucketGradient, weight: Tensor) -> BucketGradient:
        """The gradient as the optimizer is given it.  weight: as of `of`, float32 []."""
        if not self.of_gradient:
            return gradient
        return gradient.with_values(gradient.values * tf1.cast(weight, gradient.values.dtype))

    def counted(self, applied: Tensor, weight: Tensor) -> Tensor:
        """The change of the ledger by the update, int64 [LEDGER_SIZE].  applied: bool []."""
        lowered = tf1.logical_and(applied, tf1.less(weight, self._numbers(1.0, tf1.float32)))
        return self._numbers.one(DOWN_WEIGHTED) * tf1.cast(lowered, tf1.int64)


Constraint = Callable[[Variable], Tensor]  # of a variable, its value within the constraint
Update = Callable[[BucketGradient], Op]  # builds the operation that updates a bucket from a gradient


def bucket_update(
    optimizer: BucketOptimizer, store: BucketStore, constraint: Constraint | None = None, step_read: Tensor = None
) -> Update:
    """The update of a bucket from a gradient, which may be dead: first the optimizer's, then the constraint's.

    step_read: the global step on the worker, int64 []; an update that reads it is refused.

    Everything that the optimizer makes depends on the gradient, also what does not read it: a sparse update of
    AdamOptimizer decays its slots first, whole (4.7 s for two rows of a 1 GB table; that is TensorFlow's own
    behaviour, and kept), and a refused push must leave them alone.
    """
    variable, master = store.bucket.variable, store.master

    def update(gradient: BucketGradient) -> Op:
        try:
            with tf1.control_dependencies(gradient.tensors):
                applied = optimizer.apply(gradient.for_optimizer, master)
        except NotImplementedError as error:
            raise UsageError(
                f"optimizer {optimizer.kind} cannot update variable {variable}, whose gradient is "
                f"{'dense' if gradient.indices is None else 'sparse'}: it does not implement that"
            ) from error
        if step_read is not None and step_read.op in _read_by(applied, [*gradient.tensors, optimizer.learning_rate]):
            raise UsageError(
                f"optimizer {optimizer.kind} reads the global step in the graph, for variable {variable}; give "
                "ModelSpec.learning_rate a Python function of the global step, for example "
                "lambda step: 0.1 * 0.96 ** (step / 1000), and use the learning rate that the factory is called with"
            )
        return _within(constraint, master, applied)

    return update


def counting_update(store: BucketStore) -> Update:
    """The update of a bucket that counts, as the global step's does: the gradient is added."""

    def update(gradient: BucketGradient) -> Op:
        return store.master.assign_add(gradient.values, read_value=False)

    return update


def subtracting_update(store: BucketStore, constraint: Constraint | None = None) -> Update:
    """The update that subtracts the gradient as it is, without an optimizer; then the constraint's."""

    def update(gradient: BucketGradient) -> Op:
        if gradient.indices is None:
            done = store.master.assign_sub(gradient.values, read_value=False)
        else:
            done = tf1.raw_ops.ResourceScatterSub(
                resource=store.master.handle, indices=gradient.indices, updates=gradient.values
            )
        return _within(constraint, store.master, done)

    return update


def setting_update(store: BucketStore) -> Update:
    """The update that assigns the gradient's values to the bucket."""

    def update(gradient: BucketGradient) -> Op:
        return store.master.assign(gradient.values, read_value=False)

    return update


def _within(constraint: Constraint | None, master: Variable, updated: Op) -> Op:
    """The operation after which the updated variable is within its constraint, if it has one."""
    if constraint is None:
        return updated
    with tf1.control_dependencies([updated]):
        return master.assign(constraint(master), read_value=False)


def _read_by(update: Op, given: list[Tensor]) -> set[Op]:
    """The operations of an update itself, without its inputs and the section that it is in."""
    of_given = {tensor.op for tensor in given}
    return ancestors([update], lambda op: op in of_given or op.type == "MutexLock")


class RowFlags:
    """The flags of `rows` rows on the ps of a bucket.  All its operations run in the bucket's critical section, or
    while no worker trains.

    clock: a variable that counts, or None; `since` gives what it has counted.
    """

    def __init__(self, store: BucketStore, name: str, rows: int, clock: Variable = None) -> None:
        self._clock = clock
        with tf1.device(ps_device(store.bucket.ps)):
            self._flags = ps_variable(f"touched/{name}", [rows], tf1.bool)
            self._since = ps_variable(f"touched_since/{name}", [2])  # (stamp of the copy, the clock then)

    @property
    def variables(self) -> list[Variable]:
        return [self._flags, self._since]

    def noting(self, update: Update, rows: Callable[[Tensor], Tensor] = lambda indices: indices) -> Update:
        """The update, which also sets the flags of the rows that `rows` computes from the indices of its gradient."""

        def noted(gradient: BucketGradient) -> Op:
            with tf1.control_dependencies(gradient.tensors):
                touched = self.note(rows(gradient.indices))
            with tf1.control_dependencies([touched]):
                return update(gradient)

        return noted

    def note(self, rows: Tensor) -> Op:
        """An operation after which these rows, int64 [rows], are touched."""
        return tf1.raw_ops.ResourceScatterUpdate(resource=self._flags.handle, indices=rows, updates=tf1.constant(True))

    def begin(self, stamp: Tensor) -> list[Op]:
        """Operations after which no row was touched since the copy of this stamp, int64 []."""
        none = zeros(self._flags.shape.as_list(), tf1.bool)
        since = tf1.stack([stamp, self._now()])
        return [self._flags.assign(none, read_value=False), self._since.assign(since, read_value=False)]

    def forget(self) -> Op:
        """An operation that clears the stamp: which rows were touched is then unknown."""
        return self._since.assign([0, 0], read_value=False)

    def since(self) -> Tensor:
        """(stamp of the copy since which rows are noted, 0: none; how much the clock has counted since), int64 [2]."""
        stamp, clock = tf1.unstack(self._since.read_value())
        return tf1.stack([stamp, self._now() - clock])

    def touched(self) -> Tensor:
        """The rows, int64 [touched], ascending."""
        return tf1.where(self._flags.read_value())[:, 0]

    def _now(self) -> Tensor:
        return tf1.constant(0, tf1.int64) if self._clock is None else self._clock.read_value()
