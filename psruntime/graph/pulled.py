"""A model on pulled buckets and tables: declares the store, pulls it, and builds the user's model_fn on the views."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.plan import Plan, VariableSpec
from psruntime.errors import UsageError
from psruntime.graph import capture
from psruntime.graph.devices import worker_device
from psruntime.graph.inputs import InputStream
from psruntime.graph.store import BucketStore
from psruntime.graph.views import PulledView, TableView, View
from psruntime.model import TRAIN, Model, ModelSpec
from psruntime.usercode import blame


@dataclass(frozen=True)
class PulledModel:
    """A model in the current graph.

    versions: bucket name -> int64 [], on the bucket's ps.  views: variable name -> how the model reads it.
    initial_values: variable name -> the tensor that the model would initialise it with.
    batch: the placeholders to feed.
    """

    spec: ModelSpec
    stores: dict[str, BucketStore]
    versions: dict[str, Any]
    views: dict[str, View]
    initial_values: dict[str, Any]
    batch: list[Any]


def learn_specs(model: Model, inputs: InputStream, mode: str) -> tuple[VariableSpec, ...]:
    """The model's trainable variables, from a build in a scratch graph.

    Raises:
        UsageError: model_fn failed, or the model cannot be trained (no variable, a loss that is not a
            scalar or that no variable has a gradient of).
    """
    specs = capture.record(lambda: _check(_call(model, inputs, mode)[0], model, mode))
    if not specs:
        raise UsageError(f"model_fn of {model.name} makes no trainable variable: there is nothing to train")
    return specs


def build_pulled_model(
    model: Model, inputs: InputStream, mode: str, plan: Plan, index: int, max_workers: int
) -> PulledModel:
    """Builds pull and model into the current graph, the model on worker `index`."""
    stores = {bucket.name: BucketStore(bucket, max_workers) for bucket in plan.buckets}
    pulls = {name: s.pull_handle() if s.bucket.is_table else s.pull() for name, s in stores.items()}
    with tf1.device(worker_device(index)):
        views: dict[str, View] = {
            spec.name: TableView(stores[spec.name], pulls[spec.name][1], worker_device(index))
            if spec.sparse
            else PulledView(_value(spec, plan, pulls))
            for spec in plan.specs
        }
        with capture.substitute(views) as initial_values:
            spec, batch = _call(model, inputs, mode)
    versions = {name: version for name, (version, _) in pulls.items()}
    return PulledModel(spec, stores, versions, views, initial_values, batch)


def _value(spec: VariableSpec, plan: Plan, pulls: dict[str, tuple[Any, Any]]) -> Any:
    """The variable's value on the worker, put together from its buckets."""
    slices = [pulls[bucket.name][1] for bucket in plan.of(spec.name)]
    flat = slices[0] if len(slices) == 1 else tf1.concat(slices, axis=0)
    return tf1.reshape(flat, spec.shape, name=f"view/{spec.name}")


def _call(model: Model, inputs: InputStream, mode: str) -> tuple[ModelSpec, list[Any]]:
    features, labels, batch = inputs.placeholders()
    with blame(f"model_fn of {model.name} (mode {mode})"):
        spec = model.model_fn(features, labels, mode)
    if not isinstance(spec, ModelSpec):
        raise UsageError(
            f"model_fn of {model.name} returned {type(spec).__name__}; it must return a psruntime.ModelSpec"
        )
    return spec, batch


def _check(spec: ModelSpec, model: Model, mode: str) -> list[str]:
    """Whether the loss can be trained; names the variables with sparse gradients.

    It looks at the scratch graph, where variables are still variables.
    """
    where = f"model_fn of {model.name}"
    loss = spec.loss
    if not isinstance(loss, tf1.Tensor) or loss.shape.rank != 0 or not loss.dtype.is_floating:
        shape = f"shape {loss.shape}, dtype {loss.dtype.name}" if isinstance(loss, tf1.Tensor) else type(loss).__name__
        raise UsageError(f"{where}: the loss must be a scalar float tensor, got {shape}; reduce it with tf.reduce_mean")
    if spec.examples is not None:
        _check_examples(spec.examples, where)
    if mode != TRAIN:
        return []
    if not callable(spec.optimizer):
        raise UsageError(f"{where}: optimizer must be a class or function that makes one, got {spec.optimizer!r}")
    if isinstance(spec.learning_rate, tf1.Tensor):
        raise UsageError(
            f"{where}: learning_rate is a tensor ({spec.learning_rate.name}); give a number or a Python function "
            "of the global step, for example lambda step: 0.1 * 0.96 ** (step / 1000)"
        )
    _check_clipping(spec, where)
    variables = tf1.trainable_variables()
    gradients = tf1.gradients(loss, variables) if variables else []
    if variables and all(g is None for g in gradients):
        names = ", ".join(v.op.name for v in variables)
        raise UsageError(f"{where}: the loss has no gradient with respect to any trainable variable ({names})")
    return [v.op.name for v, g in zip(variables, gradients, strict=True) if isinstance(g, tf1.IndexedSlices)]


def _check_examples(examples: Any, where: str) -> None:
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
