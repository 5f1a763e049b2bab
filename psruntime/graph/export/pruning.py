"""Magnitude pruning at export: the smallest entries of each kernel become zero.

Han et al. 2015, "Learning both Weights and Connections for Efficient Neural Networks": entries near zero matter least.
Zhu & Gupta 2017, "To prune, or not to prune", measure the same fraction in every layer, as is done here.  Both continue
to train afterwards; this is one shot without it, so the fraction that costs nothing is smaller than theirs.

A kernel is a trainable variable that a matrix product or a convolution multiplies by.  Unchanged are biases, batch
norm, the kernels of depthwise convolutions, which have few entries, and tables, whose rows are looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.base.types import Array, Op, Session, Tensor, Variable
from psruntime.graph.export.serving_graph import parts_of
from psruntime.graph.ops.ancestors import ancestors

_PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Conv2D", "Conv3D", "Conv2DBackpropInput",
             "Conv3DBackpropInputV2", "Einsum"}  # fmt: skip
# Operations between a kernel and its product: they pass it as it is, change shape or type, or join its parts.
_PASSING = {"ReadVariableOp", "Identity", "Cast", "Reshape", "ExpandDims", "Squeeze", "Transpose", "ConcatV2", "Enter"}


@dataclass(frozen=True)
class Pruned:
    """A kernel, by the name of its variable: the number of its entries, and of those that are zero now."""

    name: str
    entries: int
    zeros: int


def prune_kernels(session: Session, outputs: Mapping[str, Tensor], fraction: float) -> list[Pruned]:
    """Sets the smallest entries of each kernel that the outputs depend on to zero, in the session.

    fraction: of the entries, above 0 and below 1; rounded down to whole entries of each kernel.

    Raises:
        UsageError: there is no kernel.
    """
    needed = ancestors(part for tensor in outputs.values() for part in parts_of(tensor))
    kernels = [variable for variable in tf1.trainable_variables() if _is_kernel(variable, needed)]
    if not kernels:
        raise UsageError("--prune: the predictions depend on no kernel, which a matrix product or convolution has")
    pruned = []
    for variable in kernels:
        values = without_smallest(session.run(variable.read_value()), fraction)
        variable.load(values, session)
        pruned.append(Pruned(variable.op.name, int(values.size), int(values.size - np.count_nonzero(values))))
    return pruned


def without_smallest(values: Array, fraction: float) -> Array:
    """The array with this fraction of its entries, those nearest to zero, set to zero; of equal ones any."""
    flat = np.array(values).reshape(-1)
    count = int(fraction * flat.size)
    if count:
        flat[np.argpartition(np.abs(flat), count - 1)[:count]] = 0
    return flat.reshape(np.shape(values))


def _is_kernel(variable: Variable, needed: set[Op]) -> bool:
    if not variable.dtype.is_floating or not variable.shape.rank or variable.shape.rank < 2:
        return False
    waiting, seen = [variable.op], set()
    while waiting:
        op = waiting.pop()
        for user in (user for tensor in op.outputs for user in tensor.consumers() if user in needed):
            if user.type in _PRODUCTS:
                return True
            if user.type in _PASSING and user not in seen:
                seen.add(user)
                waiting.append(user)
    return False
