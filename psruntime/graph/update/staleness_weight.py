"""Lowers the learning rate of a bucket's update by its staleness, which only its ps has, in the critical section.

The optimizer is made before the section is, and needs a tensor as its rate.  So it has a tensor whose source is
replaced by the lowered rate once the section computes that.

Where the parameters are computed from sums over all updates, as in Ftrl, all of them share the learning rate: half
the rate for one update would halve the parameters.  There the gradient is multiplied instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf1

from psruntime.config.values import StalenessLr
from psruntime.core.accounting.ledger import DOWN_WEIGHTED
from psruntime.graph.base.devices import ps_device
from psruntime.graph.base.types import Tensor
from psruntime.graph.store.gradient import BucketGradient
from psruntime.graph.store.numbers import Numbers


class StalenessWeight:
    """The weights of the updates of a bucket on this ps, by a rule.

    rates: the optimizer's instead of the learning rates it was given, float32 [] of each rule.
    of_gradient: whether the gradient is multiplied instead of the rate; to be set before `of` is called.
    """

    def __init__(self, rule: StalenessLr, ps: int, numbers: Numbers, rates: Sequence[Tensor], number: int) -> None:
        """rates: as in the header.  number: which of them the bucket has."""
        self._rule = rule
        self._numbers = numbers
        self._given = rates[number]
        with tf1.device(ps_device(ps)):
            self._rate = tf1.identity(self._given, name="rate_by_staleness")
        self.rates = [*rates[:number], self._rate, *rates[number + 1 :]]
        self.of_gradient = False

    def of(self, staleness: Tensor) -> Tensor:
        """The weight of the update with this staleness, int64 [], from 0 to 1, float32 [].

        To be called once, in the section: from then on the rate is the lowered one.
        """
        numbers, decay = self._numbers, self._rule.decay
        if decay is None:
            weight = tf1.math.reciprocal(tf1.cast(tf1.maximum(staleness, numbers(1)), tf1.float32))
        else:
            late = tf1.cast(tf1.maximum(staleness, numbers(0)), tf1.float32)
            weight = tf1.exp(late * numbers(-decay, tf1.float32))
        if not self.of_gradient:
            self._rate.op._update_input(0, self._given * weight)
        return weight

    def weighted(self, gradient: BucketGradient, weight: Tensor) -> BucketGradient:
        """The gradient as the optimizer is given it.  weight: as of `of`, float32 []."""
        if not self.of_gradient:
            return gradient
        return gradient.with_values(gradient.values * tf1.cast(weight, gradient.values.dtype))

    def counted(self, applied: Tensor, weight: Tensor) -> Tensor:
        """The change of the ledger by the update, int64 [LEDGER_SIZE].  applied: bool []."""
        lowered = tf1.logical_and(applied, tf1.less(weight, self._numbers(1.0, tf1.float32)))
        return self._numbers.one(DOWN_WEIGHTED) * tf1.cast(lowered, tf1.int64)
