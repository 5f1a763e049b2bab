"""The global step of a script, however it was made, and which runs of the script are steps.

TensorFlow knows a global step that is an integer scalar in the collection GLOBAL_STEP or named `global_step`.  A script
may count by any other number that it gives to minimize(): then this becomes the global step of the graph, so that
TensorFlow's hooks and checkpoints count by it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import tensorflow.compat.v1 as tf1
from tensorflow.core.framework.variable_pb2 import VariableDef
from tensorflow.python.client.session import _FetchMapper  # how TensorFlow itself takes fetches apart
from tensorflow.python.framework.ops import get_from_proto_function
from tensorflow.python.training.training_util import GLOBAL_STEP_READ_KEY

from psruntime.classic.hooked_session import MOST_CALLS, identity_of
from psruntime.errors import UsageError
from psruntime.graph.base.graphs import ancestors, uses_of

VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
WRITES = {
    "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceCountUpTo",
    "Assign", "AssignAdd", "AssignSub", "CountUpTo",
}  # fmt: skip
_ADDITIONS = ("AssignAdd", "AssignAddVariableOp")
_PASSED_ON = ("Identity", "ReadVariableOp", "Cast", "Reshape")  # a value that stands for its variable
_KEYS = tf1.GraphKeys
MAKE_ONE = "make one with tf.train.get_or_create_global_step() and give it to minimize(loss, global_step=...)"


class StepCounting:
    """Finds the steps among the runs of a graph that is not finalized yet.

    Adds one read of the global step behind every operation that counts it.

    given: what the script names as its global step, a variable or tensor; None: as TensorFlow finds it.
    global_step: whole number [], read at any time.  counters: the operations that count it.
    most: the largest number to which its dtype counts.

    Raises:
        UsageError: there is no global step, nothing counts it, or it is no number.
    """

    def __init__(self, graph: Any, given: Any = None) -> None:
        self._graph = graph
        operation = _global_step_of(graph, given)
        self.name: str = operation.name
        variable = _variable_of(graph, operation)
        if not (variable.dtype.is_integer or variable.dtype.is_floating) or variable.shape.num_elements() != 1:
            raise UsageError(
                f"the global step '{self.name}' is {variable.dtype.base_dtype.name}{variable.shape}, and is to be one "
                f"int64; {MAKE_ONE}"
            )
        self.most = counts_to(variable.dtype.base_dtype)
        self.counters = _counters(graph, operation)
        self.global_step = _read(variable, [])
        self._reads = {counter: _read(variable, [counter]) for counter in self.counters if _can_be_waited_for(counter)}
        self._reached: dict[Any, frozenset[Any]] = {}  # by operation that was fetched
        self._known: dict[Any, tuple[list[Any], list[Any]]] = {}  # by identity: elements that were fetched, reads
        _declare(graph, variable, self.global_step)
        _read_plainly(graph, self.global_step)

    def reads(self, fetches: Any) -> list[Any]:
        """What to fetch with these to know the global step after them, whole [] each; empty if it is no step.

        May be called from any thread.
        """
        elements: list[Any] = []
        identity = identity_of(fetches, elements)
        if (known := self._known.get(identity)) is not None:
            return known[1]
        reads = self._reads_behind(fetches)
        if identity is not None:
            if len(self._known) >= MOST_CALLS:
                self._known.clear()
            self._known[identity] = elements, reads
        return reads

    def _reads_behind(self, fetches: Any) -> list[Any]:
        with self._graph.as_default():
            elements = _FetchMapper.for_fetch(fetches).unique_fetches()
        counters = {counter for element in elements for counter in self._counters_behind(_operation(element))}
        return [self._reads.get(counter, self.global_step) for counter in counters]

    def require_room(self, global_step: int) -> None:
        """UsageError if the variable cannot count on from here, or to here: it would stay as it is, or wrap around."""
        if global_step >= self.most:
            raise UsageError(
                f"the global step '{self.name}' is of a dtype that counts to {self.most} only, and is to reach "
                f"{max(global_step, self.most + 1)}; make it an int64"
            )

    def _counters_behind(self, fetched: Any) -> frozenset[Any]:
        if fetched not in self._reached:
            self._reached[fetched] = frozenset(ancestors([fetched]) & self.counters)
        return self._reached[fetched]


def counts_to(dtype: Any) -> int:
    """The number up to which a variable of this dtype can be counted by ones."""
    if dtype.is_integer:
        return int(dtype.max)

    bits = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}.get(dtype.name, 3)
    return 1 << bits


def counters_of(graph: Any, variable: str, initializer: str) -> set[Any]:
    """Operations that count the variable of this name, or call a function that does; not its initializer, and no
    Saver."""
    uses = uses_of(graph.get_operation_by_name(variable).outputs[0], but={initializer})
    writing = {graph.get_operation_by_name(use.operation) for use in uses if use.kind in WRITES}
    return {op for op in writing if not any(before.type == "RestoreV2" for before in ancestors([op]))}


def _global_step_of(graph: Any, given: Any) -> Any:
    """The operation of the variable that counts the steps: one that the script declares, else that of minimize()."""
    declared = list(dict.fromkeys(_declared(graph, given)))
    counted = [operation for operation in declared if _counters(graph, operation)] or _counted_by_minimize(graph)
    if len(counted) == 1 or (declared and counted and counted[0] in declared):
        if counted[0].name in {variable.op.name for variable in graph.get_collection(_KEYS.LOCAL_VARIABLES)}:
            raise UsageError(
                f"the global step '{counted[0].name}' is a local variable, which begins anew with each session; "
                "leave out its collections"
            )
        return counted[0]
    names = ", ".join(operation.name for operation in counted)
    if declared:
        raise UsageError(
            f"nothing counts the global step '{declared[0].name}'; give it to minimize(loss, global_step=...) or "
            f"apply_gradients(..., global_step=...){names and f'; several others are counted: {names}'}"
        )
    raise UsageError(f"the graph has no global step; {MAKE_ONE}{names and f'; several are counted: {names}'}")


def _declared(graph: Any, given: Any) -> Iterator[Any]:
    """Operations of the variables that are the global step by the script's word, or by TensorFlow's rules."""
    named = [] if given is None else [given]
    named += graph.get_collection(_KEYS.GLOBAL_STEP)
    with suppress(KeyError):
        named.append(graph.get_tensor_by_name("global_step:0"))
    for each in named:
        operation = each.op
        while operation.type in _PASSED_ON:
            operation = operation.inputs[0].op
        if operation.type in VARIABLES:
            yield operation


def _counted_by_minimize(graph: Any) -> list[Any]:
    """Operations of variables to which one is added after an update of a trainable variable, and no local ones."""
    trained = {use.operation for v in graph.get_collection(_KEYS.TRAINABLE_VARIABLES) for use in _changes(graph, v)}
    local = {variable.op.name for variable in graph.get_collection(_KEYS.LOCAL_VARIABLES)}
    additions = [
        op
        for op in graph.get_operations()
        if op.type in _ADDITIONS and op.inputs[0].op.type in VARIABLES and tf1.get_static_value(op.inputs[1]) == 1
    ]
    trained -= {op.name for op in additions}  # a number that is counted may be trainable itself
    counted = [op for op in additions if not trained.isdisjoint(before.name for before in ancestors([op]))]
    return list(dict.fromkeys(op.inputs[0].op for op in counted if op.inputs[0].op.name not in local))


def _changes(graph: Any, variable: Any) -> Iterator[Any]:
    return (use for use in uses_of(graph.get_operation_by_name(variable.op.name).outputs[0]) if use.changes)


def _counters(graph: Any, operation: Any) -> set[Any]:
    known = _object_of(graph, operation)
    initializer = known.initializer.name if known is not None else f"{operation.name}/Assign"
    return counters_of(graph, operation.name, initializer)


def _object_of(graph: Any, operation: Any) -> Any:
    """The variable of this operation, from any collection; None: it is in none."""
    for key in graph.get_all_collection_keys():
        for item in graph.get_collection(key):
            if hasattr(item, "initializer") and item.op == operation:
                return item
    return None


def _variable_of(graph: Any, operation: Any) -> Any:
    """The variable of this operation; one that is in no collection is initialised and saved from now on as others."""
    known = _object_of(graph, operation)
    if known is not None:
        return known
    name, is_resource = operation.name, operation.type == "VarHandleOp"
    definition = VariableDef(
        variable_name=f"{name}:0", initializer_name=f"{name}/Assign", is_resource=is_resource,
        snapshot_name=f"{name}/Read/ReadVariableOp:0" if is_resource else f"{name}/read:0",
        initial_value_name=graph.get_operation_by_name(f"{name}/Assign").inputs[1].name,
    )  # fmt: skip
    made = get_from_proto_function(_KEYS.GLOBAL_VARIABLES)(definition)
    graph.add_to_collection(_KEYS.GLOBAL_VARIABLES, made)
    return made


def _declare(graph: Any, variable: Any, whole: Any) -> None:
    """Makes it the global step of the graph.  TensorFlow wants an integer scalar; in a saved graph it is itself."""
    if not (variable.dtype.is_integer and variable.shape.rank == 0):
        whole.to_proto = variable.to_proto
        variable = whole
    if [id(each) for each in graph.get_collection(_KEYS.GLOBAL_STEP)] != [id(variable)]:
        graph.clear_collection(_KEYS.GLOBAL_STEP)
        graph.add_to_collection(_KEYS.GLOBAL_STEP, variable)


def _read_plainly(graph: Any, whole: Any) -> None:
    """Makes TensorFlow's hooks read this scalar.

    By default they ask first, in two messages more of each step, whether the variable is initialised.
    """
    if not graph.get_collection(GLOBAL_STEP_READ_KEY):
        name = f"{whole.op.name}/"
        with tf1.control_dependencies(None), tf1.device(whole.device), tf1.name_scope(name):
            graph.add_to_collection(GLOBAL_STEP_READ_KEY, whole + 0)  # a copy, which no update changes


def _can_be_waited_for(operation: Any) -> bool:
    """Not one within a branch or a loop of TF1's control flow, which may not run."""
    return operation._get_control_flow_context() is None


def _read(variable: Any, after: list[Any]) -> Any:
    with tf1.control_dependencies(after), tf1.device(variable.device):
        value = variable.read_value()
        if not variable.dtype.is_integer:
            value = tf1.cast(value, tf1.int64)
        return value if variable.shape.rank == 0 else tf1.reshape(value, [])


def _operation(element: Any) -> Any:
    return element if isinstance(element, tf1.Operation) else element.op
