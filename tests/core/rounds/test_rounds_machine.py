"""Rounds under any order of events, also with backup workers, shares, workers without a batch and local stages."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from psruntime.core.rounds.round_messages import Action, ActionKind, Taken
from psruntime.core.rounds.rounds import Rounds
from psruntime.core.rounds.shares import Shares
from tests.core.rounds.rounds_machine import RoundsMachine, mostly, picks
from tests.support.selection import examples

RoundsMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=100, deadline=None)
TestRounds = RoundsMachine.TestCase


class BackupMachine(RoundsMachine):
    """The same laws where a round does not wait for one of its workers."""

    backup_workers = 1


BackupMachine.TestCase.settings = RoundsMachine.TestCase.settings
TestRoundsWithBackupWorkers = BackupMachine.TestCase


class SharesMachine(RoundsMachine):
    """The same laws where rounds have shares, which add up when a round opens, and stay those of the round."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: dict[tuple[Rounds, int, int], int] = {}  # of (the coordinator's rounds, round, incarnation)
        self.opened = 0

    def new_rounds(self) -> Rounds:
        return Rounds(shares=Shares())

    def own(self, incarnation: int) -> int:
        """Batch size of a worker."""
        return 3 + incarnation % 5

    def taken(self, incarnation: int, action: Action) -> Taken:
        share = self.shares.setdefault((self.rounds, action.opened, incarnation), action.share)
        assert share == action.share, "that of the round, at every attempt"
        size = share or self.own(incarnation)
        return Taken(0, size, self.own(incarnation), size / (1 + incarnation % 3))

    @invariant()
    def the_shares_of_a_round_that_opens_are_those_of_its_members(self) -> None:
        shares = self.rounds.shares
        assert shares
        if self.rounds.opened != self.opened and self.rounds.open:
            self.opened, members = self.rounds.opened, set(self.rounds._members)
            known = {incarnation: shares.of(incarnation) for incarnation in self.live if shares.of(incarnation)}
            assert set(known) <= members
            assert sum(known.values()) == sum(map(self.own, known))


SharesMachine.TestCase.settings = RoundsMachine.TestCase.settings
TestRoundsWithShares = SharesMachine.TestCase


class RestingMachine(RoundsMachine):
    """The same laws where workers have no batch at times."""

    @rule(needed=st.integers(1, 3))
    def open(self, needed: int) -> None:
        self.rounds.open_next(needed)

    @precondition(lambda self: self.live)
    @rule(who=picks, has_batch=mostly)
    def rest(self, who: int, has_batch: bool) -> None:
        """What a worker has pushed it keeps, and can push again."""
        incarnation = self.pick(who)
        has_pushed = incarnation in self.rounds._contributions
        closing, unsettled = self.rounds.is_complete, self.rounds.unsettled
        opened = None if has_batch else self.rounds.opened if has_pushed else 0
        voided = self.rounds.set_starved(incarnation, opened)
        assert self.rounds.set_starved(incarnation, opened) == [], "a repeat changes nothing"
        assert not (closing and voided) and self.rounds.unsettled == unsettled
        if opened == 0:
            assert self.rounds.action_of(incarnation, min(self.live) % 4).kind in (
                ActionKind.WAIT,
                ActionKind.APPLY,
                ActionKind.NONE,
            )

    @invariant()
    def what_is_complete_is_closed_by_somebody(self) -> None:
        """Even if no worker has a batch."""
        if self.live and not self.rounds.open and self.rounds.unsettled:
            assert ActionKind.APPLY in {self.action(incarnation).kind for incarnation in self.live}


RestingMachine.TestCase.settings = RoundsMachine.TestCase.settings
TestRoundsOfWorkersThatRest = RestingMachine.TestCase


class LocalMachine(RoundsMachine):
    """The same laws where some rounds take the variables over several global steps."""

    @rule(needed=st.integers(1, 3), steps=st.sampled_from([0, 0, 1, 5]))
    def open_one(self, needed: int, steps: int) -> None:
        rounds = self.rounds
        before = rounds.round if rounds.open else rounds.round - 1
        rounds.local_end = before + steps if steps else None
        was, opens = rounds.opened, rounds.local_end
        rounds.open_next(needed)
        if rounds.opened != was:
            assert rounds.round == before + max(1, steps) and (rounds._local is not None) == (opens is not None)
        rounds.local_end = None


LocalMachine.TestCase.settings = RoundsMachine.TestCase.settings
TestLocalRounds = LocalMachine.TestCase
