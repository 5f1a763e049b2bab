"""What a bucket holds for the sync mode: the sum of the contributions to a round, and where the round stands.

TensorFlow's ConditionalAccumulator is not used: it counts the repeat of a push twice, cannot be read (the
joint norm is needed before anything is applied), blocks when it is empty, and a gradient that was taken out
of it is lost with whoever took it.  Here the sum stays until the next attempt begins, so an interrupted
close is simply repeated.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.devices import ps_device
from psruntime.graph.gradient_store import GradientStore, summing
from psruntime.graph.gradients import BucketGradient
from psruntime.graph.guard import locked, only_if
from psruntime.graph.store import BucketStore, ps_variable

# Columns of the books.  An attempt is begun by its first contribution, which resets the sum.
ATTEMPT, COUNT, INTENT, APPLIED_ATTEMPT = range(4)
BOOKS_SIZE = 4


class RoundStore:
    """The variables of one bucket for its rounds, on its ps.

    sum: a gradient like the contributions, dense or rows with their indices; half precision is summed in float32.
    books: int64 [BOOKS_SIZE] = (attempt that is summed, its contributions so far, the last attempt that began
        to be applied, the last that was applied).  INTENT above APPLIED_ATTEMPT: the bucket is torn.
    """

    def __init__(self, store: BucketStore, is_sparse: bool) -> None:
        self.store = store
        with tf1.device(ps_device(store.bucket.ps)):
            dtype = summing(store.master.dtype.base_dtype)
            self.sum = GradientStore(f"sum/{store.bucket.name}", store.master, dtype, is_sparse)
            self.books = ps_variable(f"round/{store.bucket.name}", [BOOKS_SIZE])

    @property
    def variables(self) -> list[Any]:
        return [*self.sum.variables, self.books]

    def add(self, gradient: BucketGradient, accepted: Any, fresh: Any) -> list[Any]:
        """Operations of which one adds the gradient to the sum, or, if `fresh`, makes it the sum."""
        live = gradient.map(lambda tensor: only_if(accepted, tensor))
        first = live.map(lambda tensor: only_if(fresh, tensor))
        more = live.map(lambda tensor: only_if(tf1.logical_not(fresh), tensor))
        return [self.sum.write(first), self.sum.add(more)]

    def seal(self) -> Any:
        """An operation after which what is summed now can never be applied: its contributions count no more."""

        def forget() -> tuple[Any, list[Any]]:
            books = self.books.read_value()
            sealed = books * tf1.one_hot(COUNT, BOOKS_SIZE, on_value=0, off_value=1, dtype=tf1.int64)
            return sealed, [self.books.assign(sealed, read_value=False)]

        return locked(self.store, [], forget)[1]

    def square(self) -> Any:
        """Sum of squares of the sum, float64 []."""
        return tf1.reduce_sum(tf1.square(tf1.cast(self.sum.read().values, tf1.float64)))
