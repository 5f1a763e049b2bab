"""The values that the ps hold, as a process reads and writes them: by portions, in a session that it has with them.

Two graphs of the same plan have the same variables, so the values can be carried from the ps of one session to those of
another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.row_portions import assign_rows, row_portions
from psruntime.graph.step.train_graph import TrainGraph


class HeldValues:
    """Parameters, what optimizers keep beside them, the global step and ps copies.  Adds operations to the graph.

    global_step: int64 [].
    """

    def __init__(self, graph: TrainGraph) -> None:
        self._graph = graph
        self.global_step = graph.step_reader()
        stores = [*graph.model.stores.values(), graph.global_step]
        held = [variable for store in stores for variable in graph.values_of(store)]
        with graph.graph.as_default(), tf1.name_scope("held"):
            self._by_name = {v.op.name: _Held(v) for v in (*held, *graph.model.ps_copies.variables.values())}

    def copy(self, session: Any, to: HeldValues, other_session: Any) -> None:
        """Gives `to`, in another session, the values that are held in this one."""
        assert self._by_name.keys() == to._by_name.keys()
        for name, held in self._by_name.items():
            for first, rows in held.portions:
                to._by_name[name].write(other_session, first, held.read(session, first, rows))

    def less(self, session: Any, other: HeldValues, other_session: Any, bucket: str) -> Iterator[tuple[int, Any]]:
        """(first row, the parameters here less those of the other session) of each portion of a bucket."""
        name = self._graph.model.stores[bucket].master.op.name
        mine, others = self._by_name[name], other._by_name[name]
        for first, rows in mine.portions:
            yield first, mine.read(session, first, rows) - others.read(other_session, first, rows)


class _Held:
    """One variable.  portions: (first row, rows) of each; a variable that is one portion is read as a whole."""

    def __init__(self, variable: Any) -> None:
        dtype, shape = variable.dtype.base_dtype, variable.shape
        self.portions = list(row_portions(tuple(shape.as_list()), dtype.size))
        self._is_whole = len(self.portions) == 1
        with tf1.device(variable.device):
            self._first = tf1.placeholder(tf1.int64, [])
            self._rows = tf1.placeholder(tf1.int64, [])
            self._new = tf1.placeholder(dtype, shape if self._is_whole else [None, *shape[1:]])
            if self._is_whole:
                self._read = variable.read_value()
                self._write = variable.assign(self._new, read_value=False)
            else:
                numbers = self._first + tf1.range(self._rows)
                self._read = tf1.raw_ops.ResourceGather(resource=variable.handle, indices=numbers, dtype=dtype)
                self._write = assign_rows(variable.handle, self._first, self._new)

    def read(self, session: Any, first: int, rows: int) -> Any:
        return session.run(self._read, None if self._is_whole else {self._first: first, self._rows: rows})

    def write(self, session: Any, first: int, value: Any) -> None:
        session.run(self._write, {self._new: value, **({} if self._is_whole else {self._first: first})})
