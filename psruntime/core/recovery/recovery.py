"""What is done with what the ps hold when a view forms.  Pure.

| together they hold | whole | torn | unequal |
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

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from psruntime.core.members.view import listed


class Contents(Enum):
    """What a ps holds: nothing; counters, but variables that may be anything; all of it."""

    FRESH = "fresh"
    BEGUN = "begun"
    PREPARED = "prepared"


class Together(Enum):
    """What all ps hold together.  The value is why variables are replaced; empty: nothing of it is a reason."""

    ALL = ""
    SOME = "ps {lost} lost its variables"
    CUT_OFF = "a preparation was cut off"
    NOTHING = "no ps holds anything"


class Rounds(Enum):
    """Of what rounds the variables are, in mode sync; WHOLE in the others.  The value as of Together."""

    WHOLE = ""
    TORN = "a round was torn"
    UNEQUAL = "the buckets hold different rounds"


class Way(Enum):
    ADOPT = "the variables of no ps are replaced"
    LOST = "those of the lost ps, or of all"
    EVERY = "those of all ps"


WAYS: dict[tuple[Together, Rounds], Way] = {
    **{(held, rounds): Way.EVERY for held in Together for rounds in Rounds},
    (Together.ALL, Rounds.WHOLE): Way.ADOPT,
    (Together.SOME, Rounds.WHOLE): Way.LOST,
}


@dataclass(frozen=True)
class Recovery:
    """ps: those whose variables are replaced, none if all are adopted.  reason: why; empty then."""

    ps: frozenset[int]
    reason: str = ""


def obstacle(found: int | None, saved_step: int | None, folder: str) -> str:
    """Why a chief cannot restore although another worker may; empty if it can, or nobody has a checkpoint.

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
    """By what each ps holds.

    partial: whether live variables stay when others are lost.  restore: the coordinator wants the checkpoint.
    same_rounds: whether all buckets hold the same rounds; True in the modes without rounds.  empty: the ps on which
    the plan puts no variables.
    """
    everyone = frozenset(range(len(contents)))
    absent = frozenset(ps for ps, content in enumerate(contents) if content is not Contents.PREPARED)
    lost = absent.difference(empty)
    if absent == everyone:
        begun = any(content is Contents.BEGUN for ps, content in enumerate(contents) if ps not in empty)
        held = Together.CUT_OFF if begun else Together.NOTHING
    else:
        held = Together.SOME if lost else Together.ALL
    rounds = Rounds.TORN if restore else Rounds.WHOLE if same_rounds else Rounds.UNEQUAL
    replaced = {Way.ADOPT: lost, Way.LOST: absent if partial else everyone, Way.EVERY: everyone}[WAYS[held, rounds]]
    reason = held.value if absent == everyone else rounds.value or held.value
    return Recovery(replaced, reason.format(lost=listed(sorted(lost))))
