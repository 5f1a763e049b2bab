"""A contribution to a round: one worker's gradient of one bucket, added to the sum on the ps, once."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.ledger import NOT_FINITE, PENDING, RECEIVED, VOID
from psruntime.graph.store.bucket_store import PsControl
from psruntime.graph.store.gradients import BucketGradient
from psruntime.graph.store.guard import Push, at_hand, code, locked, one, refusal, remember
from psruntime.graph.store.round_sum import APPLIED_ATTEMPT, ATTEMPT, COUNT, INTENT, RoundStore


def contribute(
    rounds: RoundStore, control: PsControl, push: Push, gradient: BucketGradient, unit: Any, closed: Any = None
) -> Any:
    """Builds one bucket's part of a contribution; `push.sequence` is the attempt.

    unit: of the gradient, see Arrived.
    closed: the books after the close of the round before, in the same run: it begins after that.

    A contribution of an attempt that is older than the one being summed, or that is applied already, is void.
    One that is not finite counts, without its gradient, so that the round is complete without it.

    Returns:
        int64 [2] = (PENDING, NOT_FINITE or the cause of the drop; the last attempt that the bucket had applied, after
        the close if there was one, so when it was pulled).
    """
    store, attempt = rounds.store, push.sequence
    gradient = at_hand(store, gradient, rounds.sum.dtype)

    def add() -> tuple[Any, list[Any]]:
        books, ledger = rounds.books.read_value(), store.ledger.read_value()
        last_push = store.pushed.sparse_read(push.worker)
        void = tf1.logical_or(attempt < books[ATTEMPT], attempt <= books[INTENT])
        counted = tf1.where(push.finite, code(PENDING), code(NOT_FINITE))
        verdict = refusal(control, push, last_push, tf1.where(void, code(VOID), counted))
        accepted = tf1.equal(verdict, counted)
        fresh = attempt > books[ATTEMPT]
        begins = tf1.logical_and(accepted, fresh)
        unit_of_sum = rounds.unit.assign(rounds.add(gradient, unit, accepted, fresh), read_value=False)
        with tf1.control_dependencies([unit_of_sum]):  # so that books never tell of a sum whose unit is not known
            before = tf1.where(begins, code(0), books[COUNT])
            now = tf1.stack([attempt, before + 1, books[INTENT], books[APPLIED_ATTEMPT]])
            given_up = tf1.where(begins, ledger[PENDING], code(0)) * (one(VOID) - one(PENDING))
            last = [
                rounds.books.assign(tf1.where(accepted, now, books), read_value=False),
                store.ledger.assign(ledger + given_up + one(RECEIVED) + one(verdict), read_value=False),
                remember(store, push, last_push, accepted),
            ]
        return tf1.stack([verdict, (books if closed is None else closed)[APPLIED_ATTEMPT]]), last

    with tf1.name_scope(f"contribute/{store.bucket.name}/"):
        arrived = [*push.tensors, unit, *gradient.tensors, *([] if closed is None else [closed])]
        return locked(store, arrived, add)[0]
