"""What tensors, operations and variables are called in annotations.

TensorFlow ships no types that mypy reads: to mypy each of these is Any, to a reader it is what TensorFlow makes.
Shape and dtype of a tensor are in the docstring of what takes or makes it.
"""

from typing import Any, TypeAlias

Tensor: TypeAlias = Any  # tf.Tensor, symbolic; what is fed or fetched is a numpy array
Op: TypeAlias = Any  # tf.Operation
Variable: TypeAlias = Any  # tf.Variable: RefVariable or ResourceVariable
Session: TypeAlias = Any  # tf1.Session, or what has its `run`
Graph: TypeAlias = Any  # tf.Graph
