"""Shares: they add up whoever comes and goes, follow the speeds, and stay where they are once all end together."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psruntime.core.members.membership import JudgedClock
from psruntime.core.members.view import View
from psruntime.core.rounds.round_messages import Pushed, Taken
from psruntime.core.rounds.shares import LEAST_MEASURES, MOST, ROUNDS_BETWEEN, Shares
from psruntime.core.rounds.sync_rounds import SyncRounds
from tests.support.selection import examples

picks = st.integers(0, 7)
seconds = st.sampled_from([0.0, 1e-9, 0.01, 0.1, 0.5, 60.0, 1e300]) | st.floats(0, 10)


class SharesMachine(RuleBasedStateMachine):
    """Workers of any speed come, go and take part or not; the shares are twice the same."""

    def __init__(self) -> None:
        super().__init__()
        self.both = Shares(), Shares()
        self.sizes: dict[int, int] = {}  # incarnation -> its own batch size
        self.index: dict[int, int] = {}
        self.contributed: dict[int, int] = {}  # incarnation -> how often
        self.members: list[int] = []
        self.all = 0

    @precondition(lambda self: len(self.sizes) < 6)
    @rule(size=st.integers(1, 5) | st.integers(1, 1 << 52))
    def enter(self, size: int) -> None:
        self.all += 1
        self.sizes[self.all], self.contributed[self.all] = size, 0
        self.index[self.all] = self.all * 5 % 7  # the order is another one

    @precondition(lambda self: self.sizes)
    @rule(who=picks)
    def leave(self, who: int) -> None:
        incarnation = sorted(self.sizes)[who % len(self.sizes)]
        for shares in self.both:
            shares.forget(incarnation)
        del self.sizes[incarnation]
        self.members = []

    @precondition(lambda self: self.sizes)
    @rule(absent=st.sets(picks, max_size=1), took_s=st.lists(seconds, min_size=8, max_size=8))
    def round(self, absent: set[int], took_s: list[float]) -> None:
        members = [inc for inc in self.sizes if inc % 8 not in absent]
        for shares in self.both:
            shares.open({inc: self.index[inc] for inc in members})
        self.members = members
        self.every_law()
        for inc in members:
            self.contributed[inc] += 1
            size = self.both[0].of(inc) or self.sizes[inc]
            for shares in self.both:
                shares.measure(inc, Taken(0, size, self.sizes[inc], took_s[inc % 8]))

    @precondition(lambda self: self.sizes)
    @rule(took_s=st.lists(seconds, min_size=8, max_size=8))
    def many_rounds(self, took_s: list[float]) -> None:
        for _ in range(ROUNDS_BETWEEN + 1):
            self.round(set(), took_s)

    def every_law(self) -> None:
        """Of the round that has just opened."""
        shares, again = self.both
        assert [shares.of(inc) for inc in self.sizes] == [again.of(inc) for inc in self.sizes]
        known = [inc for inc in self.members if self.contributed[inc]]
        assert all(shares.of(inc) == 0 for inc in self.sizes if inc not in known)
        assert sum(shares.of(inc) for inc in known) == sum(self.sizes[inc] for inc in known)
        for inc in known:
            assert 1 <= shares.of(inc) <= MOST * self.sizes[inc]
            if self.contributed[inc] < LEAST_MEASURES:
                assert shares.of(inc) == self.sizes[inc]

    @invariant()
    def news_are_told_once(self) -> None:
        assert self.both[0].take_news() == self.both[1].take_news()
        assert self.both[0].take_news() is None


SharesMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestShares = SharesMachine.TestCase


@dataclass
class Simulated:
    """Workers whose steps take `fixed_s` and a time for each example: (its own batch size, examples for a second).

    noise: by how much a step's time differs at most, of itself.  pause: chance of a step that takes ten times as long.
    """

    workers: list[tuple[int, float]]
    fixed_s: float = 0.0
    noise: float = 0.0
    pause: float = 0.0

    @property
    def total(self) -> int:
        return sum(size for size, _ in self.workers)

    @property
    def ideal_s(self) -> float:
        """Of a round if examples could be cut."""
        return self.fixed_s + self.total / sum(speed for _, speed in self.workers)

    def time_s(self, worker: int, size: int) -> float:
        return self.fixed_s + size / self.workers[worker][1]

    def rounds(self, count: int, seed: int = 0, change: Callable[[int], None] = lambda _: None) -> list[list[int]]:
        """The sizes of each round.  change: called before each."""
        shares, chance, found = Shares(), random.Random(seed), []
        for number in range(count):
            change(number)
            shares.open({worker: worker for worker in range(len(self.workers))})
            found.append([shares.of(worker) or own for worker, (own, _) in enumerate(self.workers)])
            for worker, size in enumerate(found[-1]):
                took_s = self.time_s(worker, size) * (1 + self.noise * chance.uniform(-1, 1))
                took_s *= 10 if chance.random() < self.pause else 1
                shares.measure(worker, Taken(0, size, self.workers[worker][0], took_s))
        return found

    def longest_s(self, sizes: list[int]) -> float:
        """How long a round takes without noise."""
        return max(self.time_s(worker, size) for worker, size in enumerate(sizes))


speeds = st.lists(st.floats(20, 200), min_size=2, max_size=8)


@settings(deadline=None, max_examples=examples(300))
@given(speeds, st.sampled_from([0.0, 0.05, 0.3]), st.integers(0, 99))
def test_after_some_rounds_all_end_together_and_it_stays_so(each: list[float], fixed_s: float, seed: int) -> None:
    """Within 15 % of the ideal: with a noise of 6 % and a pause now and then."""
    world = Simulated([(64, speed) for speed in each], fixed_s, noise=0.06, pause=0.02)
    rounds = world.rounds(200, seed)
    assert all(sum(sizes) == world.total for sizes in rounds)
    for sizes in rounds[60:]:
        assert world.longest_s(sizes) < 1.15 * world.ideal_s, sizes


@pytest.mark.parametrize("fixed_s", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_shares_do_not_flap(fixed_s: float, seed: int) -> None:
    rounds = Simulated([(64, 100.0)] * 3 + [(64, 30.0)], fixed_s, noise=0.06, pause=0.02).rounds(400, seed)
    changes = sum(before != after for before, after in pairwise(rounds[60:]))
    assert changes <= 3
    assert rounds[-1][3] < 40 < 70 < min(rounds[-1][:3])


def test_workers_of_one_speed_keep_their_batch_sizes() -> None:
    rounds = Simulated([(32, 100.0)] * 4, noise=0.04, pause=0.05).rounds(100)
    assert rounds == [[32] * 4] * 100


def test_no_example_is_cut() -> None:
    """4 + 4 + 4 + 4 by 3 : 3 : 3 : 1: two examples would take the slow one longer than five a fast one."""
    assert Simulated([(4, 30.0)] * 3 + [(4, 10.0)]).rounds(10)[-1] == [5, 5, 5, 1]


def test_a_worker_that_becomes_slower_is_noticed() -> None:
    world = Simulated([(60, 100.0), (60, 100.0)], noise=0.02)

    def slow_down(number: int) -> None:
        if number == 50:
            world.workers[1] = (60, 50.0)

    rounds = world.rounds(100, change=slow_down)
    assert rounds[49] == [60, 60]
    assert abs(rounds[-1][0] - 80) < 5


def test_one_pause_changes_nothing() -> None:
    shares = Shares()
    for number in range(60):
        shares.open({0: 0, 1: 1})
        assert (shares.of(0), shares.of(1)) in ((0, 0), (8, 8))
        for worker in (0, 1):
            shares.measure(worker, Taken(0, 8, 8, 30.0 if (number, worker) == (20, 1) else 0.1))
    assert shares.take_news() is None


def test_when_a_worker_goes_the_others_take_on_their_own_examples_only() -> None:
    shares = Shares()
    for _ in range(10):
        shares.open({0: 0, 1: 1, 2: 2})
        for worker, speed in enumerate((30.0, 30.0, 10.0)):
            shares.measure(worker, Taken(0, shares.of(worker) or 70, 70, (shares.of(worker) or 70) / speed))
    assert shares.take_news() == {0: 90, 1: 90, 2: 30}
    shares.forget(0)
    shares.open({1: 1, 2: 2})
    assert (shares.of(1), shares.of(2)) == (105, 35) and shares.take_news() == {1: 105, 2: 35}
    shares.open({1: 1, 2: 2, 3: 0})
    assert [shares.of(worker) for worker in (1, 2, 3)] == [105, 35, 0], "a new one has not told its batch size"


@pytest.mark.parametrize(
    ("workers", "examples"), [(2, "worker 0: 5, worker 1: 15"), (11, "5 to 15, 11 workers")], ids=["few", "many"]
)
def test_a_change_is_noted_once_and_in_few_words(workers: int, examples: str) -> None:
    notes: list[tuple[str, dict[str, object]]] = []
    sync = SyncRounds(30.0, lambda name, **facts: notes.append((name, facts)), JudgedClock(0.0), shares=Shares())
    sync.prepared(View(1), "sync", 0, 0, {})
    for number in range(1, 9):
        for worker in range(workers):
            sync.take(worker, worker, None)
        sync.update(list, workers, 0)
        for worker in range(workers):
            size = sync.rounds.action_of(worker, 0).share or 10
            speed = (10, 30)[worker % 2] if workers == 2 else (10, 30, 20)[min(worker, 2)]
            taken = Taken(0, size, 10, size / speed)
            sync.take(worker, worker, Pushed(number, number, 0, float(size), taken=taken))
    assert notes == [("shares", {"round": 5, "examples": examples})]
