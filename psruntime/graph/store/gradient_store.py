"""A gradient that is kept in variables on the current device, dense or sparse."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.store.bucket_store import ps_variable
from psruntime.graph.store.gradient import BucketGradient, summed


def summing(dtype: Any) -> Any:
    """In which gradients of this dtype are summed."""
    return dtype if dtype == tf1.float64 else tf1.float32


class GradientStore:
    """Holds a gradient of `master`, in `dtype`."""

    def __init__(self, name: str, master: Any, dtype: Any, is_sparse: bool) -> None:
        shape = master.shape.as_list()
        self.dtype = dtype
        if is_sparse:
            self._values = _rows(f"{name}/values", shape[1:], self.dtype)
            self._indices = _rows(f"{name}/indices", [], tf1.int64)
        else:
            self._values = ps_variable(name, shape, self.dtype)
            self._indices = None

    @property
    def variables(self) -> list[Any]:
        return [self._values] if self._indices is None else [self._values, self._indices]

    def read(self) -> BucketGradient:
        """On the current device."""
        return BucketGradient(*[variable.read_value() for variable in self.variables])

    def write(self, gradient: BucketGradient) -> Any:
        """An operation that replaces what is held."""
        pairs = zip(self.variables, gradient.tensors, strict=True)
        return tf1.group(*[variable.assign(tensor, read_value=False) for variable, tensor in pairs])

    def add(self, gradient: BucketGradient, factor: Any) -> Any:
        """An operation that adds the gradient times the factor, a scalar, to what is held."""
        factor = tf1.cast(factor, self.dtype)
        if self._indices is None:  # both in one pass over the memory
            return tf1.raw_ops.ResourceApplyGradientDescent(
                var=self._values.handle, alpha=-factor, delta=gradient.values, use_locking=False
            )
        with tf1.control_dependencies(gradient.tensors):
            held = self.read()
        more = gradient.with_values(gradient.values * factor)
        both = [tf1.concat(pair, axis=0) for pair in zip(held.tensors, more.tensors, strict=True)]
        return self.write(summed(BucketGradient(*both)))


def _rows(name: str, row_shape: list[int], dtype: Any) -> Any:
    """A variable of any number of rows; none until somebody assigns."""
    with tf1.variable_scope(tf1.VariableScope(reuse=False), auxiliary_name_scope=False):
        return tf1.get_variable(
            f"psruntime/{name}",
            initializer=lambda: tf1.placeholder_with_default(tf1.zeros([0, *row_shape], dtype), [None, *row_shape]),
            trainable=False,
            use_resource=True,
            validate_shape=False,
            collections=[],
        )
