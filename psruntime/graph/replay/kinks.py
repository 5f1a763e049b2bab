"""Kinks: edges where rounding decides on which side an input is, and with it the whole gradient there.

Two trainings that round differently, by another processor or another order of sums, diverge there by much more than
rounding: by 6e-4 in a parameter in one case, from one input of a ReLU at 1.2e-7.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.subgraphs import ancestors
from psruntime.graph.base.types import Array, Op, Tensor

NEAR = 2e-7  # of the largest input: some four roundings of float32


def _to_zero(op: Op) -> Tensor:
    return tf1.abs(op.inputs[0])


def _to_six(op: Op) -> Tensor:
    return tf1.minimum(tf1.abs(op.inputs[0]), tf1.abs(op.inputs[0] - 6.0))


def _between(op: Op) -> Tensor:
    return tf1.abs(op.inputs[0] - op.inputs[1])


def _to_best(sign: float) -> Callable[[Op], Tensor]:
    """The distance of every entry to the largest along the axes that are reduced, or to the smallest."""

    def distance(op: Op) -> Tensor:
        x = op.inputs[0] * tf1.cast(sign, op.inputs[0].dtype)
        return tf1.reduce_max(x, op.inputs[1], keepdims=True) - x

    return distance


def _to_last_taken(op: Op) -> Tensor:
    """The distance of every entry to the smallest of the k largest, and of those to the largest of the others."""
    x, last = op.inputs[0], op.outputs[0][..., -1:]
    return tf1.abs(x - last)


DISTANCES: dict[str, Callable[[Op], Tensor]] = {
    "Relu": _to_zero,
    "LeakyRelu": _to_zero,
    "Selu": _to_zero,
    "Abs": _to_zero,
    "Relu6": _to_six,
    "Maximum": _between,
    "Minimum": _between,
    "ClipByValue": lambda op: tf1.minimum(tf1.abs(op.inputs[0] - op.inputs[1]), tf1.abs(op.inputs[0] - op.inputs[2])),
    "Max": _to_best(1.0),
    "Min": _to_best(-1.0),
    "TopKV2": _to_last_taken,
}  # operation -> how far each entry of its input is from an edge; those of loops and functions are not looked at


class Kinks:
    """The edges of a loss, a scalar, in the current graph.

    measures: of each operation (the smallest distance above 0, the largest input), float64 [], to be fetched.  A
    distance of 0 does not depend on rounding, as that of padding.
    """

    def __init__(self, loss: Tensor) -> None:
        found = [op for op in ancestors([loss]) if op.type in DISTANCES and op.inputs[0].dtype.is_floating]
        self._ops = sorted((op for op in found if op._get_control_flow_context() is None), key=lambda op: op.name)
        self.measures = [_measured(op) for op in self._ops]

    def near(self, measured: list[Array]) -> list[str]:
        """One text for each operation with an input within NEAR of an edge."""
        return [
            f"an input of {op.type} {op.name} is {distance:.1e} from its kink, and inputs there are up to {largest:.1e}"
            for op, (distance, largest) in zip(self._ops, measured, strict=True)
            if distance <= NEAR * largest
        ]


def _measured(op: Op) -> tuple[Tensor, Tensor]:
    distance = tf1.cast(DISTANCES[op.type](op), tf1.float64)
    smallest = tf1.reduce_min(tf1.where(distance > 0, distance, tf1.fill(tf1.shape(distance), tf1.float64.max)))
    return smallest, tf1.reduce_max(tf1.abs(tf1.cast(op.inputs[0], tf1.float64)))
