"""Which bound is chosen, and when."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psruntime.config.values import BoundRange
from psruntime.core.clocks.adaptive_bound import (
    FEWEST,
    GOOD,
    SECONDS_BETWEEN,
    STEPS,
    STEPS_BETWEEN,
    TOO_SLOW,
    AdaptiveBound,
    played_s,
)
from psruntime.core.clocks.adaptive_bound import choose as choose_of
from psruntime.core.clocks.clocks import ClockTable
from psruntime.core.members.membership import JudgedClock

WITHIN = BoundRange(1, 8)
EVEN = [[0.01] * STEPS] * 4
ONE_IS_SLOW = [*EVEN[:3], [0.05] * STEPS]


def hiccups(workers: int = 4, every: int = 10, times: float = 6.0) -> list[list[float]]:
    """Each worker is late now and then, at other steps than the others."""
    return [
        [0.01 * (times if (step + 3 * worker) % every == 0 else 1.0) for step in range(STEPS)]
        for worker in range(workers)
    ]


def bound_of(steps: list[list[float]], bound: int = 1, within: BoundRange = WITHIN) -> int:
    found = choose_of(within, bound, steps)
    assert found is not None
    return found[0]


durations = st.lists(st.lists(st.floats(1e-4, 10.0), min_size=FEWEST, max_size=STEPS), min_size=2, max_size=5)


def gated_s(steps: list[list[float]], bound: int) -> float:
    """The same, by the clock table that the coordinator has, step by step in the order of time."""
    table = ClockTable(bound)
    for worker in range(len(steps)):
        table.admit(worker)
    clocks, now_s = [0] * len(steps), 0.0
    ends: dict[int, float] = {}  # of who is in a step
    while min(clocks) < STEPS:
        for worker, clock in enumerate(clocks):
            if worker not in ends and clock < STEPS and table.may_start(worker).allowed:
                ends[worker] = now_s + steps[worker][clock % len(steps[worker])]
        worker = min(ends, key=lambda w: ends[w])
        now_s = ends.pop(worker)
        clocks[worker] += 1
        table.report(worker, clocks[worker])
    return now_s


@given(steps=durations, bound=st.integers(0, 60))
def test_the_time_is_that_of_workers_whom_the_clock_table_lets_start(steps: list[list[float]], bound: int) -> None:
    assert played_s(steps, bound) == pytest.approx(gated_s(steps, bound))


@given(steps=durations, bound=st.integers(0, 9), least=st.integers(0, 5), more=st.integers(1, 9))
def test_the_choice_is_in_the_range_and_the_smallest_that_is_good(
    steps: list[list[float]], bound: int, least: int, more: int
) -> None:
    within = BoundRange(least, least + more)
    before = within.nearest(bound)
    chosen = bound_of(steps, before, within)
    best_s = played_s(steps, within.most)
    assert within.least <= chosen <= within.most
    assert played_s(steps, chosen) <= 1.021 * best_s
    smaller_and_good = [b for b in range(within.least, chosen) if played_s(steps, b) <= 1.0049 * best_s]
    assert not smaller_and_good


@pytest.mark.parametrize("steps", [EVEN, ONE_IS_SLOW], ids=["even", "one is slow"])
@pytest.mark.parametrize("bound", [1, 4, 8])
def test_where_no_bound_helps_it_is_the_least(steps: list[list[float]], bound: int) -> None:
    assert bound_of(steps, bound) == 1


def test_where_workers_are_late_in_turn_a_larger_one_helps() -> None:
    chosen = bound_of(hiccups())
    assert 2 <= chosen <= 8
    assert played_s(hiccups(), 1) > 1.1 * played_s(hiccups(), chosen)
    assert chosen < bound_of(hiccups(every=25, times=30.0)), "the longer they are late, the larger"


def test_a_small_gain_changes_nothing() -> None:
    steps = [[0.03 if step == late else 0.01 for step in range(STEPS)] for late in (10, 40)]
    assert GOOD < played_s(steps, 1) / played_s(steps, 2) - 1 < TOO_SLOW
    assert bound_of(steps, 1) == 1 and bound_of(steps, 2) == 2


def test_why_is_said_in_words() -> None:
    steps = hiccups()
    chosen, reason = choose_of(WITHIN, 1, steps) or (0, "")
    lost = played_s(steps, 1) / played_s(steps, 8) - 1
    assert reason.startswith(f"by the last {STEPS} steps of each worker bound {chosen} would be 0.")
    assert f" slower than bound 8, bound 1 {lost:.1%}, bound {chosen - 1} " in reason


@pytest.mark.parametrize("steps", [[], EVEN[:1], [[0.01] * (FEWEST - 1)] * 4, [[0.0] * STEPS] * 3])
def test_too_little_is_known(steps: list[list[float]]) -> None:
    assert choose_of(WITHIN, 3, steps) is None


def test_many_workers_are_played_in_no_time() -> None:
    """Only the slowest are: what is chosen is the same with all others beside them."""
    few = hiccups(workers=40)
    assert bound_of([*few, *[[0.001] * STEPS] * 3000]) == bound_of(few)


class Chosen:
    """A choice in a job; `look` is at a floor and a time."""

    def __init__(self, reported_every_s: float = 1.0) -> None:
        self.notes: list[dict[str, Any]] = []
        self.asked = 0
        self.steps = hiccups()
        self.clock = JudgedClock(0.0)
        self.adaptive = AdaptiveBound(
            WITHIN, reported_every_s, lambda name, **facts: self.notes.append({"name": name, **facts}), self.clock
        )

    def look(self, bound: int, floor: int, now_s: float, view: int = 1, revision: int = 0) -> int:
        def steps() -> list[list[float]]:
            self.asked += 1
            return self.steps

        self.clock.advance(now_s)
        return self.adaptive.wanted(bound, revision, view, floor, steps)


def test_it_is_chosen_after_some_steps_of_the_slowest_and_some_seconds() -> None:
    job = Chosen()
    assert job.look(1, 0, 0.0) == 1
    assert job.look(1, STEPS_BETWEEN - 1, 100.0) == job.look(1, STEPS_BETWEEN - 1, 101.0) == 1 and not job.asked
    wanted = job.look(1, STEPS_BETWEEN, 102.0)
    assert wanted == bound_of(hiccups()) and job.asked == 1
    assert [(note["name"], note["bound"], note["was"]) for note in job.notes] == [("bound_chosen", wanted, 1)]
    assert job.notes[0]["reason"] == job.adaptive.reason(wanted) != ""
    assert job.adaptive.reason(1) == job.adaptive.reason(None) == "", "of another bound than the one that is in force"


def test_the_choice_stays_until_it_is_in_force_and_then_steps_under_it_decide() -> None:
    job = Chosen()
    job.look(1, 0, 0.0)
    wanted = job.look(1, STEPS_BETWEEN, 10.0)
    job.steps = EVEN
    assert job.look(1, 9 * STEPS_BETWEEN, 99.0) == wanted and job.asked == 1
    assert job.look(wanted, 9 * STEPS_BETWEEN, 99.0) == wanted
    assert job.look(wanted, 10 * STEPS_BETWEEN, 99.0 + SECONDS_BETWEEN / 2) == wanted and job.asked == 1
    assert job.look(wanted, 10 * STEPS_BETWEEN - 1, 200.0) == wanted and job.asked == 1
    assert job.look(wanted, 10 * STEPS_BETWEEN, 200.0) == 1


def test_a_new_view_begins_anew_and_what_was_chosen_before_an_operator_came_counts_for_nothing() -> None:
    job = Chosen()
    job.look(1, 0, 0.0)
    job.look(1, STEPS_BETWEEN, 10.0)
    assert job.look(6, STEPS_BETWEEN, 11.0) == 6, "somebody has set it"
    assert job.look(6, 0, 12.0, view=2) == 6
    assert job.look(6, STEPS_BETWEEN, 20.0, view=2) == bound_of(hiccups(), 6)


def test_after_a_hold_for_something_else_it_is_looked_anew() -> None:
    job = Chosen()
    job.look(1, 0, 0.0)
    assert job.look(1, STEPS_BETWEEN, 10.0, revision=1) == 1 and not job.asked
    assert job.look(1, 2 * STEPS_BETWEEN - 1, 20.0, revision=1) == 1 and not job.asked
    assert job.look(1, 2 * STEPS_BETWEEN, 20.0, revision=1) > 1


def test_who_speaks_seldom_is_heard_before_the_next_choice() -> None:
    job = Chosen(reported_every_s=20.0)
    job.look(1, 0, 0.0)
    assert job.look(1, 9 * STEPS_BETWEEN, 39.0) == 1 and not job.asked
    assert job.look(1, 9 * STEPS_BETWEEN, 40.0) > 1


def test_a_choice_that_somebody_else_has_put_aside_does_not_come_back() -> None:
    job = Chosen()
    job.look(1, 0, 0.0)
    assert job.look(1, STEPS_BETWEEN, 10.0) > 1
    job.adaptive.forget()
    assert job.look(1, 9 * STEPS_BETWEEN, 100.0) == 1 and job.adaptive.reason(1) == ""
    assert job.look(1, 10 * STEPS_BETWEEN - 1, 200.0) == 1 and job.asked == 1
    assert job.look(1, 10 * STEPS_BETWEEN, 200.0) > 1


def test_few_steps_of_a_slow_worker_count_as_those_of_the_slow() -> None:
    newcomers = [each[:FEWEST] for each in hiccups(workers=6)]
    fast = [[0.001] * STEPS] * 70
    assert bound_of([*fast, *newcomers]) == bound_of([*fast[:10], *newcomers]) > 1


@given(seed=st.integers(0, 999))
def test_noise_does_not_make_it_swing(seed: int) -> None:
    """Of ten looks at steps of the same kind at most a few change it."""
    chance, job, bound = random.Random(seed), Chosen(), 1
    for look in range(1, 11):
        job.look(bound, look * 100 - 99, look * 100.0)
        job.steps = [[chance.uniform(0.0095, 0.0105) for _ in range(STEPS)] for _ in range(4)]
        bound = job.look(bound, look * 100, look * 100.0 + 50)
        bound = job.look(bound, look * 100, look * 100.0 + 51)
    assert len(job.notes) <= 4
