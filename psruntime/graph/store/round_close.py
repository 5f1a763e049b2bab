"""The close of a round on one bucket: applies the sum of all contributions, once, under the bucket's mutex.

Whoever closes may be interrupted anywhere, and others close all of it too: a bucket that has applied the attempt
is passed over.  The intent is written before the update and the attempt after it, so a bucket whose
update was cut off between the two is known to be torn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.ledger import APPLIED, NOT_FINITE, PENDING
from psruntime.core.rounds.round_messages import Complete
from psruntime.graph.store.bucket_store import PsControl
from psruntime.graph.store.guard import code, is_fenced, locked, one, only_if, settled
from psruntime.graph.store.round_sum import APPLIED_ATTEMPT, ATTEMPT, COUNT, INTENT, RoundStore
from psruntime.graph.store.step_header import Arrived


def close(
    rounds: RoundStore, control: PsControl, closing: Arrived, apply: Callable[[Callable[[Any], Any]], Any]
) -> tuple[Any, Any]:
    """Builds the close of one bucket.  `closing.push` is who closes, its sequence the attempt; factor 0: apply nothing.

    `apply(live)` builds the update and passes each tensor that it depends on through `live`.

    Returns:
        (books, int64 [BOOKS_SIZE] after it; an operation that has run by then).
    """
    store, attempt = rounds.store, closing.push.sequence

    def update() -> tuple[Any, list[Any]]:
        books, ledger = rounds.books.read_value(), store.ledger.read_value()
        complete = tf1.logical_and(tf1.equal(books[ATTEMPT], attempt), tf1.equal(books[COUNT], closing.members))
        allowed = tf1.logical_and(attempt > books[INTENT], tf1.logical_not(is_fenced(control, closing.push)))
        ready = tf1.logical_and(complete, allowed)
        applied = tf1.logical_and(ready, tf1.logical_and(ledger[PENDING] > 0, closing.factor > 0))
        intent = tf1.where(ready, tf1.stack([attempt, closing.members, attempt, books[APPLIED_ATTEMPT]]), books)
        begun = rounds.books.assign(intent, read_value=False)
        with tf1.control_dependencies([begun]):
            run = apply(lambda tensor: only_if(applied, tensor))
        after = tf1.where(ready, tf1.stack([attempt, closing.members, attempt, attempt]), books)
        with tf1.control_dependencies([begun, settled(applied, [run])]):  # `settled` waits for nothing if not applied
            fate = one(tf1.where(applied, code(APPLIED), code(NOT_FINITE)))
            moved = tf1.where(ready, ledger[PENDING], code(0)) * (fate - one(PENDING))
            last = [
                store.version.assign_add(tf1.cast(applied, tf1.int64), read_value=False),
                store.ledger.assign(ledger + moved, read_value=False),
                rounds.books.assign(after, read_value=False),
            ]
        return after, last

    push = closing.push
    arrived = [push.worker, push.incarnation, attempt, closing.members, closing.factor, *closing.learning_rates]
    with tf1.name_scope(f"close/{store.bucket.name}/"):
        return locked(store, arrived, update)


def torn(books: Any, closes: Complete) -> str | None:
    """Why the attempt cannot be closed any more, from the books [buckets, BOOKS_SIZE]; else None."""
    begun = books[:, INTENT] == closes.attempt
    applied = books[:, APPLIED_ATTEMPT] == closes.attempt
    complete = (books[:, ATTEMPT] == closes.attempt) & (books[:, COUNT] == closes.members)
    if (begun & ~applied).any():
        return f"{int((begun & ~applied).sum())} buckets were cut off in their update"
    if not (applied | complete).all():
        return f"{int((~(applied | complete)).sum())} buckets lack contributions"
    return None
