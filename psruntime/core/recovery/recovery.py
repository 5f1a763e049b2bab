"""Decisions after a loss: what a new view starts from, which replica brings variables back, what a ps clears.  Pure.

| the ps together have | whole | torn | unequal |
|---|---|---|---|
| ALL | ADOPT | EVERY | EVERY |
| SOME | LOST | EVERY | EVERY |
| CUT_OFF | EVERY | EVERY | EVERY |
| NOTHING | EVERY | EVERY | EVERY |

ADOPT: live variables are never rolled back.  EVERY: the variables of all ps come from the newest checkpoint, or are
made anew without one.  LOST: with `partial` those of the lost ps alone, else of all.

A ps on which the plan puts no variables has none to lose, so nothing goes back because of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from psruntime.core.members.view import listed

BUFFERS = 2


@dataclass(frozen=True)
class Note:
    """The replica in one buffer: a stamp, drawn for each replica of the job, 0 while it is incomplete; the global step.

    The variables of each ps are copied to the next one, into one of two buffers, alternately.
    """

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
    """The ps of which the next one alone has this copy; None if no ps has that of one."""
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


class Contents(Enum):
    """What a ps has: nothing; counters, but variables that may be anything; all of it."""

    FRESH = "fresh"
    BEGUN = "begun"
    PREPARED = "prepared"


class Together(Enum):
    """What all ps have together.  The value is why variables are replaced; empty: nothing of it is a reason."""

    ALL = ""
    SOME = "ps {lost} lost its variables"
    CUT_OFF = "a preparation was cut off"
    NOTHING = "no ps holds anything"


class Consistency(Enum):
    """Of what rounds the variables are, in mode sync; WHOLE in the others.  The value as of Together."""

    WHOLE = ""
    TORN = "a round was torn"
    UNEQUAL = "the buckets hold different rounds"


class Way(Enum):
    ADOPT = "the variables of no ps are replaced"
    LOST = "those of the lost ps, or of all"
    EVERY = "those of all ps"


WAYS: dict[tuple[Together, Consistency], Way] = {
    **{(together, rounds): Way.EVERY for together in Together for rounds in Consistency},
    (Together.ALL, Consistency.WHOLE): Way.ADOPT,
    (Together.SOME, Consistency.WHOLE): Way.LOST,
}


@dataclass(frozen=True)
class Recovery:
    """ps: those whose variables are replaced, none if all are adopted.  reason: why; empty then."""

    ps: frozenset[int]
    reason: str = ""


def obstacle(found: int | None, saved_step: int | None, folder: str) -> str:
    """Why a chief cannot restore although another worker may; empty if it can, or no member has a checkpoint.

    found: global step of the newest checkpoint that it sees in `folder`.  saved_step: of the newest that is known.
    """
    if saved_step is None or (found is not None and found >= saved_step):
        return ""
    there = "it is empty" if found is None else f"the newest there is {found}"
    return (
        f"checkpoint {saved_step} was written, and is not in {folder or 'a folder'} here: {there}; mount the folder "
        "that the others use, or give --start-over to go on with what is here"
    )


def lost_work(seen_step: int, why: str, give: str) -> str:
    """What there is to say of a job that would begin anew although it was seen to train.

    seen_step: the global step at which it was.  give: what the user could have given against it.
    """
    return (
        f"all that was trained until global step {seen_step} is lost ({why}), and there is no copy to bring it back: "
        f"give {give}, or --start-over to begin anew"
    )


def decide(
    contents: Sequence[Contents], partial: bool, restore: bool, same_rounds: bool, empty: Collection[int] = ()
) -> Recovery:
    """Decides by what each ps has.

    partial: whether live variables stay when others are lost.  restore: the coordinator wants the checkpoint.
    same_rounds: whether all buckets hold the same rounds; True in the modes without rounds.  empty: the ps on which
    the plan puts no variables.
    """
    everyone = frozenset(range(len(contents)))
    absent = frozenset(ps for ps, content in enumerate(contents) if content is not Contents.PREPARED)
    lost = absent.difference(empty)
    if absent == everyone:
        begun = any(content is Contents.BEGUN for ps, content in enumerate(contents) if ps not in empty)
        together = Together.CUT_OFF if begun else Together.NOTHING
    else:
        together = Together.SOME if lost else Together.ALL
    rounds = Consistency.TORN if restore else Consistency.WHOLE if same_rounds else Consistency.UNEQUAL
    replaced = {Way.ADOPT: lost, Way.LOST: absent if partial else everyone, Way.EVERY: everyone}[WAYS[together, rounds]]
    reason = together.value if absent == everyone else rounds.value or together.value
    return Recovery(replaced, reason.format(lost=listed(sorted(lost))))
