"""Rounds: the members of the round, their contributions, and the next action of each worker.

A round is one aggregated update; an attempt is one try at it.  The members are fixed when a round opens.
When all of them have contributed, the attempt is complete, and what they pushed is applied: the round closes.
As a rule the next one opens at once, and a worker that starts to work for it closes the one before first.  A round
after which none opens, or whose gradient is clipped as a whole, is closed by itself, by its closer: the chief; with
backup workers a member that has contributed, the chief if it has.  A member that is lost before it contributed, or
cut off while it did, voids the attempt, and those who are left push what they kept as the next one.  A member that is
lost after it contributed stays counted.  With backup workers the members are the first who have a gradient (`Chosen`),
so they are fixed one after the other.  A starved worker has no batch at the moment: it is in no round that opens, and
leaves the open one unless it has a gradient for it.

A local round takes the variables over many global steps at once, and has the number of the last: its members train by
themselves, and contribute the changes.  It is always closed by itself.

| state | begin | end | open | fill | void | empty | apply | settle |
|---|---|---|---|---|---|---|---|---|
| IDLE | READY | | | | | | | |
| READY | READY | IDLE | COLLECTING | | | | | |
| COLLECTING | READY | IDLE | | COMPLETE | COLLECTING | BETWEEN | | |
| COMPLETE | READY | IDLE | CHAINED | | | | BETWEEN | |
| CHAINED | READY | IDLE | | | CHAINED | UNAPPLIED | | COLLECTING |
| BETWEEN | READY | IDLE | COLLECTING | | | | | |
| UNAPPLIED | READY | IDLE | CHAINED | | | | | BETWEEN |

Pure state.  Workers are named by their incarnations.

Law: attempts are numbered upwards for ever, so a message of an older attempt is recognised by its number.
Law: a round closes with exactly one contribution of each of its members.
Law: a complete attempt cannot become void: a part of it may be applied already.
Law: a worker that contributes to a round has closed the one before, so at most one complete attempt may still be
    unapplied.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from psruntime.core.members.view import listed
from psruntime.core.rounds.contribution import Chosen, Late, is_late, is_of
from psruntime.core.rounds.past_round import PastRound, past_round
from psruntime.core.rounds.round_messages import Action, ActionKind, Applied, Broken, Computed, CutOff, Pushed
from psruntime.core.rounds.shares import Shares
from psruntime.core.state_table import after

NAMED = 10  # workers that a message names


class RoundState(Enum):
    """Of the rounds of a job."""

    IDLE = "no rounds run"
    READY = "no round was opened in this view"
    COLLECTING = "a round is open, and waits for contributions"
    COMPLETE = "all members of the open round have contributed"
    CHAINED = "a round is open, and the one before is complete: the first contribution shows that it is closed"
    BETWEEN = "no round is open, and the last one is closed"
    UNAPPLIED = "no round is open, and the last one is complete"


class RoundEvent(Enum):
    """What changes the state."""

    BEGIN = "a view is prepared"
    END = "the view is void, or the job trains no more"
    OPEN = "a round opens"
    FILL = "all members have contributed"
    VOID = "a member without a contribution was lost, has no batch, or was cut off in it: the next attempt begins"
    EMPTY = "the last worker of the round was lost, or has no batch"
    APPLY = "the open round was applied by itself"
    SETTLE = "a report shows that the round before is closed"


TRANSITIONS: dict[tuple[RoundState, RoundEvent], RoundState] = {
    **{(state, RoundEvent.BEGIN): RoundState.READY for state in RoundState},
    **{(state, RoundEvent.END): RoundState.IDLE for state in RoundState if state is not RoundState.IDLE},
    (RoundState.READY, RoundEvent.OPEN): RoundState.COLLECTING,
    (RoundState.BETWEEN, RoundEvent.OPEN): RoundState.COLLECTING,
    (RoundState.COLLECTING, RoundEvent.FILL): RoundState.COMPLETE,
    (RoundState.COLLECTING, RoundEvent.VOID): RoundState.COLLECTING,
    (RoundState.COLLECTING, RoundEvent.EMPTY): RoundState.BETWEEN,
    (RoundState.COMPLETE, RoundEvent.OPEN): RoundState.CHAINED,
    (RoundState.COMPLETE, RoundEvent.APPLY): RoundState.BETWEEN,
    (RoundState.CHAINED, RoundEvent.VOID): RoundState.CHAINED,
    (RoundState.CHAINED, RoundEvent.EMPTY): RoundState.UNAPPLIED,
    (RoundState.CHAINED, RoundEvent.SETTLE): RoundState.COLLECTING,
    (RoundState.UNAPPLIED, RoundEvent.OPEN): RoundState.CHAINED,
    (RoundState.UNAPPLIED, RoundEvent.SETTLE): RoundState.BETWEEN,
}


class Rounds:
    """The rounds of one coordinator.  `revision` grows whenever a worker's next action may have changed.

    limit: the last global step, or None.  The round that reaches it is closed by itself, not by the contributions to
        the next.
    backup_workers: how many of its workers a round does not wait for.  shares: of its members; None: each computes
    its own batch size.
    """

    def __init__(self, limit: int | None = None, backup_workers: int = 0, shares: Shares | None = None) -> None:
        self.limit = limit
        self._backup_workers = backup_workers
        self.shares = shares
        self.revision = 0
        self.global_step = 0  # rounds that the variables certainly contain
        self.attempt = 0  # the open one, or the last
        self.opened = 0  # its first attempt
        self.state = RoundState.IDLE
        self.learning_rate_scale = 1.0  # in force on the ps
        self.local_end: int | None = None  # if the round after the open one, or the next, is local, its number
        self._local: int | None = None  # if the open one is local, its number
        self._stays_closed = False  # see `stay_closed`
        self._chosen = Chosen({}, 0)  # of the open round
        self._late: list[Late] = []  # see `take_late`
        self._closer: tuple[tuple[int, int, int | None], int | None] | None = None  # for what it was looked up last
        self._contributions: dict[int, Pushed] = {}  # by incarnation
        # Complete, and closed by the contributions to the next; while IDLE, as far as it was when the view ended.
        self._previous: PastRound | None = None
        self._present: dict[int, int] = {}  # workers with a session on this view: incarnation -> worker index
        self._starved: dict[int, int] = {}  # incarnation -> the attempt since which it has had no batch
        self._counted: dict[int, tuple[int, int]] = {}  # worker index -> (round, attempt) that it was last part of
        self._known_from: int | None = None  # the lowest global step at which a view began

    @property
    def round(self) -> int:
        """The open one, or the next."""
        return (self.open and self._local) or self.global_step + 1 + self.unsettled

    @property
    def open(self) -> bool:
        return self.state in (RoundState.COLLECTING, RoundState.COMPLETE, RoundState.CHAINED)

    @property
    def active(self) -> bool:
        """Whether rounds run: the view is prepared and the job trains."""
        return self.state is not RoundState.IDLE

    @property
    def is_complete(self) -> bool:
        """Whether all members of the open round have contributed, so that its closer may be applying it."""
        return self.state is RoundState.COMPLETE

    @property
    def is_wanted_closed(self) -> bool:
        """Whether no round is open, and none will open."""
        return self._stays_closed and not self.open

    @property
    def is_quiescent(self) -> bool:
        """Whether the open round is local and waits for members, so the variables do not change meanwhile."""
        return self._local is not None and self.open and not self.is_complete

    @property
    def all_train_alone(self) -> bool:
        """Whether the open round is local and has no contribution yet, so no member is late."""
        return self._local is not None and self.open and not self._contributions

    @property
    def unsettled(self) -> bool:
        """Whether the round before the open one is complete, and no report has shown yet that it is closed."""
        return self.state in (RoundState.CHAINED, RoundState.UNAPPLIED)

    @property
    def being_applied(self) -> bool:
        """Whether a worker may be applying a round now, or gets the action to."""
        all_starved = 0 < len(self._present) == len(self._starved)  # then no worker closes it with a contribution
        return self.unsettled or (self.is_complete and (all_starved or not self._closed_by_contributions()))

    @property
    def contributed(self) -> set[int]:
        """Workers, by index, that have contributed to the open round while others have not."""
        everybody = {**self._present, **self._members}
        done = {index for incarnation, index in everybody.items() if incarnation in self._contributions}
        return set() if self.is_complete else done

    @property
    def missing(self) -> list[int]:
        """Workers, by index, that the open round waits for, or the first of them with a gradient."""
        return sorted(
            index
            for inc, index in {**self._present, **self._members}.items()
            if inc not in self._contributions and (inc in self._members or self._chosen.computes(inc))
        )

    @property
    def _members(self) -> dict[int, int]:
        """Of the open round: incarnation -> worker index."""
        return self._chosen.members

    # Inputs.

    def begin(self, global_step: int, attempt: int) -> PastRound | None:
        """Starts the rounds of a prepared view with `global_step` updates, whose ps have seen attempts up to `attempt`.

        Returns the round that was complete when the view before ended, if the variables contain it.
        """
        past = self._complete()
        is_held = past and past.round == global_step and past.attempt <= attempt
        undone = past.attempt if past and not is_held else 0
        self._counted = {
            index: (number, counted)
            for index, (number, counted) in self._counted.items()
            if number <= global_step and counted != undone
        }
        self._known_from = global_step if self._known_from is None else min(self._known_from, global_step)
        self._forget()
        self._previous = None
        self.attempt = max(self.attempt, attempt)
        self.global_step = global_step
        self._move(RoundEvent.BEGIN)
        self.revision += 1
        return past if is_held else None

    def raise_attempt(self, attempt: int) -> None:
        """Continues after an attempt of an earlier coordinator: numbers of attempts only go up."""
        self.attempt = max(self.attempt, attempt)

    def end(self) -> None:
        """Stops the rounds: the view is void, or the job trains no more."""
        if self.active:
            self._previous = self._complete()
            self._forget()
            self._move(RoundEvent.END)
            self._present, self._starved = {}, {}
            self.revision += 1

    def stay_closed(self, stays: bool) -> None:
        """Sets whether no round opens after the open one, which is then closed by itself."""
        if stays != self._stays_closed:
            self._stays_closed = stays
            self.revision += 1

    def enter(self, incarnation: int, index: int) -> None:
        """Adds a worker with a session on the view to the rounds from the next one on."""
        if self.active:
            self._present[incarnation] = index

    def set_starved(self, incarnation: int, opened: int | None) -> list[int]:
        """Sets the attempt since which a worker has had no batch, or None if it has one.

        Returns the workers whose contributions became void, because the worker was a member of the open round.
        """
        if not self.active or incarnation not in self._present or self._starved.get(incarnation) == opened:
            return []
        self.revision += 1  # the set of workers that can open the next round has changed
        if opened is None:
            del self._starved[incarnation]
            return []
        self._starved[incarnation] = opened
        return self._withdraw(incarnation) if self.open and self.opened > opened else []

    def computed(self, incarnation: int, index: int, computed: Computed) -> PastRound | None:
        """Takes the report of a kept gradient.  It is late if the round has closed; a repeat changes nothing.

        Returns as `contribute`.
        """
        if not self.active:
            return None
        if is_late(computed, self.round, self.opened):
            self._late.append(Late(incarnation, index, computed))
            return None
        self._chosen.computed(incarnation, computed)
        return self._settle()

    def take_late(self) -> list[Late]:
        """The gradients that were dropped since the last call."""
        late, self._late = self._late, []
        return late

    def contribute(self, incarnation: int, contribution: Pushed) -> PastRound | None:
        """Takes the report of a push.  Repeats, and reports of another attempt, change nothing.

        Returns the round before, if this is the first report that proves it closed.
        """
        if not (self.open and is_of(contribution, self.round, self.attempt) and incarnation in self._members):
            return None
        self._contributions.setdefault(incarnation, contribution)
        past = self._settle()
        self._look()
        self.revision += self.is_complete
        return past

    def close(self, closed: Applied) -> PastRound | None:
        """Takes the report of an applied attempt; returns the closed round, None for a repeat or another attempt."""
        if self.settles(closed):
            return self._settle()
        if not self.is_closing(closed):
            return None
        past = self._past(closed.global_step)
        self._late += self._chosen.late
        self._measure_members()
        self._forget()
        self._move(RoundEvent.APPLY)
        self.global_step = closed.global_step
        self.revision += 1
        return past

    def cut_off(self, incarnation: int, report: CutOff) -> list[int]:
        """Takes the report of a contribution that was cut off; returns the workers whose contributions became void."""
        is_open = self.open and is_of(report, self.round, self.attempt)
        waited_for = is_open and incarnation in self._members and incarnation not in self._contributions
        return self._void() if waited_for else []

    def lose(self, incarnation: int) -> list[int]:
        """Removes a worker that is gone; returns the workers whose contributions became void with its own."""
        self._present.pop(incarnation, None)
        self._starved.pop(incarnation, None)
        if self.shares:
            self.shares.forget(incarnation)
        return self._withdraw(incarnation) if self.active else []

    def _withdraw(self, incarnation: int) -> list[int]:
        """Takes a worker out of the open round; as `lose`."""
        self._late += self._chosen.lose(incarnation)
        if incarnation not in self._members or incarnation in self._contributions:
            self._look()
            self.revision += self.is_complete  # the round may be complete now, or another worker has to close it
            return []
        return self._void()

    def _void(self) -> list[int]:
        """Begins the next attempt at the open round; returns the workers whose contributions became void."""
        voided = sorted(self._members[inc] for inc in self._contributions)
        self._chosen.void()
        self._contributions = {}
        self.attempt += 1
        self._move(RoundEvent.VOID)
        self._look()
        self.revision += 1
        return voided

    def open_next(self, needed: int) -> bool:
        """Opens the next round with all present workers, if none is open or the open one is closed by contributions.

        The first round of a view, and a local one, need at least `needed` workers; returns whether a round was opened.
        """
        least = max(1, needed) if self.state is RoundState.READY or self.local_end else 1
        if not self.active or self._stays_closed or len(self._present) < least:
            return False
        able = {inc: index for inc, index in self._present.items() if inc not in self._starved}
        if not able:
            return False
        if self.open:
            if not self._closed_by_contributions():
                return False
            self._previous = self._past(self.round)
            self._late += self._chosen.late
            self._measure_members()
        elif self.unsettled and self.local_end:
            return False
        self._move(RoundEvent.OPEN)
        self._chosen, self._contributions = Chosen(able, self._backup_workers), {}
        self._local = self.local_end
        if self.shares:
            self.shares.open(self._members)
        self.attempt += 1
        self.opened = self.attempt
        self.revision += 1
        return True

    # Answers.

    def closer(self, chief: int | None) -> int | None:
        """Index of the worker that closes the open round by itself: the chief, unless it may be at work on a gradient.

        With backup workers the chief can be one: then a member closes it, who has contributed and only waits.
        """
        if not self._backup_workers:
            return chief
        if self._closer is None or self._closer[0] != (self.attempt, self.revision, chief):
            idle = [self._present[inc] for inc in self._contributions if inc in self._present]
            self._closer = (self.attempt, self.revision, chief), chief if chief in idle else min(idle, default=chief)
        return self._closer[1]

    def is_closing(self, done: Applied | Broken) -> bool:
        """Whether the report is of the open attempt, which is closed by itself now."""
        return self.is_complete and is_of(done, self.round, self.attempt)

    def settles(self, done: Applied | Broken) -> bool:
        """Whether the report is of the attempt before, which is closed by the contributions to the open one."""
        before = self._previous
        return self.active and before is not None and is_of(done, before.round, before.attempt)

    def tears(self, torn: Broken) -> bool:
        """Whether the report is of the open attempt, or of the one before."""
        return (self.open and is_of(torn, self.round, self.attempt)) or self.settles(torn)

    def action_of(self, incarnation: int, chief: int | None) -> Action:
        """The next action of a worker.  chief: index of the chief, or None."""
        if not self.active or incarnation not in self._present:
            return Action(ActionKind.NONE, reason="no rounds run in this view")
        kind, closes, reason = ActionKind.WAIT, None, ""
        before = self._previous.complete if self._previous else None
        if self.is_complete and self._present[incarnation] == self.closer(chief):
            kind, closes = ActionKind.APPLY, self._past(self.round).complete
        elif self.state is RoundState.UNAPPLIED and self._present[incarnation] == self.closer(chief):
            kind, closes = ActionKind.APPLY, before  # no worker has a batch with which to close it
        elif work := self._work_of(incarnation):
            kind, closes = work, before
        else:
            reason = self.waits_for(chief)
        share = self.shares.of(incarnation) if self.shares and kind is ActionKind.PUSH else 0
        local = self._local is not None and kind is ActionKind.PUSH
        _, counted = self._counted.get(self._present[incarnation], (0, 0))
        return Action(
            kind, self.round, self.attempt, self.opened, closes, reason, share, local, counted, self._known_from or 0
        )

    def waits_for(self, chief: int | None) -> str:
        """The workers that the round waits for, for people.  Up to NAMED are named, more are counted."""
        if not self.open:
            what = "a worker to have a batch" if self._starved else "more workers to have a session"
            return f"round {self.round} waits for {what}"
        name = f"the local stage to global step {self._local}" if self._local else f"round {self.round}"
        if self.is_complete:
            closer = self.closer(chief)
            who = f"worker {closer}, the chief," if closer == chief else f"worker {closer}"
            return f"{name} waits for {who} to close it"
        needed = self._chosen.needed
        count = needed - len(self._contributions)
        if count > NAMED:
            return f"{name} waits for {count} of {needed} workers"
        missing = self.missing
        some = f"{count} of " if count < len(missing) else ""
        return f"{name} waits for {some}worker {listed(missing[:NAMED])}"

    def absent(self, live: Iterable[int]) -> list[int]:
        """Of the live workers, by index, those without a session on the view."""
        return sorted(set(live) - set(self._present.values()))

    def _work_of(self, incarnation: int) -> ActionKind | None:
        """COMPUTE or PUSH if this worker has a gradient to compute or push, else None."""
        if incarnation in self._members:
            return None if incarnation in self._contributions else ActionKind.PUSH
        return ActionKind.COMPUTE if self._chosen.computes(incarnation) and not self.is_complete else None

    def _measure_members(self) -> None:
        """Measures the speed of each member of the open round, which is complete."""
        for incarnation, pushed in self._contributions.items():
            if self.shares and pushed.taken and incarnation in self._present:
                self.shares.measure(incarnation, pushed.taken)

    def _move(self, event: RoundEvent) -> None:
        self.state = after(TRANSITIONS, self.state, event)

    def _look(self) -> None:
        """Moves on if the open round has no worker any more, or all contributions."""
        if self.open and self._chosen.is_empty:
            self._move(RoundEvent.EMPTY)
        elif self.state is RoundState.COLLECTING and len(self._contributions) == self._chosen.needed:
            self._move(RoundEvent.FILL)
            self._counted |= dict.fromkeys(self._members.values(), (self.round, self.attempt))

    def _complete(self) -> PastRound | None:
        """The round that is complete and not known to be closed."""
        return self._past(self.round) if self.is_complete else self._previous

    def _forget(self) -> None:
        self._chosen, self._contributions, self._local = Chosen({}, 0), {}, None

    def _closed_by_contributions(self) -> bool:
        """Whether the open round is complete, and can be closed by the contributions to the next."""
        pushed = self._contributions.values()
        last = self.limit is not None and self.round >= self.limit
        opens = not (last or self._stays_closed or self._local or self.local_end)
        return self.is_complete and opens and any(c.examples for c in pushed) and not any(c.apart for c in pushed)

    def _settle(self) -> PastRound | None:
        """Marks the round before as closed, and returns it."""
        past, self._previous = self._previous, None
        if past:
            self._move(RoundEvent.SETTLE)
            self.global_step = past.global_step
        return past

    def _past(self, global_step: int) -> PastRound:
        """The open round as it is once it is closed."""
        return past_round(
            self.round, self.attempt, global_step, self._members, self._contributions, self.learning_rate_scale,
            self._local is not None,
        )  # fmt: skip
