"""Rounds under any order of events: what the ps apply is what the record says, one contribution of each member.

The ps are two plain buckets that follow the rules of graph/store (round_sum.py); pushes
may arrive late, in part, twice, or from workers that are gone, and whoever closes, by itself or on the way to its own
contribution, may die after any bucket.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psruntime.core.rounds import rounds as module
from psruntime.core.rounds.chosen import Late
from psruntime.core.rounds.past_round import PastRound
from psruntime.core.rounds.round_messages import Action, ActionKind, Applied, Complete, Computed, Pushed, Taken
from psruntime.core.rounds.rounds import Rounds
from psruntime.core.rounds.shares import Shares
from tests.support.selection import examples
from tests.support.transitions import check_transitions

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
        self.closes: list[Complete] = []  # whoever lost its session at it may repeat it in the next view
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
    @rule(who=picks, delayed=some, twice=st.booleans(), told=mostly, finite=mostly)
    def contribute(self, who: int, delayed: tuple[int, ...], twice: bool, told: bool, finite: bool) -> None:
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
            self.compute(incarnation, action, delayed, told)
            return
        pushes = {bucket: (incarnation, action, bucket) for bucket in BUCKETS}
        self.late += [pushes[bucket] for bucket in (BUCKETS if twice else delayed)]
        accepted = [self.arrive(*pushes[bucket]) for bucket in BUCKETS if bucket not in delayed]
        if not delayed and all(accepted):
            taken = self.taken(incarnation, action)
            is_apart = action.local or apart(action.attempt)
            said = Pushed(action.round, action.attempt, 0, float(finite), is_apart, taken)
            self.say(incarnation, said, told)

    @precondition(lambda self: self.live)
    @rule()
    def all_contribute(self) -> None:
        """So that there are many rounds, and what went wrong once shows in the next."""
        for who in range(len(self.live)):
            self.contribute(who, delayed=(), twice=False, told=True, finite=True)

    def compute(self, incarnation: int, action: Action, delayed: tuple[int, ...], told: bool) -> None:
        """With backup workers a gradient is kept first, after the round before was closed on each bucket."""
        for number in BUCKETS:
            if action.closes and number not in delayed:
                self.buckets[number].apply(action.closes)
        if not (action.closes and delayed):
            self.say(incarnation, Computed(action.round, action.opened, 0, 1.0), told)

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
    @rule(skipped=some, told=mostly)
    def close(self, skipped: tuple[int, ...], told: bool) -> None:
        """The chief applies some of the buckets, or all; its word of it may be lost."""
        for closer in self.live:
            action = self.action(closer)
            if action.kind is ActionKind.APPLY and action.closes and self.is_closed(action.closes, skipped):
                self.say(closer, Applied(action.round, action.attempt, action.round), told)
                break

    @precondition(lambda self: self.live)
    @rule(who=picks, skipped=some, told=mostly)
    def stop(self, who: int, skipped: tuple[int, ...], told: bool) -> None:
        """One that takes part in no further round closes the one before by itself."""
        incarnation = self.pick(who)
        closes = self.action(incarnation).closes
        if closes and self.is_closed(closes, skipped):
            self.say(incarnation, Applied(closes.round, closes.attempt, closes.round), told)

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

    def say(self, incarnation: int, word: Computed | Pushed | Applied, told: bool) -> None:
        self.words.append((incarnation, word))
        if told:
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
        closing, unsettled = self.rounds.closing, self.rounds.unsettled
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
            of_round = self.rounds.round - len(self.recorded) if self.rounds.closing else int(self.rounds.unsettled)
            assert ahead in (0, of_round)
            for members in bucket.applied:
                assert len(set(members)) == len(members), "nobody twice"

    @invariant()
    def somebody_can_go_on(self) -> None:
        """While a round is open there is a duty for someone, or it waits for a worker that is live."""
        if self.rounds.open and self.live:
            duties = {self.action(incarnation).kind for incarnation in self.live}
            assert duties & {ActionKind.COMPUTE, ActionKind.PUSH, ActionKind.APPLY}, self.rounds.waits_for(0)


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
        closing, unsettled = self.rounds.closing, self.rounds.unsettled
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
        """Even if nobody has a batch."""
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


def test_those_who_have_contributed_push_again_without_a_worker_that_has_no_batch() -> None:
    rounds = Rounds()
    rounds.begin(0, 0)
    for incarnation in (1, 2, 3):
        rounds.enter(incarnation, incarnation)
    rounds.open_next(3)
    contributed(rounds, 1, 2, 3)
    assert rounds.set_starved(3, rounds.opened) == [], "it has a gradient for this round"
    rounds.open_next(1)
    assert rounds.round == 2 and rounds.missing == [1, 2], "the next one is without it"
    contributed(rounds, 1)
    assert rounds.set_starved(2, 1) == [1], "it found no batch when it had the turn"
    again = rounds.action_of(1, chief=1)
    assert (again.kind, again.round, again.opened, again.attempt) == (ActionKind.PUSH, 2, 2, 3)
    contributed(rounds, 1)
    assert rounds.closing
    assert not rounds.being_applied, "whoever begins the next one closes it"
    rounds.set_starved(1, rounds.opened)
    assert rounds.being_applied, "nobody begins one, so the chief has the turn to close it, and the job waits for that"
    assert not rounds.open_next(1)
    assert rounds.action_of(3, chief=3).kind is ActionKind.APPLY, "the chief closes it, though it has no part in it"
    rounds.close(Applied(2, 3, 2))
    assert rounds.waits_for(3) == "round 3 waits for a worker to have a batch"
    rounds.set_starved(2, None)
    assert rounds.open_next(1) and rounds.missing == [2]
    contributed(rounds, 2)
    for incarnation in (1, 2, 3):
        rounds.lose(incarnation)
    assert rounds.closing and not rounds.being_applied, "nobody is left to apply it, so nothing waits for that"


def test_who_has_contributed_is_told_while_the_round_waits_for_others() -> None:
    rounds = Rounds()
    rounds.begin(0, 0)
    for incarnation in (11, 12):
        rounds.enter(incarnation, incarnation - 10)
    assert rounds.contributed == set()
    rounds.open_next(2)
    rounds.contribute(12, Pushed(rounds.round, rounds.attempt, 0, 1.0))
    assert (rounds.contributed, rounds.missing) == ({2}, [1])
    rounds.contribute(11, Pushed(rounds.round, rounds.attempt, 0, 1.0))
    assert rounds.contributed == set(), "nobody is waited for"


def computed(rounds: Rounds, *incarnations: int) -> None:
    for incarnation in incarnations:
        rounds.computed(incarnation, incarnation, Computed(rounds.round, rounds.opened, 0, 1.0))


def contributed(rounds: Rounds, *incarnations: int) -> None:
    for incarnation in incarnations:
        rounds.contribute(incarnation, Pushed(rounds.round, rounds.attempt, 0, 1.0))


def backed_up(workers: int, backup_workers: int) -> Rounds:
    """Rounds of so many workers, of which the first has opened."""
    rounds = Rounds(backup_workers=backup_workers)
    rounds.begin(0, 0)
    for incarnation in range(workers):
        rounds.enter(incarnation, incarnation)
    rounds.open_next(workers)
    return rounds


def test_a_round_does_not_wait_for_a_backup_worker_whose_gradient_is_dropped() -> None:
    rounds = backed_up(workers=3, backup_workers=1)
    assert [rounds.action_of(i, 0).kind for i in range(3)] == [ActionKind.COMPUTE] * 3
    assert rounds.waits_for(0) == "round 1 waits for 2 of worker 0, 1, 2"
    computed(rounds, 2, 0)
    assert [rounds.action_of(i, 0).kind for i in range(3)] == [ActionKind.PUSH, ActionKind.COMPUTE, ActionKind.PUSH]
    contributed(rounds, 0, 2)
    assert rounds.closing and rounds.open_next(1) and rounds.round == 2
    assert rounds.action_of(1, 0).closes == Complete(1, 1, 2, 2.0)
    late = Computed(1, 1, 0, 1.0)
    rounds.computed(1, 1, late)  # of the round that has closed
    assert rounds.take_late() == [Late(1, 1, late)] and not rounds.take_late()
    assert rounds.action_of(1, 0).kind is ActionKind.COMPUTE, "it takes part in the next"


def test_one_that_has_a_gradient_takes_the_place_of_a_member_that_is_lost() -> None:
    rounds = backed_up(workers=3, backup_workers=1)
    computed(rounds, 0, 1, 2)
    assert rounds.action_of(2, 0).kind is ActionKind.WAIT
    contributed(rounds, 0)
    assert rounds.lose(1) == [0] and rounds.attempt == 2
    contributed(rounds, 0)
    assert rounds.closing, "two live, and one of them is a backup"
    assert rounds.take_late() == []
    rounds.open_next(1)
    assert [late.worker for late in rounds.take_late()] == [2]


def test_the_gradient_of_a_late_worker_that_is_lost_is_recorded() -> None:
    rounds = backed_up(workers=3, backup_workers=1)
    computed(rounds, 0, 1, 2)
    assert rounds.lose(2) == [] and [late.worker for late in rounds.take_late()] == [2]


def test_a_round_is_closed_by_a_member_while_the_chief_is_at_work_on_a_gradient() -> None:
    rounds = backed_up(workers=3, backup_workers=1)
    computed(rounds, 1, 2)
    for incarnation in (1, 2):
        rounds.contribute(incarnation, Pushed(1, 1, 0, 1.0, apart=True))
    assert [rounds.action_of(i, 0).kind for i in range(3)] == [ActionKind.WAIT, ActionKind.APPLY, ActionKind.WAIT]
    assert rounds.waits_for(0) == "round 1 waits for worker 1 to close it"
    rounds.lose(1)
    assert rounds.action_of(2, 0).kind is ActionKind.APPLY
    assert rounds.action_of(2, 2).kind is ActionKind.APPLY, "as the chief, too"
    rounds.lose(2)
    assert rounds.action_of(0, 0).kind is ActionKind.APPLY, "no other worker is left"


def test_the_loss_of_a_backup_worker_voids_nothing() -> None:
    rounds = backed_up(workers=4, backup_workers=2)
    computed(rounds, 0)
    contributed(rounds, 0)
    assert rounds.lose(3) == [] and rounds.attempt == 1 and rounds.closing, "three live, and two of them are backups"


def test_with_more_backup_workers_than_workers_a_round_needs_one() -> None:
    rounds = backed_up(workers=2, backup_workers=5)
    computed(rounds, 1)
    contributed(rounds, 1)
    assert rounds.closing


def test_shares_follow_the_speeds_and_stay_with_the_round() -> None:
    rounds = Rounds(shares=Shares())
    rounds.begin(0, 0)
    for incarnation in (1, 2):
        rounds.enter(incarnation, incarnation)

    def contribute(*incarnations: int) -> None:
        for incarnation in incarnations:
            size = rounds.action_of(incarnation, 1).share or 20
            taken = Taken(0, size, 20, size / (10 * incarnation))
            rounds.contribute(incarnation, Pushed(rounds.round, rounds.attempt, 0, 1.0, taken=taken))

    seen = []
    for _ in range(6):
        rounds.open_next(2)
        seen.append([rounds.action_of(incarnation, 1).share for incarnation in (1, 2)])
        contribute(1, 2)
        assert [rounds.action_of(incarnation, 1).share for incarnation in (1, 2)] == [0, 0], "nothing to contribute"
    assert seen == [[0, 0], *[[20, 20]] * 3, *[[13, 27]] * 2]
    rounds.enter(3, 3)
    rounds.open_next(2)
    contribute(1)
    assert rounds.lose(3) == [1], "the attempt is void"
    assert [rounds.action_of(incarnation, 1).share for incarnation in (1, 2)] == [13, 27]
    contribute(1, 2)
    (first, second) = rounds._past(rounds.round).record["parts"]
    assert (first["size"], second["size"]) == (13, 27) and first["first"] == 0
    assert list(first) == ["worker", "incarnation", "batch", "first", "size", "examples", "divisor"]
    rounds.lose(2)
    for shares in ([20, 0], [20, 0]):
        rounds.open_next(2)
        assert [rounds.action_of(incarnation, 1).share for incarnation in (1, 2)] == shares, (
            "nothing is kept of the lost"
        )
        contribute(1)
        rounds.enter(2, 2)


def test_every_event_is_in_the_drawn_table_or_refused() -> None:
    check_transitions(module.__doc__, module.State, module.Event, module.TRANSITIONS, module.after)
