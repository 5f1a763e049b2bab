"""Errors of the user's operations: which one failed, and the line of the user's file that made it.

TensorFlow's message names the node that failed, as {{node NAME}}.  The node may be the gradient of an operation of the
user's, a copy of one for another mini-batch, or inside a function that one calls; in each case that one made it.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow.compat.v1 as tf1

from psruntime.errors import PsRuntimeError
from psruntime.faults import Place, fate_of, of_system
from psruntime.graph.base.errors import LOST_SESSION, first_line
from psruntime.graph.base.gpu_errors import device_error
from psruntime.graph.base.types import Graph, Op
from psruntime.usercode import users_line

# What the operations of a model raise about their inputs.  All else, unless its text names an error of a file or of
# Python, may be of a device without memory (ResourceExhausted), a broken one (Internal), or a ps that is not prepared
# (FailedPrecondition, NotFound).
OF_THE_MODEL = (
    tf1.errors.InvalidArgumentError, tf1.errors.OutOfRangeError, tf1.errors.UnimplementedError,
    tf1.errors.DataLossError,
)  # fmt: skip
NODE = re.compile(r"(?:\{\{function_node (\S+?)\}\})?\{\{node ([^}]+)\}\}")
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


def user_error(error: tf1.errors.OpError, graph: Graph, place: Place = Place.STEP) -> PsRuntimeError | None:
    """The error to raise if an operation of the user's code failed; None if TensorFlow, a ps or the network did."""
    if isinstance(error, LOST_SESSION) or not (isinstance(error, OF_THE_MODEL) or of_system(error.message)):
        return None
    for function, node in NODE.findall(error.message):
        for operation in _makers(graph, function, node):
            frames = [traceback.FrameSummary(f.filename, f.lineno, f.name) for f in operation.traceback or ()]
            if line := users_line(frames):
                what = f"operation {node}, made at {line}, failed: {type(error).__name__}"
                found = fate_of(error, place, f"{what}: {first_line(error)}")
                made = "".join(traceback.format_list(frames)).rstrip()
                found.detail = (
                    f"{error.message.strip()}\n\nThe operation was made here (most recent call last):\n{made}"
                )
                return found
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
