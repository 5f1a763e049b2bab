"""Gives every variable on the ps the model's own initial value.

Values that are computed from other variables are assigned after these.  What is assigned in one run shares the
random values that it has in common.  A table's value is computed on its ps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.reach import ancestors
from psruntime.graph.store import GLOBAL_STEP
from psruntime.graph.training import TrainGraph

Assigned = tuple[int, Any]  # (ps, an operation that assigns there)


class InitialValues:
    """The operations, in groups to be run in order; the graph and the device are those of now."""

    def __init__(self, graph: TrainGraph) -> None:
        levels = _levels(graph)
        count = max(levels.values(), default=0) + 1
        self._groups: list[list[Assigned]] = [_made_anew(graph), *([] for _ in range(count))]
        for name, value in graph.model.initial_values.items():
            self._groups[1 + levels[name]] += _assigned(graph, name, value)

    def assign(self, write: Callable[[list[Any]], None], every_ps: Collection[int]) -> None:
        """Runs those of these ps, by `write(operations)`."""
        for group in self._groups:
            write([operation for ps, operation in group if ps in every_ps])


def _made_anew(graph: TrainGraph) -> list[Assigned]:
    """The global step, and what the optimizers keep."""
    slots = [
        (graph.model.stores[name].bucket.ps, variable.initializer)
        for name, optimizer in graph.optimizers.items()
        for variable in optimizer.variables
    ]
    return [(GLOBAL_STEP.ps, graph.global_step.master.initializer), *slots]


def _levels(graph: TrainGraph) -> dict[str, int]:
    """Variable -> how many others have to be initialised one after the other before it."""
    levels: dict[str, int] = {}
    sources = {view.source.op: name for name, view in graph.model.views.items()}
    for name, value in graph.model.initial_values.items():  # in the order in which they were made
        read = [levels[sources[op]] for op in ancestors([value]) if op in sources]
        levels[name] = max(read, default=-1) + 1
    return levels


def _assigned(graph: TrainGraph, name: str, value: Any) -> list[Assigned]:
    home = graph.model.homes.variables.get(name)
    if home is not None:
        ps = next(home.ps for home in graph.plan.homes if home.name == name)
        return [(ps, _assign(home, value))]
    buckets = graph.plan.of(name)
    if buckets[0].is_table:
        return [(buckets[0].ps, _assign(graph.model.stores[name].master, value))]
    flat = tf1.reshape(value, [-1])
    return [
        (
            bucket.ps,
            graph.model.stores[bucket.name].master.assign(
                tf1.reshape(flat[bucket.start : bucket.start + bucket.size], bucket.master_shape), read_value=False
            ),
        )
        for bucket in buckets
    ]


def _assign(variable: Any, value: Any) -> Any:
    with tf1.device(variable.device):
        return variable.assign(value, read_value=False)
