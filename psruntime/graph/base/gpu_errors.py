"""Errors of a device: what TensorFlow raises when memory is used up or a GPU fails, in one line that says what helps.

They are this machine's, not the model's: the process ends, and its launcher starts it again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from math import prod

import tensorflow.compat.v1 as tf1

from psruntime.errors import DeviceError
from psruntime.gpus import Gpu, bytes_text, gpus, memory_text
from psruntime.graph.base.errors import first_line

# Of the allocator's text: the shape, the dtype and the device.
_TENSOR = re.compile(r"OOM when allocating tensor with shape\[([0-9,]*)\] and type (\w+) on \S*?device:(\w+:\d+)")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_DTYPE_BYTES = {"double": 8, "int64": 8, "float": 4, "int32": 4, "half": 2, "bfloat16": 2, "bool": 1, "int8": 1}
# CUDA's libraries need memory of their own, beside TensorFlow's, when they are used first.
_NO_ROOM = re.compile(
    r"No (BLAS|blas) (support )?for stream|[Ff]ailed to create cu\w+ handle|could not create cudnn handle|"
    r"CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|CUDNN_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|"
    r"CUDNN_STATUS_INTERNAL_ERROR|CUDA_ERROR_OUT_OF_MEMORY|GPU:\d+ failed. Status: out of memory|"
    r"cuSolverDN call failed with status"
)
# A copy to the GPU that found no room there.
_NO_COPY = re.compile(r"Dst tensor is not initialized|unable to allocate output tensor\. Key: \S*GPU\S*")
_FAILED = re.compile(r"CUDA_ERROR_\w+|GPU is lost|fallen off the bus|CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+")
LESS = "a smaller --batch-size, fewer workers on this GPU, or a --gpu-memory for each of them"


def device_error(error: tf1.errors.OpError, found: Callable[[], list[Gpu]] = gpus) -> DeviceError | None:
    """The error of a device that this one is; None: it is none.

    found: reads the GPUs of this machine.
    """
    text = str(error.message)
    if isinstance(error, tf1.errors.ResourceExhaustedError) and (tensor := _TENSOR.search(text)):
        shape, dtype, device = tensor.groups()
        size = prod(int(entries) for entries in shape.split(",") if entries) * _DTYPE_BYTES.get(dtype, 4)
        node = _NODE.search(text)
        wanted = f"operation {node[1]} wanted" if node else "an operation wanted"
        what = f"out of memory on {device}: {wanted} {bytes_text(size)} more, for {dtype}[{shape}]"
        return DeviceError(f"{what}{_held(found) if device.startswith('GPU') else ''}; what helps is {LESS}")
    if _NO_ROOM.search(text) or _NO_COPY.search(text):
        cause = "a copy to it finds no room" if _NO_COPY.search(text) else "CUDA's libraries cannot begin"
        what = f"out of memory on a GPU: {cause} ({_reason(error, _NO_ROOM)})"
        return DeviceError(f"{what}{_held(found)}; what helps is {LESS}")
    if _FAILED.search(text):
        return DeviceError(f"a GPU of this worker failed: {_reason(error, _FAILED)}; nvidia-smi shows its state")
    return None


def _held(found: Callable[[], list[Gpu]]) -> str:
    text = memory_text(found(), os.getpid())
    return f"; {text}" if text else ""


def _reason(error: tf1.errors.OpError, telling: re.Pattern[str]) -> str:
    """The line with what is known, without TensorFlow's marks."""
    lines = [line.strip() for line in str(error.message).splitlines()]
    return next((line for line in lines if telling.search(line)), first_line(error))
