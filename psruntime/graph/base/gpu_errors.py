"""Errors of a device: what TensorFlow raises when memory is used up or a GPU fails, in one line with the remedy.

They are this machine's, not the model's: the process ends, and its launcher starts it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

import tensorflow.compat.v1 as tf1

from psruntime.errors import DeviceError
from psruntime.graph.base.errors import first_line
from psruntime.process.gpus import Gpu, gib_text, gpus, memory_text, own_pid

# Of the allocator's text: the shape, the dtype and the device.
_TENSOR = re.compile(r"OOM when allocating tensor with shape\[([0-9,]*)\] and type (\w+) on \S*?device:(\w+:\d+)")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_DTYPE_BYTES = {"double": 8, "int64": 8, "float": 4, "int32": 4, "half": 2, "bfloat16": 2, "bool": 1, "int8": 1}
_NO_ROOM = re.compile(
    r"CU\w+_STATUS_ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY|GPU:\d+ failed. Status: out of memory|"
    r"Dst tensor is not initialized|unable to allocate output tensor\. Key: \S*GPU"  # a copy to the GPU
)
# CUDA's libraries need memory of their own, beside TensorFlow's, when they are used first.
_NO_LIBRARY = re.compile(
    r"No (BLAS|blas) (support )?for stream|[Ff]ailed to create cu\w+ handle|could not create cudnn handle|"
    r"CU\w+_STATUS_NOT_INITIALIZED"
)
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
        what = f"out of memory on {device}: {wanted} {gib_text(size)} more, for {dtype}[{shape}]"
        return DeviceError(f"{what}{_held(found) if device.startswith('GPU') else ''}; what helps is {LESS}")
    if _NO_ROOM.search(text):
        what = f"out of memory on a GPU: {_reason(error, _NO_ROOM)}"
        return DeviceError(f"{what}{_held(found)}; what helps is {LESS}")
    if _NO_LIBRARY.search(text):
        what = f"CUDA's libraries cannot begin on a GPU ({_reason(error, _NO_LIBRARY)}), most often for want of memory"
        return DeviceError(f"{what}{_held(found)}; what helps then is {LESS}, else libraries that fit the driver")
    if _FAILED.search(text):
        return DeviceError(f"a GPU of this worker failed: {_reason(error, _FAILED)}; nvidia-smi shows its state")
    return None


def _held(found: Callable[[], list[Gpu]]) -> str:
    text = memory_text(found(), own_pid())
    return f"; {text}" if text else ""


def _reason(error: tf1.errors.OpError, pattern: re.Pattern[str]) -> str:
    """The line that matches the pattern, without TensorFlow's marks."""
    lines = [line.strip() for line in str(error.message).splitlines()]
    return next((line for line in lines if pattern.search(line)), first_line(error))
