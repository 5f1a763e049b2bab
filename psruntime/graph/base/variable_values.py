"""Values of variables: computed by rows, moved in chunks, copied, and made so that no session keeps them.

An initializer draws random numbers and then computes entry by entry.  TensorFlow numbers its draws, so some rows of an
initial value can be drawn without the others, equal to those of the whole to the bit: an operation of `tf.random`'s
stateless kind with the same key starts at any number.  Source: Salmon et al., "Parallel random numbers: as easy as
1, 2, 3" (SC 2011), whose Philox 4x32-10 both kinds are; how draws are numbered is in
tensorflow/core/kernels/random_op_cpu.h.

TensorFlow makes a constant of a fill whose shape is static, and a session keeps its constants until it is closed: the
ps would keep the size of a large variable once more, and again for each copy that is initialised like this.

TensorFlow sends a tensor as one message, which has to stay below 2 GB; and a process that moves a variable as a whole
needs the memory of a second one meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import Array, DType, Op, Tensor, Variable

Rows = Callable[[Tensor, Tensor], Tensor]  # (first row, number of rows), int64 [], -> these rows, on the current device
Key = Callable[[Op], Tensor]  # an operation that draws without a seed -> uint64 [2] instead of one; None: there is none

ALIGNED = 4  # the first row has to be a multiple of this
PHILOX, CHOSEN = 1, 3  # of algorithms; on a CPU, where initial values are computed, TensorFlow chooses Philox


_DRAWING = {
    "RandomUniform": tf1.raw_ops.StatelessRandomUniformV2,
    "RandomStandardNormal": tf1.raw_ops.StatelessRandomNormalV2,
    "TruncatedNormal": tf1.raw_ops.StatelessTruncatedNormalV2,
    "StatelessRandomUniformV2": tf1.raw_ops.StatelessRandomUniformV2,
    "StatelessRandomNormalV2": tf1.raw_ops.StatelessRandomNormalV2,
    "StatelessTruncatedNormalV2": tf1.raw_ops.StatelessTruncatedNormalV2,
}
TRIED = 64  # draws of 128 bits that there are for each entry of a truncated normal: it draws until one fits

# Those that round once at most, so that an entry does not depend on where in a tensor it is.
_BY_ENTRY: dict[str, Callable[..., Tensor]] = {
    "Add": tf1.add,
    "AddV2": tf1.add,
    "Identity": tf1.identity,
    "Mul": tf1.multiply,
    "Neg": tf1.negative,
    "RealDiv": tf1.truediv,
    "Sub": tf1.subtract,
}


def rows_of(value: Tensor, key: Key) -> Rows | None:
    """A function for rows of `value`, a tensor of static shape [rows, ...]; None if it has to be computed whole."""
    op, shape = value.op, value.shape
    if op.type == "Fill":
        return lambda _, rows: tf1.fill(_shaped(rows, shape), op.inputs[1])
    if op.type == "Const":
        single = _single(op)
        return None if single is None else lambda _, rows: tf1.fill(_shaped(rows, shape), tf1.constant(single))
    if op.type in _DRAWING and shape.is_fully_defined():
        return _drawn(op, key)
    if op.type not in _BY_ENTRY:
        return None
    inputs = [rows_of(each, key) if _has_rows(each, shape) else _every_row(each) for each in op.inputs]
    made = [each for each in inputs if each]
    if len(made) < len(inputs):
        return None
    return lambda first, rows: _BY_ENTRY[op.type](*[each(first, rows) for each in made])


def _drawn(op: Op, key: Key) -> Rows | None:
    value, start = op.outputs[0], _start(op, key)
    if start is None:
        return None
    own_key, low, high = start
    row_size = prod(value.shape.as_list()[1:])
    of_one_draw = 2 if value.dtype == tf1.float64 else 4  # entries

    def drawn(first: Tensor, rows: Tensor) -> Tensor:
        entry = first * row_size
        draw = low + tf1.cast(entry * TRIED if "Truncated" in op.type else entry // of_one_draw, tf1.uint64)
        counter = tf1.stack([draw, high + tf1.cast(draw < low, tf1.uint64)])
        shape = _shaped(rows, value.shape)
        return _DRAWING[op.type](shape=shape, key=own_key, counter=counter, alg=PHILOX, dtype=value.dtype)

    return drawn


def _start(op: Op, key: Key) -> tuple[Tensor, Tensor, Tensor] | None:
    """(key, uint64 [1]; lower and upper half of the number of the first draw, uint64 []); None if there is none."""
    if op.type.startswith("Stateless"):
        _, own_key, counter, algorithm = op.inputs
        return (own_key, *tf1.unstack(counter)) if tf1.get_static_value(algorithm) in (PHILOX, CHOSEN) else None
    seeds = [op.get_attr("seed") % 2**64, op.get_attr("seed2") % 2**64]
    seeded = tf1.constant(seeds, tf1.uint64) if any(seeds) else key(op)
    return None if seeded is None else (seeded[:1], tf1.constant(0, tf1.uint64), seeded[1])


def _single(op: Op) -> Array:
    """The one value that a constant has everywhere, as numpy has it; None if it may have others."""
    scalar = op.get_attr("value")
    scalar.ClearField("tensor_shape")
    values = [len(entries) for field, entries in scalar.ListFields() if field.name.endswith("_val")]
    return tf1.make_ndarray(scalar) if values == [1] else None


def _has_rows(tensor: Tensor, shape: tf1.TensorShape) -> bool:
    """Whether a tensor has an entry of its own for each row of this shape, and is not the same for all."""
    return tensor.shape.rank is None or (tensor.shape.rank == shape.rank and tensor.shape[0] != 1)


def _every_row(tensor: Tensor) -> Rows:
    return lambda *_: tensor


def _shaped(rows: Tensor, shape: tf1.TensorShape) -> Tensor:
    return tf1.concat([rows[None], tf1.constant(shape.as_list()[1:], tf1.int64)], axis=0)


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


CHUNK_BYTES = 256 << 20  # at most, unless a row is larger


def row_chunks(shape: tuple[int, ...], item_bytes: int) -> Iterator[tuple[int, int]]:
    """(first row, number of rows) of each chunk of a variable of this shape; one of all rows if it is small."""
    rows = shape[0] if shape else 1
    row_bytes = item_bytes
    for size in shape[1:]:
        row_bytes *= size
    step = max(1, CHUNK_BYTES // max(1, row_bytes))
    for start in range(0, max(rows, 1), step):
        yield start, min(step, rows - start)


def assign_rows(handle: Tensor, start: Tensor | int, value: Tensor) -> Op:
    """An operation, on the handle's device, that assigns `value` to the rows from `start`, int64 [] or a number, on.

    The variable must have a value.
    """
    with tf1.device(handle.device):
        begin = tf1.reshape(tf1.cast(start, tf1.int64), [1])
        end = begin + tf1.shape(value, out_type=tf1.int64)[:1]
        one = tf1.constant([1], tf1.int64)
        return tf1.raw_ops.ResourceStridedSliceAssign(ref=handle, begin=begin, end=end, strides=one, value=value)


def write_rows(variable: Variable, rows: Tensor, values: Tensor) -> Op:
    """An operation that assigns these rows of a variable, an integer [] or [rows], the values."""
    return tf1.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=values)


def move(read: Tensor, handle: Tensor, shape: tuple[int, ...]) -> list[Op]:
    """Operations that assign the variable of `handle`, of this shape, the value `read`, which is on another device.

    read: a tensor on the source's device.  Each chunk starts when the one before has arrived; the last operation runs
    after all others.
    """
    chunks = list(row_chunks(shape, read.dtype.size))
    with tf1.device(handle.device):
        first = read if len(chunks) == 1 else zeros(shape, read.dtype)
        writes = [tf1.raw_ops.AssignVariableOp(resource=handle, value=first)]
    for start, rows in chunks if len(chunks) > 1 else []:
        with tf1.control_dependencies([writes[-1]]), tf1.device(read.device):
            chunk = read[start : start + rows]
        chunk.set_shape([rows, *shape[1:]])
        writes.append(assign_rows(handle, start, chunk))
    return writes


class VariableCopy:
    """A copy of `variable`, by default on its device.  `suffix` distinguishes it from the variable's other copies."""

    def __init__(self, variable: Variable, suffix: str, device: str | None = None) -> None:
        self.variable = variable
        self._device = device or variable.device
        self._dtype = variable.dtype.base_dtype
        name = f"{variable.handle.op.name}/{suffix}"
        with tf1.device(self._device), tf1.control_dependencies(None):
            self._handle = tf1.raw_ops.VarHandleOp(dtype=self._dtype, shape=variable.shape, shared_name=name)

    def take(self) -> Op:
        """An operation that copies the variable's value.

        The copy shares the variable's memory until that is next updated, unless it is updated by rows.
        """
        with tf1.device(self.variable.device):
            value = self.variable.read_value()
        with tf1.device(self._device):
            return tf1.raw_ops.AssignVariableOp(resource=self._handle, value=value)

    def assign(self, value: Tensor) -> list[Op]:
        """Operations that assign the copy this value, a tensor on any device; as those of `move`."""
        return move(value, self._handle, tuple(self.variable.shape.as_list()))

    def give_back(self) -> list[Op]:
        """Operations that assign the variable the value of the copy; as those of `move`."""
        return move(self.read(), self.variable.handle, tuple(self.variable.shape.as_list()))

    def read(self) -> Tensor:
        """Its value, of the variable's shape and dtype, on its device."""
        with tf1.device(self._device):
            value = tf1.raw_ops.ReadVariableOp(resource=self._handle, dtype=self._dtype)
            value.set_shape(self.variable.shape)
            return value

    def free(self) -> Op:
        """An operation after which there is no copy."""
        with tf1.device(self._device):
            return tf1.raw_ops.DestroyResourceOp(resource=self._handle, ignore_lookup_error=True)


LASTING = "psruntime/lasting"  # the collection of those that the sessions of a worker share


def worker_variable(name: str, shape: Sequence[int], dtype: DType, value: int = 0, lasting: bool = False) -> Variable:
    """A variable on the current device, with this value in every new session.

    lasting: it has this value when the variables of the job were initialised or restored, and keeps its own in every
    other new session, in those of another graph of the worker, too (WorkerCopies.take).
    """
    with tf1.variable_scope(tf1.VariableScope(reuse=False), auxiliary_name_scope=False):
        return tf1.get_variable(
            f"psruntime/{name}",
            shape,
            dtype,
            initializer=tf1.constant_initializer(value),
            trainable=False,
            use_resource=True,
            collections=[LASTING if lasting else tf1.GraphKeys.LOCAL_VARIABLES],
        )
