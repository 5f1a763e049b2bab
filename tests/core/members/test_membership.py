"""Membership: who is live, by lease, and who may have an index."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from psruntime.core.members.membership import Busy, JudgedClock, Member, Membership, Role, tag_of
from psruntime.errors import IndexHeldError, ReplacedError
from tests.support.selection import examples

LEASE_S = 4.0
PICK = st.integers(0, 59)  # chooses one of those that are there, modulo their number
PLACES = st.sampled_from([(Role.PS, 0), (Role.WORKER, 0), (Role.WORKER, 1)])
BACK_S = st.sampled_from([0.0, 0.0, 0.0, 0.25, 100.0])  # how far a clock that goes backwards is off


@dataclass
class Claimant:
    """A process that wants a place; the model of one that has it, too."""

    role: Role
    index: int
    join_id: str
    asked_s: float  # when it first asked
    incarnation: int = 0
    heard_s: float = 0.0  # when it was admitted, or last renewed
    silent_s: float = 0.0  # since then, as far as the judge was running


class MembershipMachine(RuleBasedStateMachine):
    """Processes that claim places, renew, go silent and leave, while the judge is sometimes late.

    The model counts the silence of each member; a member is lost when it has been silent for a lease.
    """

    @initialize()
    def begin(self) -> None:
        self.now_s = 0.0
        self.clock = JudgedClock(self.now_s, LEASE_S / 2)
        self.members = Membership(LEASE_S, self.clock)
        self.held: dict[tuple[Role, int], Claimant] = {}
        self.claimants: list[Claimant] = []
        self.gone: list[Claimant] = []

    def some_live(self, pick: int) -> Claimant:
        return list(self.held.values())[pick % len(self.held)]

    def drop(self, claimant: Claimant) -> None:
        self.gone.append(self.held.pop((claimant.role, claimant.index)))

    @rule(place=PLACES, back_s=BACK_S)
    def ask(self, place: tuple[Role, int], back_s: float) -> None:
        claimant = Claimant(*place, f"join {len(self.claimants)}", self.now_s)
        self.claimants.append(claimant)
        self.claim(claimant, back_s)

    @precondition(lambda self: self.claimants)
    @rule(pick=PICK, back_s=BACK_S)
    def ask_again(self, pick: int, back_s: float) -> None:
        recent = self.claimants[-6:]
        self.claim(recent[pick % len(recent)], back_s)

    def claim(self, who: Claimant, back_s: float) -> None:
        holder = self.held.get((who.role, who.index))
        self.clock.advance(self.now_s - back_s)
        arguments = (who.role, who.index, who.join_id, self.now_s - who.asked_s)
        if holder is None:
            assert self.members.claim(*arguments) is None
            self.admit(who)
        elif holder is who:
            answer = self.members.claim(*arguments)
            assert isinstance(answer, Member)
            assert answer.incarnation == who.incarnation
        elif holder.heard_s > who.asked_s:
            with pytest.raises(IndexHeldError, match=f"{who.role} {who.index} is held by a live process"):
                self.members.claim(*arguments)
        else:
            answer = self.members.claim(*arguments)
            assert isinstance(answer, Busy)
            assert answer.holder.incarnation == holder.incarnation

    def admit(self, who: Claimant) -> None:
        if who.incarnation:  # it was a member before and lost its place: the same join is a new incarnation
            self.gone.append(Claimant(**vars(who)))
        who.incarnation = 1 + len(self.claimants) + len(self.gone)
        who.heard_s, who.silent_s = self.now_s, 0.0
        self.held[who.role, who.index] = who
        asked = Member(who.role, who.index, "a:1", "a:2", who.join_id, who.incarnation)
        assert self.members.admit(asked).incarnation == who.incarnation

    @precondition(lambda self: self.held)
    @rule(pick=PICK, back_s=BACK_S)
    def renew(self, pick: int, back_s: float) -> None:
        who = self.some_live(pick)
        before = self.members.get(who.role, who.index, who.incarnation)
        self.clock.advance(self.now_s - back_s)
        after = self.members.renew(before)
        assert after.expires_at_s >= before.expires_at_s, "a renewal shortens no lease"
        who.heard_s, who.silent_s = self.now_s, 0.0

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        who = self.some_live(pick)
        self.members.remove(self.members.get(who.role, who.index, who.incarnation))
        self.drop(who)

    @precondition(lambda self: self.gone)
    @rule(pick=PICK)
    def speak_as_one_that_is_gone(self, pick: int) -> None:
        who = self.gone[pick % len(self.gone)]
        current = self.held.get((who.role, who.index))
        if current is None or current.incarnation != who.incarnation:
            with pytest.raises(ReplacedError, match="join again"):
                self.members.get(who.role, who.index, who.incarnation)

    @rule(gap_s=st.sampled_from([0.0, 0.25, 1.0, 1.75, LEASE_S / 2]))
    def tick(self, gap_s: float) -> None:
        self.now_s += gap_s
        for who in self.held.values():
            who.silent_s += gap_s
        silent = [who for who in self.held.values() if who.silent_s >= LEASE_S]
        self.clock.advance(self.now_s)
        lost = self.members.end_leases()
        assert [m.incarnation for m in lost] == [
            who.incarnation for who in sorted(silent, key=lambda w: (w.role, w.index))
        ]
        for who in silent:
            self.drop(who)

    @rule(gap_s=st.sampled_from([LEASE_S / 2 + 0.25, LEASE_S, 1000.0]))
    def tick_late(self, gap_s: float) -> None:
        self.now_s += gap_s
        self.clock.advance(self.now_s)
        assert self.members.end_leases() == []

    @rule(back_s=BACK_S)
    def tick_backwards(self, back_s: float) -> None:
        self.clock.advance(self.now_s - back_s)
        assert self.members.end_leases() == []

    @invariant()
    def the_live_are_those_of_the_model_by_index(self) -> None:
        for role in Role:
            expected = sorted(who.index for who in self.held.values() if who.role is role)
            live = self.members.live(role)
            assert [m.index for m in live] == expected
            for member in live:
                who = self.held[role, member.index]
                assert (member.incarnation, member.join_id) == (who.incarnation, who.join_id)
                assert self.members.get(role, member.index, who.incarnation) == member
                assert self.members.holder(role, member.index) == member

    @invariant()
    def every_lease_ends_in_the_future(self) -> None:
        for role in Role:
            for member in self.members.live(role):
                assert self.clock.now_s < member.expires_at_s <= self.clock.now_s + LEASE_S


TestMembership = MembershipMachine.TestCase
TestMembership.settings = settings(
    max_examples=examples(120), stateful_step_count=40, deadline=None, derandomize=True, report_multiple_bugs=False
)


class Timed(Membership):
    """Members with a clock of their own."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.clock = JudgedClock(now_s, LEASE_S / 2)
        super().__init__(LEASE_S, self.clock)

    def lost_at(self, now_s: float) -> list[int]:
        """Whose lease ends, by incarnation."""
        self.clock.advance(now_s)
        return [member.incarnation for member in self.end_leases()]


