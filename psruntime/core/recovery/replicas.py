"""Which replica brings back what a lost ps held.  Pure.

The variables of each ps are copied to the next one, into one of two buffers in turn.  A note tells, of each buffer,
the copy that is complete there: its stamp, drawn for each copy of the job, and its global step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

BUFFERS = 2


@dataclass(frozen=True)
class Note:
    """Of one buffer: a stamp, 0 while it is incomplete, and the global step of what it holds."""

    stamp: int = 0
    global_step: int = 0


Notes = Mapping[int, Sequence[Note]]  # ps -> a note for each buffer


def holder_of(ps: int, num_ps: int) -> int:
    """The ps that holds the replica of this one."""
    return (ps + 1) % num_ps


@dataclass(frozen=True)
class Source:
    """The copy in one buffer.  from_next: the ps that come back from the next one; the others from what they keep."""

    buffer: int
    note: Note
    from_next: frozenset[int]


def newest_source(
    needed: Collection[int], fresh: Collection[int], num_ps: int, replicas: Notes, own: Notes | None
) -> Source | None:
    """The newest copy that is complete for all of the needed ps; None if there is none.

    fresh: the ps that hold nothing, so no copies either.  replicas: of each ps, the notes on its holder.  own: in mode
    sync, of each ps the notes of the copies that it keeps itself.
    """
    best: Source | None = None
    for buffer in range(BUFFERS):
        for note in {notes[buffer] for of_all in (replicas, own or {}) for notes in of_all.values()}:
            from_next = _from_next(note, buffer, needed, fresh, num_ps, replicas, own)
            if note.stamp and from_next is not None and (best is None or note.global_step > best.note.global_step):
                best = Source(buffer, note, from_next)
    return best if needed else None


def _from_next(
    note: Note, buffer: int, needed: Collection[int], fresh: Collection[int], num_ps: int, replicas: Notes,
    own: Notes | None,
) -> frozenset[int] | None:  # fmt: skip
    """The ps of which the next one alone has this copy; None if nobody has that of one."""
    kept = {ps for ps in needed if own and ps not in fresh and own[ps][buffer] == note}
    others = set(needed) - kept
    found = all(holder_of(ps, num_ps) not in fresh and replicas[ps][buffer] == note for ps in others)
    return frozenset(others) if found else None


def next_buffer(num_ps: int, replicas: Notes) -> int:
    """The buffer to write next: one that is not complete for all, or else the older."""
    ages = []
    for buffer in range(BUFFERS):
        notes = [replicas[ps][buffer] for ps in range(num_ps)]
        whole = notes[0].stamp != 0 and all(note == notes[0] for note in notes)
        ages.append((whole, notes[0].global_step if whole else 0, buffer))
    return min(ages)[2]
