"""Names for TensorFlow's types in annotations.

TensorFlow ships no types that mypy reads: to mypy each of these is Any, to a reader it is a type of TensorFlow.
Shape and dtype of a tensor are in the docstring of the function that has or makes it.
"""

from typing import Any, TypeAlias

Tensor: TypeAlias = Any  # tf.Tensor, symbolic; a gradient may be tf.IndexedSlices
Array: TypeAlias = Any  # numpy array or scalar, fed or fetched
Feed: TypeAlias = dict[Tensor, Array]  # tensor -> value, for one run of a session
Op: TypeAlias = Any  # tf.Operation
Variable: TypeAlias = Any  # tf.Variable: RefVariable or ResourceVariable
Optimizer: TypeAlias = Any  # tf1.train.Optimizer
DType: TypeAlias = Any  # tf.DType, or numpy's
Proto: TypeAlias = Any  # a protobuf message of TensorFlow's, as ConfigProto or NodeDef
Session: TypeAlias = Any  # tf1.Session, or an object with its `run`
Graph: TypeAlias = Any  # tf.Graph
