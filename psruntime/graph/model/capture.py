"""Capture: records a model's variables, then redirects its reads of those on the ps.

A model_fn is built twice.  `record` runs it in a scratch graph and returns the specs, from which the plan is
made.  `substitute` runs with the real graph: every variable is still made, so names, scopes, reuse and
collections are the user's own, but the reads of one with a VariableRead are that one's.  Its own handle is never
initialised or read.  A variable without one is the worker's own copy.

The private attributes of tf.Variable that this uses are named here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import tensorflow.compat.v1 as tf1
from tensorflow.python.ops import variable_scope

from psruntime.core.plan.buckets import VariableSpec
from psruntime.errors import UsageError
from psruntime.graph.base.graphs import ancestors, as_on_worker_0, inner_ops, model_graph, uses_of
from psruntime.graph.base.types import Op, Tensor, Variable
from psruntime.graph.embedding.dynamic_table import noted
from psruntime.graph.embedding.group_lookups import LookupNotes
from psruntime.graph.model.pretrained import Pretrained, notes_pretrained, pretrained_of
from psruntime.graph.model.spec_checks import is_global_step, is_worker_local, spec_of
from psruntime.graph.model.variable_reads import VariableRead
from psruntime.graph.push.aggregation import Copy

T = TypeVar("T")

PYTHON = ("EagerPyFunc", "PyFunc", "PyFuncStateless")  # operations that call it
_ASSIGNS = (
    "assign",
    "assign_add",
    "assign_sub",
    "batch_scatter_update",
    "count_up_to",
    "load",
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


class Recorded(NamedTuple):
    """specs: of the variables.  looked_up: names of those that the model only uses in lookups that can be joined with
    others (graph/embedding)."""

    specs: tuple[VariableSpec, ...]
    looked_up: frozenset[str]


class Partition(NamedTuple):
    """The larger variable that one is a part of: its name and shape, and the offset in it, in entries per axis."""

    whole: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]


@dataclass(frozen=True)
class Captured:
    """The variables that the model made in the real graph, by name.

    initial_values: the tensors that it would initialise its global variables with, as of the end of model_fn.
    pretrained: of those whose initial value is in a checkpoint, where.
    copies: the variables of which each worker has its own and every process has the spec: not trainable, not local.
    aggregated: those of the others whose copies have the value of the ps at the start of a step.
    constraints: functions of trainable variables, for those that have one.
    partitions: of those that a partitioner made.
    own_operations: variable -> names of the operations that came with it.
    """

    initial_values: dict[str, Tensor] = field(default_factory=dict)
    pretrained: dict[str, Pretrained] = field(default_factory=dict)
    copies: dict[str, Variable] = field(default_factory=dict)
    aggregated: dict[str, Variable] = field(default_factory=dict)
    constraints: dict[str, Callable[[Variable], Tensor]] = field(default_factory=dict)
    partitions: dict[str, Partition] = field(default_factory=dict)
    own_operations: dict[str, set[str]] = field(default_factory=dict)


def record(build: Callable[[], T], sparse_of: Callable[[T], Iterable[str]]) -> Recorded:
    """The variables that `build` makes in a graph of its own, in the order of their making.

    Without the global step, and without local ones (metrics), which stay on the worker.  `sparse_of` returns the
    names of those whose gradients are sparse, in that graph, from what was built.

    Raises:
        UsageError: a variable is of a kind that is not supported, or the model changes one that it must not.
    """
    made: list[tuple[Variable, set[str]]] = []
    lookups = LookupNotes()

    def creator(next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        variable = _made(next_creator, kwargs)
        made.append((variable, _own_operations(variable)))
        variable.is_recorded = True
        lookups.watch(variable)
        return variable

    with model_graph().as_default(), tf1.variable_creator_scope(creator):
        built = build()
        uses = {variable.op.name: uses_of(variable.handle, own) for variable, own in made}
        specs = [spec_of(variable, uses[variable.op.name]) for variable, _ in made]
        looked_up = frozenset(name for name, of_one in uses.items() if lookups.are_all(of_one))
        sparse = frozenset(sparse_of(built))
        dynamic = {name: table.rows for name, table in noted().items()}
    known = [replace(s, sparse=s.sparse or s.name in sparse, dynamic=dynamic.get(s.name)) for s in specs if s]
    return Recorded(tuple(known), looked_up)


@contextmanager
def substitute(
    variable_reads: Mapping[str, VariableRead],
    global_step: VariableRead,
    declared: Collection[VariableSpec] | None = None,
    aggregated: Mapping[str, Copy] | None = None,
) -> Iterator[Captured]:
    """While open, variables read as `variable_reads[name]`, and the model's global step as `global_step`.

    declared: those that the model may make; by default those of `variable_reads` and any that are not trainable.
    aggregated: of those with an aggregation, the copies of this worker.
    The initial value of a table is computed where the table is: TensorFlow puts it beside the handle.

    Raises:
        UsageError: the model makes a variable that is not declared, or initialises one from a copy.
    """
    known = None if declared is None else {_identity(spec) for spec in declared}
    captured = Captured()
    redirected: list[Variable] = []
    initialised: dict[str, Variable] = {}  # variables, in the order of their making
    reads: list[tuple[Variable, Tensor]] = []  # (variable, identity of its initial value that another one begins with)

    def device_of(op: Op) -> str:
        variable_read = variable_reads.get(op.name) if op.type == "VarHandleOp" else None
        return variable_read.handle_device if variable_read and variable_read.handle_device else op.device

    def creator(next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        with as_on_worker_0(), tf1.device(device_of):
            variable = _made(next_creator, kwargs)
        variable.initialized_value = partial(_initialized_value, variable, reads)
        name = variable.op.name
        captured.own_operations[name] = _own_operations(variable)
        if known is not None and not is_global_step(variable) and not is_worker_local(variable):
            _require_known(variable, known)
        if is_global_step(variable):
            _redirect(variable, global_step)
            variable.initialized_value = lambda: global_step.value
        elif name in variable_reads:
            initialised[name] = variable
            if variable.constraint is not None:
                captured.constraints[name] = variable.constraint
            _redirect(variable, variable_reads[name])
        elif aggregated and name in aggregated:
            initialised[name] = captured.aggregated[name] = variable
            _bind(variable, aggregated[name])
        elif variable.trainable:
            raise UsageError(f"variable {name} is not on the ps")
        else:
            if not is_worker_local(variable):
                initialised[name] = variable
                captured.copies[name] = variable
            return variable
        redirected.append(variable)
        return variable

    with tf1.variable_creator_scope(creator), _only_own_names():
        yield captured
    _leave_global_collection(redirected)
    for name, variable in initialised.items():
        captured.initial_values[name] = variable.initial_value
        if place := pretrained_of(variable):
            captured.pretrained[name] = place
    for name, variable_read in variable_reads.items():
        if variable_read.handle_device and (value := captured.initial_values.get(name)) is not None:
            _refuse_python(name, value)
    for variable, read in reads:
        read.op._update_input(0, variable.initial_value)
    for variable in [*redirected, *captured.copies.values()]:
        if (info := variable._get_save_slice_info()) is not None:
            partition = Partition(info.full_name, tuple(info.full_shape), tuple(info.var_offset))
            captured.partitions[variable.op.name] = partition
    _refuse_reads_of_copies(captured)


@contextmanager
def _only_own_names() -> Iterator[None]:
    """While open, tf.get_variable finds the model's variables alone: init_from_checkpoint looks at all names."""
    store = variable_scope._get_default_variable_store()._vars
    others = dict(store)
    store.clear()
    try:
        yield
    finally:
        store.update(others)


