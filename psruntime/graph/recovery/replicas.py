"""Replicas: the variables of each ps, copied to the next ps, so that a lost ps is restored without a disk.

A copy has two halves.  `begin` copies every section on its own ps, under its mutex: the training waits only for that.
`send` and `finish` copy these to the next ps while it continues, and note there that they are complete.  In mode sync
each ps keeps its own copy as well, because all of them return to the same round.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.saved_state import BucketCounters, SavedState
from psruntime.core.recovery.recovery import BUFFERS, Note, Notes, Source, holder_of, newest_source, next_buffer
from psruntime.graph.base import variable_values
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Array, Feed, Op, Session, Tensor, Variable
from psruntime.graph.base.variable_values import VariableCopy
from psruntime.graph.buckets.bucket_store import GLOBAL_STEP, BucketSection, ChiefFence, counts_of, ps_variable
from psruntime.graph.push.guard import locked
from psruntime.graph.push.round_sum import APPLIED_ATTEMPT
from psruntime.graph.step.train_graph import TrainGraph


class _ReplicaBuffer:
    """The copies of ps `ps` in buffer `buffer`.

    take, send, free_own: operations.  names: of its buckets, in the order of `counters`.
    global_step: int64 [], of the copy on the ps itself; only on the ps of the global step.
    restore, counters: by whether they are of the copy on the next ps, or in mode sync of the one on the ps itself.
    restore: operations that assign the variables, but for the counters, the copied values.
    counters: the copied counters, (versions int64 [buckets], ledgers [buckets, LEDGER_SIZE], attempts applied
    [sections] in mode sync, accepted and received pushes of each worker that every bucket has [max_workers, 2]).
    """

    def __init__(self, graph: TrainGraph, ps: int, buffer: int) -> None:
        self._graph = graph
        holder = holder_of(ps, graph.plan.num_ps)
        self._device, self._next = ps_device(ps), ps_device(holder)
        self._ps = ps
        self._suffix = f"replica_{buffer}"
        self._rounds = {r.section.name: r for r in graph.rounds.sections} if graph.rounds else {}
        self._sections = graph.sections_on(ps)
        self._stores = [store for section in self._sections for store in section.stores]
        self._own: dict[str, VariableCopy] = {}  # by the name of the variable's handle
        self._on_next: dict[str, VariableCopy] = {}
        self.names = [store.bucket.name for store in self._stores]
        ps_copies = [graph.model.ps_copies.variables[copy.name] for copy in graph.plan.copies if copy.ps == ps]
        self._values = [*(v for store in self._stores for v in graph.values_of(store)), *ps_copies]
        alone = [self._copy(copy) for copy in ps_copies]
        graph.fence.guard(ps, alone)
        self.take = [*map(self._copy_section, self._sections), *alone]
        self.send = self._guarded(holder, (self._on_next[name].assign(copy.read()) for name, copy in self._own.items()))
        self.free_own = [copy.free() for copy in self._own.values()]
        graph.fence.guard(ps, self.free_own)
        if GLOBAL_STEP.ps == ps:
            self.global_step = self._own[graph.global_step.master.handle.op.name].read()[0]
        variants = (True, False) if graph.rounds else (True,)
        self.restore = {from_next: self._restore(from_next) for from_next in variants}
        self.counters = {from_next: self._counters(from_next) for from_next in variants}

    def _restore(self, from_next: bool) -> list[Op]:
        return self._guarded(self._ps, (self._copy_of(v, from_next).give_back() for v in self._values))

    def _guarded(self, ps: int, moves: Iterable[list[Op]]) -> list[Op]:
        """The last operations of these moves to a ps, all of which wait for the fence there.

        The fence is checked once for each group of at most CHUNK_BYTES, when that has arrived.
        """
        together: list[Op] = []
        size_bytes, last = 0, []
        for writes in moves:
            last.append(writes[-1])
            if len(writes) > 1:
                for write in writes:
                    self._graph.fence.guard(ps, [write])
                continue
            value = writes[0].inputs[1]
            value_bytes = value.shape.num_elements() * value.dtype.size
            if size_bytes + value_bytes > variable_values.CHUNK_BYTES:
                self._graph.fence.guard(ps, together)
                together, size_bytes = [], 0
            together.append(writes[0])
            size_bytes += value_bytes
        self._graph.fence.guard(ps, together)
        return last

    def _counters(self, from_next: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        def read(variable: Variable) -> Tensor:
            return self._copy_of(variable, from_next).read()

        with tf1.device(self._next if from_next else self._device):
            rounds = [self._rounds[section.name].state for section in self._sections if section.name in self._rounds]
            if not self._stores:
                none = tf1.zeros([0], tf1.int64)
                return none, none[:, None], none, tf1.zeros([0, 2], tf1.int64)
            counts = [tf1.reduce_min(read(section.counts), axis=1) for section in self._sections]
            return (
                tf1.concat([read(section.version) for section in self._sections], axis=0),
                tf1.concat([read(section.ledger) for section in self._sections], axis=0),
                tf1.stack([read(state)[APPLIED_ATTEMPT] for state in rounds]) if rounds else tf1.zeros([0], tf1.int64),
                tf1.reduce_min(tf1.stack(counts), axis=0),
            )

    def _copy_section(self, section: BucketSection) -> Op:
        rounds = self._rounds.get(section.name)
        values = [v for store in section.stores for v in self._graph.values_of(store)]
        variables = [*values, *section.counters, *([rounds.state] if rounds else [])]

        def copy() -> tuple[Tensor, list[Op]]:
            return tf1.constant(0), [self._copy(variable) for variable in variables]

        with tf1.name_scope(f"{section.name}/"):
            return locked(section, [], self._graph.fence.inside(self._ps, copy))[1]

    def _copy(self, variable: Variable) -> Op:
        name = variable.handle.op.name
        self._own[name] = VariableCopy(variable, f"{self._suffix}_own")
        self._on_next[name] = VariableCopy(variable, self._suffix, self._next)
        return self._own[name].take()

    def _copy_of(self, variable: Variable, from_next: bool) -> VariableCopy:
        return (self._on_next if from_next else self._own)[variable.handle.op.name]


class Replicas:
    """Makes and finds the copies of all ps, in the training graph.

    A method that writes raises ReplacedError when a ps no longer admits the incarnation that it writes as.
    """

    def __init__(self, graph: TrainGraph) -> None:
        self._fence = graph.fence
        self._num_ps = graph.plan.num_ps
        self._sync = graph.rounds is not None
        self._with_variables = frozenset(range(self._num_ps)) - graph.empty_ps
        self._begun = (0, Note())  # buffer and note of the copy that was begun last
        with graph.graph.as_default(), tf1.name_scope("replicas/"):
            every_ps = range(self._num_ps)
            self._on_next = [_NotesOfPs(f"of_ps_{ps}", holder_of(ps, self._num_ps), graph.fence) for ps in every_ps]
            self._own = [_NotesOfPs(f"own_of_ps_{ps}", ps, graph.fence) for ps in every_ps]
            self._buffers = [[_ReplicaBuffer(graph, ps, b) for ps in every_ps] for b in range(BUFFERS)]

    def notes_on(self, ps: int) -> list[Variable]:
        """The variables that this ps needs before anything is replicated."""
        return [each.notes for each in (*self._on_next, *self._own) if each.ps == ps]

    def begin(self, session: Session, incarnation: int) -> int:
        """Copies the variables of every ps on the ps itself; returns the global step."""
        replicas, _ = self._read(session)
        buffer = next_buffer(self._num_ps, replicas)
        self._note(session, incarnation, buffer, Note())
        copies = self._buffers[buffer]
        self._fence.run(session, incarnation, [of_ps.take for of_ps in copies])
        step = int(session.run(copies[GLOBAL_STEP.ps].global_step))
        self._begun = buffer, Note(secrets.randbelow(1 << 62) + 1, step)
        return step

    def send(self, session: Session, incarnation: int) -> None:
        """Sends the last copy to the next ps."""
        self._fence.run(session, incarnation, [of_ps.send for of_ps in self._buffers[self._begun[0]]])

    def finish(self, session: Session, incarnation: int) -> None:
        """Marks the copy that was sent as complete; from then on it may be restored."""
        buffer, note = self._begun
        self._note(session, incarnation, buffer, note)
        if not self._sync:
            self._fence.run(session, incarnation, [of_ps.free_own for of_ps in self._buffers[buffer]])

    def newest(self, session: Session, lost: Collection[int], fresh: Collection[int]) -> Replica | None:
        """The newest replica that the lost ps, in mode sync all ps, can be restored from; None if there is none.

        fresh: the ps without any variables.
        """
        replicas, own = self._read(session)
        needed = self._with_variables if self._sync else lost
        source = newest_source(needed, fresh, self._num_ps, replicas, own if self._sync else None)
        return Replica(session, self._buffers[source.buffer], needed, source) if source else None

    def forget(self, session: Session, incarnation: int) -> None:
        """Marks every copy as invalid: the ps have other variables now."""
        for buffer in range(BUFFERS):
            self._note(session, incarnation, buffer, Note())

    def _read(self, session: Session) -> tuple[Notes, Notes]:
        """(the notes on the next ps, those on the ps itself), of each ps."""
        on_next, own = session.run([[each.value for each in notes] for notes in (self._on_next, self._own)])
        return _notes(on_next), _notes(own)

    def _note(self, session: Session, incarnation: int, buffer: int, note: Note) -> None:
        everywhere = [*self._on_next, *self._own]
        feed: Feed = {notes.buffer: buffer for notes in everywhere}
        feed.update({notes.note: (note.stamp, note.global_step) for notes in everywhere})
        self._fence.run(session, incarnation, [notes.write for notes in everywhere], feed)


class Replica:
    """One copy that these ps can be restored from.

    state: their counters in it.  restore: operations that assign the variables of `ps` the values of the copy.
    """

    def __init__(
        self, session: Session, copies: list[_ReplicaBuffer], every_ps: Collection[int], source: Source
    ) -> None:
        self.ps = frozenset(every_ps)
        self.restore = [copies[ps].restore[ps in source.from_next] for ps in sorted(self.ps)]
        counters = session.run({ps: copies[ps].counters[ps in source.from_next] for ps in self.ps})
        buckets: dict[str, BucketCounters] = {}
        attempts: set[int] = set()
        counts = {}
        for ps, (versions, ledgers, of_rounds, pushed) in counters.items():
            rows = zip(versions.tolist(), map(tuple, ledgers.tolist()), strict=True)
            buckets.update(zip(copies[ps].names, (BucketCounters(*row, ps) for row in rows), strict=True))
            attempts.update(of_rounds.tolist())
            counts[ps] = counts_of(pushed)
        self.state = SavedState(source.note.global_step, buckets, counts)
        self.is_whole = len(attempts) <= 1  # mode sync: all are of one round


class _NotesOfPs:
    """The notes of the copies of one ps, where they are kept: on `ps`."""

    def __init__(self, name: str, ps: int, fence: ChiefFence) -> None:
        self.ps = ps
        with tf1.device(ps_device(ps)):
            self.notes = ps_variable(f"replicas/{name}", [BUFFERS, 2])
            self.buffer = tf1.placeholder(tf1.int64, [], name=f"{name}/buffer")
            self.note = tf1.placeholder(tf1.int64, [2], name=f"{name}/note")
            self.write = variable_values.write_rows(self.notes, self.buffer, self.note)
            self.value = self.notes.read_value()
        fence.guard(ps, [self.write])


def _notes(rows: list[Array]) -> Notes:
    return {ps: [Note(int(stamp), int(step)) for stamp, step in of_ps] for ps, of_ps in enumerate(rows)}
