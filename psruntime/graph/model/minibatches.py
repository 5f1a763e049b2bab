"""Several mini-batches in one step: computes their gradients and pushes their mean.

It is the gradient of the mean over all their examples, as of one large batch, and a layer that looks at the whole batch
(batch normalisation) sees mini-batches.  All read the same pulled values; rows of a table are looked up for each.

They are computed one after the other (--local-steps), with the memory of one, or beside each other on several devices
(--devices, towers.py), or both: then each device computes one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.base.devices import worker_device
from psruntime.graph.base.types import DType, Op, Tensor
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import PulledModel
from psruntime.graph.model.towers import Towers
from psruntime.graph.ops.subgraph_copy import Copy, Subgraph
from psruntime.graph.store.gradient import BucketGradient, summed, summing


def with_minibatches(
    pulled: PulledModel, gradients: Mapping[str, BucketGradient], inputs: InputStream, index: int, towers: Towers
) -> tuple[PulledModel, dict[str, BucketGradient]]:
    """The model with as many mini-batches a step as `inputs` gives, and its gradients.

    Its batch is that of one mini-batch after the other; its loss the mean of theirs, weighted by their examples; its
    updates are run for each, in their order.  Its hooks still see tensors of the first.
    """
    if inputs.minibatches == 1:
        return pulled, dict(gradients)
    spec, examples = pulled.spec, tf1.convert_to_tensor(pulled.examples)
    targets = [spec.loss, examples, *pulled.updates, *(t for g in gradients.values() for t in g.tensors)]
    minibatch = Subgraph(pulled.batch, targets, pulled.pulled)
    in_order = _InOrder(pulled, minibatch)
    batch, updates = list(pulled.batch), list(pulled.updates)
    with tf1.device(worker_device(index)), tf1.name_scope("minibatches"):
        weight = tf1.cast(examples, tf1.float64)
        loss = _weighted(spec.loss, weight)
        sums = {name: gradient.with_values(_weighted(gradient.values, weight)) for name, gradient in gradients.items()}
        after = tf1.group(*[tensor for _, tensor in pulled.last.values()])
        for number in range(1, inputs.minibatches):
            if number % towers.count == 0 or in_order.one_by_one:
                after = tf1.group(loss, *updates, *(t for g in sums.values() for t in g.tensors))
            _, _, given = inputs.layout.placeholders()
            with tf1.control_dependencies([after]):
                taken = [tf1.identity(tensor) for tensor in given]
            copy = _copy(minibatch, number, taken, after, towers.moved(number, index))
            in_order.add(copy)
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


class _InOrder:
    """Orders the changes that mini-batches make to variables of the model, such as moving averages.

    one_by_one: whether whole mini-batches run one after the other, because a change within a loop or a branch cannot
    be ordered by itself.
    """

    def __init__(self, pulled: PulledModel, minibatch: Subgraph) -> None:
        graph = tf1.get_default_graph()
        names = {*pulled.worker_copies.touching, *pulled.aggregated.touching}
        touching = [graph.get_operation_by_name(name) for name in sorted(names)]
        self._touching = [op for op in touching if op in minibatch]
        self._before = self._touching
        self.one_by_one = any(op._get_control_flow_context() is not None for op in self._touching)

    def add(self, copy: Copy) -> None:
        """Orders the next mini-batch."""
        copied = [copy.of(op) for op in self._touching]
        if not self.one_by_one:
            for op in copied:
                for before in self._before:
                    op._add_control_input(before)
        self._before = copied


def _copy(minibatch: Subgraph, number: int, batch: list[Tensor], after: Op, moved: Callable[[str], str]) -> Copy:
    try:
        return minibatch.copy(number, batch, after, moved)
    except ValueError as error:
        raise UsageError(
            "several mini-batches a step (local_steps above 1, or devices) need a copy of the model's graph, and "
            f"TensorFlow cannot make one: {error}; leave these settings out, and take a larger batch"
        ) from error


def _weighted(tensor: Tensor, weight: Tensor) -> Tensor:
    """Times the weight, in the dtype of sums; 0 if the weight is 0, also if the tensor is not finite."""
    wide = tf1.cast(tensor, summing(tensor.dtype))
    return tf1.math.multiply_no_nan(wide, tf1.cast(weight, wide.dtype))


def _mean(total: Tensor, weight: Tensor, dtype: DType) -> Tensor:
    """The weighted mean; 0 if the weight is 0."""
    return tf1.cast(tf1.math.divide_no_nan(total, tf1.cast(weight, total.dtype)), dtype)


def _plus(total: BucketGradient, more: BucketGradient) -> BucketGradient:
    if total.indices is None:
        return total.with_values(total.values + more.values)
    values = tf1.concat([total.values, more.values], axis=0)
    return summed(BucketGradient(values, tf1.concat([total.wide.indices, more.wide.indices], axis=0)))
