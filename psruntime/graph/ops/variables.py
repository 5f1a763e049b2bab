"""Variables of psruntime's own: a copy of another one, and what a worker keeps from step to step."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import DType, Op, Tensor, Variable
from psruntime.graph.ops.row_chunks import move


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
