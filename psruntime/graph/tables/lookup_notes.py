"""Which variables a model only looks up rows of, so that the lookups of a step can be joined.

Not one that is looked up in a loop, a branch or a function, where the rows have to be there at once; nor one that the
model itself takes gradients with respect to, which are taken of the variable, not of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import Graph, Op, Tensor, Variable
from psruntime.graph.ops.variable_uses import Use

_NOTED = "PsruntimeNotedLookup"
_DIFFERENTIATED = "psruntime/differentiated_lookups"  # a collection of names


class LookupNotes:
    """Notes the lookups of the variables that it watches, in the current graph."""

    def __init__(self) -> None:
        self._noted: dict[str, str] = {}  # operation that reads rows -> the one that passes them on

    def watch(self, variable: Variable) -> None:
        """Starts to note lookups of the variable, which must not have been looked up yet."""
        if hasattr(variable, "sparse_read"):
            variable.sparse_read = self._noting(variable.sparse_read)

    def are_all(self, uses: Iterable[Use]) -> bool:
        """Whether all uses of a variable are lookups that can be joined with others."""
        differentiated = set(tf1.get_collection(_DIFFERENTIATED))
        return all(use.operation in self._noted and self._noted[use.operation] not in differentiated for use in uses)

    def _noting(self, sparse_read: Callable[..., Tensor]) -> Callable[..., Tensor]:
        graph = tf1.get_default_graph()

        def read(*args: Any, **kwargs: Any) -> Tensor:
            rows = sparse_read(*args, **kwargs)
            if not is_outermost(graph):
                return rows
            with graph.gradient_override_map({"Identity": _NOTED}):
                passed_on = tf1.identity(rows)
            self._noted[_gather_of(rows.op).name] = passed_on.op.name
            return passed_on

        return read


def is_outermost(graph: Graph) -> bool:
    """Whether operations that are made now are of this graph, and neither in a loop nor in a branch of it."""
    now = tf1.get_default_graph()
    return now is graph and now._get_control_flow_context() is None


def _gather_of(op: Op) -> Op:
    while op.type != "ResourceGather":
        op = op.inputs[0].op
    return op


@tf1.RegisterGradient(_NOTED)  # type: ignore[untyped-decorator]
def _note(operation: Op, gradient: Tensor) -> Tensor:
    """Called when a gradient is taken with respect to the variable that the rows were read from."""
    operation.graph.add_to_collection(_DIFFERENTIATED, operation.name)
    return gradient
