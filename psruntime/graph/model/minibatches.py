"""Several mini-batches in one step, on one device or on several (towers).

Towers: the copies of a model that a worker has on several devices, each for a mini-batch of every step.

They read the same pulled values.  A worker without --devices has one, and TensorFlow chooses its device.

It is the gradient of the mean over all their examples, as of one large batch, and a layer that looks at the whole batch
(batch normalisation) sees mini-batches.  All read the same pulled values; rows of a table are looked up for each.

They are computed one after the other (--local-steps), with the memory of one, or beside each other on several devices
(--devices), or both: then each device computes one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import tensorflow.compat.v1 as tf1

from psruntime.config.devices import ALL_GPUS, AUTO_GPU, number_of
from psruntime.errors import UsageError
from psruntime.graph.base.server import gpu_count, why_no_gpu, worker_device
from psruntime.graph.base.subgraphs import Copy, Subgraph
from psruntime.graph.base.types import DType, Op, Tensor
from psruntime.graph.buckets.gradient import BucketGradient, summed, summing
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import PulledModel


@dataclass(frozen=True)
class Towers:
    """devices: `kind:number` of each tower; none: there is one, on the device that TensorFlow chooses."""

    devices: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return max(1, len(self.devices))

    @property
    def cpus(self) -> int:
        """How many CPU devices the worker's server needs."""
        return 1 + max((number_of(name) for name in self.devices if name.startswith("cpu")), default=0)

    def scope(self) -> AbstractContextManager[None]:
        """The device of the first tower; operations that name a device themselves are not moved."""
        return tf1.device(_full(self.devices[0])) if self.devices else nullcontext()

    def moved(self, minibatch: int, index: int) -> Callable[[str], str]:
        """A function of an operation's device in the first tower: its device in that of this mini-batch.

        An operation moves if it is on the first tower's device, or on none of the worker's.
        """
        tower = minibatch % self.count
        if tower == 0:
            return lambda device: device
        own = tf1.DeviceSpec.from_string(worker_device(index))
        first = own.make_merged_spec(tf1.DeviceSpec.from_string(_full(self.devices[0])))
        there = own.make_merged_spec(tf1.DeviceSpec.from_string(_full(self.devices[tower]))).to_string()
        return lambda device: there if tf1.DeviceSpec.from_string(device) in (own, first) else device


ONE_TOWER = Towers()


def find_towers(names: tuple[str, ...], per_gpu: int = 1) -> Towers:
    """The towers on the devices of these names, see psruntime/config/devices.py.

    per_gpu: virtual GPUs of each GPU.  With gpu:auto the GPU was chosen, and is the only one by now.

    Raises:
        UsageError: this machine has no such GPU, as far as TensorFlow sees.
    """
    text = ",".join(names)
    if not any(name.startswith("gpu") for name in names):
        return Towers(names)
    gpus = gpu_count() * per_gpu
    if not gpus:
        raise UsageError(f"--devices {text}: TensorFlow finds no GPU on this machine: {why_no_gpu()}")
    if names in ((ALL_GPUS,), (AUTO_GPU,)):
        names = tuple(f"gpu:{number}" for number in range(gpus))
    if any(name.startswith("gpu") and number_of(name) >= gpus for name in names):
        raise UsageError(
            f"--devices {text}: TensorFlow finds {gpus} GPU, gpu:0 to gpu:{gpus - 1}, on this machine; --gpu-memory "
            "with several amounts makes virtual ones"
        )
    return Towers(names)


def _full(name: str) -> str:
    """TensorFlow's name of a device within a task."""
    kind, _, number = name.partition(":")
    return f"/device:{kind.upper()}:{number}"


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
