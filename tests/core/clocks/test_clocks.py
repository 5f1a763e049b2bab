"""The clock table: nobody gets too far ahead, somebody can always go on, the floor never falls."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from psruntime.core.clocks.clocks import UNBOUNDED, ClockTable
from tests.support.selection import examples

PICK = st.integers(0, 59)  # chooses one of those that are there, modulo their number


class ClockTableMachine(RuleBasedStateMachine):
    """Workers that start a step on the floor that they remember, and report it some time later.

    The model is what the workers did: `done` has steps that the table has not heard of.
    """

    @initialize(bound=st.one_of(st.none(), st.integers(0, 3)))
    def begin(self, bound: int | None) -> None:
        self.table = ClockTable(bound)
        self.done: dict[int, int] = {}  # worker -> its true clock
        self.remembered: dict[int, int] = {}  # worker -> the floor as it last heard it
        self.floor = 0
        self.next_worker = 0

    def some(self, pick: int) -> int:
        return sorted(self.done)[pick % len(self.done)]

    @precondition(lambda self: len(self.done) < 5)
    @rule()
    def arrive(self) -> None:
        worker, self.next_worker = self.next_worker, self.next_worker + 1
        clock = self.table.admit(worker)
        assert clock == self.floor
        assert self.table.lead(worker) == 0
        self.done[worker] = self.remembered[worker] = clock

    @precondition(lambda self: self.done)
    @rule(pick=PICK)
    def step_on_the_remembered_floor(self, pick: int) -> None:
        worker = self.some(pick)
        lead = self.done[worker] - self.remembered[worker]
        if self.table.bound is None or lead <= self.table.bound:
            self.done[worker] += 1

    @precondition(lambda self: self.done)
    @rule(pick=PICK)
    def report_and_ask(self, pick: int) -> None:
        worker = self.some(pick)
        self.table.report(worker, self.done[worker])
        assert self.table.clocks[worker] == self.done[worker]
        self.remembered[worker] = self.table.floor
        lead = self.done[worker] - min(self.table.clocks.values())
        decision = self.table.may_start(worker)
        assert decision.allowed == (self.table.bound is None or lead <= self.table.bound)
        assert decision.reason.startswith(f"{lead} steps ahead")

    @precondition(lambda self: self.done)
    @rule(pick=PICK, late=st.integers(0, 5))
    def repeat_an_older_report(self, pick: int, late: int) -> None:
        worker = self.some(pick)
        before = self.table.clocks
        self.table.report(worker, before[worker] - late)
        assert self.table.clocks == before

    @precondition(lambda self: self.done)
    @rule(pick=PICK)
    def lose(self, pick: int) -> None:
        worker = self.some(pick)
        self.table.remove(worker)
        del self.done[worker], self.remembered[worker]

    @invariant()
    def the_floor_is_the_slowest_clock_and_never_falls(self) -> None:
        assert self.table.floor >= self.floor
        assert self.table.floor == min(self.table.clocks.values(), default=self.floor)
        self.floor = self.table.floor

    @invariant()
    def the_table_has_the_live_workers_and_never_more_than_they_did(self) -> None:
        clocks = self.table.clocks
        assert set(clocks) == set(self.done)
        assert all(clocks[worker] <= self.done[worker] for worker in clocks)

    @invariant()
    def nobody_is_too_far_ahead(self) -> None:
        if self.table.bound is not None and self.done:
            assert max(self.done.values()) - min(self.done.values()) <= self.table.bound + 1

    @invariant()
    def somebody_may_start_unless_nobody_is_live(self) -> None:
        assert not self.done or any(self.table.may_start(worker).allowed for worker in self.done)


TestClockTable = ClockTableMachine.TestCase
TestClockTable.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None, derandomize=True, report_multiple_bugs=False
)


def table_with(bound: int | None, *clocks: int) -> ClockTable:
    """A table of workers 0, 1, ... at these clocks."""
    table = ClockTable(bound)
    for worker in range(len(clocks)):
        table.admit(worker)
    for worker, clock in enumerate(clocks):
        table.report(worker, clock)
    return table


@pytest.mark.parametrize(
    ("bound", "allowed", "reason"),
    [
        (UNBOUNDED, True, "3 steps ahead, no bound"),
        (3, True, "3 steps ahead, bound 3"),
        (2, False, "3 steps ahead of worker 1, bound 2"),
        (0, False, "3 steps ahead of worker 1, bound 0"),
    ],
)
def test_a_decision_says_how_far_ahead_of_whom(bound: int | None, allowed: bool, reason: str) -> None:
    decision = table_with(bound, 7, 4, 5).may_start(0)
    assert (decision.allowed, decision.reason) == (allowed, reason)


def test_in_lock_step_everybody_waits_for_the_last_one() -> None:
    table = table_with(0, 1, 1, 0)
    assert [table.may_start(worker).allowed for worker in range(3)] == [False, False, True]
    table.report(2, 1)
    assert [table.may_start(worker).allowed for worker in range(3)] == [True, True, True]


def test_losing_the_slowest_releases_the_others() -> None:
    table = table_with(1, 6, 2, 5)
    assert not table.may_start(0).allowed
    table.remove(1)
    assert table.floor == 5
    assert table.may_start(0).allowed


def test_a_newcomer_starts_at_the_floor_even_when_nobody_is_left() -> None:
    table = table_with(2, 4, 3)
    assert table.admit(2) == 3
    for worker in (2, 1, 0):
        table.remove(worker)
    assert table.admit(3) == 4, "the floor rose when worker 1 went, and stays"


def test_the_clocks_are_handed_out_as_a_copy() -> None:
    table = table_with(2, 4, 3)
    table.clocks[0] = 99
    assert table.clocks == {0: 4, 1: 3}


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="bound must be >= 0 steps or None, got -1"):
        ClockTable(-1)


def test_a_worker_is_admitted_once() -> None:
    table = table_with(2, 4)
    with pytest.raises(ValueError, match="worker 0 is already in the clock table"):
        table.admit(0)
    assert table.clocks == {0: 4}
