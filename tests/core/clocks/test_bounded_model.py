"""Bounded mode checked by exhaustive search: every interleaving of a few workers, on the real clock table.

A worker pulls, pushes, completes; its reports arrive whenever they like, in any order; so do the answers.  Workers
join, and are lost without knowing it: then they go on until the ps know, on the floor that they remember.

Only differences of clocks matter, so a state has clocks relative to the floor, and no limit on steps is needed: the
states are finitely many all the same.  Worker 0 is watched: its staleness is counted.  The others are alike, so their
order does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from psruntime.core.clocks.clocks import ClockTable, within

FLOOR = 50  # of the table at the beginning of every move; far from 0, so that a clock begun at 0 is noticed
WATCHED = 0
IDLE, PULLED, PUSHED = range(3)


class Worker(NamedTuple):
    """One incarnation.  `clock` is what it has completed, `known` of that is in the table; all relative to the floor.

    A lost one counts how many steps its remembered floor still allows, in `known`; its clock says nothing any more.
    """

    live: bool
    clock: int
    known: int
    floor: int  # as it remembers it
    doing: int = IDLE


class State(NamedTuple):
    workers: tuple[Worker | None, ...]
    joins: int  # that may still happen
    losses: int
    stale: int = 0  # updates applied by others since worker 0 pulled
    others: int = 0  # incarnations other than worker 0 whose updates could be applied since then


class Model:
    """The moves of a job with this bound, and what must hold in each of them."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.limit = 2 * bound + 1
        self.seen: Counter[str] = Counter()
        self.largest_lead = self.largest_staleness = 0

    def table(self, state: State) -> ClockTable:
        table = ClockTable(self.bound)
        table._floor = FLOOR
        table._clocks = {i: FLOOR + w.known for i, w in enumerate(state.workers) if w and w.live}
        return table

    def moves(self, state: State) -> Iterator[State]:
        for i, worker in enumerate(state.workers):
            if worker is None:
                if state.joins:
                    yield self.join(state, i)
                continue
            if worker.live:
                if state.losses:
                    yield self.lose(state, i)
                for clock in range(worker.known + 1, worker.clock + 1):
                    yield self.report(state, i, clock)
                for floor in range(worker.floor + 1, 1):
                    yield put(state, i, worker._replace(floor=floor))
            else:
                yield put(state, i, None)  # the ps know: nothing of it is applied any more
            if worker.doing == IDLE and self.may_start(worker):
                yield self.pull(state, i, worker)
            elif worker.doing == PULLED:
                yield self.push(state, i, worker)
            elif worker.doing == PUSHED:
                yield put(state, i, worker._replace(clock=worker.clock + worker.live, doing=IDLE))

    def may_start(self, worker: Worker) -> bool:
        return within(self.bound, worker.clock, worker.floor) if worker.live else worker.known > 0

    def join(self, state: State, i: int) -> State:
        table = self.table(state)
        clock = table.admit(i) - FLOOR
        self.seen["join"] += 1
        others = state.others + 1 if i != WATCHED and self.counts(state) else state.others
        return put(state, i, Worker(True, clock, clock, clock))._replace(joins=state.joins - 1, others=others)

    def lose(self, state: State, i: int) -> State:
        worker = state.workers[i]
        assert worker
        table = self.table(state)
        table.remove(i)
        self.seen["lose"] += 1
        allowed = self.bound + 1 - worker.clock - (worker.doing != IDLE)  # on the newest floor that it may know
        lost = Worker(False, 0, max(0, allowed), 0, worker.doing)
        after = put(state, i, lost)._replace(losses=state.losses - 1)
        if i == WATCHED:
            after = after._replace(stale=0, others=0)  # the limit on the ps is what guards against it now
        return self.settle(after, table)

    def report(self, state: State, i: int, clock: int) -> State:
        worker = state.workers[i]
        assert worker
        table = self.table(state)
        table.report(i, FLOOR + clock)
        return self.settle(put(state, i, worker._replace(known=clock)), table)

    def settle(self, state: State, table: ClockTable) -> State:
        """Makes all clocks relative to the floor again."""
        rise = table.floor - FLOOR
        assert rise >= 0, "the floor fell"
        self.seen["rise"] += rise > 0
        return state._replace(
            workers=tuple(
                w._replace(clock=w.clock - rise, known=w.known - rise, floor=w.floor - rise) if w and w.live else w
                for w in state.workers
            )
        )

    def pull(self, state: State, i: int, worker: Worker) -> State:
        if not worker.live:
            return put(state, i, worker._replace(known=worker.known - 1, doing=PULLED))
        lead = worker.clock - min(w.clock for w in state.workers if w and w.live)
        assert lead <= self.bound, f"a step was started {lead} steps ahead, bound {self.bound}"
        self.largest_lead = max(self.largest_lead, lead)
        after = put(state, i, worker._replace(doing=PULLED))
        return after._replace(stale=0, others=sum(w is not None for w in state.workers) - 1) if i == WATCHED else after

    def push(self, state: State, i: int, worker: Worker) -> State:
        after = put(state, i, worker._replace(doing=PUSHED))
        if i != WATCHED:
            return after._replace(stale=state.stale + 1) if self.counts(state) else after
        assert not worker.live or state.stale <= self.limit * state.others, f"{state.stale} over {state.others} others"
        self.largest_staleness = max(self.largest_staleness, state.stale)
        return after._replace(stale=0, others=0)

    def counts(self, state: State) -> bool:
        """Whether the watched worker is between its pull and its push."""
        watched = state.workers[WATCHED]
        return watched is not None and watched.live and watched.doing == PULLED

    def check(self, state: State) -> None:
        """Nobody waits for ever: once reports and answers have arrived, somebody can start, or is in a step."""
        live = {i: w for i, w in enumerate(state.workers) if w and w.live}
        table = self.table(state)
        for i, worker in live.items():
            table.report(i, FLOOR + worker.clock)
        waiting = [i for i, w in live.items() if w.doing == IDLE and not table.may_start(i).allowed]
        assert not live or len(waiting) < len(live), "all wait for each other"
        for i in waiting:
            slowest = int(table.may_start(i).reason.split(" worker ")[1].split(",")[0])
            assert slowest in live and slowest not in waiting, "the one that is waited for can go on"
            self.seen["wait"] += 1


