"""The sum of gradients that name rows: they are kept as they come, one after the other, and added up once, when the sum
is applied.

To add each to the sum of those before would make all rows unique anew each time, quadratic in the workers of a round.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import DType, Op, Tensor, Variable
from psruntime.graph.push.guard import gradient_if, only_if, times
from psruntime.graph.store.bucket_store import ps_variable
from psruntime.graph.store.gradient import BucketGradient, GradientStore, summed


class RowSum:
    """Variables on the current device, as GradientStore; of the rows that they have room for, the first `count` count.

    Two gradients are put together as they are: TensorFlow copies a variable that rows were ever written into in every
    read and assignment. For later ones the room doubles when it is used up, so that a row is
    moved about twice, however many come.
    """

    def __init__(self, name: str, master: Variable, dtype: DType) -> None:
        self._rows = GradientStore(name, master, dtype, is_sparse=True)
        self._count = ps_variable(f"{name}/count", [])
        self.dtype = dtype

    @property
    def variables(self) -> list[Variable]:
        return [*self._rows.variables, self._count]

    def read(self) -> BucketGradient:
        """All rows as they came, on the current device; in a run that is not in the critical section, perhaps fewer.

        Of what is read from a variable the shape is not asked: TensorFlow's rewriter makes it that of what the run
        assigns to the variable, where that is known, as with the ids of tf.range.  The last round was closed without
        the rows of all its contributions but one.
        """
        stored, count = self._rows.read(), self._count.read_value()
        for tensor in stored.tensors:
            count = tf1.shape(tensor[:count], out_type=tf1.int64)[0]
        return stored.map(lambda tensor: tensor[:count])

    def total(self, rows: BucketGradient) -> BucketGradient:
        """The sum, from the rows as they came."""
        return summed(rows, in_order=False)

    def write(self, gradient: BucketGradient) -> Op:
        """An operation that replaces the sum."""
        return self._counted([self._rows.write(gradient)], tf1.size(gradient.indices, out_type=tf1.int64))

    def add(self, gradient: BucketGradient, factor: Tensor) -> list[Op]:
        """Operations, of which one adds the gradient times the factor, float64 [], to the sum, and the others are
        dead."""
        rooms = [tf1.raw_ops.VariableShape(input=v.handle, out_type=tf1.int64)[0] for v in self._rows.variables]
        room = tf1.minimum(*rooms)  # they differ where an operation that moves rows was cut off
        with tf1.control_dependencies(gradient.tensors):
            begin = self._count.read_value()
        end = begin + tf1.size(gradient.indices, out_type=tf1.int64)
        fits = end <= room
        more = gradient.with_values(times(gradient.values, tf1.cast(factor, self.dtype)))
        behind, places = gradient_if(fits, more), only_if(fits, tf1.range(begin, end))
        in_place = [
            tf1.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=places, updates=rows)
            for variable, rows in zip(self._rows.variables, behind.tensors, strict=True)
        ]
        moved = self._moved(gradient_if(tf1.logical_not(fits), more), begin)
        return [self._counted(in_place, only_if(fits, end)), moved]

    def _moved(self, more: BucketGradient, count: Tensor) -> Op:
        """An operation that holds all rows, in room for twice those before, or for all if that is more.

        Dead if those that come are.
        """
        with tf1.control_dependencies(more.tensors):  # what is read elsewhere cannot be changed in place
            stored = self._rows.read().map(lambda tensor: tensor[:count])
        coming = tf1.size(more.indices, out_type=tf1.int64)
        room = [tf1.zeros_like(tensor[: tf1.maximum(count - coming, 0)]) for tensor in stored.tensors]
        all_rows = zip(stored.tensors, more.tensors, room, strict=True)
        together = BucketGradient(*[tf1.concat(parts, axis=0) for parts in all_rows])
        return self._counted([self._rows.write(together)], count + coming)

    def _counted(self, written: list[Op], count: Tensor) -> Op:
        with tf1.control_dependencies(written):
            return tf1.group(self._count.assign(count, read_value=False))
