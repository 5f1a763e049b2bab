"""Rounds under any order of events: what the ps apply is what the record says, one contribution of each member.

The ps are two plain buckets that follow the rules of graph/push/round_sum.py.  Pushes may arrive late, in part, twice,
or from workers that are gone.  The worker that closes, by itself or on the way to its own contribution, may die after
any bucket.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psruntime.core.rounds.past_round import PastRound
from psruntime.core.rounds.round_messages import Action, ActionKind, Applied, Complete, Computed, CutOff, Pushed, Taken
from psruntime.core.rounds.rounds import Rounds

BUCKETS = (0, 1)
picks = st.integers(0, 7)
mostly = st.sampled_from([True, True, True, False])
some = st.sampled_from([(), (), (), (0,), (1,), BUCKETS])


def apart(attempt: int) -> bool:
    """Whether it has to be closed by itself; some do, so that both ways alternate."""
    return attempt % 3 == 0


@dataclass
class Bucket:
    """What a ps keeps of a round."""

    attempt: int = 0
    summed: list[int] = field(default_factory=list)  # incarnations
    applied_attempt: int = 0
    applied: list[list[int]] = field(default_factory=list)  # of each global step, whose gradients went in
    last: dict[int, int] = field(default_factory=dict)  # incarnation -> its last accepted attempt

    def push(self, incarnation: int, attempt: int) -> bool:
        """Whether the contribution is in, now or from an earlier try."""
        if attempt <= self.last.get(incarnation, 0):
            return True
        if attempt < self.attempt or attempt <= self.applied_attempt:
            return False
        if attempt > self.attempt:
            self.attempt, self.summed = attempt, []
        self.summed.append(incarnation)
        self.last[incarnation] = attempt
        return True

    def apply(self, closes: Complete) -> None:
        if self.is_complete(closes) and closes.attempt > self.applied_attempt:
            self.applied_attempt = closes.attempt
            self.applied += [sorted(self.summed)] * (closes.round - len(self.applied))

    def is_complete(self, closes: Complete) -> bool:
        return (self.attempt, len(self.summed)) == (closes.attempt, closes.members)


class RoundsMachine(RuleBasedStateMachine):
    backup_workers = 0

    def __init__(self) -> None:
        super().__init__()
        self.rounds = self.new_rounds()
        self.rounds.begin(0, 0)
        self.buckets = [Bucket() for _ in BUCKETS]
        self.recorded: list[list[int]] = []
        self.live: list[int] = []
        self.all = 0
        self.late: list[tuple[int, Action, int]] = []  # incarnation, its turn, bucket
        self.words: list[tuple[int, Computed | Pushed | Applied]] = []  # by whom; said, and perhaps heard again later
        self.ticks = 0
        self.closes: list[Complete] = []  # a worker that lost its session at it may repeat it in the next view
        self.floor = 0  # the highest attempt ever handed out

    def new_rounds(self) -> Rounds:
        return Rounds(backup_workers=self.backup_workers)

    def taken(self, incarnation: int, action: Action) -> Taken | None:
        """What a worker takes of its input for the turn."""
        assert not action.share
        return None

    def pick(self, number: int) -> int:
        return self.live[number % len(self.live)]

    def action(self, incarnation: int) -> Action:
        action = self.rounds.action_of(incarnation, min(self.live) % 4)
        assert action.attempt >= self.floor, "attempts are numbered upwards"
        self.floor = action.attempt
        return action

    @precondition(lambda self: len(self.live) < 3)
    @rule()
    def enter(self) -> None:
        self.all += 1
        self.live.append(self.all)
        self.rounds.enter(self.all, self.all % 4)

    @rule(needed=st.integers(1, 3))
    def open(self, needed: int) -> None:
        self.rounds.open_next(needed)
        assert self.rounds.open or len(self.live) < needed, "only the first round of a view waits"

    @precondition(lambda self: self.live)
    @rule(who=picks, delayed=some, twice=st.booleans(), reported=mostly, finite=mostly)
    def contribute(self, who: int, delayed: tuple[int, ...], twice: bool, reported: bool, finite: bool) -> None:
        """On each bucket closes the round before, and pushes; some of it may be on its way still, and the word of it
        may be lost."""
        incarnation = self.pick(who)
        action = self.action(incarnation)
        if action.kind not in (ActionKind.COMPUTE, ActionKind.PUSH):
            return
        if action.closes:
            assert action.closes.examples and not apart(action.closes.attempt)
            assert not action.closes.local and not action.local
            self.check_closable(action.closes)
        if action.kind is ActionKind.COMPUTE:
            self.compute(incarnation, action, delayed, reported)
            return
        pushes = {bucket: (incarnation, action, bucket) for bucket in BUCKETS}
        self.late += [pushes[bucket] for bucket in (BUCKETS if twice else delayed)]
        accepted = [self.arrive(*pushes[bucket]) for bucket in BUCKETS if bucket not in delayed]
        if not delayed and all(accepted):
            taken = self.taken(incarnation, action)
            is_apart = action.local or apart(action.attempt)
            said = Pushed(action.round, action.attempt, 0, float(finite), is_apart, taken)
            self.say(incarnation, said, reported)

    @precondition(lambda self: self.live)
    @rule(who=picks, reached=some, in_sum=st.booleans())
    def be_cut_off(self, who: int, reached: tuple[int, ...], in_sum: bool) -> None:
        """A contribution is cut off at some buckets, between the sum and its count at one of them."""
        incarnation = self.pick(who)
        action = self.action(incarnation)
        if action.kind is not ActionKind.PUSH:
            return
        for bucket in reached:
            self.arrive(incarnation, action, bucket)
        bucket = self.buckets[BUCKETS[-1]]
        if in_sum and BUCKETS[-1] not in reached and action.attempt == bucket.attempt:
            bucket.summed.append(incarnation)
        before, attempt = self.rounds.attempt, action.attempt
        self.rounds.cut_off(incarnation, CutOff(action.round, attempt))
        assert self.rounds.attempt == before + 1, "what was cut off is never pushed to the same attempt again"

    @precondition(lambda self: self.live)
    @rule()
    def all_contribute(self) -> None:
        """So that there are many rounds, and what went wrong once shows in the next."""
        for who in range(len(self.live)):
            self.contribute(who, delayed=(), twice=False, reported=True, finite=True)

    def compute(self, incarnation: int, action: Action, delayed: tuple[int, ...], reported: bool) -> None:
        """With backup workers a gradient is kept first, after the round before was closed on each bucket."""
        for number in BUCKETS:
            if action.closes and number not in delayed:
                self.buckets[number].apply(action.closes)
        if not (action.closes and delayed):
            self.say(incarnation, Computed(action.round, action.opened, 0, 1.0), reported)

    def arrive(self, incarnation: int, action: Action, number: int) -> bool:
        """Whether the contribution to this bucket is in."""
        bucket = self.buckets[number]
        if action.closes:
            bucket.apply(action.closes)
        return bucket.push(incarnation, action.attempt)

    @precondition(lambda self: self.late)
    @rule(which=picks)
    def arrive_late(self, which: int) -> None:
        self.arrive(*self.late.pop(which % len(self.late)))

    @precondition(lambda self: self.live)
    @rule(skipped=some, reported=mostly)
    def close(self, skipped: tuple[int, ...], reported: bool) -> None:
        """The chief applies some of the buckets, or all; its word of it may be lost."""
        for closer in self.live:
            action = self.action(closer)
            if action.kind is ActionKind.APPLY and action.closes and self.is_closed(action.closes, skipped):
                self.say(closer, Applied(action.round, action.attempt, action.round), reported)
                break

    @precondition(lambda self: self.live)
    @rule(who=picks, skipped=some, reported=mostly)
    def stop(self, who: int, skipped: tuple[int, ...], reported: bool) -> None:
        """One that takes part in no further round closes the one before by itself."""
        incarnation = self.pick(who)
        closes = self.action(incarnation).closes
        if closes and self.is_closed(closes, skipped):
            self.say(incarnation, Applied(closes.round, closes.attempt, closes.round), reported)

    def is_closed(self, closes: Complete, skipped: tuple[int, ...]) -> bool:
        """Whether all buckets are, after some of them, or all, were."""
        self.check_closable(closes)
        self.closes.append(closes)
        for number, bucket in enumerate(self.buckets):
            if number not in skipped:
                bucket.apply(closes)
        return all(b.applied_attempt == closes.attempt for b in self.buckets)

    def check_closable(self, closes: Complete) -> None:
        assert all(b.applied_attempt == closes.attempt or b.is_complete(closes) for b in self.buckets), "torn"

    def say(self, incarnation: int, word: Computed | Pushed | Applied, reported: bool) -> None:
        self.words.append((incarnation, word))
        if reported:
            self.hear(incarnation, word)

    def hear(self, incarnation: int, word: Computed | Pushed | Applied) -> None:
        if isinstance(word, Computed):
            self.keep(self.rounds.computed(incarnation, incarnation % 4, word))
        elif isinstance(word, Pushed):
            self.keep(self.rounds.contribute(incarnation, word))
        else:
            self.keep(self.rounds.close(word))

    def keep(self, past: PastRound | None) -> None:
        if past:
            steps = past.round - len(self.recorded)
            assert steps == 1 or (past.local and steps > 0)
            self.recorded += [sorted(p.incarnation for p in past.parts)] * steps

    @precondition(lambda self: self.words)
    @rule(which=picks)
    def hear_again(self, which: int) -> None:
        """A call that was repeated, or came late; those of lost workers are refused before they come here."""
        incarnation, word = self.words[-1 - which % len(self.words)]
        if incarnation in self.live:
            self.hear(incarnation, word)

    @precondition(lambda self: self.closes)
    @rule(which=picks)
    def repeat_a_close(self, which: int) -> None:
        """A session that was lost runs again what it was at."""
        closes = self.closes[which % len(self.closes)]
        for bucket in self.buckets:
            bucket.apply(closes)

    @precondition(lambda self: self.live)
    @rule(who=picks)
    def lose(self, who: int) -> None:
        incarnation = self.pick(who)
        self.live.remove(incarnation)
        closing, unsettled = self.rounds.is_complete, self.rounds.unsettled
        voided = self.rounds.lose(incarnation)
        assert not (closing and voided), "an attempt that may be applied in part is never void"
        assert self.rounds.unsettled == unsettled, "nor is the one before"

    @precondition(lambda self: self.ticks % 8 == 7)
    @rule(restore=st.booleans(), restart=st.booleans())
    def lose_the_view(self, restore: bool, restart: bool) -> None:
        """All sessions end.  The next view seals the buckets, and adopts them if they agree, or begins anew."""
        self.rounds.end()
        for bucket in self.buckets:
            bucket.summed = []
        applied = {bucket.applied_attempt for bucket in self.buckets}
        seen = max(bucket.attempt for bucket in self.buckets)
        if restore or len(applied) > 1:
            for bucket in self.buckets:
                bucket.attempt = bucket.applied_attempt = seen
                bucket.applied, bucket.summed, bucket.last = [], [], {}
            self.recorded = []
            if restart:
                self.restart(seen)
        self.closes = self.closes[-1:]  # only the newest can be under way still
        self.keep(self.rounds.begin(len(self.buckets[0].applied), seen))
        for incarnation in self.live:
            self.rounds.enter(incarnation, incarnation % 4)
        assert self.recorded == self.buckets[0].applied, "what the next view holds is on record"

    def restart(self, seen: int) -> None:
        """Ps 0 was lost, and the coordinator: workers are admitted anew, and what was pushed before is refused."""
        self.rounds, self.floor, self.late = self.new_rounds(), seen, []
        self.live = [self.all + number for number in range(1, 1 + len(self.live))]
        self.all += len(self.live)

    @invariant()
    def time_passes(self) -> None:
        self.ticks += 1

    @invariant()
    def what_is_applied_is_on_record(self) -> None:
        for bucket in self.buckets:
            assert bucket.applied[: len(self.recorded)] == self.recorded
            ahead = len(bucket.applied) - len(self.recorded)
            of_round = self.rounds.round - len(self.recorded) if self.rounds.is_complete else int(self.rounds.unsettled)
            assert ahead in (0, of_round)
            for members in bucket.applied:
                assert len(set(members)) == len(members), "no member twice"

    @invariant()
    def somebody_can_go_on(self) -> None:
        """While a round is open there is a duty for someone, or it waits for a worker that is live."""
        if self.rounds.open and self.live:
            duties = {self.action(incarnation).kind for incarnation in self.live}
            assert duties & {ActionKind.COMPUTE, ActionKind.PUSH, ActionKind.APPLY}, self.rounds.waits_for(0)
