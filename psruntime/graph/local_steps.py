"""Several mini-batches in one step: their gradients are taken one after the other, of the same pulled values, and
their mean is pushed.

It is the gradient of the mean over all their examples, as of one large batch, but with the memory of one small one,
and a layer that looks at the whole batch (batch normalisation) sees mini-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.clone import Part
from psruntime.graph.devices import worker_device
from psruntime.graph.gradients import BucketGradient, summed
from psruntime.graph.inputs import InputStream
from psruntime.graph.pulled import PulledModel


def with_local_steps(
    pulled: PulledModel, gradients: Mapping[str, BucketGradient], inputs: InputStream, index: int
) -> tuple[PulledModel, dict[str, BucketGradient]]:
    """The model with as many mini-batches a step as `inputs` gives, and its gradients.

    Its batch is that of one mini-batch after the other; its loss the mean of theirs, weighted by their examples; its
    updates are run for each, in their order.  Its hooks still see tensors of the first.
    """
    if inputs.local_steps == 1:
        return pulled, dict(gradients)
    spec = pulled.spec
    targets = [spec.loss, pulled.examples, *pulled.updates, *(t for g in gradients.values() for t in g.tensors)]
    boundary = [pulled.step_view.op, *(t.op for view in pulled.views.values() for t in (view.value, view.source))]
    part = Part(pulled.batch, targets, boundary)
    batch, updates = list(pulled.batch), list(pulled.updates)
    with tf1.device(worker_device(index)), tf1.name_scope("minibatches"):
        weight = tf1.cast(pulled.examples, tf1.float64)
        loss = _times(spec.loss, weight)
        sums = {name: gradient.with_values(_times(gradient.values, weight)) for name, gradient in gradients.items()}
        for number in range(1, inputs.local_steps):
            after = tf1.group(loss, *updates, *(t for g in sums.values() for t in g.tensors))
            _, _, given = inputs.layout.placeholders()
            with tf1.control_dependencies([after]):
                copy = part.copy(number, [tf1.identity(tensor) for tensor in given], after)
            batch += given
            updates += [copy.of(update) for update in pulled.updates]
            examples = tf1.cast(copy.of(pulled.examples), tf1.float64)
            weight += examples
            loss += _times(copy.of(spec.loss), examples)
            for name, gradient in gradients.items():
                more = gradient.map(copy.of)
                sums[name] = _plus(sums[name], more.with_values(_times(more.values, examples)))
        means = {name: total.with_values(_over(total.values, weight)) for name, total in sums.items()}
        spec = replace(spec, loss=_over(loss, weight))
    return replace(pulled, spec=spec, batch=batch, examples=weight, updates=updates), means


def _times(tensor: Any, weight: Any) -> Any:
    return tensor * tf1.cast(weight, tensor.dtype)


def _over(tensor: Any, weight: Any) -> Any:
    return tensor / tf1.cast(weight, tensor.dtype)


def _plus(total: BucketGradient, more: BucketGradient) -> BucketGradient:
    if total.indices is None:
        return total.with_values(total.values + more.values)
    values = tf1.concat([total.values, more.values], axis=0)
    return summed(BucketGradient(values, tf1.concat([total.indices, more.indices], axis=0)))
