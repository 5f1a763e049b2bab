"""The gradient as a worker pushes it: divided for the mean, its largest entries or all, rounded for the wire.

Each member of a round divides its gradient by the number of members, so that the sum is the mean.  Without it the mean
would cost a pass over each gradient, to weigh it by its examples, and one over the sum, to divide that by all examples.
A number at the loss costs nothing.  The divisor is the number of members of the round before, or 1 if that is not
known.  Where batches do not weigh the same, or members came or went, the gradient scale that travels with a gradient
(step_messages.py) says what it counts.

With error feedback the remainder of the rounding is added to the next gradient, so small gradients add up instead of
being lost (Seide et al., 1-bit stochastic gradient descent, Interspeech 2014; Karimireddy et al., Error feedback fixes
SignSGD, ICML 2019).

Of a dense gradient a worker may send the largest entries alone, and keeps the others, which are added to the next one:
the "local gradient accumulation" of Lin et al., Deep gradient compression, ICLR 2018; where the workers apply the
momentum, of velocities.  Their "momentum factor masking" is left out: it trained worse.  What is sent names its rows,
each of one entry, so guard, round and optimizer take it like the gradient of a table.
"""

from __future__ import annotations

from math import ceil

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.graph.base.server import worker_cpu, worker_device
from psruntime.graph.base.types import Tensor
from psruntime.graph.base.variable_values import worker_variable
from psruntime.graph.buckets.gradient import BucketGradient, Wire, unpacked
from psruntime.graph.buckets.update_rules import Momentum

HALF = (tf1.float16.as_datatype_enum, tf1.bfloat16.as_datatype_enum)


def make_divisor(index: int) -> Tensor:
    """The number by which worker `index` divides its gradient, float64 []; to be fed, 1 if it is not.

    None if the current graph, which has the model, has half precision: a large divisor would make zeros of the small
    numbers of float16, and a third is not exact in bfloat16.
    """
    if _has_half():
        return None
    with tf1.device(worker_cpu(index)):
        return tf1.placeholder_with_default(tf1.constant(1.0, tf1.float64), [], name="mean_divisor")


def gradient_scale(examples: Tensor, divisor: Tensor) -> Tensor:
    """Multiply a gradient by this to get the sum over its examples, float64 []; 0 if they weigh nothing.

    divisor: what the gradient was divided by, float64 []; None: nothing.
    """
    weight = tf1.where(examples > 0, examples, tf1.zeros_like(examples))
    return weight if divisor is None else weight * divisor


def _has_half() -> bool:
    definition = tf1.get_default_graph().as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    types = {t for node in nodes for value in node.attr.values() for t in (value.type, *value.list.type)}
    return not types.isdisjoint(HALF)


def packed_gradient(wire: Wire, name: str, gradient: BucketGradient, finite: Tensor, index: int) -> BucketGradient:
    """The gradient of bucket `name` as worker `index` pushes it.

    finite: bool [], whether it counts; if not, what is left stays.  What a push had in it that a ps
    refuses for another cause is dropped with it.

    There is no feedback for rows of a table: what is left of them would be as large as the table.
    """
    with tf1.device(worker_device(index)):
        values = gradient.values
        if not wire.feedback or gradient.indices is not None or not wire.narrows(values):
            return gradient.with_values(wire.saturated(values))
        residue = worker_variable(f"residue/{name}", values.shape, values.dtype, lasting=True)
        before = residue.read_value()
        total = tf1.where(finite, values + before, tf1.zeros_like(values))
        sent = wire.saturated(total)
        left = tf1.where(finite, total - tf1.cast(sent, values.dtype), before)
        with tf1.control_dependencies([residue.assign(left, read_value=False)]):
            return gradient.with_values(tf1.identity(sent))


SAMPLED = 1 << 14  # entries, about, of which the threshold is taken
MORE_FOUND = 1.5  # times as many as are sent shall reach it: of 164 of the sample, 1 in 100, one in twelve is luck
FEW_MORE = 4  # of the sample besides, where it has few of those that are sent


def largest_entries(
    wire: Wire, name: str, gradient: BucketGradient, momentum: Momentum | None, counts: Tensor, index: int
) -> BucketGradient:
    """The dense gradient of bucket `name` as worker `index` pushes it: with int32 indices of its entries.

    momentum: that the worker applies.  counts: bool [], whether the gradient does; if not, what is kept stays.  What a
    push had in it that a ps refuses for another cause is dropped with it.
    """
    assert wire.top_k is not None
    with tf1.device(worker_device(index)):
        values = gradient.values
        unsent = worker_variable(f"residue/{name}", values.shape, values.dtype, lasting=True)
        before = unsent.read_value()
        if momentum:
            velocity = worker_variable(f"velocity/{name}", values.shape, values.dtype, lasting=True)
            velocity_before = velocity.read_value()
            moving = momentum.velocity(velocity_before, values)
            total = before + momentum.step(moving, values)
        else:
            total = before + values
        entries = largest(total, wire.top_k)
        found = tf1.gather(total, entries)
        sent = wire.saturated(found)
        left = tf1.tensor_scatter_nd_update(total, entries[:, tf1.newaxis], found - unpacked(sent, found.dtype))
        kept = [unsent.assign(tf1.where(counts, left, before), read_value=False)]
        if momentum:
            kept.append(velocity.assign(tf1.where(counts, moving, velocity_before), read_value=False))
        with tf1.control_dependencies(kept):
            return BucketGradient(tf1.identity(sent), tf1.identity(entries))


def largest(values: Tensor, fraction: float) -> Tensor:
    """The places of the entries of `values`, [size], that are largest in magnitude: int32 [at most fraction x size].

    At least one, but none that is 0.  Fewer if the sample misleads, which it cannot below 2 x SAMPLED entries, where it
    has all.  To find the largest among all took 7 to 42 ms for a million entries on one core, and 2 among those that
    reach a threshold which is taken from a sample (Lin et al., section 3.1).
    """
    size = values.shape.num_elements()
    wanted = max(1, round(fraction * size))
    magnitude = tf1.abs(values)
    found = tf1.cast(tf1.where(magnitude >= _threshold(magnitude, size, wanted))[:, 0], tf1.int32)
    _, places = tf1.nn.top_k(tf1.gather(magnitude, found), tf1.minimum(wanted, tf1.size(found)), sorted=False)
    return tf1.gather(found, places)


def _threshold(magnitude: Tensor, size: int, wanted: int) -> Tensor:
    """A number above 0 that somewhat more than `wanted` entries reach, unless the others are 0."""
    apart = size // SAMPLED | 1  # odd, unlike most lengths of rows
    sample = magnitude[::apart]
    seen = sample.shape.num_elements()
    rank = wanted if apart == 1 else ceil(MORE_FOUND * wanted / apart) + FEW_MORE
    smallest = np.finfo(magnitude.dtype.as_numpy_dtype).tiny
    return tf1.maximum(tf1.nn.top_k(sample, min(rank, seen))[0][-1], smallest)
