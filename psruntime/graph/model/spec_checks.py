"""Checks the ModelSpec that model_fn returned in the scratch graph, where variables are not yet redirected."""

from __future__ import annotations

import math

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.model import TRAIN, ModelSpec


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
