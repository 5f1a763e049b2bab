"""Which runs are training steps: those whose fetches reach an operation that counts the global step."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf1
from tensorflow.python.client.session import _FetchMapper  # how TensorFlow itself takes fetches apart

from psruntime.errors import UsageError
from psruntime.graph.ops.ancestors import ancestors
from psruntime.graph.ops.variable_uses import uses_of

WRITES = {
    "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceCountUpTo",
    "Assign", "AssignAdd", "AssignSub", "CountUpTo",
}  # fmt: skip


class StepCounting:
    """Finds the steps among the runs of a graph that is not finalized yet.

    Adds one read of the global step behind every operation that counts it.

    global_step: int64 or int32 [], read at any time.  counters: the operations that count it.

    Raises:
        UsageError: there is no global step, or nothing counts it.
    """

    def __init__(self, graph: Any) -> None:
        variable = tf1.train.get_global_step(graph)
        if variable is None:
            variable = _plain_global_step(graph)
        self.counters = _counters(variable)
        if not self.counters:
            raise UsageError(
                f"nothing counts the global step '{variable.op.name}'; give it to minimize(loss, global_step=...) or "
                "apply_gradients(..., global_step=...)"
            )
        self.global_step = _read(variable, [])
        self._reads = {counter: _read(variable, [counter]) for counter in self.counters if _can_be_waited_for(counter)}
        self._reached: dict[Any, frozenset[Any]] = {}  # by operation that was fetched

    def reads(self, fetches: Any) -> list[Any]:
        """What to fetch with these to know the global step after them, int64 or int32 []; empty if it is no step."""
        elements = _FetchMapper.for_fetch(fetches).unique_fetches()
        counters = {counter for element in elements for counter in self._counters_behind(_operation(element))}
        return [self._reads.get(counter, self.global_step) for counter in counters]

    def _counters_behind(self, fetched: Any) -> frozenset[Any]:
        if fetched not in self._reached:
            self._reached[fetched] = frozenset(ancestors([fetched]) & self.counters)
        return self._reached[fetched]


def _plain_global_step(graph: Any) -> Any:
    """The variable that minimize() was given as its global step, although it is none to TensorFlow; it is one then.

    So a `tf.Variable(0)` counts the steps, with which stock's StopAtStepHook finds no global step.
    """
    variables = graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
    found = list({variable.op.name: variable for variable in variables if _is_counted(variable)}.values())
    if len(found) != 1:
        which = f"; several are counted: {', '.join(variable.op.name for variable in found)}" if found else ""
        raise UsageError(
            "the graph has no global step; make one with tf.train.get_or_create_global_step() and give it to "
            f"minimize(loss, global_step=...){which}"
        )
    graph.add_to_collection(tf1.GraphKeys.GLOBAL_STEP, found[0])
    return found[0]


def _is_counted(variable: Any) -> bool:
    """Whether it is a whole number to which apply_gradients adds one, after its updates."""
    if variable.shape.rank != 0 or not variable.dtype.is_integer:
        return False
    additions = [op for op in _counters(variable) if op.type in ("AssignAdd", "AssignAddVariableOp")]
    return any(_comes_after(op) and tf1.get_static_value(op.inputs[1]) == 1 for op in additions)


def _comes_after(addition: Any) -> bool:
    """Whether it waits for something; TensorFlow may have given the edge to the number that it adds."""
    return bool(addition.control_inputs or addition.inputs[1].op.control_inputs)


def _counters(variable: Any) -> set[Any]:
    return counters_of(variable.graph, variable.op.name, variable.initializer.name)


def counters_of(graph: Any, variable: str, initializer: str) -> set[Any]:
    """Operations that count the variable of this name, or call a function that does; not its initializer, and no
    Saver."""
    uses = uses_of(graph.get_operation_by_name(variable).outputs[0], but={initializer})
    writing = {graph.get_operation_by_name(use.operation) for use in uses if use.kind in WRITES}
    return {op for op in writing if not any(before.type == "RestoreV2" for before in ancestors([op]))}


def _can_be_waited_for(operation: Any) -> bool:
    """Not one within a branch or a loop of TF1's control flow, which may not run."""
    return operation._get_control_flow_context() is None


def _read(variable: Any, after: list[Any]) -> Any:
    with tf1.control_dependencies(after), tf1.device(variable.device):
        return variable.read_value()


def _operation(element: Any) -> Any:
    return element if isinstance(element, tf1.Operation) else element.op
