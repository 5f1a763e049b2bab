"""The rounds of mode sync as states and moves, small enough to be searched whole.

Two ps with a bucket each, two workers and one that joins; workers are killed, lose their session, or are taken for lost
while they work.  A run on a ps closes the round before, pulls, and contributes once both were pulled.  Of a run that
was cut off any part may still happen, at any time, and one of its contributions up to the middle: the gradient is in
the sum, uncounted.  It has no batches: audit.py looks at those.

    python -m tests.simulation.round_model  # with a joiner and two faults, 1,661,061 states in nine minutes

What a bucket does with a contribution is core/rounds/contribution.py; what the coordinator does is written down anew
here, from the head of core/rounds/rounds.py: `search` looks whether it is right, `follows` whether a record of a job
shows nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from psruntime.core.rounds.contribution import SectionState

PS = (0, 1)
Members = frozenset[int]


class Ps(NamedTuple):
    """state: as in the product.  sum: the workers whose gradients are in it.  last: those of the last round applied."""

    state: SectionState = SectionState(0, 0, 0, 0)
    sum: tuple[int, ...] = ()
    rounds: int = 0  # that were applied
    last: tuple[int, ...] = ()


class Coordinator(NamedTuple):
    """previous: the attempt before the open one, and its members, while no report shows that it is closed."""

    rounds: int = 0  # that were opened
    attempt: int = 0
    members: Members = frozenset()
    pushed: Members = frozenset()
    present: Members = frozenset()
    previous: tuple[int, Members] | None = None
    is_over: bool = False

    @property
    def is_open(self) -> bool:
        return bool(self.members)

    @property
    def is_complete(self) -> bool:
        return self.is_open and self.pushed == self.members

    def opens(self) -> Coordinator:
        previous = (self.attempt, self.members) if self.is_complete else self.previous
        return self._replace(
            rounds=self.rounds + 1, attempt=self.attempt + 1, members=self.present, pushed=frozenset(),
            previous=previous,
        )  # fmt: skip

    def voids(self) -> Coordinator:
        """The next attempt; a round without any member opens again."""
        left = self.members & self.present
        return self._replace(
            rounds=self.rounds - (not left), attempt=self.attempt + 1, members=left, pushed=frozenset()
        )

    def loses(self, worker: int) -> Coordinator:
        left = self._replace(present=self.present - {worker})
        return left.voids() if worker in self.members - self.pushed else left

    def takes(self, worker: int, attempt: int) -> Coordinator:
        """The report of a contribution."""
        if attempt != self.attempt or worker not in self.members:
            return self
        return self._replace(pushed=self.pushed | {worker}, previous=None)


class Run(NamedTuple):
    """Of a worker.  on: of each ps, how far it is: 0 nothing, 1 closed and pulled, 2 contributed, 3 void there.

    only_closes: it has no gradient.
    """

    worker: int
    round: int
    attempt: int
    closes: tuple[int, int] | None  # attempt and number of members
    on: tuple[int, ...] = (0,) * len(PS)
    only_closes: bool = False


class State(NamedTuple):
    """runs: of each worker that has one.  cut: runs that were cut off.  kept: of each worker its round with a gradient.

    outside: workers that are no members; who of them still runs finds it out.
    """

    coordinator: Coordinator
    ps: tuple[Ps, ...] = (Ps(),) * len(PS)
    runs: frozenset[Run] = frozenset()
    cut: frozenset[Run] = frozenset()
    outside: Members = frozenset()
    kept: tuple[int, ...] = ()
    faults: int = 0


class Wrong(Exception):
    """What a state must not be."""


def closed(ps: Ps, closes: tuple[int, int] | None) -> Ps:
    """The ps after the close."""
    if closes is None or ps.state.began(closes[0]) or not ps.state.is_complete(*closes):
        return ps  # as it is
    if len(set(ps.sum)) != len(ps.sum) or len(ps.sum) != closes[1]:
        raise Wrong(f"attempt {closes[0]} is applied with {ps.sum}, and has {closes[1]} members")
    state = ps.state._replace(intent=closes[0], applied=closes[0])
    return ps._replace(state=state, rounds=ps.rounds + 1, last=ps.sum)


def contributed(ps: Ps, run: Run, counts: bool = True) -> Ps | None:
    """The ps after a contribution, or after the half of it that does not count; None: it is void there."""
    if ps.state.voids(run.attempt):
        return None
    is_new = ps.state.begins(run.attempt)
    ps = ps._replace(sum=tuple(sorted((*(() if is_new else ps.sum), run.worker))))
    count = (0 if is_new else ps.state.count) + 1
    return ps._replace(state=ps.state._replace(attempt=run.attempt, count=count)) if counts else ps


def plain(state: State) -> State:
    """The state without what makes no difference.

    A run has passed a ps on which it has nothing to close; of a run that was cut off nothing is left once it can change
    no ps any more: what is void for it, or applied, stays so.  The two ps are alike, and so are the workers.
    """
    runs = frozenset(_passed(run, state.ps) for run in state.runs)
    cut = frozenset(run for run in (_passed(run, state.ps) for run in state.cut) if _may_act(run, state.ps))
    state = state._replace(runs=runs, cut=cut)
    turned = state._replace(ps=state.ps[::-1], runs=_turned(runs), cut=_turned(cut))
    return min((_in_order(state), _in_order(turned)), key=_key_of)


def _in_order(state: State) -> State:
    """The same with other names of the workers: those that are alike in all else have neighbouring names."""
    now = state.coordinator
    of = [
        (
            kept, worker in now.present, worker in now.members, worker in now.pushed, worker in state.outside,
            [ps.sum.count(worker) + 9 * ps.last.count(worker) for ps in state.ps],
            sorted(_key(run)[1:] for run in state.runs if run.worker == worker),
            sorted(_key(run)[1:] for run in state.cut if run.worker == worker),
        )
        for worker, kept in enumerate(state.kept)
    ]  # fmt: skip
    order = sorted(range(len(of)), key=of.__getitem__)
    if order == sorted(order):
        return state
    name = {worker: number for number, worker in enumerate(order)}

    def named(workers: Members) -> Members:
        return frozenset(name[worker] for worker in workers)

    def runs(some: frozenset[Run]) -> frozenset[Run]:
        return frozenset(run._replace(worker=name[run.worker]) for run in some)

    def who(workers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(name[worker] for worker in workers))

    previous = now.previous and (now.previous[0], named(now.previous[1]))
    now = now._replace(
        members=named(now.members), pushed=named(now.pushed), present=named(now.present), previous=previous
    )
    ps = tuple(each._replace(sum=who(each.sum), last=who(each.last)) for each in state.ps)
    kept = tuple(state.kept[worker] for worker in order)
    return State(now, ps, runs(state.runs), runs(state.cut), named(state.outside), kept, state.faults)


def _key_of(state: State) -> Any:
    return state.ps, sorted(map(_key, state.runs)), sorted(map(_key, state.cut))


def _passed(run: Run, every_ps: tuple[Ps, ...]) -> Run:
    on = tuple(
        int(part == 0 and closed(ps, run.closes) is ps) or part for part, ps in zip(run.on, every_ps, strict=True)
    )
    return run if on == run.on else run._replace(on=on)


def _may_act(run: Run, every_ps: tuple[Ps, ...]) -> bool:
    pushes = any(part < 2 and not ps.state.voids(run.attempt) for part, ps in zip(run.on, every_ps, strict=True))
    return 0 in run.on or (pushes and not run.only_closes)


def _turned(runs: frozenset[Run]) -> frozenset[Run]:
    return frozenset(run._replace(on=run.on[::-1]) for run in runs)


def _key(run: Run) -> tuple[Any, ...]:
    return (*run[:3], run.closes or (), run.on, run.only_closes)


def moves(state: State, rounds: int) -> Iterator[State]:
    """The states that may be next.  rounds: that the job has."""
    yield from _of_coordinator(state, rounds)
    running = {run.worker for run in state.runs}
    for worker in sorted(state.coordinator.present - running):
        if run := _asked(state, worker, rounds):
            yield state._replace(runs=state.runs | {run})
    for run in state.runs:
        yield from _of_run(state, run)
    for run in state.cut:
        yield from _of_cut(state, run)
    if state.faults:
        yield from _faults(state._replace(faults=state.faults - 1))


def _of_coordinator(state: State, rounds: int) -> Iterator[State]:
    now = state.coordinator
    if not now.is_over and now.present and now.rounds < rounds and (not now.is_open or now.is_complete):
        yield state._replace(coordinator=now.opens())
    for worker in state.outside - {run.worker for run in state.runs}:  # it joins
        yield state._replace(coordinator=now._replace(present=now.present | {worker}), outside=state.outside - {worker})


def _asked(state: State, worker: int, rounds: int) -> Run | None:
    """What a worker does that has nothing to do."""
    now = state.coordinator
    before = (now.previous[0], len(now.previous[1])) if now.previous else None
    if now.is_over or not now.is_open:
        return Run(worker, 0, 0, before, only_closes=True) if before and not now.is_over else None
    if now.is_complete:
        closes = now.attempt, len(now.members)
        return Run(worker, 0, 0, closes, only_closes=True) if now.rounds == rounds else None
    if worker not in now.members - now.pushed:
        return None
    again = state.kept[worker] == now.rounds
    return Run(worker, now.rounds, now.attempt, None if again else before, (1, 1) if again else (0, 0))


def _of_run(state: State, run: Run) -> Iterator[State]:
    others = state.runs - {run}
    for p in PS:
        if run.on[p] == 0:
            yield _on_ps(state, others, run, p, closed(state.ps[p], run.closes), 1)
        elif run.on[p] == 1 and 0 not in run.on and not run.only_closes:
            after = contributed(state.ps[p], run)
            yield _on_ps(state, others, run, p, after or state.ps[p], 3 if after is None else 2)
    now, is_member = state.coordinator, run.worker in state.coordinator.present
    if run.only_closes and 0 not in run.on:
        if is_member and run.closes and all(ps.state.applied >= run.closes[0] for ps in state.ps):
            if now.previous and run.closes[0] == now.previous[0]:
                now = now._replace(previous=None)
            elif now.is_complete and run.closes[0] == now.attempt:
                now = now._replace(is_over=True)
        yield state._replace(runs=others, coordinator=now)
    elif not run.only_closes and all(part >= 2 for part in run.on):
        if is_member and 3 not in run.on:
            now = now.takes(run.worker, run.attempt)
        kept = _with(state.kept, run.worker, run.round if is_member else 0)
        yield state._replace(runs=others, coordinator=now, kept=kept)


def _of_cut(state: State, run: Run) -> Iterator[State]:
    """What may still happen of it, part by part; at last nothing more."""
    others = state.cut - {run}
    yield state._replace(cut=others)
    for p in PS:
        part = run._replace(on=_with(run.on, p, run.on[p] + 1))
        if run.on[p] == 0:
            yield state._replace(cut=others | {part}, ps=_with(state.ps, p, closed(state.ps[p], run.closes)))
        elif run.on[p] == 1 and 0 not in run.on and not run.only_closes:
            for counts in (True, False):
                if (after := contributed(state.ps[p], run, counts)) is not None:
                    yield state._replace(cut=others | {part}, ps=_with(state.ps, p, after))


def _faults(state: State) -> Iterator[State]:
    now = state.coordinator
    for run in state.runs:
        left = state._replace(runs=state.runs - {run}, cut=state.cut | {run})
        if run.worker in now.present:
            is_open = not run.only_closes and run.attempt == now.attempt and run.worker in now.members - now.pushed
            yield left._replace(coordinator=now.voids() if is_open else now)  # it loses its session, and reports that
    for worker in now.present:
        ours = {run for run in state.runs if run.worker == worker}
        lost = state._replace(
            coordinator=now.loses(worker), outside=state.outside | {worker}, kept=_with(state.kept, worker, 0)
        )
        yield lost  # while it works
        if ours:
            yield lost._replace(runs=state.runs - ours, cut=state.cut | ours)


def _on_ps(state: State, others: frozenset[Run], run: Run, p: int, ps: Ps, part: int) -> State:
    run = run._replace(on=_with(run.on, p, part))
    return state._replace(runs=others | {run}, ps=_with(state.ps, p, ps))


def _with(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


def begin(workers: int, joiners: int, faults: int) -> State:
    present, outside = frozenset(range(workers)), frozenset(range(workers, workers + joiners))
    return State(Coordinator(present=present), outside=outside, kept=(0,) * (workers + joiners), faults=faults)


def check(state: State) -> None:
    """Raises Wrong if the state must not be."""
    one, other = state.ps
    if abs(one.rounds - other.rounds) > 1 or (one.state.applied == other.state.applied and one.last != other.last):
        raise Wrong(f"the ps have applied different rounds: {state.ps}")
    if state.coordinator.is_over and {one.rounds, other.rounds} != {state.coordinator.rounds}:
        raise Wrong(f"the job is over, and the ps have applied {one.rounds} and {other.rounds} rounds")


def search(workers: int = 2, joiners: int = 1, faults: int = 2, rounds: int = 2) -> int:
    """The number of states that may be.

    Raises:
        Wrong: one must not be, or the job cannot end from it.
    """
    first = plain(begin(workers, joiners, faults))
    known, before, ends = {first: 0}, [[]], []  # number of each state; of each: those before it; those at the end
    new = deque([first])
    while new:
        state = new.popleft()
        number = known[state]
        if state.coordinator.is_over:
            ends.append(number)
        for after in map(plain, moves(state, rounds)):
            if after not in known:
                check(after)
                known[after] = len(before)
                before.append([])
                new.append(after)
            before[known[after]].append(number)
    can_end = set(ends)
    while ends:
        more = set(before[ends.pop()]) - can_end
        can_end |= more
        ends.extend(more)
    if stuck := [state for state, number in known.items() if number not in can_end]:
        raise Wrong(f"{len(stuck)} states have no way to the end, as {stuck[0]}")
    return len(known)


if __name__ == "__main__":
    print(f"{search()} states, none wrong")
