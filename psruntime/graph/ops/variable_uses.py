"""The uses of a variable in a graph: the operations on its handle, also within functions and control flow."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from psruntime.graph.base.types import Graph, Op, Tensor

LOOKUPS = frozenset({"ResourceGather", "ResourceGatherNd", "VariableShape"})
READS = LOOKUPS | {"ReadVariableOp", "VarIsInitializedOp"}
_PASSED_ON = frozenset({"Identity", "IdentityN", "Switch", "Merge", "Enter", "Exit", "NextIteration"})
_PASSED_ON |= {f"Ref{kind}" for kind in _PASSED_ON}  # of variables of the old kind


@dataclass(frozen=True)
class Use:
    """kind: the type of the operation.  operation: its name, or that of the one that calls the function it is in."""

    kind: str
    operation: str

    @property
    def changes(self) -> bool:
        """Whether it may write to the variable."""
        return self.kind not in READS


def uses_of(handle: Tensor, but: Collection[str] = ()) -> list[Use]:
    """The uses of a variable's handle, resource [], or reference, without the operations that are named in `but`."""
    found: list[Use] = []
    seen: set[int] = set()
    waiting: list[tuple[Tensor, str]] = [(handle, "")]
    while waiting:
        tensor, caller = waiting.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        for op in tensor.consumers():
            name = caller or op.name
            if name in but:
                continue
            bodies = _bodies(op)
            if op.type in _PASSED_ON:
                waiting += [(output, caller) for output in op.outputs if output.dtype == handle.dtype]
            elif bodies:
                waiting += [(inner, name) for body in bodies for inner in _within(op, tensor, body)]
            else:
                found.append(Use(op.type, name))
    return found


def inner_ops(op: Op) -> list[Op]:
    """The operations of the functions that an operation calls, and of those that these call."""
    within = [inner for body in _bodies(op) for inner in body.get_operations()]
    return within + [deeper for inner in within for deeper in inner_ops(inner)]


def _bodies(op: Op) -> list[Graph]:
    """The graphs of the functions that an operation calls."""
    names = [
        function.name
        for attribute in op.node_def.attr.values()
        for function in (attribute.func, *attribute.list.func)
        if function.name
    ]
    functions = [op.graph._get_function(name) for name in names]
    return [function.graph for function in functions if function is not None]


def _within(op: Op, tensor: Tensor, body: Graph) -> list[Tensor]:
    """The tensor inside the function: the last inputs of an operation are the last arguments of its functions."""
    offset = len(op.inputs) - len(body.inputs)
    return [body.inputs[i - offset] for i, given in enumerate(op.inputs) if given is tensor and i >= offset]
