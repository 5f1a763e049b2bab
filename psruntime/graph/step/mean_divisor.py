"""The mean divisor: each member of a round divides its gradient by the number of members, so that the sum is the mean.

Without it the mean would cost a pass over each gradient, to weigh it by its examples, and one over the sum, to divide
that by all examples.  A number at the loss costs nothing.  The divisor is the number of members of the round before, or
1 if that is not known.  Where batches do not weigh the same, or members came or went, the gradient scale that travels
with a gradient (step_messages.py) says what it counts.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.devices import worker_cpu
from psruntime.graph.base.types import Tensor

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
