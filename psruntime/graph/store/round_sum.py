"""The rounds of mode sync on one bucket: the sum of the contributions, one worker's contribution, and the close.

TensorFlow's ConditionalAccumulator is not used: it counts the repeat of a push twice, cannot be read (the joint norm is
needed before anything is applied), blocks when it is empty, and a gradient that was taken out of it is lost with
whoever took it.  Here the sum stays until the next attempt begins, so an interrupted close is simply repeated.

A close may be interrupted anywhere, and others close the same round too: a bucket that has applied the attempt is
passed over.  The intent is written before the update and the attempt after it, so a bucket whose update was cut off
between the two is known to be torn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.ledger import APPLIED, NOT_FINITE, PENDING, RECEIVED, VOID
from psruntime.core.rounds.round_messages import Complete
from psruntime.graph.base.devices import ps_device
from psruntime.graph.store.bucket_store import BucketStore, PsControl, ps_variable
from psruntime.graph.store.gradient import BucketGradient
from psruntime.graph.store.gradient_store import GradientStore, summing
from psruntime.graph.store.guard import Push, at_hand, code, is_fenced, locked, one, only_if, refusal, remember, settled
from psruntime.graph.store.step_messages import Arrived

# Columns of the books.  An attempt is begun by its first contribution, which resets the sum.
ATTEMPT, COUNT, INTENT, APPLIED_ATTEMPT = range(4)
BOOKS_SIZE = 4


class RoundStore:
    """The variables of one bucket for its rounds, on its ps.

    sum: a gradient like the contributions, dense or rows with their indices; but float64 all is summed in float32.
    unit: float64 [], times which the sum is that of all examples' gradients; 0: nothing that counts was summed.
    books: int64 [BOOKS_SIZE] = (attempt that is summed, its contributions so far, the last attempt that began
        to be applied, the last that was applied).  INTENT above APPLIED_ATTEMPT: the bucket is torn.
    """

    def __init__(self, store: BucketStore, is_sparse: bool) -> None:
        self.store = store
        with tf1.device(ps_device(store.bucket.ps)):
            dtype = summing(store.master.dtype.base_dtype)
            self.sum = GradientStore(f"sum/{store.bucket.name}", store.master, dtype, is_sparse)
            self.unit = ps_variable(f"unit/{store.bucket.name}", [], tf1.float64)
            self.books = ps_variable(f"round/{store.bucket.name}", [BOOKS_SIZE])

    @property
    def variables(self) -> list[Any]:
        return [*self.sum.variables, self.unit, self.books]

    def add(self, gradient: BucketGradient, unit: Any, accepted: Any, fresh: Any) -> Any:
        """A tensor that is there once the gradient, if it is accepted and its unit is above 0, was added to the sum, or
        made the sum, if that is `fresh` or has nothing in it yet; the unit of the sum then.

        The sum has the unit of the first gradient in it: those of the same unit are added as they are.
        """
        held = self.unit.read_value()
        before = tf1.where(fresh, tf1.zeros_like(held), held)
        is_first = tf1.equal(before, 0)
        counts = tf1.logical_and(accepted, unit > 0)
        live = gradient.map(lambda tensor: only_if(counts, tensor))
        first = live.map(lambda tensor: only_if(is_first, tensor))
        more = live.map(lambda tensor: only_if(tf1.logical_not(is_first), tensor))
        added = [self.sum.write(first), self.sum.add(more, tf1.math.divide_no_nan(unit, before))]
        with tf1.control_dependencies([settled(counts, added)]):
            summed = tf1.where(tf1.logical_and(is_first, counts), unit, before)
            return tf1.where(accepted, summed, held)

    def mean(self, factor: Any, live: Callable[[Any], Any]) -> BucketGradient:
        """The sum of all examples' gradients times the factor, float64 []; the sum is passed through `live`.

        Where that is the sum itself it is not multiplied, which would be a pass over the memory and a copy.
        """
        total = self.sum.read().map(live)
        scale = tf1.cast(factor * self.unit.read_value(), self.sum.dtype)
        is_it = tf1.equal(scale, 1)
        as_it_is = only_if(is_it, total.values)
        multiplied = tf1.multiply(only_if(tf1.logical_not(is_it), total.values), scale, name="multiplied")
        values = tf1.raw_ops.Merge(inputs=[as_it_is, multiplied]).output
        values.set_shape(total.values.shape)
        return total.with_values(values)

    def seal(self) -> Any:
        """An operation after which what is summed now can never be applied: its contributions count no more."""

        def forget() -> tuple[Any, list[Any]]:
            books = self.books.read_value()
            sealed = books * tf1.one_hot(COUNT, BOOKS_SIZE, on_value=0, off_value=1, dtype=tf1.int64)
            return sealed, [self.books.assign(sealed, read_value=False)]

        return locked(self.store, [], forget)[1]

    def square(self) -> Any:
        """Sum of squares of the sum of all examples' gradients, float64 []."""
        squares = tf1.reduce_sum(tf1.square(tf1.cast(self.sum.read().values, tf1.float64)))
        return tf1.math.multiply_no_nan(squares, tf1.square(self.unit.read_value()))


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
