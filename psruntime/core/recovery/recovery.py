"""What is done with what the ps hold when a view forms.  Pure.

every ps prepared              adopted: live variables are never rolled back
no ps prepared                 all from the newest checkpoint, or all anew without one
some not (a ps was replaced)   `rollback`: all from the checkpoint; `partial`: those that were lost alone
mode sync, and the buckets hold different rounds, or one was torn: all from the checkpoint

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
        return Recovery(everyone, "a preparation was cut off" if begun else "no ps holds anything")
    if restore:
        return Recovery(everyone, "a round was torn")
    if not same_rounds:
        return Recovery(everyone, "the buckets hold different rounds")
    if not lost:
        return Recovery(lost)
    return Recovery(absent if partial else everyone, f"ps {listed(sorted(lost))} lost its variables")
