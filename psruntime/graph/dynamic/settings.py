"""A model's settings of a dynamic table, noted in the graph that it is built in."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import DynamicRows
from psruntime.errors import UsageError
from psruntime.graph.dynamic.initial_rows import InitialRows

_NOTED = "psruntime/dynamic_tables"  # a collection


@dataclass(frozen=True)
class DynamicTable:
    """A table of the model, by the name of its variable.  initial: its rows before they are trained."""

    name: str
    rows: DynamicRows
    initial: InitialRows


def note(table: DynamicTable) -> None:
    """Notes the table in the current graph.

    Raises:
        UsageError: the model has noted the table with other settings.
    """
    before = noted().get(table.name)
    if before is None:
        tf1.add_to_collection(_NOTED, table)
    elif before != table:
        raise UsageError(
            f"dynamic table {table.name} is made twice, as {before} and as {table}; give both calls the same"
        )


def noted() -> dict[str, DynamicTable]:
    """The dynamic tables of the current graph, by name."""
    tables: list[DynamicTable] = tf1.get_collection(_NOTED)
    return {table.name: table for table in tables}