def _identity(spec: VariableSpec) -> tuple[Any, ...]:
    """The attributes of a variable that are the same in training and in evaluation."""
    return spec.name, spec.shape, spec.dtype, spec.trainable


def _require_known(variable: Variable, known: Collection[tuple[Any, ...]]) -> None:
    shape = tuple(variable.shape.as_list()) if variable.shape.rank is not None else ()
    made = VariableSpec(variable.op.name, shape, variable.dtype.base_dtype.name, trainable=variable.trainable)
    if _identity(made) not in known:
        raise UsageError(
            f"model_fn makes variable {made}, and made none such when it was called first, with mode train; it must "
            "make the same ones each time"
        )


def _refuse_reads_of_copies(captured: Captured) -> None:
    """Raises UsageError if the initial value of a variable depends on a copy, or on a variable with an aggregation:
    these may have changed by then, and differ between workers.

    A read that is guarded by whether the copy is initialised is that of its own initial value.
    """
    handles = {copy.handle.op: name for name, copy in [*captured.copies.items(), *captured.aggregated.items()]}
    if not handles:
        return
    for name, value in captured.initial_values.items():
        reads = [op.inputs[0].op for op in ancestors([value]) if op.type == "ReadVariableOp"]
        for read in sorted(handles[op] for op in reads if op in handles):
            raise UsageError(
                f"variable {name} is initialised from the value of variable {read}, which is not trainable; "
                f"initialise it from {read}.initialized_value()"
            )


