"""The layout of a batch: the structure that input_fn yields, and the dense tensors that it is fed as.

A SparseTensor is fed as its indices, values and shape, a RaggedTensor as its values and row splits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import Array, Tensor


class BatchLayout:
    """The layout of `element`, one batch as symbolic tensors.

    any_size: whether a batch, which is dense, may have another number of examples than the element.
    tensors: the dense tensors that are fed, flat.
    """

    def __init__(self, element: Any, any_size: bool = False) -> None:
        self._element = element
        self._any_size = any_size
        self.tensors = tf.nest.flatten(element, expand_composites=True)
        leaves = tf.nest.flatten(element)
        self._first = next((leaf for leaf in leaves if isinstance(leaf, tf1.Tensor)), leaves[0])
        parts = tf.nest.flatten(self._first, expand_composites=True)
        self._position = next(i for i, tensor in enumerate(self.tensors) if tensor is parts[0])

    @property
    def features(self) -> Any:
        """The features of the element."""
        return _sides(self._element)[0]

    @property
    def odd(self) -> str:
        """The kind of a leaf that is not a tensor; empty if all are."""
        kinds = (tf1.Tensor, tf1.SparseTensor, tf.RaggedTensor)
        return next((type(leaf).__name__ for leaf in tf.nest.flatten(self._element) if not isinstance(leaf, kinds)), "")

    @property
    def is_dense(self) -> bool:
        """Whether every tensor has the examples along its first axis, so that batches can be concatenated."""
        leaves = tf.nest.flatten(self._element)
        return all(isinstance(leaf, tf1.Tensor) and leaf.shape.rank != 0 for leaf in leaves)

    def placeholders(self, after: Sequence[Tensor] = (), any_size: bool = False) -> tuple[Any, Any, list[Tensor]]:
        """(features, labels or None, placeholders to feed) for the current graph.

        after: tensors before which nothing is computed of features and labels.
        any_size: for a batch of any number of examples, of which those tensors have the shape that are dense and have
            an axis of them.
        """
        shapes = self._any_sizes() if any_size or self._any_size else [t.shape for t in self.tensors]
        flat = fed = [
            tf1.placeholder(t.dtype, shape, name=f"batch_{i}")
            for i, (t, shape) in enumerate(zip(self.tensors, shapes, strict=True))
        ]
        if after:
            with tf1.control_dependencies(after):
                flat = [tf1.identity(t) for t in fed]
        features, labels = _sides(tf.nest.pack_sequence_as(self._element, flat, expand_composites=True))
        return features, labels, fed

    def _any_sizes(self) -> list[tf1.TensorShape]:
        dense = {
            id(leaf) for leaf in tf.nest.flatten(self._element) if isinstance(leaf, tf1.Tensor) and leaf.shape.rank
        }
        return [tf1.TensorShape([None, *t.shape[1:]]) if id(t) in dense else t.shape for t in self.tensors]

    def examples(self, batch: list[Tensor] | list[Array], shape: Callable[[Tensor], Tensor]) -> Tensor | int:
        """The number of examples in a batch: the length of its first dense tensor, or else of its first tensor.

        batch: flat, arrays or tensors.  shape: returns the shape of one of them.  Returns an integer: of arrays a
        number, of tensors int32 [], or int64 [] of a sparse one; 1 of a scalar.
        """
        return _first_dimension(self._first, batch, self._position, shape)

    def miscounted(self, batch: list[Array]) -> str:
        """How the numbers of examples in features and labels differ; without labels, those of the first and the other
        features.  Empty if one of the others has the same number, or none has any.  batch: arrays.
        """
        features, labels = _sides(self._element)
        beside, position, sizes = features if labels is None else labels, 0, []
        wanted = {id(leaf) for leaf in tf.nest.flatten(beside)} - {id(self._first)}
        for leaf in tf.nest.flatten(self._element):
            if id(leaf) in wanted and np.ndim(batch[position]):
                sizes.append(int(_first_dimension(leaf, batch, position, np.shape)))
            position += len(tf.nest.flatten(leaf, expand_composites=True))
        count = int(self.examples(batch, np.shape))
        if not sizes or count in sizes:
            return ""
        others = "other features" if labels is None else "labels"
        return f"the features have first dimension {count} and the {others} {', '.join(map(str, sizes))}"


def _first_dimension(
    leaf: Any, batch: list[Tensor] | list[Array], position: int, shape: Callable[[Tensor], Tensor]
) -> Tensor | int:
    """The first dimension of a leaf whose dense tensors start at this position of the batch; 1 of a scalar."""
    if isinstance(leaf, tf1.SparseTensor):
        return batch[position + 2][0]
    if isinstance(leaf, tf.RaggedTensor):
        return shape(batch[position + 1])[0] - 1
    if leaf.shape.rank == 0:
        return 1
    sizes = shape(batch[position])
    if leaf.shape.rank is not None:
        return sizes[0]
    return [*sizes, 1][0] if isinstance(sizes, tuple) else tf1.concat([sizes, [1]], axis=0)[0]  # it may be a scalar


def _sides(element: Any) -> tuple[Any, Any]:
    """(features, labels)."""
    return element if isinstance(element, tuple) and len(element) == 2 else (element, None)
