"""Failures of TensorFlow, each in one line: of a session, of an operation of the user's, of a device, of a thread.

For a failed operation of the user's it names the line of the user's file that made it.  TensorFlow's message names the
node that failed, as {{node NAME}}.  The node may be the gradient of an operation of the user's, a copy of one for
another mini-batch, or inside a function that one calls; in each case that one made it.

An error of a device, such as memory that is used up or a GPU that fails, is the machine's, not the model's: the process
ends, and its launcher starts it again.
"""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, Generic, TypeVar

import tensorflow.compat.v1 as tf1

from psruntime.errors import DeviceError, PsRuntimeError
from psruntime.faults import Place, fate_of, first_line, of_system, users_line
from psruntime.graph.base.types import Graph, Op
from psruntime.process.machine import Gpu, gib_text, gpus, memory_text, own_pid

LOST_SESSION = (tf1.errors.AbortedError, tf1.errors.UnavailableError)  # what MonitoredSession recovers from


def or_lost(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a run of a session.  Raises one of `LOST_SESSION` for every way in which a lost ps ends a run."""
    try:
        return call(*args, **kwargs)
    except (tf1.errors.CancelledError, tf1.errors.DeadlineExceededError) as error:
        raise tf1.errors.UnavailableError(error.node_def, error.op, error.message) from error
    except UnicodeDecodeError as error:  # a session that another process took over may fail with raw bytes
        raise tf1.errors.UnavailableError(None, None, "TensorFlow failed with a text that is not UTF-8") from error


# What the operations of a model raise about their inputs.  All else, unless its text names an error of a file or of
# Python, may be of a device without memory (ResourceExhausted), a broken one (Internal), or a ps that is not prepared
# (FailedPrecondition, NotFound).
OF_THE_MODEL = (
    tf1.errors.InvalidArgumentError, tf1.errors.OutOfRangeError, tf1.errors.UnimplementedError,
    tf1.errors.DataLossError,
)  # fmt: skip
NODE = re.compile(r"(?:\{\{function_node (\S+?)\}\})?\{\{node ([^}]+)\}\}")
WITHIN = re.compile(r"^(?:\{\{function_node [^}]*\}\}\s*)+")  # before the reason
MINIBATCH = re.compile(r"^(?:.*/)?minibatch_\d+/|_minibatch_\d+$")  # of a copied operation, of a copied function


@contextmanager
def users_errors(graph: Graph, place: Place = Place.STEP) -> Iterator[None]:
    """Raises a failure of the user's operation as the error that the table of faults names, and a failure of a device
    as a DeviceError; any other error passes.
    """
    try:
        yield
    except tf1.errors.OpError as error:
        found = user_error(error, graph, place) or device_error(error)
        if found is None:
            raise
        raise found from error


def is_closed(error: Exception) -> bool:
    """Whether a run failed because another thread has closed its session: in Python, or at its server."""
    if isinstance(error, tf1.errors.FailedPreconditionError | tf1.errors.InvalidArgumentError):
        return "Session is closed" in error.message or "A session is not created yet" in error.message
    return isinstance(error, RuntimeError) and "closed Session" in str(error)


def user_error(error: tf1.errors.OpError, graph: Graph, place: Place = Place.STEP) -> PsRuntimeError | None:
    """The error to raise if an operation of the user's code failed; None if TensorFlow, a ps or the network did."""
    if isinstance(error, LOST_SESSION) or not (isinstance(error, OF_THE_MODEL) or of_system(error.message)):
        return None
    for function, node in NODE.findall(error.message):
        for operation in _makers(graph, function, node):
            frames = [traceback.FrameSummary(f.filename, f.lineno, f.name) for f in operation.traceback or ()]
            if line := users_line(frames):
                what = f"operation {node}, made at {line}, failed: {type(error).__name__}"
                found = fate_of(error, place, f"{what}: {WITHIN.sub('', first_line(error))}")
                made = "".join(traceback.format_list(frames)).rstrip()
                found.detail = (
                    f"{error.message.strip()}\n\nThe operation was made here (most recent call last):\n{made}"
                )
                return found
    return None


def failed_operation(error: tf1.errors.OpError, graph: Graph) -> Op | None:
    """The operation of the graph that failed; None if it is not one of the graph itself, or not known."""
    for function, node in NODE.findall(error.message):
        if function:
            return None
        try:
            return graph.get_operation_by_name(node)
        except (KeyError, ValueError):
            return None
    return None


def _makers(graph: Graph, function: str, node: str) -> Iterator[Op]:
    """The operations that a node may come from, the most likely one first."""
    if function:
        yield from _in_functions(graph, function, node)
        yield from _with_originals(_callers(graph, function))
    else:
        yield from _with_originals(_named(graph, node))
        yield from _in_functions(graph, "", node)


def _with_originals(operations: Iterator[Op]) -> Iterator[Op]:
    """Each, then those that it is the gradient of."""
    for operation in operations:
        while operation is not None:
            yield operation
            operation = operation._original_op


def _named(graph: Graph, node: str) -> Iterator[Op]:
    """The operation of this name, its scopes that are operations, such as loops; then those of a copy's original."""
    for name in (node, MINIBATCH.sub("", node)):
        parts = name.split("/")
        for length in range(len(parts), 0, -1):
            try:
                yield graph.get_operation_by_name("/".join(parts[:length]))
            except (KeyError, ValueError):
                continue


def _in_functions(graph: Graph, function: str, node: str) -> Iterator[Op]:
    """The operations of this name in a function that the user's code built; in any function if that has no name."""
    names = (function, MINIBATCH.sub("", function)) if function else tuple(graph._functions)
    for name in names:
        built = getattr(graph._functions.get(name), "graph", None)
        if built is not None:
            yield from _with_originals(_named(built, node))


def _callers(graph: Graph, function: str) -> Iterator[Op]:
    """Operations with this function as an attribute, or as their type."""
    for operation in graph.get_operations():
        values = operation.node_def.attr.values()
        called = {f.name for value in values for f in (value.func, *value.list.func)} | {operation.type}
        if function in called:
            yield from _named(graph, operation.name)


# Of the allocator's text: the shape, the dtype and the device.
_TENSOR = re.compile(r"OOM when allocating tensor with shape\[([0-9,]*)\] and type (\w+) on \S*?device:(\w+:\d+)")
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
        node = NODE.search(text)
        wanted = f"operation {node[2]} wanted" if node else "an operation wanted"
        what = f"out of memory on {device}: {wanted} {gib_text(size)} more, for {dtype}[{shape}]"
        return DeviceError(f"{what}{_memory_in_use(found) if device.startswith('GPU') else ''}; what helps is {LESS}")
    if _NO_ROOM.search(text):
        what = f"out of memory on a GPU: {_reason(error, _NO_ROOM)}"
        return DeviceError(f"{what}{_memory_in_use(found)}; what helps is {LESS}")
    if _NO_LIBRARY.search(text):
        what = f"CUDA's libraries cannot begin on a GPU ({_reason(error, _NO_LIBRARY)}), most often for want of memory"
        return DeviceError(
            f"{what}{_memory_in_use(found)}; what helps then is {LESS}, else libraries that fit the driver"
        )
    if _FAILED.search(text):
        return DeviceError(f"a GPU of this worker failed: {_reason(error, _FAILED)}; nvidia-smi shows its state")
    return None


def _memory_in_use(found: Callable[[], list[Gpu]]) -> str:
    text = memory_text(found(), own_pid())
    return f"; {text}" if text else ""


def _reason(error: tf1.errors.OpError, pattern: re.Pattern[str]) -> str:
    """The line that matches the pattern, without TensorFlow's marks."""
    lines = [line.strip() for line in str(error.message).splitlines()]
    return next((line for line in lines if pattern.search(line)), first_line(error))


Result = TypeVar("Result")
LOG_AFTER_S = 1.0  # a wait shorter than this is not worth a line in the log


class Background(threading.Thread, Generic[Result]):
    """Starts `work` at once.  When it has ended there is its result, or why it failed.

    A PsRuntimeError, an error of TensorFlow, or a session that was closed is a failure; anything else is a defect, and
    ends the thread with a traceback.
    """

    def __init__(self, name: str, work: Callable[[], Result]) -> None:
        super().__init__(name=name, daemon=True)
        self.result: Result | None = None
        self.failure = f"the {name} was not completed"
        self._work = work
        self._began_s = time.monotonic()
        self.start()

    @property
    def age_s(self) -> float:
        """Seconds since it started."""
        return time.monotonic() - self._began_s

    def run(self) -> None:
        try:
            self.result = self._work()
        except PsRuntimeError as error:
            self.failure = str(error)
        except (tf1.errors.OpError, RuntimeError) as error:
            self.failure = first_line(error)


def await_end(thread: threading.Thread, reason: str, log: Callable[..., None], within_s: float | None = None) -> None:
    """Waits until the thread has ended, at most `within_s`; logs `waiting` if that takes more than a second."""
    until_s = None if within_s is None else time.monotonic() + within_s
    thread.join(LOG_AFTER_S if within_s is None else min(LOG_AFTER_S, within_s))
    if thread.is_alive():
        log("waiting", reason=reason)
        thread.join(None if until_s is None else max(0.0, until_s - time.monotonic()))
