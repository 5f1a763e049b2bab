"""What the ps have, as a worker reads and writes it: variables, prepared flags, counters, and a mark of a restore.

Two graphs of the same plan have the same variables, so values can be copied, in chunks, from the ps of one session to
those of another.  A prepared flag is 0 on a fresh ps, the marker of the job's plan on a prepared one, and its negative
on one whose preparation began: its counters are live, its variables may be anything.  A restored version leaps, which
makes every push from before stale; updates that are undone move from applied to rolled back.

The chief may be lost between the end of a preparation and its report.  Then the next one finds prepared variables, and
must not adopt them as those whose position the coordinator has, so ps 0 has a mark of a restore without a report.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import (
    APPLIED,
    EMPTY,
    LEDGER_SIZE,
    ROLLED_BACK,
    Column,
    Row,
    Term,
    brought_back,
)
from psruntime.core.accounting.saved_state import SavedState
from psruntime.core.members.view import listed
from psruntime.core.plan.buckets import Bucket
from psruntime.core.recovery.recovery import Contents
from psruntime.errors import JobFailedError, ModelDiffersError
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Array, Feed, Op, Session, Tensor, Variable
from psruntime.graph.base.variable_values import assign_rows, row_chunks
from psruntime.graph.buckets.bucket_store import (
    RESTORE_LEAP,
    BucketSection,
    ChiefFence,
    Numbers,
    PsControl,
    ps_variable,
)
from psruntime.graph.push.guard import locked
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


KEPT_ALL = 1 << 62  # more than a job counts

Write = Callable[[list[Op], Feed], None]  # runs operations that write, with a feed


class RestoredCounters:
    """Restores the counters, or rolls them back; in the current graph."""

    def __init__(self, graph: TrainGraph) -> None:
        self._max_workers = graph.global_step.section.max_workers
        self._of_ps = [_PsCounters(ps, graph, self._max_workers) for ps in range(graph.plan.num_ps)]

    def restore(self, write: Write, every_ps: Collection[int], state: SavedState) -> None:
        """Restores the saved counters on fresh ps."""
        for ps in every_ps:
            counters = self._of_ps[ps]
            saved = [state.buckets.get(bucket.name) for bucket in counters.buckets]
            versions = [of_bucket.version + RESTORE_LEAP if of_bucket else 0 for of_bucket in saved]
            ledgers = [brought_back(of_bucket.ledger) if of_bucket else EMPTY for of_bucket in saved]
            saved_ps = sorted({of_bucket.ps for of_bucket in saved if of_bucket})
            rows = [saved_ps.index(of_bucket.ps) + 1 if of_bucket else 0 for of_bucket in saved]
            feed = {counters.version: versions, counters.ledger: np.reshape(ledgers, [-1, LEDGER_SIZE])}
            write(counters.restore, {**feed, counters.counts: self._counts(state, saved_ps), counters.rows: rows})

    def roll_back(self, write: Write, every_ps: Collection[int], state: SavedState) -> None:
        """Rolls back, in live counters, the updates that the saved ones do not have."""
        for ps in every_ps:
            counters = self._of_ps[ps]
            saved = [state.buckets.get(bucket.name) for bucket in counters.buckets]
            kept = [_kept(of_bucket.ledger if of_bucket else EMPTY) for of_bucket in saved]
            write(counters.roll_back, {counters.kept: np.reshape(kept, [-1, LEDGER_SIZE])})

    def _counts(self, state: SavedState, saved_ps: list[int]) -> Array:
        """Zeros, and then the counts of each of these ps; int64 [1 + ps, max_workers, 2]."""
        counts = np.zeros([1 + len(saved_ps), self._max_workers, 2], np.int64)
        for row, ps in enumerate(saved_ps, start=1):
            for worker, (accepted, received) in state.counts.get(ps, {}).items():
                if worker < self._max_workers:
                    counts[row, worker] = accepted, received
        return counts


class _PsCounters:
    """The counters of one ps.  restore, roll_back: lists of operations.

    Placeholders, int64: version, rows [buckets], ledger, kept [buckets, LEDGER_SIZE], counts [any, max_workers, 2];
    `rows`: the index of each bucket's counts.
    """

    def __init__(self, ps: int, graph: TrainGraph, max_workers: int) -> None:
        sections = graph.sections_on(ps)
        self.buckets: list[Bucket] = [store.bucket for section in sections for store in section.stores]
        count = len(self.buckets)
        with tf1.device(ps_device(ps)):
            self.version = tf1.placeholder(tf1.int64, [count], name=f"saved_version_{ps}")
            self.ledger = tf1.placeholder(tf1.int64, [count, LEDGER_SIZE], name=f"saved_ledger_{ps}")
            self.counts = tf1.placeholder(tf1.int64, [None, max_workers, 2], name=f"saved_counts_{ps}")
            self.rows = tf1.placeholder(tf1.int64, [count], name=f"saved_rows_{ps}")
            self.kept = tf1.placeholder(tf1.int64, [count, LEDGER_SIZE], name=f"kept_{ps}")
            counts = tf1.transpose(tf1.gather(self.counts, self.rows), [1, 0, 2])
            self.restore, self.roll_back, first = [], [], 0
            for section in sections:
                own = slice(first, first := first + len(section.stores))
                self.restore += [
                    section.version.assign(self.version[own], read_value=False),
                    section.ledger.assign(self.ledger[own], read_value=False),
                    section.counts.assign(counts[:, own], read_value=False),
                    section.window.assign(tf1.zeros(section.window.shape, tf1.int64), read_value=False),
                ]
                numbers = graph.controls[ps].numbers
                self.roll_back.append(_roll_back(section, self.kept[own], numbers, graph.fence))
            graph.fence.guard(ps, self.restore)


def _kept(saved: Row) -> list[int]:
    """The limit of each column after a return to the saved counters."""
    goes_back = [column is APPLIED or column.part is Term.SHARE for column in sorted(Column)]
    return [saved[column] if goes else KEPT_ALL for column, goes in enumerate(goes_back)]


def _roll_back(section: BucketSection, kept: Tensor, numbers: Numbers, fence: ChiefFence) -> Op:
    """Moves updates beyond `kept`, [buckets, LEDGER_SIZE], to rolled back, and clears the last push of every worker."""

    def move() -> tuple[Tensor, list[Op]]:
        ledger = section.ledger.read_value()
        left = tf1.minimum(ledger, kept)
        undone = (ledger - left)[:, APPLIED : APPLIED + 1]
        return undone, [
            section.ledger.assign(left + undone * numbers.one(ROLLED_BACK), read_value=False),
            section.version.assign_add([RESTORE_LEAP] * len(section.stores), read_value=False),
            section.window.assign(tf1.zeros(section.window.shape, tf1.int64), read_value=False),
        ]

    with tf1.name_scope(f"roll_back/{section.name}/"):
        return locked(section, [kept], fence.inside(section.ps, move))[1]


class Unreported:
    """A number on ps 0: of the view in which variables are, or were, restored; 0 once that is reported.

    Builds its operations in the current graph.  variable: initialised by the chief that prepares a fresh ps 0.
    """

    def __init__(self, fence: ChiefFence) -> None:
        self._fence = fence
        with tf1.device(ps_device(0)):
            self.variable = ps_variable("unreported_view", [])
            self._view = tf1.placeholder(tf1.int64, [], name="unreported_view")
            self._begin = self.variable.assign(self._view, read_value=False)
            self._read = self.variable.read_value()
            others = tf1.where(tf1.equal(self._read, self._view), tf1.zeros_like(self._read), self._read)
            self._end = self.variable.assign(others, read_value=False)
        fence.guard(0, [self._begin])

    def begin(self, session: Session, incarnation: int, view: int) -> None:
        """To be called before the first variable is restored.  Raises ReplacedError if there is another chief."""
        self._fence.run(session, incarnation, [self._begin], {self._view: view})

    def is_left(self, session: Session) -> bool:
        """Whether a restore began in some view, and was not reported."""
        return int(session.run(self._read)) != 0

    def end(self, session: Session, view: int) -> None:
        """Clears the number: the coordinator reports the view as prepared.  Does nothing if it is another view's."""
        session.run(self._end, {self._view: view})