def member(join_id: str = "first", incarnation: int = 0xA1) -> Member:
    return Member(Role.WORKER, 3, "10.0.0.5:700", "10.0.0.5:701", join_id, incarnation)


def test_a_lease_ends_at_its_end_not_before() -> None:
    members = Timed()
    members.admit(member())
    assert members.lost_at(2.0) == []
    assert members.lost_at(3.75) == []
    assert members.lost_at(4.0) == [0xA1]
    assert members.lost_at(4.0) == []


def test_a_claimant_gets_the_place_of_a_dead_process_when_its_lease_ends() -> None:
    members = Timed()
    members.admit(member())
    members.lost_at(1.0)
    answer = members.claim(Role.WORKER, 3, "second", 0.0)
    assert isinstance(answer, Busy)
    assert answer.reason == (
        f"worker 3 is held (incarnation {tag_of(0xA1)}, admitted 1 s ago); "
        "waiting for its lease to end or to be renewed"
    )
    members.lost_at(2.5)
    assert isinstance(members.claim(Role.WORKER, 3, "second", 1.5), Busy)
    members.lost_at(4.0)
    assert members.claim(Role.WORKER, 3, "second", 3.0) is None


def test_a_claimant_is_refused_once_the_holder_proves_that_it_is_live() -> None:
    members = Timed()
    holder = members.admit(member())
    members.lost_at(1.0)
    members.renew(holder)
    assert isinstance(members.claim(Role.WORKER, 3, "second", 0.0), Busy), "not later than the first ask"
    members.lost_at(2.0)
    members.renew(holder)
    with pytest.raises(IndexHeldError) as refused:
        members.claim(Role.WORKER, 3, "second", 1.0)
    assert str(refused.value) == (
        f"worker 3 is held by a live process at 10.0.0.5:700 (incarnation {tag_of(0xA1)}, admitted 2 s ago); "
        "use a free index"
    )


def test_the_errors_say_whether_a_member_was_lost_or_replaced() -> None:
    members = Timed()
    with pytest.raises(ReplacedError, match="worker 3 is not a member: its lease ended or it never joined; join again"):
        members.get(Role.WORKER, 3, 0xA1)
    members.admit(member(incarnation=0xB2))
    with pytest.raises(ReplacedError, match=f"worker 3 was replaced by incarnation {tag_of(0xB2)}; join again"):
        members.get(Role.WORKER, 3, 0xA1)


def test_an_index_that_is_held_admits_nobody() -> None:
    members = Timed()
    members.admit(member())
    with pytest.raises(ValueError, match="worker 3 admitted twice"):
        members.admit(member("second", 0xB2))
    assert [m.incarnation for m in members.live(Role.WORKER)] == [0xA1]


def test_a_place_that_is_admitted_begins_its_lease_then() -> None:
    members = Timed(10.0)
    admitted = members.admit(member())
    assert (admitted.admitted_at_s, admitted.renewed_at_s, admitted.expires_at_s) == (10.0, 10.0, 14.0)
