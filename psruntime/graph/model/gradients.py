"""The gradients of a model's loss, laid out as the plan's buckets: of one batch, or of several mini-batches.

The gradient of several is that of the mean over all their examples, as of one large batch, and a layer that looks at
the whole batch (batch normalisation) sees mini-batches.  All read the same pulled values; rows of a table are looked up
for each.

They are computed one after the other (--local-steps), with the memory of one, or beside each other on several devices
(--devices), or both: then each device computes one at a time.  A tower is the copy of the model on one device; a worker
without --devices has one, and TensorFlow chooses its device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import tensorflow.compat.v1 as tf1

from psruntime.config.process import ALL_GPUS, AUTO_GPU, number_of
from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.core.plan.plan import Plan
from psruntime.core.plan.table_groups import TableGroup
from psruntime.errors import UsageError
from psruntime.graph.base.graphs import Copy, Subgraph
from psruntime.graph.base.server import gpu_count, why_no_gpu, worker_device
from psruntime.graph.base.types import DType, Op, Tensor
from psruntime.graph.buckets.gradient import BucketGradient, summed, summing
from psruntime.graph.embedding.segment_products import take_products
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import PulledModel


def bucket_gradients(pulled: PulledModel, plan: Plan, index: int, divisor: Tensor = None) -> dict[str, BucketGradient]:
    """Bucket name -> its gradient on worker `index`; a bucket that the loss does not depend on has none.

    divisor: float64 [], by which the loss is divided; None: by nothing.
    """
    with tf1.device(worker_device(index)):
        taken = _Taken(pulled, plan, divisor)
        of_buckets = {}
        for bucket in (bucket for bucket in plan.buckets if not bucket.aggregation):
            gradient = taken.of_grouped(bucket) if bucket.is_grouped else taken.of(bucket)
            if gradient is not None:
                of_buckets[bucket.name] = gradient
        return of_buckets


class _Taken:
    """The gradients of the loss with respect to all that the model reads."""

    def __init__(self, pulled: PulledModel, plan: Plan, divisor: Tensor) -> None:
        loss = pulled.spec.loss
        self._pulled = pulled
        self._group_of = plan.group_of
        tables = {table.name for group in plan.groups for table in group.tables}
        reads = [pulled.reads[spec.name].source for spec in plan.trained if spec.name not in tables]
        rows = [rows for group in plan.groups for each in pulled.lookups.fetched(group) for rows in each.results]
        handles = [handle for group in plan.groups for handle in pulled.lookups.handles(group)]
        sources = [*reads, *rows, *handles]
        take_products(loss.graph.get_operations())
        at_loss = None if divisor is None else [tf1.cast(1 / divisor, loss.dtype)]
        gradients = tf1.gradients(loss, sources, at_loss, stop_gradients=rows)
        self._of_source = {id(source): gradient for source, gradient in zip(sources, gradients, strict=True)}
        self._of_fetched = {group.name: self._fetched(group) for group in plan.groups}

    def _fetched(self, group: TableGroup) -> list[list[BucketGradient]]:
        """For each fetch, the gradients of its rows, of each ps."""
        fetched = self._pulled.lookups.fetched(group)
        gradients = [each.gradients([self._of_source[id(result)] for result in each.results]) for each in fetched]
        return [of_ps for of_ps in gradients if of_ps is not None]

    def of(self, bucket: Bucket) -> BucketGradient | None:
        """The gradient of a bucket that is in no table group."""
        gradients = [self._of_source[id(self._pulled.reads[piece.variable].source)] for piece in bucket.pieces]
        if gradients[0] is None:
            return None
        if bucket.is_table and isinstance(gradients[0], tf1.IndexedSlices):
            return summed(BucketGradient(gradients[0].values, gradients[0].indices))
        pieces = [_piece(gradient, piece) for gradient, piece in zip(gradients, bucket.pieces, strict=True)]
        flat = tf1.concat(pieces, axis=0) if bucket.is_packed else pieces[0]
        return BucketGradient(tf1.reshape(flat, bucket.master_shape))

    def of_grouped(self, bucket: Bucket) -> BucketGradient | None:
        """The gradient of a bucket of a table group: of rows that were fetched, and of reads through its handle."""
        group, ps = self._group_of[bucket.name], bucket.ps
        parts = [of_ps[ps] for of_ps in self._of_fetched[group.name]]
        through_handle = self._of_source[id(self._pulled.lookups.handles(group)[ps])]
        if through_handle is None:
            return _joint(parts) if parts else None
        if isinstance(through_handle, tf1.IndexedSlices):
            return _joint([*parts, BucketGradient(through_handle.values, through_handle.indices)], unique=False)
        for part in parts:
            through_handle = tf1.tensor_scatter_nd_add(through_handle, part.indices[:, tf1.newaxis], part.values)
        return BucketGradient(tf1.reshape(through_handle, bucket.master_shape))


def _joint(parts: list[BucketGradient], unique: bool = True) -> BucketGradient:
    """The sum of sparse gradients.  unique: whether the rows of each are."""
    if len(parts) == 1 and unique:
        return parts[0]
    values = tf1.concat([part.values for part in parts], axis=0)
    return summed(BucketGradient(values, tf1.concat([part.wide.indices for part in parts], axis=0)))


def _piece(gradient: Tensor, piece: Piece) -> Tensor:
    """The piece's entries of its variable's gradient, flat."""
    flat = tf1.reshape(tf1.convert_to_tensor(gradient), [-1])
    return flat if flat.shape == (piece.size,) else flat[piece.start : piece.start + piece.size]


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
    """The towers on the devices of these names, see psruntime/config/process.py.

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
