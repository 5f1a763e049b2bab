"""Reads and writes the values of the variables on the ps, in chunks, in a session with them.

Two graphs of the same plan have the same variables, so the values can be copied from the ps of one session to those of
another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import Array, Session, Variable
from psruntime.graph.ops.row_chunks import assign_rows, row_chunks
from psruntime.graph.step.train_graph import TrainGraph


class Chunk(NamedTuple):
    """Some rows of a variable, the `rows` from the `first` on."""

    variable: str
    first: int
    rows: int


class PsValues:
    """Parameters, the optimizers' slots, the global step and ps copies.  Adds operations to the graph.

    writes: whether they can be written, too, without a fence.  global_step: int64 [].
    """

    def __init__(self, graph: TrainGraph, writes: bool) -> None:
        self._masters = {name: store.master.op.name for name, store in graph.model.stores.items()}
        self.global_step = graph.read_step
        stores = [*graph.model.stores.values(), graph.global_step]
        variables = [variable for store in stores for variable in graph.values_of(store)]
        variables += graph.model.ps_copies.variables.values()
        with graph.graph.as_default(), tf1.name_scope("ps_values"):
            self._values = {variable.op.name: _Value(variable, writes) for variable in variables}

    def chunks(self, bucket: str = "") -> Iterator[Chunk]:
        """The chunks of all variables, or of the parameters of one bucket."""
        for name in [self._masters[bucket]] if bucket else self._values:
            for first, rows in self._values[name].chunks:
                yield Chunk(name, first, rows)

    def read(self, session: Session, chunk: Chunk) -> Array:
        """[rows, ...] of the variable's dtype; the whole of a variable that is one chunk."""
        return self._values[chunk.variable].read(session, chunk)

    def write(self, session: Session, chunk: Chunk, value: Array) -> None:
        """value: as `read` returns it."""
        self._values[chunk.variable].write(session, chunk, value)


class _Value:
    """One variable.  chunks: (first row, rows) of each; a variable that is one chunk is read as a whole."""

    def __init__(self, variable: Variable, writes: bool) -> None:
        dtype, shape = variable.dtype.base_dtype, variable.shape
        self.chunks = list(row_chunks(tuple(shape.as_list()), dtype.size))
        self._is_whole = len(self.chunks) == 1
        with tf1.device(variable.device):
            if self._is_whole:
                self._read = variable.read_value()
            else:
                self._first, self._rows = tf1.placeholder(tf1.int64, []), tf1.placeholder(tf1.int64, [])
                numbers = self._first + tf1.range(self._rows)
                self._read = tf1.raw_ops.ResourceGather(resource=variable.handle, indices=numbers, dtype=dtype)
            if writes and self._is_whole:
                self._new = tf1.placeholder(dtype, shape)
                self._write = variable.assign(self._new, read_value=False)
            elif writes:
                self._new = tf1.placeholder(dtype, [None, *shape[1:]])
                self._write = assign_rows(variable.handle, self._first, self._new)

    def read(self, session: Session, chunk: Chunk) -> Array:
        feed = {} if self._is_whole else {self._first: chunk.first, self._rows: chunk.rows}
        return session.run(self._read, feed)

    def write(self, session: Session, chunk: Chunk, value: Array) -> None:
        feed = {} if self._is_whole else {self._first: chunk.first}
        session.run(self._write, {**feed, self._new: value})
