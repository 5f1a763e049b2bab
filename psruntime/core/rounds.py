"""Rounds: who is in the round, who has contributed to it, and who does what next.

A round is one aggregated update; an attempt is one try at it.  The members are fixed when a round opens.
When all of them have contributed, the chief closes the round: it applies what they pushed.  A member that is
lost before it contributed voids the attempt, and those who are left push what they kept as the next one.
A member that is lost after it contributed stays counted.

Pure state.  Workers are named by their incarnations.

Law: attempts are numbered upwards for ever, so what belongs to an older one is told by its number.
Law: a round closes with exactly one contribution of each of its members.
Law: while a round closes, its attempt cannot become void: some of it may be applied already.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from psruntime.core.view import listed

NAMED = 10  # workers that a message names


class Duty(str, Enum):
    """What a worker does now."""

    WAIT = "wait"  # nothing, until its next turn
    CONTRIBUTE = "contribute"  # push the gradient of its batch for the attempt
    CLOSE = "close"  # as chief: apply what all have pushed
    NONE = "none"  # no rounds are held in the view that it knows

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Turn:
    """A worker's duty, and the round that it is about.

    opened: the round's first attempt; so a turn with another one asks for another batch.  members: contributions
    that the attempt is complete with.  examples: their total weight, known when it closes.
    """

    duty: Duty
    round: int = 0
    attempt: int = 0
    opened: int = 0
    members: int = 0
    examples: float = 0.0
    reason: str = ""  # of a wait; for people


@dataclass(frozen=True)
class Contribution:
    """What a member pushed: the `batch`-th of its input, counted from 0, which weighs `examples`."""

    round: int
    attempt: int
    batch: int
    examples: float


@dataclass(frozen=True)
class Closed:
    """The chief has applied the attempt; the variables hold `global_step` updates now."""

    round: int
    attempt: int
    global_step: int


@dataclass(frozen=True)
class Torn:
    """The chief found the attempt applied in part, and what lacks cannot be had any more."""

    round: int
    attempt: int
    reason: str


Done = Contribution | Closed | Torn  # what a worker may have done in its turn


@dataclass(frozen=True)
class Part:
    """One member's part in a closed round, enough to repeat it."""

    worker: int
    incarnation: int
    batch: int
    examples: float


