"""Large tensors of one value that no session keeps.

TensorFlow makes a constant of a fill whose shape is static, and a session keeps its constants until it is closed: the
ps would keep the size of a large variable once more, and again for each copy that is initialised like this.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import DType, Op, Tensor, Variable
from psruntime.graph.ops.value_rows import rows_of

LARGE_BYTES = 1 << 20


def zeros(shape: Sequence[int], dtype: DType) -> Tensor:
    """As tf.zeros, of a static shape, on the current device."""
    made = tf1.fill(tf1.stack([at_run_time(size) for size in shape]), tf1.zeros([], dtype))
    made.set_shape(shape)
    return made


def initialise(variable: Variable) -> Op:
    """An operation that assigns a variable its initial value, on its device."""
    value, size = variable.initial_value, variable.shape.num_elements()
    is_large = size is not None and size * variable.dtype.size > LARGE_BYTES
    with tf1.device(variable.device):
        rows = rows_of(value, lambda _: None) if is_large else None
        if rows is None:
            return variable.initializer
        height = at_run_time(value.shape.as_list()[0])
        return tf1.raw_ops.AssignVariableOp(resource=variable.handle, value=rows(tf1.constant(0, tf1.int64), height))


def at_run_time(number: int) -> Tensor:
    """`number`, int64 [], which TensorFlow cannot fold into a constant: it is drawn at random from a range of one."""
    least, limit = (tf1.constant(each, tf1.int64) for each in (number, number + 1))
    return tf1.raw_ops.RandomUniformInt(shape=tf1.constant([], tf1.int32), minval=least, maxval=limit)
