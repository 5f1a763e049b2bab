"""The rule of contributions: which one counts for which attempt at a round, and what becomes of a late or repeated one.

Each contribution is judged by each section of buckets on a ps (graph/push/round_sum.py), by its worker, which learns
the outcome (graph/loop/round_loop.py), and by the coordinator, which gets the worker's report (rounds.py).  All judge
by this:

| contribution | section | worker | coordinator |
|---|---|---|---|
| to the attempt that is summed, or to a newer one, which begins another sum | `pending`; `not_finite`, without its
  gradient | reports Pushed | it counts |
| of the same worker once more | `repeated` | reports Pushed | nothing changes |
| to an older attempt, or one that began to be applied | `void` | asks for the next action, see `Use` | gets no report |
| of a run that was cut off | any of these, each section for itself | reports CutOff | the attempt is void |
| of a worker that was replaced | `fenced` | asks for the next action | refuses whatever the worker reports |
| with backup workers, of a gradient that was computed when its round had enough | none | drops it | it is late |

A section takes the first that holds of fenced, repeated, void and not_finite.

Law: attempts are numbered upwards over all rounds and never reused, so a section compares the numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import eq
from typing import Any, NamedTuple

from psruntime.core.rounds.round_messages import Action, Applied, Broken, Complete, Computed, CutOff, Pushed

Number = Any  # a whole number, or a tensor of one, int64 []; what compares two of them is a bool, or a tensor bool []


class SectionState(NamedTuple):
    """The round of the buckets of one section, in the order of the columns of its variable.

    attempt: that is summed; its first contribution begins the sum.  count: its contributions so far.  intent: the last
    attempt that began to be applied.  applied: the last that was; below `intent`, the section is torn.
    """

    attempt: Number
    count: Number
    intent: Number
    applied: Number

    def begins(self, attempt: Number) -> Number:
        """Whether a contribution to this attempt begins another sum."""
        return attempt > self.attempt

    def voids(self, attempt: Number) -> Number:
        """Whether a contribution to this attempt is void."""
        return (attempt < self.attempt) | self.began(attempt)

    def began(self, attempt: Number) -> Number:
        """Whether this attempt, or a later one, began to be applied: no update may follow."""
        return attempt <= self.intent

    def is_complete(self, attempt: Number, members: Number, equal: Callable[[Any, Any], Number] = eq) -> Number:
        """Whether all members have contributed to this attempt.  equal: of two numbers, or two tensors."""
        return equal(self.attempt, attempt) & equal(self.count, members)


class BucketOutcome(NamedTuple):
    """The outcome of a contribution on one bucket.

    verdict: a column of the ledger.  applied: the last attempt that the bucket had applied when it was pulled.
    position: the number of contributions in the sum before this one.
    """

    verdict: Number
    applied: Number
    position: Number


def has_closed(outcomes: Iterable[BucketOutcome], closes: Complete) -> bool:
    """Whether every bucket had applied the attempt when it was pulled."""
    return all(outcome.applied >= closes.attempt for outcome in outcomes)


def torn(states: Iterable[Sequence[int]], closes: Complete) -> str | None:
    """Why the attempt cannot be closed any more, from the states of all sections; else None."""
    left = [section for section in (SectionState(*state) for state in states) if section.applied != closes.attempt]
    if cut_off := sum(section.intent == closes.attempt for section in left):
        return f"{cut_off} sections were cut off in their update"
    lacking = sum(not section.is_complete(closes.attempt, closes.members) for section in left)
    return f"{lacking} sections lack contributions" if lacking else None


def hold_same_rounds(states: Iterable[SectionState]) -> bool:
    """Whether all sections have applied the same attempts, and none is torn."""
    return len({attempt for section in states for attempt in (section.intent, section.applied)}) <= 1


def is_of(report: Pushed | Applied | Broken | CutOff, number: int, attempt: int) -> bool:
    """Whether a worker's report is of this attempt at the round of this number."""
    return (report.round, report.attempt) == (number, attempt)


