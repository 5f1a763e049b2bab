"""Several mini-batches in one step: takes their gradients one after the other and pushes their mean.

It is the gradient of the mean over all their examples, as of one large batch, but with the memory of one small one,
and a layer that looks at the whole batch (batch normalisation) sees mini-batches.  All read the same pulled values;
rows of a table are looked up for each in its turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.base.devices import worker_device
from psruntime.graph.base.subgraph_copy import Copy, Subgraph
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import PulledModel
from psruntime.graph.store.gradient import BucketGradient, summed, summing


def with_local_steps(
    pulled: PulledModel, gradients: Mapping[str, BucketGradient], inputs: InputStream, index: int
) -> tuple[PulledModel, dict[str, BucketGradient]]:
    """The model with as many mini-batches a step as `inputs` gives, and its gradients.

    Its batch is that of one mini-batch after the other; its loss the mean of theirs, weighted by their examples; its
    updates are run for each, in their order.  Its hooks still see tensors of the first.
    """
    if inputs.local_steps == 1:
        return pulled, dict(gradients)
    spec, examples = pulled.spec, tf1.convert_to_tensor(pulled.examples)
    targets = [spec.loss, examples, *pulled.updates, *(t for g in gradients.values() for t in g.tensors)]
    minibatch = Subgraph(pulled.batch, targets, pulled.pulled)
    batch, updates = list(pulled.batch), list(pulled.updates)
    with tf1.device(worker_device(index)), tf1.name_scope("minibatches"):
        weight = tf1.cast(examples, tf1.float64)
        loss = _weighted(spec.loss, weight)
        sums = {name: gradient.with_values(_weighted(gradient.values, weight)) for name, gradient in gradients.items()}
        for number in range(1, inputs.local_steps):
            after = tf1.group(loss, *updates, *(t for g in sums.values() for t in g.tensors))
            _, _, given = inputs.layout.placeholders()
            with tf1.control_dependencies([after]):
                taken = [tf1.identity(tensor) for tensor in given]
            copy = _copy(minibatch, number, taken, after)
            batch += given
            updates += [copy.of(update) for update in pulled.updates]
            more_weight = tf1.cast(copy.of(examples), tf1.float64)
            weight += more_weight
            loss += _weighted(copy.of(spec.loss), more_weight)
            for name, gradient in gradients.items():
                more = gradient.map(copy.of)
                sums[name] = _plus(sums[name], more.with_values(_weighted(more.values, more_weight)))
        means = {
            name: total.with_values(_mean(total.values, weight, gradients[name].values.dtype))
            for name, total in sums.items()
        }
        spec = replace(spec, loss=_mean(loss, weight, spec.loss.dtype))
    return replace(pulled, spec=spec, batch=batch, examples=weight, updates=updates), means


def _copy(minibatch: Subgraph, number: int, batch: list[Any], after: Any) -> Copy:
    try:
        return minibatch.copy(number, batch, after)
    except ValueError as error:
        raise UsageError(
            "local_steps above 1 needs a copy of the model's graph, and TensorFlow cannot make one: "
            f"{error}; leave local_steps out, and take a larger batch"
        ) from error


def _weighted(tensor: Any, weight: Any) -> Any:
    """Times the weight, in the dtype in which sums are kept; what weighs nothing is 0, also if it is not finite."""
    wide = tf1.cast(tensor, summing(tensor.dtype))
    return tf1.math.multiply_no_nan(wide, tf1.cast(weight, wide.dtype))


def _mean(total: Any, weight: Any, dtype: Any) -> Any:
    """0 if all weighs nothing."""
    return tf1.cast(tf1.math.divide_no_nan(total, tf1.cast(weight, total.dtype)), dtype)


def _plus(total: BucketGradient, more: BucketGradient) -> BucketGradient:
    if total.indices is None:
        return total.with_values(total.values + more.values)
    values = tf1.concat([total.values, more.values], axis=0)
    return summed(BucketGradient(values, tf1.concat([total.wide.indices, more.wide.indices], axis=0)))
