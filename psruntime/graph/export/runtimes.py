"""Runtimes of exported models: TensorFlow for a SavedModel, LiteRT for a LiteRT model.

A runtime is called with features by name and returns predictions by name.  Each is a list of arrays: of a dense tensor
one, of a sparse one its indices, values and shape.  All use THREADS threads.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.faults import first_line
from psruntime.graph.base.checkpoint_reader import readable
from psruntime.graph.base.environment import stderr_closed
from psruntime.graph.base.types import Array, Proto
from psruntime.graph.export.serving_graph import DEFAULT

THREADS = 1  # of a runtime: so the latency of one request does not depend on the number of cores
WARM_UP, MOST, LEAST = 3, 100, 5  # runs that are not timed, and that are
ENOUGH_S = 2.0  # of timed runs, once there are LEAST
CHUNK_BYTES = 1 << 20

Parts = Mapping[str, list[Array]]
Runtime = Callable[[Parts], Parts]


def config() -> Proto:
    """The ConfigProto of sessions that are timed."""
    return tf1.ConfigProto(
        device_count={"GPU": 0}, intra_op_parallelism_threads=THREADS, inter_op_parallelism_threads=THREADS
    )


class SavedModelRuntime:
    """A SavedModel in plain TensorFlow: nothing of the model module is needed."""

    def __init__(self, folder: str) -> None:
        self._session = tf1.Session(graph=tf1.Graph(), config=config())
        with self._session.graph.as_default():
            meta = tf1.saved_model.load(self._session, [tf1.saved_model.tag_constants.SERVING], readable(folder))
        signature = meta.signature_def[DEFAULT]
        self._inputs = {name: _names(info) for name, info in signature.inputs.items()}
        self._outputs = {name: _names(info) for name, info in signature.outputs.items()}

    def __call__(self, features: Parts) -> Parts:
        feed = {
            tensor: part
            for name, tensors in self._inputs.items()
            for tensor, part in zip(tensors, features[name], strict=True)
        }
        found: Parts = self._session.run(self._outputs, feed)
        return found

    def close(self) -> None:
        self._session.close()


def _names(info: Proto) -> list[str]:
    if info.HasField("coo_sparse"):
        sparse = info.coo_sparse
        return [sparse.indices_tensor_name, sparse.values_tensor_name, sparse.dense_shape_tensor_name]
    return [info.name]


def require_lite_rt() -> None:
    """Raises UsageError unless LiteRT's runtime is installed."""
    _lite_rt()


def _lite_rt() -> Any:
    try:
        from ai_edge_litert import interpreter
    except ImportError as error:
        raise UsageError(
            "--tflite needs ai-edge-litert, which is not installed: pip install 'psruntime[tflite]'"
        ) from error
    return interpreter


@contextmanager
def _lite_rts_errors() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"--tflite: LiteRT cannot run the model: {first_line(error)}") from error


class LiteRtRuntime:
    """A LiteRT model in LiteRT's own interpreter, of the package ai-edge-litert; TensorFlow's is deprecated."""

    def __init__(self, content: bytes) -> None:
        with stderr_closed(), _lite_rts_errors():
            self._interpreter = _lite_rt().Interpreter(model_content=content, num_threads=THREADS)
            signature = self._interpreter.get_signature_runner(DEFAULT)
        self._inputs = {name: (d["index"], d["dtype"]) for name, d in signature.get_input_details().items()}
        self._outputs = {name: d["index"] for name, d in signature.get_output_details().items()}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def __call__(self, features: Parts) -> Parts:
        """Raises UsageError if LiteRT cannot run the model on these features."""
        with _lite_rts_errors():
            return self._run(features)

    def _run(self, features: Parts) -> Parts:
        arrays = {name: np.asarray(features[name][0]) for name in self._inputs}
        shapes = {name: array.shape for name, array in arrays.items()}
        if shapes != self._shapes:
            for name, shape in shapes.items():
                self._interpreter.resize_tensor_input(self._inputs[name][0], shape)
            with stderr_closed():  # it prints which delegate it makes
                self._interpreter.allocate_tensors()
            self._shapes = shapes
        for name, array in arrays.items():
            index, dtype = self._inputs[name]
            self._interpreter.set_tensor(index, array.astype(dtype, copy=False))
        self._interpreter.invoke()
        return {name: [self._interpreter.get_tensor(index)] for name, index in self._outputs.items()}


@dataclass(frozen=True)
class Latency:
    """The latency of one call of a runtime, from features in memory to predictions in memory, in milliseconds."""

    median_ms: float
    p90_ms: float


def latency(runtime: Callable[..., object], features: object) -> Latency:
    """Measures calls that follow each other, after some that are not measured."""
    for _ in range(WARM_UP):
        runtime(features)
    taken: list[float] = []
    while len(taken) < LEAST or (len(taken) < MOST and sum(taken) < ENOUGH_S):
        begun = time.perf_counter()
        runtime(features)
        taken.append(time.perf_counter() - begun)
    median, p90 = np.quantile(taken, [0.5, 0.9]) * 1e3
    return Latency(float(median), float(p90))


@dataclass(frozen=True)
class Size:
    """Bytes of files: on a disk, and the sum of each compressed by gzip."""

    bytes: int
    gzip_bytes: int


def size_of(paths: Iterable[str]) -> Size:
    """The size of files on any file system that TensorFlow reaches.  Raises OpError if one cannot be read."""
    total = zipped = 0
    for path in paths:
        packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)  # the form of gzip
        with tf1.gfile.GFile(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                total += len(chunk)
                zipped += len(packer.compress(chunk))
        zipped += len(packer.flush())
    return Size(total, zipped)


def files_in(folder: str) -> list[str]:
    """All files below a folder."""
    return [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]