class Rounds:
    """The rounds of one coordinator.  `revision` grows whenever some worker's turn may have changed."""

    def __init__(self) -> None:
        self.revision = 0
        self.global_step = 0  # rounds that the variables hold
        self.attempt = 0  # the open one, or the last
        self.opened = 0  # its first attempt
        self.held = False  # whether rounds are held: the view is prepared and the job trains
        self._members: dict[int, int] = {}  # of the open round: incarnation -> worker index
        self._contributions: dict[int, Contribution] = {}  # by incarnation
        self._begun = False  # whether a round was opened in this view
        self._present: dict[int, int] = {}  # who takes turns in this view: incarnation -> worker index

    @property
    def round(self) -> int:
        """The open one, or the next."""
        return self.global_step + 1

    @property
    def open(self) -> bool:
        return bool(self._members)

    @property
    def closing(self) -> bool:
        """Whether all members have contributed, so that the chief may be applying."""
        return self.open and len(self._contributions) == len(self._members)

    @property
    def missing(self) -> list[int]:
        """Workers, by index, that the open round waits for."""
        return sorted(index for inc, index in self._members.items() if inc not in self._contributions)

    # Inputs.

    def begin(self, global_step: int, attempt: int) -> list[Part]:
        """The view is prepared, and holds `global_step` updates; its ps have seen attempts up to `attempt`.

        Returns the parts of the round that was closing when the view before ended, if it turns out that the
        variables hold it; else nothing.
        """
        applied = self.closing and (self.attempt, self.round) == (attempt, global_step)
        parts = self._parts() if applied else []
        self._members, self._contributions = {}, {}
        self.attempt = max(self.attempt, attempt)
        self.global_step = global_step
        self.held, self._begun = True, False
        self.revision += 1
        return parts

    def end(self) -> None:
        """The view is void, or the job trains no more: nobody has a turn."""
        if self.held:
            self.held = False
            self._present = {}
            self.revision += 1

    def enter(self, incarnation: int, index: int) -> None:
        """A worker with a session on the view takes part from the next round on."""
        if self.held:
            self._present[incarnation] = index

    def contribute(self, incarnation: int, contribution: Contribution) -> None:
        """A member has pushed.  Repeats, and what belongs to another attempt, change nothing."""
        current = (contribution.round, contribution.attempt) == (self.round, self.attempt)
        if self.held and current and incarnation in self._members:
            self._contributions.setdefault(incarnation, contribution)
            if self.closing:
                self.revision += 1

    def close(self, closed: Closed) -> list[Part]:
        """Returns the parts of the closed round.  A repeat, or another attempt, changes nothing and returns none."""
        if not self.is_closing(closed):
            return []
        parts = self._parts()
        self._members, self._contributions = {}, {}
        self.global_step = closed.global_step
        self.revision += 1
        return parts

    def lose(self, incarnation: int) -> list[int]:
        """A worker is gone; returns the workers whose contributions became void with its own."""
        self._present.pop(incarnation, None)
        if not self.held or incarnation not in self._members or incarnation in self._contributions:
            return []
        voided = sorted(self._members[inc] for inc in self._contributions)
        self._members = {inc: index for inc, index in self._members.items() if inc in self._present}
        self._contributions = {}
        self.attempt += 1
        self.revision += 1
        return voided

    def open_next(self, needed: int) -> bool:
        """Opens the next round with all who are present, if none is open.

        Only the first of a view waits until at least `needed` are there.
        """
        if not self.held or self.open or len(self._present) < (1 if self._begun else max(1, needed)):
            return False
        self._members = dict(self._present)
        self.attempt += 1
        self.opened = self.attempt
        self._begun = True
        self.revision += 1
        return True

    # Answers.

    def is_closing(self, done: Closed | Torn) -> bool:
        """Whether what the chief says is about the attempt that closes now."""
        return self.held and self.closing and (done.round, done.attempt) == (self.round, self.attempt)

    def turn_of(self, incarnation: int, chief: int | None) -> Turn:
        """What a worker does now; `chief` is the chief's index."""
        if not self.held or incarnation not in self._present:
            return Turn(Duty.NONE, reason="no rounds are held in this view")
        duty, examples, reason = Duty.WAIT, 0.0, ""
        if self.closing and self._present[incarnation] == chief:
            duty, examples = Duty.CLOSE, sum(c.examples for c in self._contributions.values())
        elif incarnation in self._members and incarnation not in self._contributions:
            duty = Duty.CONTRIBUTE
        else:
            reason = self.waits_for(chief)
        return Turn(duty, self.round, self.attempt, self.opened, len(self._members), examples, reason)

    def waits_for(self, chief: int | None) -> str:
        """Whom the round waits for.  A few are named, many are counted: this is asked for every one who waits."""
        if not self.open:
            return f"round {self.round} waits for more workers to have a session"
        if self.closing:
            return f"round {self.round} waits for worker {chief}, the chief, to close it"
        count = len(self._members) - len(self._contributions)
        who = f"worker {listed(self.missing)}" if count <= NAMED else f"{count} of {len(self._members)} workers"
        return f"round {self.round} waits for {who}"

    def absent(self, live: Iterable[int]) -> list[int]:
        """Of the live workers, by index, those without a session on the view."""
        return sorted(set(live) - set(self._present.values()))

    def _parts(self) -> list[Part]:
        return [
            Part(index, inc, self._contributions[inc].batch, self._contributions[inc].examples)
            for inc, index in sorted(self._members.items(), key=lambda item: item[1])
        ]
