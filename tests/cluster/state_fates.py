"""What became of each state between two looks at a job (state_trial.py), in the words of tools/states.py.

A state is compared with what it was before the event, at the newest copy, and at the first start.  These differ, or the
event shows nothing: then that is the answer, instead of a fate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psruntime.config.schedule import Schedule
from psruntime.core.accounting.accounts import APPLIED, DOWN_WEIGHTED, RECEIVED, ROLLED_BACK, brought_back, is_balanced
from psruntime.core.steering.commands import Overrides
from tests.cluster.state_trial import BATCH, Seen
from tests.support.snapshot import LEDGER, MASTER, SLOTS, Values
from tools.states import Event, Fate, State

HOME = "psruntime/home/"
COPIES = {
    State.AVERAGES: ("norm/moving_mean", "norm/moving_variance"),
    State.OWN: ("steps",),
}
SHARED = f"{MASTER}shared"
OF_LEDGER = DOWN_WEIGHTED + 1
Answer = Fate | str


@dataclass(frozen=True)
class Copy:
    """What a lost job or ps may come back from.  ps: its variables.  copies: non-trainable variables by name."""

    ps: Values
    copies: Values
    shards: tuple[int, int] | None = None

    @classmethod
    def of(cls, seen: Seen) -> Copy:
        """A checkpoint that was written when this was seen."""
        return cls(seen.held.ps, seen.held.workers[seen.chief], seen.shards)


@dataclass(frozen=True)
class Case:
    """before, after: while the job was paused.  later: after some steps, when a checkpoint was measured.

    first: at the first start of the job.  copies: the newest; which of several is not known.
    lost_worker, lost_ps: index.  started: whether the job was started again, by a command.  schedule: of the job.
    """

    event: Event
    first: Seen
    before: Seen
    after: Seen
    later: Seen
    copies: Sequence[Copy]
    lost_worker: int | None = None
    lost_ps: int | None = None
    started: bool = False
    schedule: Schedule | None = None
    position: tuple[int, int] | None = None  # of the shards, that the newest coordinator began with


def fate_of(state: State, case: Case, workers: Collection[int]) -> Answer:
    """What is so of the workers that are asked for, or of the ps."""
    if state in COPIES or state in _OF_WORKERS:
        find = _OF_WORKERS.get(state, _copies_of(COPIES.get(state, ())))
        answers = {find(case, worker) for worker in workers}
        return answers.pop() if len(answers) == 1 else f"it differs between workers: {answers}"
    return _OF_JOB[state](case)


def compared(after: Any, before: Any, copies: Sequence[Any] = (), first: Any = None) -> Answer:
    """The fate of a value."""
    if first is not None and before == first:
        return f"it shows nothing: it was as at the start before it, {before}"
    if before in copies:
        return f"it shows nothing: it was as in the newest copy before it, {before}"
    if after == before:
        return Fate.KEPT
    if after == first and first not in copies:
        return Fate.NEW
    return Fate.LOST if after in copies else f"it is none of what it was: {after}; before {before}; copies {copies}"


def variables_of(ps: Values) -> Any:
    """Of all buckets, however they are cut: their values, each once."""
    masters = {name: value for name, value in ps.items() if name.startswith(MASTER) and "/replica" not in name}
    trained = (value for name, value in masters.items() if not name.endswith((*SLOTS, "/global_step", "/shared")))
    return sorted({entry for value in trained for entry in value})


def shared_of(ps: Values) -> Any:
    """Of the variable with an aggregation."""
    return ps[SHARED]


def slots_of(ps: Values) -> Any:
    """As variables_of."""
    return sorted({entry for name, value in ps.items() if name.endswith(SLOTS) for entry in value})


def ledgers_of(ps: Values) -> dict[str, list[int]]:
    rows = {name.removeprefix(LEDGER): value for name, value in ps.items() if name.startswith(LEDGER)}
    return {name: [int(count) for count in row][:OF_LEDGER] for name, row in rows.items() if "/replica" not in name}


def attempt_of(seen: Seen) -> int:
    return int(
        max((value[0] for name, value in seen.held.ps.items() if name.startswith("psruntime/round/")), default=0)
    )


def step_of(seen: Seen) -> int:
    return int(seen.held.ps[f"{MASTER}global_step"][0])


def _on_ps(read: Callable[[Values], Any]) -> Callable[[Case], Answer]:
    def find(case: Case) -> Answer:
        only = case.lost_ps if case.copies and not all(_is_whole(copy) for copy in case.copies) else None
        before, after = (_on(seen, only) for seen in (case.before, case.after))
        if only is not None and _without(case.before, only) != _without(case.after, only):
            return "a ps that was not lost has changed"
        first = read(case.first.held.ps) if only is None else None
        return compared(read(after), read(before), [read(copy.ps) for copy in case.copies], first)

    return find


def _shared(case: Case) -> Answer:
    """It is on one ps.  If another was lost, alone, this one is kept; one on the lost ps is what VARIABLES shows."""
    if case.lost_ps is None or all(_is_whole(copy) for copy in case.copies):
        return _on_ps(shared_of)(case)
    assert case.before.held.where[SHARED] != case.lost_ps, "then it is to be compared with the replica"
    kept = compared(shared_of(case.after.held.ps), shared_of(case.before.held.ps))
    return Fate.LOST if kept is Fate.KEPT else kept


def _is_whole(copy: Copy) -> bool:
    return f"{MASTER}global_step" in copy.ps


def _on(seen: Seen, only: int | None) -> Values:
    return {name: value for name, value in seen.held.ps.items() if only in (None, seen.held.where[name])}


def _without(seen: Seen, ps: int) -> Values:
    """What the other ps have of the model."""
    return {
        name: value
        for name, value in seen.held.ps.items()
        if seen.held.where[name] != ps and name.startswith((MASTER, "optimizer/")) and "/replica" not in name
    }


def _step(case: Case) -> Answer:
    copies = [int(copy.ps[f"{MASTER}global_step"][0]) for copy in case.copies if _is_whole(copy)]
    return compared(step_of(case.after), step_of(case.before), copies, step_of(case.first))


def _copies_of(names: Collection[str]) -> Callable[[Case, int], Answer]:
    def find(case: Case, worker: int) -> Answer:
        whose = case.before.chief if case.started else worker
        before = [case.before.held.workers[whose][name] for name in names]
        after = [case.after.held.workers[worker][name] for name in names]
        copies = [[copy.copies[name] for name in names] for copy in case.copies if set(names) <= set(copy.copies)]
        return compared(after, before, copies, [case.first.held.workers[worker][name] for name in names])

    return find


def _residue(case: Case, worker: int) -> Answer:
    before, after = (_residues(seen.held.workers[worker]) for seen in (case.before, case.after))
    return compared(after, before, (), {name: [0.0] * len(value) for name, value in before.items()})


def _residues(values: Values) -> Values:
    return {name: value for name, value in values.items() if name.startswith("psruntime/residue/kernel")}


def _input(case: Case, worker: int) -> Answer:
    before, later = case.before.diaries[worker], case.later.diaries[worker]
    new = later.numbers[len(before.numbers) if later.pid == before.pid else 0 :]
    if not new:
        return "no batch was drawn after it"
    if later.pid == before.pid and new[0] - before.numbers[-1] in (0, BATCH):
        return Fate.KEPT
    return Fate.NEW if new[0] == 0 else f"it continues at {new[0]}, after {before.numbers[-1]}"


def _seed(case: Case, worker: int) -> Answer:
    before, after = case.before.diaries[worker], case.after.diaries[worker]
    if after.pid == before.pid:
        return Fate.KEPT if after.seed == before.seed else "it changes within a process"
    if after.seed == before.seed:
        return Fate.KEPT
    return Fate.NEW


def _shards(case: Case) -> Answer:
    after = case.after.shards or case.position or (1, 0)  # a coordinator knows them once a worker asks
    copies = [copy.shards for copy in case.copies]
    return compared(after, case.before.shards, copies, (1, 0))


def _best(case: Case) -> Answer:
    before, after, later = case.before.best, case.after.best, case.later.best
    if before is None:
        return "nothing was measured before it"
    if later == after == before:
        return Fate.KEPT
    is_another = later is not None and (after is None or later["global_step"] != before["global_step"])
    return Fate.NEW if is_another else f"it is {after}, then {later}"


def _ledger(case: Case) -> Answer:
    before, after, first = (ledgers_of(seen.held.ps) for seen in (case.before, case.after, case.first))
    if case.event is Event.DAMAGED:  # the damaged one may have been begun
        (copy,) = (ledgers_of(copy.ps) for copy in case.copies)
        is_older = all(row[APPLIED] == copy[name][APPLIED] < before[name][APPLIED] for name, row in after.items())
        return Fate.LOST if is_older and all(map(is_balanced, after.values())) else f"{after}; before {before}"
    if case.event is Event.OTHER_PS:
        before = {name: row for name, row in before.items() if name in after}
    if case.lost_ps is None:
        return compared(after, before, [ledgers_of(copy.ps) for copy in case.copies], first)
    for name, row in after.items():
        is_lost = case.after.held.where[LEDGER + name] == case.lost_ps
        undone = before[name][APPLIED] - row[APPLIED]
        if not is_balanced(row) or not _as_promised(row, before[name], undone, is_lost, _ledgers(case, name)):
            return f"the ledger of {name} is {row}, before {before[name]}"
    return Fate.LOST


def _ledgers(case: Case, name: str) -> list[list[int]]:
    """The rows in the copies, as far as these have them by this name; those of replicas are kept otherwise."""
    rows = (ledgers_of(copy.ps).get(name) for copy in case.copies)
    return [brought_back(row) for row in rows if row is not None]


def _as_promised(row: list[int], before: list[int], undone: int, is_lost: bool, saved: list[list[int]]) -> bool:
    if is_lost:
        return row in saved if saved else undone > 0 and row[ROLLED_BACK] == before[ROLLED_BACK]
    return row[RECEIVED] == before[RECEIVED] and row[ROLLED_BACK] == before[ROLLED_BACK] + undone


def _attempt(case: Case) -> Answer:
    before, after, later = map(attempt_of, (case.before, case.after, case.later))
    if not before:
        return "there was no attempt before it"
    if before <= after < later or (before == after == later and case.later.settings.mode != "sync"):
        return Fate.KEPT
    return Fate.NEW if later < before else f"after {before} it is {after}, then {later}"


def _settings(case: Case) -> Answer:
    """All but the mode and bound where the event is their change."""

    def read(settings: Overrides) -> Any:
        is_change = case.event in (Event.COMMAND, Event.SCHEDULED)
        return settings.learning_rate_scale, None if is_change else (settings.mode, settings.bound)

    return compared(*(read(seen.settings) for seen in (case.after, case.before)), (), read(case.first.settings))


def _stage(case: Case) -> Answer:
    assert case.schedule
    if case.event is Event.WARM_START and step_of(case.after) == 0:
        return Fate.NEW if _follows(case.after, case.schedule) else "it is not that of step 0"
    return Fate.KEPT if _follows(case.after, case.schedule) else Fate.LOST


def _follows(seen: Seen, schedule: Schedule) -> bool:
    return seen.settings.automatic and seen.settings.mode == schedule.at(step_of(seen)).mode


_OF_WORKERS: Mapping[State, Callable[[Case, int], Answer]] = {
    State.RESIDUE: _residue, State.INPUT: _input, State.SEED: _seed,
}  # fmt: skip
_OF_JOB: Mapping[State, Callable[[Case], Answer]] = {
    State.VARIABLES: _on_ps(variables_of), State.SLOTS: _on_ps(slots_of), State.STEP: _step,
    State.SHARED: _shared, State.SHARDS: _shards,
    State.BEST: _best, State.LEDGER: _ledger, State.ATTEMPT: _attempt, State.SETTINGS: _settings,
    State.SCHEDULE: _stage,
}  # fmt: skip


def fate_on_disk(state: State, before: Seen, values: Values, facts: Mapping[str, Any], best: Any) -> Answer:
    """Of what a job leaves behind that has ended.  values, facts: of its last checkpoint, and the file beside it."""
    if read := {State.VARIABLES: variables_of, State.SLOTS: slots_of, State.SHARED: shared_of}.get(state):
        saved = {name if name.endswith("_power") else MASTER + name: value for name, value in values.items()}
        saved = {name: value for name, value in saved.items() if name.removeprefix(MASTER) not in _NOT_TRAINED}
        return Fate.KEPT if read(saved) == read(before.held.ps) else Fate.LOST
    if state in COPIES:
        chiefs = before.held.workers[before.chief]
        return Fate.KEPT if all(values[name] == chiefs[name] for name in COPIES[state]) else Fate.LOST
    found: dict[State, tuple[Any, Any]] = {
        State.STEP: (facts["global_step"], step_of(before)),
        State.LEDGER: (
            {name: row["ledger"] for name, row in facts["buckets"].items()}, ledgers_of(before.held.ps),
        ),
        State.BEST: (best, before.best),
        State.SHARDS: (_position_in(facts), before.shards),
    }  # fmt: skip
    if state in found:
        return Fate.KEPT if found[state][0] == found[state][1] else f"{found[state][0]}, before {found[state][1]}"
    held = json.dumps(facts) + " ".join(values)
    words = {State.RESIDUE: "residue", State.INPUT: "batch", State.SEED: "seed", State.ATTEMPT: "attempt"}
    words |= {State.SETTINGS: "learning_rate_scale"}
    return f"the checkpoint has a {words[state]}" if words[state] in held else Fate.LOST


def _position_in(facts: Mapping[str, Any]) -> tuple[int, int] | None:
    position = facts.get("position")
    return (position["epoch"], sum(end - begin for begin, end in position["done"])) if position else None


_NOT_TRAINED = {"global_step", *(name for names in COPIES.values() for name in names)}
