"""Momentum that the workers apply, where they send the largest entries of what they have accumulated.

An optimizer on the ps would see a gradient only when it is sent, and start its momentum there.  So a worker accumulates
velocities instead of gradients, and the ps subtracts them, times the learning rate: momentum correction (Lin et al.,
Deep gradient compression, ICLR 2018, section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.base.types import Op, Optimizer, Tensor, Variable


@dataclass(frozen=True)
class Momentum:
    """factor: of the previous velocity in the new one.  nesterov: whether a step looks one velocity ahead."""

    factor: float
    nesterov: bool

    def velocity(self, before: Tensor, gradient: Tensor) -> Tensor:
        """The velocity after a gradient; `before`, the gradient and the result have one shape and dtype."""
        return before * self.factor + gradient

    def step(self, velocity: Tensor, gradient: Tensor) -> Tensor:
        """The change by tf.train.MomentumOptimizer over the learning rate, in the shape of the gradient."""
        return gradient + velocity * self.factor if self.nesterov else velocity


def momentum_of(optimizer: Optimizer) -> Momentum | None:
    """The momentum of a tf.train.MomentumOptimizer; None of any other optimizer.

    Raises:
        UsageError: it is not a number.
    """
    if type(optimizer) is not tf1.train.MomentumOptimizer:
        return None
    if not isinstance(optimizer._momentum, int | float):
        raise UsageError(
            f"top_k needs a number as the momentum of MomentumOptimizer, got {optimizer._momentum!r}: the workers, not "
            "the ps, apply it"
        )
    return Momentum(float(optimizer._momentum), bool(optimizer._use_nesterov))


def subtracted(optimizer: Optimizer, learning_rate: Tensor, velocity: Tensor, master: Variable) -> Op:
    """An operation that subtracts velocities, IndexedSlices, times the learning rate, float32 [].

    The optimizer's own slots are made, for checkpoints, and stay as they are.
    """
    with tf1.init_scope():  # as apply_gradients makes them
        optimizer._create_slots([master])
    return tf1.train.GradientDescentOptimizer(learning_rate).apply_gradients([(velocity, master)])
