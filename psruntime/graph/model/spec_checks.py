"""Checks of a model in its scratch graph: what model_fn returned, and its kinds of variables with the place of each:

trainable                       a bucket on the ps, changed by updates
the global step                 psruntime's own, on ps 0; read only
local (LOCAL_VARIABLES)         on the worker, initialised in every session: metrics
otherwise, changed by the model a copy on every worker, the chief's is saved: moving averages; with an aggregation a
                                bucket on the ps, changed by the results of the workers
otherwise, only looked up       a table on the ps
otherwise                       a copy on every worker
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import AGGREGATIONS, DTYPE_BYTES, TRAINED_DTYPES, VariableSpec
from psruntime.errors import UsageError
from psruntime.graph.base.graphs import LOOKUPS, Use
from psruntime.graph.base.types import Variable
from psruntime.model import TRAIN, ModelSpec


def is_global_step(variable: Variable) -> bool:
    """Whether it is the one that tf.train.get_global_step finds."""
    return _is_in(tf1.GraphKeys.GLOBAL_STEP, variable) or variable.op.name == "global_step"


def is_worker_local(variable: Variable) -> bool:
    """Whether no other process needs it."""
    return _is_in(tf1.GraphKeys.LOCAL_VARIABLES, variable)


def aggregation_of(variable: Variable, uses: list[Use]) -> str:
    """How the workers' results of a variable that is not trainable are combined; empty if they are not.

    The layers of TensorFlow and Keras make their moving averages with aggregation MEAN, to be read as one: each worker
    has its own between two reads.

    Raises:
        UsageError: values of its dtype cannot be combined so.
    """
    kind: str = variable.aggregation.name
    on_read = variable.synchronization == tf1.VariableSynchronization.ON_READ
    if kind not in AGGREGATIONS or (kind == "MEAN" and on_read) or not any(use.changes for use in uses):
        return ""
    dtype = variable.dtype.base_dtype
    if dtype == tf1.bool or (kind == "MEAN" and dtype.is_integer):
        raise UsageError(
            f"variable {variable.op.name} has dtype {dtype.name} and aggregation {kind}, and the model changes it; "
            f"{'make it an integer' if dtype == tf1.bool else 'use a float, or SUM'}, or leave out the aggregation if "
            "each worker has its own"
        )
    return kind


def spec_of(variable: Variable, uses: list[Use]) -> VariableSpec | None:
    """The spec of a variable with these uses, for the plan; None if it has none.

    Raises:
        UsageError: it is of a kind that is not supported, or the model changes it and must not.
    """
    name, changes = variable.op.name, [use for use in uses if use.changes]
    if is_global_step(variable):
        if changes:
            raise UsageError(
                f"model_fn changes the global step in operation {changes[0].operation}; psruntime counts it: leave "
                "out the assignment, and do not give it to minimize"
            )
        return None
    if variable.trainable:
        _refuse_changes(name, changes)
        return _spec(variable, TRAINED_DTYPES, whole=variable.constraint is not None)
    if is_worker_local(variable):
        return None
    if not _is_in(tf1.GraphKeys.GLOBAL_VARIABLES, variable):
        raise UsageError(
            f"variable {name} is not trainable and in no collection that decides its initialisation; make it in "
            "tf.GraphKeys.GLOBAL_VARIABLES, or in LOCAL_VARIABLES if each worker has its own (tf.metrics has such)"
        )
    if aggregation := aggregation_of(variable, uses):
        return _spec(variable, tuple(DTYPE_BYTES), trainable=False, aggregation=aggregation)
    looked_up = bool(uses) and all(use.kind in LOOKUPS for use in uses)
    return _spec(variable, tuple(DTYPE_BYTES), sparse=looked_up and variable.shape.rank != 0, trainable=False)


def _refuse_changes(name: str, changes: list[Use]) -> None:
    for use in changes:
        where = f"model_fn changes trainable variable {name} in operation {use.operation} ({use.kind})"
        if use.kind.startswith(("ResourceApply", "ResourceSparseApply")):
            raise UsageError(
                f"{where}; leave out minimize and apply_gradients, and return ModelSpec(loss, optimizer=...) instead"
            )
        raise UsageError(
            f"{where}; only the optimizer on its ps may change it: write a penalty into the loss, a limit as the "
            "variable's constraint, and make what is no parameter with trainable=False"
        )


def _spec(variable: Variable, dtypes: tuple[str, ...], **kinds: Any) -> VariableSpec:
    name, dtype = variable.op.name, variable.dtype.base_dtype.name
    if not variable.shape.is_fully_defined():
        raise UsageError(f"variable {name} has shape {variable.shape}; a global variable needs a fully defined one")
    if dtype not in dtypes:
        kind = "trainable one" if variable.trainable else "global one"
        raise UsageError(f"variable {name} has dtype {dtype}; a {kind} needs one of {', '.join(dtypes)}")
    return VariableSpec(name, tuple(variable.shape.as_list()), dtype, **kinds)


def _is_in(collection: str, variable: Variable) -> bool:
    return any(member is variable for member in tf1.get_collection(collection))


def check_spec(spec: ModelSpec, where: str, mode: str) -> dict[str, bool]:
    """Whether the loss can be trained; variable name -> whether its gradient is sparse, of those that have one.

    `where` is the model_fn, for messages.

    Raises:
        UsageError: a field is not what it must be.
    """
    loss = spec.loss
    if not isinstance(loss, tf1.Tensor) or loss.shape.rank != 0 or not loss.dtype.is_floating:
        shape = f"shape {loss.shape}, dtype {loss.dtype.name}" if isinstance(loss, tf1.Tensor) else type(loss).__name__
        raise UsageError(f"{where}: the loss must be a scalar float tensor, got {shape}; reduce it with tf.reduce_mean")
    if spec.examples is not None:
        _check_examples(spec.examples, where)
    for update in spec.updates or ():
        if not isinstance(update, tf1.Operation | tf1.Tensor | tf.Variable):
            raise UsageError(f"{where}: updates must be operations or tensors, got {update!r}")
    for hook in spec.hooks:
        if not isinstance(hook, tf1.train.SessionRunHook):
            raise UsageError(f"{where}: hooks must be tf.train.SessionRunHook objects, got {hook!r}")
        if isinstance(hook, tf1.train.CheckpointSaverHook):
            kind = type(hook).__name__
            of = "" if kind == "CheckpointSaverHook" else ", a CheckpointSaverHook,"
            raise UsageError(
                f"{where}: hooks has {kind}{of} which cannot save the variables, as they are on the ps; leave it out: "
                "the job saves with --checkpoint-dir and --save-steps (or --save-secs)"
            )
    if mode != TRAIN:
        return {}
    _check_clipping(spec, where)
    variables = tf1.trainable_variables()
    gradients = tf1.gradients(loss, variables) if variables else []
    if variables and all(g is None for g in gradients):
        names = ", ".join(v.op.name for v in variables)
        raise UsageError(f"{where}: the loss has no gradient with respect to any trainable variable ({names})")
    is_sparse = {}
    for variable, gradient in zip(variables, gradients, strict=True):
        if gradient is not None:
            is_sparse[variable.op.name] = isinstance(gradient, tf1.IndexedSlices)
        if variable.constraint is not None and is_sparse.get(variable.op.name):
            raise UsageError(
                f"{where}: variable {variable.op.name} has a constraint and is looked up by rows, which is not "
                "supported, as in TensorFlow; write a penalty into the loss instead"
            )
    return is_sparse


def _check_examples(examples: object, where: str) -> None:
    if not isinstance(examples, tf1.Tensor):
        got = f"{type(examples).__name__}"
    elif examples.shape.rank != 0 or not (examples.dtype.is_floating or examples.dtype.is_integer):
        got = f"shape {examples.shape}, dtype {examples.dtype.name}"
    else:
        return
    raise UsageError(f"{where}: examples must be a scalar numeric tensor, the weight of the batch, got {got}")


def _check_clipping(spec: ModelSpec, where: str) -> None:
    limits = {"clip_norm": spec.clip_norm, "clip_value": spec.clip_value}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    for name, limit in given.items():
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < math.inf:
            raise UsageError(f"{where}: {name} must be a number greater than 0, got {limit!r}")
    if len(given) > 1:
        raise UsageError(f"{where}: clip_norm and clip_value are both given; give one of them")