def _refuse_python(table: str, value: Tensor) -> None:
    """Raises UsageError if the initial value of a table calls Python: its ps computes it, and has not the worker's."""
    ops = [op for op in ancestors([value]) if op.type in PYTHON or any(inner.type in PYTHON for inner in inner_ops(op))]
    if ops:
        raise UsageError(
            f"table {table} is initialised by a Python function (operation {min(op.name for op in ops)}), which its ps "
            "cannot call; write the values into a checkpoint, initialise the table otherwise, and give the checkpoint "
            "with --warm-start or by tf.train.init_from_checkpoint in model_fn"
        )


def _made(next_creator: Callable[..., Variable], settings: dict[str, Any]) -> Variable:
    """A resource variable, with the one method that only those of the old kind have."""
    variable = next_creator(**{**settings, "use_resource": True})
    variable.initialized_value = lambda: variable.initial_value
    notes_pretrained(variable)
    return variable


def _initialized_value(variable: Variable, reads: list[tuple[Variable, Tensor]]) -> Tensor:
    """The variable's initial value, which model_fn may still replace before it ends; it is noted in `reads`."""
    read = tf1.identity(variable.initial_value)
    reads.append((variable, read))
    return read


def _own_operations(variable: Variable) -> set[str]:
    return {op.name for op in variable.handle.consumers()}


def _redirect(variable: Variable, variable_read: VariableRead) -> None:
    """Directs every read and gradient of `variable` to `variable_read`, and makes every write raise.

    `_cached_value` serves value() and conversion to a tensor, `_graph_element` a fetch by session.run;
    tf.gather, read_value and gather_nd go round them, so they are replaced on the instance.  Hooks of TensorFlow
    read the global step only if it is initialised, else its initial value.
    """
    name = variable.op.name

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise UsageError(f"model_fn assigns to variable {name}; only the optimizer on its ps may change it")

    variable._cached_value = variable_read.value
    variable._graph_element = variable_read.value
    variable._read_variable_op = lambda *_args, **_kwargs: variable_read.value
    variable.sparse_read = variable_read.sparse_read
    variable.gather_nd = variable_read.gather_nd
    variable.is_initialized = lambda name=None: tf1.constant(True, name=name)
    for method in _ASSIGNS:
        setattr(variable, method, refuse)
    variable.gradient_source = variable_read.source
    kind: Any = type(variable)
    variable.__class__ = _redirected(kind)


def _bind(variable: Variable, copy: Copy) -> None:
    """Makes every use of `variable` by the model wait for the pulled value; a fetch of it is that value."""
    variable._graph_element = copy.value
    variable.gradient_source = copy.bind(variable.handle)
    kind: Any = type(variable)
    variable.__class__ = _redirected(kind)


@cache
def _redirected(kind: type) -> type:
    """A subclass of this kind, whose gradients are those of its VariableRead: tf.gradients takes them of `handle`."""
    return type(
        f"Redirected{kind.__name__}",
        (kind,),
        {
            "handle": property(lambda self: self.gradient_source),
            "op": property(lambda self: self._handle.op),
            "device": property(lambda self: self._handle.device),
        },
    )


def _leave_global_collection(variables: list[Variable]) -> None:
    """Hides handles that are never initialised from code that saves or checks global variables.  model_fn itself finds
    them, as it would without psruntime."""
    leave = {id(variable) for variable in variables}
    collection = tf1.get_collection_ref(tf1.GraphKeys.GLOBAL_VARIABLES)
    collection[:] = [v for v in collection if id(v) not in leave]
