"""Which operations others depend on, in a graph that is not finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from psruntime.graph.base.types import Op, Tensor


def ancestors(
    of: Iterable[Tensor | Op], stops_at: Callable[[Op], bool] = lambda _: False, data_only: bool = False
) -> set[Op]:
    """The operations of these tensors and operations, and all that run before them.

    stops_at: whether to leave out an operation, and with it what only it depends on.
    data_only: whether to leave out control inputs, which run before but give no value.
    """
    found: set[Op] = set()
    waiting: list[Op] = [getattr(each, "op", each) for each in of]
    while waiting:
        op = waiting.pop()
        if op in found or stops_at(op):
            continue
        found.add(op)
        waiting += [tensor.op for tensor in op.inputs]
        waiting += [] if data_only else op.control_inputs
    return found
