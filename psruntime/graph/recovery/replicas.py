"""Replicas: the variables of each ps, copied to the next ps, so that a lost ps is restored without a disk.

A copy has two halves.  `begin` copies every bucket on its own ps, under its mutex: the training pauses only for that.
`send` and `finish` copy these to the next ps while it continues, and note there that they are complete.  In mode sync
each ps keeps its own copy as well, because all of them return to the same round.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.saved_state import BucketCounters, SavedState
from psruntime.core.recovery.replicas import BUFFERS, Note, Notes, Source, holder_of, newest_source, next_buffer
from psruntime.graph.base.devices import ps_device
from psruntime.graph.base.types import Array, Feed, Session, Variable
from psruntime.graph.recovery.replica_buffer import ReplicaBuffer
from psruntime.graph.step.train_graph import TrainGraph
from psruntime.graph.store.bucket_store import GLOBAL_STEP, counts_of, ps_variable
from psruntime.graph.store.write_fence import WriteFence


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
            self._buffers = [[ReplicaBuffer(graph, ps, b) for ps in every_ps] for b in range(BUFFERS)]

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
        self, session: Session, copies: list[ReplicaBuffer], every_ps: Collection[int], source: Source
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

    def __init__(self, name: str, ps: int, fence: WriteFence) -> None:
        self.ps = ps
        with tf1.device(ps_device(ps)):
            self.notes = ps_variable(f"replicas/{name}", [BUFFERS, 2])
            self.buffer = tf1.placeholder(tf1.int64, [], name=f"{name}/buffer")
            self.note = tf1.placeholder(tf1.int64, [2], name=f"{name}/note")
            self.write = tf1.raw_ops.ResourceScatterUpdate(
                resource=self.notes.handle, indices=self.buffer, updates=self.note
            )
            self.value = self.notes.read_value()
        fence.guard(ps, [self.write])


def _notes(rows: list[Array]) -> Notes:
    return {ps: [Note(int(stamp), int(step)) for stamp, step in of_ps] for ps, of_ps in enumerate(rows)}
