"""What a bucket holds for the sync mode: the sum of the contributions to a round, and where the round stands.

TensorFlow's ConditionalAccumulator is not used: it counts the repeat of a push twice, cannot be read (the
joint norm is needed before anything is applied), blocks when it is empty, and a gradient that was taken out
of it is lost with whoever took it.  Here the sum stays until the next attempt begins, so an interrupted
close is simply repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.devices import ps_device
from psruntime.graph.store.bucket_store import BucketStore, ps_variable
from psruntime.graph.store.gradient_store import GradientStore, summing
from psruntime.graph.store.gradients import BucketGradient
from psruntime.graph.store.guard import locked, only_if, settled

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
