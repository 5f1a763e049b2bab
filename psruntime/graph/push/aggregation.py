"""Aggregations: what a ps makes of what the workers made of a variable that the model changes itself.

As tf.VariableAggregation has them.  SUM and MEAN are over the workers of a round; a push of the other modes is by
itself, so both are what it has.  ONLY_FIRST_REPLICA is what the chief has.  What is aggregated are values where the
model assigns such as do not depend on the one before, and the changes elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import tensorflow.compat.v1 as tf1

from psruntime.config.schedule import LOCAL
from psruntime.core.accounting.accounts import PENDING
from psruntime.errors import UsageError
from psruntime.graph.base.types import Op
from psruntime.graph.push.round_sum import RoundStore
from psruntime.graph.push.step_messages import ReceivedPush
from psruntime.graph.store.bucket_store import BucketStore
from psruntime.graph.store.gradient import BucketGradient
from psruntime.graph.update.apply import Update, counting_update, setting_update, subtracting_update


@dataclass(frozen=True)
class Aggregation:
    """kind: one of AGGREGATIONS.  is_assigned: whether values are aggregated, else changes."""

    kind: str
    is_assigned: bool

    @property
    def is_first_only(self) -> bool:
        return self.kind == "ONLY_FIRST_REPLICA"

    def push_update(self, store: BucketStore, request: ReceivedPush) -> Update:
        """The update by one push of this header."""
        apply = self._apply(store)

        def update(pushed: BucketGradient) -> Op:
            if self.is_first_only:
                nothing = store.master.read_value() if self.is_assigned else tf1.zeros_like(pushed.values)
                pushed = pushed.map(lambda values: tf1.where(request.is_chief, values, nothing))
            return apply(pushed)

        return update

    def contribution(self, request: ReceivedPush) -> ReceivedPush:
        """The header of a contribution to a round, with the scale at which it counts: 1, or 0 if it does not."""
        push = request.push
        counts = tf1.logical_and(push.finite, request.is_chief) if self.is_first_only else push.finite
        return replace(request, scale=tf1.cast(counts, tf1.float64))

    def round_update(self, rounds: RoundStore) -> Update:
        """The update by the sum of a round."""
        apply = self._apply(rounds.store)
        return lambda total: apply(self._joint(rounds, total, self.is_assigned))

    def local_update(self, rounds: RoundStore) -> Update:
        """The update by the sum of a local round, of what each variable was less what it is.

        Raises:
            UsageError: values are summed, of which such differences are none.
        """
        if self.is_assigned and self.kind == "SUM":
            raise UsageError(
                f"the schedule has stage '{LOCAL}', and the model assigns values to variable "
                f"{rounds.store.bucket.variable}, whose aggregation is SUM; leave out that stage, or use assign_add"
            )
        apply = subtracting_update(rounds.store)
        return lambda total: apply(self._joint(rounds, total, False))

    def _apply(self, store: BucketStore) -> Update:
        return setting_update(store) if self.is_assigned else counting_update(store)

    def _joint(self, rounds: RoundStore, total: BucketGradient, keeps: bool) -> BucketGradient:
        """What the workers have together, in the master's dtype.  keeps: where none counts it is the master."""
        factor, master = tf1.ones([], tf1.float64), rounds.store.master
        if self.kind == "MEAN":
            factor /= tf1.cast(rounds.store.ledger.read_value()[PENDING], tf1.float64)
        joint = rounds.joint(total, factor).map(lambda values: tf1.cast(values, master.dtype.base_dtype))
        if not keeps:
            return joint
        return joint.map(lambda values: tf1.where(rounds.scale.read_value() > 0, values, master.read_value()))