def put(state: State, i: int, worker: Worker | None) -> State:
    """With this worker in place i; the others than the watched one in order, since they are alike."""
    workers = [*state.workers[:i], worker, *state.workers[i + 1 :]]
    return state._replace(workers=tuple(workers))


def canonical(state: State) -> State:
    watched, *others = state.workers
    return state._replace(workers=(watched, *sorted(others, key=lambda w: w or ())))


def search(model: Model, start: State) -> int:
    """Breadth first through all states; returns how many there are."""
    seen, edge = {start}, [start]
    while edge:
        new = []
        for state in edge:
            model.check(state)
            for after in model.moves(state):
                after = canonical(after)
                if after not in seen:
                    seen.add(after)
                    new.append(after)
        edge = new
    return len(seen)


FRESH = Worker(True, 0, 0, 0)


@pytest.mark.parametrize(
    ("bound", "workers", "joins", "losses"),
    [
        (0, 3, 2, 2),
        (1, 3, 1, 1),
        pytest.param(2, 3, 0, 0, marks=pytest.mark.long),
        pytest.param(2, 2, 1, 1, marks=pytest.mark.long),
    ],
)
def test_every_interleaving_of_three_workers_keeps_the_bound(bound: int, workers: int, joins: int, losses: int) -> None:
    model = Model(bound)
    start = State((FRESH, FRESH, FRESH if workers == 3 else None), joins, losses)
    count = search(model, start)
    assert count > 1000, "the search is not trivial"
    assert model.largest_lead == bound, "the bound is reached"
    assert model.largest_staleness >= (2 * bound + 1) * (workers - 1), "so is the limit on staleness"
    assert model.seen["rise"] and model.seen["wait"]
    assert bool(model.seen["join"]) == bool(joins) and bool(model.seen["lose"]) == bool(losses)
