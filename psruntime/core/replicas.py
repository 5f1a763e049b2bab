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


def usable(lost: Collection[int], num_ps: int, replicas: Notes, own: Notes | None) -> int | None:
    """The buffer to bring the lost ps back from: that with the newest copy which is complete for all of them.

    replicas: of each ps, the notes on its holder.  own: in mode sync, of each ps the notes of the copies that it keeps
    itself: those that live return to the same round.  None if there is no such buffer.
    """
    if not lost or any(holder_of(ps, num_ps) in lost for ps in lost):
        return None
    best: int | None = None
    for buffer in range(BUFFERS):
        notes = [replicas[ps][buffer] for ps in lost]
        if own is not None:
            notes += [own[ps][buffer] for ps in range(num_ps) if ps not in lost]
        whole = notes[0].stamp != 0 and all(note == notes[0] for note in notes)
        if whole and (best is None or notes[0].global_step > replicas[min(lost)][best].global_step):
            best = buffer
    return best


def next_buffer(num_ps: int, replicas: Notes) -> int:
    """The buffer to write next: one that is not complete for all, or else the older."""
    ages = []
    for buffer in range(BUFFERS):
        notes = [replicas[ps][buffer] for ps in range(num_ps)]
        whole = notes[0].stamp != 0 and all(note == notes[0] for note in notes)
        ages.append((whole, notes[0].global_step if whole else 0, buffer))
    return min(ages)[2]