def is_late(computed: Computed, number: int, opened: int) -> bool:
    """Whether a gradient was computed for another round than the open one, whose first attempt is `opened`."""
    return (computed.round, computed.opened) != (number, opened)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A gradient that a worker keeps.  round, opened: as in its action.

    pushed: the last attempt for which a contribution of it was accepted, 0 if there is none.
    """

    round: int
    opened: int
    pushed: int = 0


class Use(Enum):
    """What becomes of a kept gradient when its worker gets an action for a gradient.

    | the gradient | was pushed, and counts | was pushed | was not |
    |---|---|---|---|
    | is of the round of the action, in this view | AGAIN | AGAIN | AGAIN |
    | is of another round of this view, which so has closed | SPENT | SPENT | LATE |
    | is of an earlier view, and its round is behind | SPENT | see below | see below |
    | is of an earlier view, and its round is not | ANEW | ANEW | ANEW |

    What does not count is UNUSED if rounds close without some workers, else ANEW.  The attempt that counts is in the
    action: in an earlier view the worker may have been lost, its attempt void, and the round closed without it.  Of
    rounds up to `known_from` each contribution that was accepted is taken to count: the coordinator of then is gone.
    """

    AGAIN = "it is contributed to the new attempt, without being computed again"
    ANEW = "it is computed anew, of the same batch: its round is lost, or closed without it"
    SPENT = "its batch is in the variables, and the next one is drawn; also where no gradient is kept"
    LATE = "its round closed without it: it is dropped, and the next batch is drawn"
    UNUSED = "as LATE, but no coordinator has counted it"


def use_of(kept: Kept | None, is_of_view: bool, action: Action, closes_without: bool) -> Use:
    """is_of_view: whether the gradient is of the present view.  closes_without: whether there are backup workers."""
    if kept is None:
        return Use.SPENT
    if is_of_view:
        return Use.AGAIN if kept.opened == action.opened else Use.SPENT if kept.pushed else Use.LATE
    if kept.round >= action.round:
        return Use.ANEW
    if kept.pushed and (kept.pushed == action.counted or kept.round <= action.known_from):
        return Use.SPENT
    return Use.UNUSED if closes_without else Use.ANEW


class Late(NamedTuple):
    """A gradient that was too late for its round, and its worker."""

    incarnation: int
    worker: int
    computed: Computed


class Chosen:
    """The members of the open round: all workers in it, or, with backup workers, the first that have a gradient.

    With b backup workers a round of W workers needs W - b gradients.  A worker computes its gradient first, and reports
    it; the first of them push theirs, so no ps ever gets one too many.  The gradient of a later worker is late: it is
    dropped, as TensorFlow's SyncReplicasOptimizer drops one (Chen et al., Revisiting Distributed Synchronous SGD,
    2016).  A lost worker is replaced by one that is late.

    members: of the attempt, incarnation -> worker index: whose contributions make it up.

    Invariant: len(members) <= needed, and a member is never given up but by `void`.
    """

    def __init__(self, present: Mapping[int, int], backup_workers: int) -> None:
        self._live = dict(present)
        self._backup_workers = backup_workers
        self._late: dict[int, Computed] = {}  # have a gradient and are no members, in their order
        self._gone = 0  # members that are
        self.members = {} if backup_workers else dict(present)

    @property
    def needed(self) -> int:
        """How many members the round needs: all but the backup workers, of those who live or have contributed."""
        return max(1, len(self.members), self._gone + len(self._live) - self._backup_workers)

    @property
    def is_empty(self) -> bool:
        return not self.members and not self._live

    @property
    def late(self) -> list[Late]:
        """The gradients that are not used so far."""
        return [Late(inc, self._live[inc], computed) for inc, computed in self._late.items()]

    def computes(self, incarnation: int) -> bool:
        """Whether this worker has to compute a gradient and report it."""
        return incarnation in self._live and incarnation not in self.members and incarnation not in self._late

    def computed(self, incarnation: int, computed: Computed) -> None:
        """Takes the report that a worker has a gradient."""
        if self.computes(incarnation):
            self._late[incarnation] = computed
            self._fill()

    def lose(self, incarnation: int) -> list[Late]:
        """Removes a worker that is gone.  A member stays a member; the late gradient of another worker is returned."""
        if incarnation not in self._live:
            return []
        index = self._live.pop(incarnation)
        self._gone += incarnation in self.members
        computed = self._late.pop(incarnation, None)
        return [Late(incarnation, index, computed)] if computed else []

    def void(self) -> None:
        """Voids the attempt: the members that still live are the first of the next one."""
        self.members = {incarnation: index for incarnation, index in self.members.items() if incarnation in self._live}
        self._gone = 0
        self._fill()

    def _fill(self) -> None:
        while self._late and len(self.members) < self.needed:
            incarnation = next(iter(self._late))
            del self._late[incarnation]
            self.members[incarnation] = self._live[incarnation]
