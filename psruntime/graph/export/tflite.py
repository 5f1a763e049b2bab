"""Converts a SavedModel to a LiteRT model (TensorFlow Lite's format), and makes its file smaller.

quantize "float16": weights are stored as float16, and computed with as float32.

quantize "int8": full-integer quantization after training (Jacob et al. 2018, "Quantization and Training of Neural
Networks for Efficient Integer-Arithmetic-Only Inference").  Weights are int8, activations int8 in ranges that were seen
on batches of the training data, biases int32.  An operation without an int8 kernel is computed in float32.  Inputs and
outputs keep their types, so the signature is that of the SavedModel.  A convolution has a scale for each channel, a
dense layer one: with a scale for each of its units a small one would be a third larger.

A quantized model has a zero point (int64) and a scale for every channel of every kernel and of every bias, and all of
its zero points are 0: TensorFlow's converter writes them again and again.  A flatbuffer may have one vector and many
references to it, so each is written once.  Names and the converter's notes are left out; those of the signature stay,
by which it is called.

Operations that LiteRT lacks are refused, not left as TensorFlow's own ("select TF ops"): no runtime from PyPI runs
those, so such a model could not be measured.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import flatbuffers
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.lite.python import schema_py_generated as schema

from psruntime.errors import UsageError
from psruntime.faults import first_line
from psruntime.graph.base.checkpoint_reader import readable
from psruntime.graph.base.environment import stderr_closed
from psruntime.graph.base.types import Array
from psruntime.graph.embedding.dynamic_table import noted
from psruntime.graph.export import FLOAT16, INT8
from psruntime.graph.export.serving_graph import DEFAULT, ServingGraph

ALIGNMENT = 16  # bytes, of a buffer's data: by the schema, and for kernels that read it in place
IDENTIFIER = b"TFL3"


def compact(content: bytes) -> bytes:
    """The same model in fewer bytes; one of over 2 GB, whose buffers lie behind the flatbuffer, stays as it is."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    if any(buffer.offset > 1 for buffer in model.buffers):
        return content
    model.description = model.metadata = model.metadataBuffer = None
    for subgraph in model.subgraphs:
        subgraph.name = None
        for tensor in subgraph.tensors:
            _strip(tensor)
    _drop_buffers(model)
    builder = _Sharing(len(content))
    builder.Finish(model.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def _strip(tensor: schema.TensorT) -> None:
    """Removes the name, and the measurements of the quantization but for their result."""
    tensor.name = None
    quantization = tensor.quantization
    if quantization is not None:
        quantization.min = quantization.max = None
        if quantization.scale is None and quantization.details is None:
            tensor.quantization = None


def _drop_buffers(model: schema.ModelT) -> None:
    """Removes empty buffers but for the first, which stands for all tensors that are computed."""
    tensors = [tensor for subgraph in model.subgraphs for tensor in subgraph.tensors]
    for tensor in tensors:
        if _is_empty(model.buffers[tensor.buffer]):
            tensor.buffer = 0
    numbers = {old: new for new, old in enumerate(sorted({0, *(tensor.buffer for tensor in tensors)}))}
    model.buffers = [_AlignedBuffer(model.buffers[old].data) for old in numbers]
    for tensor in tensors:
        tensor.buffer = numbers[tensor.buffer]


def _is_empty(buffer: schema.BufferT) -> bool:
    return buffer.data is None or not len(buffer.data)


class _AlignedBuffer(schema.BufferT):  # type: ignore[misc]
    """Aligns a buffer's data as the schema asks; the generated code does not."""

    def __init__(self, data: Array) -> None:
        super().__init__()
        self.offset = self.size = 0
        self.data = None if data is None or not len(data) else np.asarray(data, np.uint8)

    def Pack(self, builder: flatbuffers.Builder) -> Any:
        if self.data is not None:
            builder.StartVector(1, len(self.data), ALIGNMENT)
            builder.head -= len(self.data)
            builder.Bytes[builder.head : builder.head + len(self.data)] = self.data.tobytes()
            data = builder.EndVector()
        schema.BufferStart(builder)
        if self.data is not None:
            schema.BufferAddData(builder, data)
        return schema.BufferEnd(builder)


class _Sharing(flatbuffers.Builder):  # type: ignore[misc]
    """Writes a vector of numbers, or a text, that was written before as a reference to it."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._written: dict[object, int] = {}

    def CreateNumpyVector(self, x: Array) -> int:
        key = (x.dtype.str, x.tobytes())
        if key not in self._written:
            self._written[key] = super().CreateNumpyVector(x)
        return self._written[key]

    def CreateString(self, s: str | bytes, *more: Any) -> int:
        if s not in self._written:
            self._written[s] = super().CreateString(s, *more)
        return self._written[s]


Batch = Mapping[str, Array]  # features by name, arrays


def require_convertible(serving: ServingGraph) -> None:
    """Raises UsageError if the model has inputs, or variables, of a kind that LiteRT lacks."""
    with serving.graph.as_default():
        tables = ", ".join(noted())
    if tables:
        raise UsageError(
            f"--tflite: {tables} has rows of any ids (psruntime.embedding), which LiteRT cannot look up; serve the "
            "SavedModel"
        )
    for name, tensor in serving.signatures[DEFAULT][0].items():
        if not isinstance(tensor, tf1.Tensor):
            raise UsageError(f"--tflite: feature {name} is sparse, and a LiteRT model takes dense tensors only")
        if tensor.dtype == tf1.string:
            raise UsageError(
                f"--tflite: feature {name} is a string, for which LiteRT has no operations; write a serving_input_fn "
                "that takes numbers"
            )
        if tensor.shape.rank is None:
            raise UsageError(f"--tflite: feature {name} has no known rank, which a LiteRT model needs")


def convert(folder: str, quantize: str = "", batches: Sequence[Batch] = ()) -> bytes:
    """The LiteRT model of the signature serving_default of a SavedModel.

    quantize: "", "float16" or "int8".  batches: with "int8", on which the ranges of activations are measured.

    Raises:
        UsageError: the model has operations that LiteRT has not, or the converter fails.
    """
    with _quiet():
        try:
            converter = tf.lite.TFLiteConverter.from_saved_model(
                readable(folder), signature_keys=[DEFAULT], tags={tf1.saved_model.tag_constants.SERVING}
            )
            if quantize:
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            if quantize == FLOAT16:
                converter.target_spec.supported_types = [tf.float16]
            if quantize == INT8:
                converter.representative_dataset = lambda: iter([(DEFAULT, dict(batch)) for batch in batches])
                converter._experimental_disable_per_channel_quantization_for_dense_layers = True
            content: bytes = converter.convert()
        except Exception as error:  # the converter raises errors of many kinds, some of them bare
            raise UsageError(f"--tflite: {_reason(error)}") from error
    return compact(content) if quantize == INT8 else content


def _reason(error: Exception) -> str:
    """The line of the compiler's output that names the cause."""
    text = str(error)
    unknown = re.findall(r"^(?:TF Select|Custom) ops: (.+)$", text, re.MULTILINE)
    if unknown:
        return (
            f"LiteRT has no {', '.join(unknown)}, or not for these types, and the predictions depend on it; compute "
            "what it does before the model, in input_fn, or by other operations"
        )
    return f"TensorFlow's converter fails: {first_line(error)}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the converter's output for its own developers."""
    with stderr_closed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
