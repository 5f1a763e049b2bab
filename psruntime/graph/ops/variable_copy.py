"""A copy of a variable that is no variable of the graph's own: made, read and freed by operations alone."""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import Op, Tensor, Variable
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
