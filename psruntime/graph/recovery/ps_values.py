"""The values and the flags that the ps hold, as a process reads and writes them.

Reads and writes the values of the variables on the ps, in chunks, in a session with them.

Two graphs of the same plan have the same variables, so the values can be copied from the ps of one session to those of
another.

The state of the variables on each ps.

A prepared flag is 0 on a fresh ps, the marker of the job's plan on a prepared one, and its negative on one whose
preparation began: its counters are live, its variables may be anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf1

from psruntime.core.members.view import listed
from psruntime.core.recovery.recovery import Contents
from psruntime.errors import JobFailedError, ModelDiffersError
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Array, Session, Variable
from psruntime.graph.base.variable_values import assign_rows, row_chunks
from psruntime.graph.buckets.bucket_store import ChiefFence, PsControl
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


class PreparedFlags:
    """The prepared flags of all ps, as a worker reads them, and writes them behind its fence when it is the chief.

    Builds its operations in the current graph, on the current device.
    marker: of this job's variables, greater than 0.  of_ps: the variables of each ps, without its PsControl.
    flags, sizes: of each ps, a tensor that `require` reads and an operation that `measure` runs.
    """

    def __init__(
        self, controls: Sequence[PsControl], marker: int, of_ps: Sequence[Sequence[Variable]], fence: ChiefFence
    ) -> None:
        self._marker = marker
        self._fence = fence
        self.flags = [c.prepared.read_value() for c in controls]
        self.sizes, self._mark, self._unmark = [], [], []
        for ps, (control, variables) in enumerate(zip(controls, of_ps, strict=True)):
            with tf1.device(ps_device(ps)):
                size_bytes = _size_bytes([*control.variables, *variables])
                self.sizes.append(control.bytes_held.assign(size_bytes, read_value=False))
                self._mark.append(control.prepared.assign(marker, read_value=False))
                self._unmark.append(control.prepared.assign(-marker, read_value=False))
            for write in (self.sizes[ps], self._mark[ps], self._unmark[ps]):
                fence.guard(ps, [write])

    def read(self, session: Session) -> list[Contents]:
        """The contents of each ps.

        Raises:
            JobFailedError: a ps has the variables of another plan.
        """
        known = {0: Contents.FRESH, -self._marker: Contents.BEGUN, self._marker: Contents.PREPARED}
        flags = [int(flag) for flag in session.run(self.flags)]
        for ps, flag in enumerate(flags):
            if flag not in known:
                raise JobFailedError(f"ps {ps} has the variables of another plan; restart it to clear them")
        return [known[flag] for flag in flags]

    def begin(self, session: Session, incarnation: int, every_ps: Collection[int]) -> None:
        """Marks these ps as being prepared: from here on their variables may be anything.

        Raises:
            ReplacedError: a ps no longer admits this incarnation, so there is another chief.
        """
        self._fence.run(session, incarnation, [self._unmark[ps] for ps in every_ps])

    def finish(self, session: Session, incarnation: int, every_ps: Collection[int]) -> None:
        """Marks these ps as prepared: their variables are complete.  Raises as `begin`."""
        self.measure(session, incarnation, every_ps)
        self._fence.run(session, incarnation, [self._mark[ps] for ps in every_ps])

    def measure(self, session: Session, incarnation: int, every_ps: Collection[int]) -> None:
        """Writes the size of the variables on these ps, in bytes.  Raises as `begin`."""
        self._fence.run(session, incarnation, [self.sizes[ps] for ps in every_ps])

    def require(self, session: Session) -> None:
        """Checks that every ps of the session is prepared: one may have been replaced a moment ago.

        Raises:
            UnavailableError: one is not.
            ModelDiffersError: one is, but for other variables than this worker's.
        """
        flags = [int(flag) for flag in session.run(self.flags)]
        strange = [ps for ps, flag in enumerate(flags) if abs(flag) not in (0, self._marker)]
        if strange:
            raise ModelDiffersError(
                f"ps {listed(strange)} has other variables than this worker's; start it with the job's own script"
            )
        missing = [ps for ps, flag in enumerate(flags) if flag != self._marker]
        if missing:
            raise tf1.errors.UnavailableError(None, None, f"ps {listed(missing)} is not prepared")


def _size_bytes(variables: Sequence[Variable]) -> int:
    """Bytes of all these variables; one of unknown shape or of strings counts nothing."""
    return sum((v.shape.num_elements() or 0) * v.dtype.base_dtype.size for v in variables)
