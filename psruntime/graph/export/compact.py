"""Writes a LiteRT model smaller: each vector of numbers once, and without the names of inner tensors.

A quantized model has a zero point (int64) and a scale for every channel of every kernel and of every bias, and all of
its zero points are 0: TensorFlow's converter writes them again and again.  A flatbuffer may have one vector and many
references to it.  Names and the converter's notes are left out; those of the signature stay, by which it is called.
"""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np
from tensorflow.lite.python import schema_py_generated as schema

from psruntime.graph.base.types import Array

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
