"""The update of one bucket: the optimizer applies a gradient, then the constraint is enforced."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.base.types import Op, Tensor, Variable
from psruntime.graph.ops.ancestors import ancestors
from psruntime.graph.store.bucket_store import BucketStore
from psruntime.graph.store.gradient import BucketGradient
from psruntime.graph.update.optimizers import BucketOptimizer

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
