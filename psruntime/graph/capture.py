"""Capture: learns a model's trainable variables, then lets the model read them from pulled buckets.

A model_fn is built twice.  `record` runs it in a scratch graph and returns the specs, from which the plan
is made.  `substitute` runs with the real graph: every trainable variable is still made, so names, scopes,
reuse and collections are the user's own, but its reads go to its view.  Its own handle is never initialised
or read.

The private attributes of tf.Variable that this takes are named here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.plan import DTYPE_BYTES, VariableSpec
from psruntime.errors import UsageError
from psruntime.graph.views import View

_ASSIGNS = (
    "assign",
    "assign_add",
    "assign_sub",
    "batch_scatter_update",
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_nd_add",
    "scatter_nd_sub",
    "scatter_nd_update",
    "scatter_sub",
    "scatter_update",
)


def record(build: Callable[[], Iterable[str]]) -> tuple[VariableSpec, ...]:
    """The trainable variables that `build` makes in a graph of its own, in the order of their making.

    `build` returns the names of those whose gradients are sparse.

    Raises:
        UsageError: a variable is of a kind that cannot be trained through the ps.
    """
    specs: list[VariableSpec] = []

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        variable = next_creator(**{**kwargs, "use_resource": True})
        if _is_trainable(variable):
            specs.append(_spec_of(variable))
        return variable

    with tf1.Graph().as_default(), tf1.variable_creator_scope(creator):
        sparse = frozenset(build())
    return tuple(replace(spec, sparse=spec.name in sparse) for spec in specs)


@contextmanager
def substitute(views: Mapping[str, View]) -> Iterator[dict[str, Any]]:
    """While open, trainable variables read as `views[name]`; yields name -> initial-value tensor.

    The initial value of a table is computed where the table is: TensorFlow puts it beside the handle.
    """
    initial_values: dict[str, Any] = {}

    def at_home(op: Any) -> str:
        view = views.get(op.name) if op.type == "VarHandleOp" else None
        return view.home if view and view.home else op.device

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        with tf1.device(at_home):
            variable = next_creator(**{**kwargs, "use_resource": True})
        if _is_trainable(variable):
            name = variable.op.name
            if name not in views:
                raise UsageError(
                    f"model_fn made variable {name} the second time only; it must make the same ones each time"
                )
            initial_values[name] = variable.initial_value
            _redirect(variable, views[name])
            _leave_global_collection(variable)
        return variable

    with tf1.variable_creator_scope(creator):
        yield initial_values


def _is_trainable(variable: Any) -> bool:
    """Whether the ps holds it; local ones (metrics) stay on the worker; anything else is refused."""
    if variable.trainable:
        return True
    if any(local is variable for local in tf1.get_collection(tf1.GraphKeys.LOCAL_VARIABLES)):
        return False
    raise UsageError(
        f"variable {variable.op.name} is neither trainable nor local, which is not supported; "
        "make it trainable, or put it into tf.GraphKeys.LOCAL_VARIABLES"
    )


def _spec_of(variable: Any) -> VariableSpec:
    name, dtype = variable.op.name, variable.dtype.base_dtype.name
    if not variable.shape.is_fully_defined():
        raise UsageError(f"variable {name} has shape {variable.shape}; a trainable variable needs a fully defined one")
    if dtype not in DTYPE_BYTES:
        raise UsageError(f"variable {name} has dtype {dtype}; a trainable one needs one of {', '.join(DTYPE_BYTES)}")
    return VariableSpec(name, tuple(variable.shape.as_list()), dtype)


def _redirect(variable: Any, view: View) -> None:
    """Makes every read of `variable` go to `view` and every write raise.

    `_cached_value` serves value() and conversion to a tensor; tf.gather, read_value and gather_nd go
    round it, so they are replaced on the instance.
    """
    name = variable.op.name

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise UsageError(f"model_fn assigns to trainable variable {name}; only the optimizer on its ps may change it")

    variable._cached_value = view.value
    variable._read_variable_op = lambda *_args, **_kwargs: view.value
    variable.sparse_read = view.sparse_read
    variable.gather_nd = view.gather_nd
    for method in _ASSIGNS:
        setattr(variable, method, refuse)


def _leave_global_collection(variable: Any) -> None:
    """A handle that is never initialised must not be found by code that saves or checks global variables."""
    collection = tf1.get_collection_ref(tf1.GraphKeys.GLOBAL_VARIABLES)
    collection[:] = [v for v in collection if v is not variable]
