"""What becomes of each state at each event: the table of tools/states.py, each cell of which is played on a job.

A job is taken through the events, one after the other, and started again from what it left.  What it knows is read from
its servers before and after each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from psruntime.config.schedule import Schedule
from psruntime.core.accounting.saved_state import SUFFIX
from tests.cluster.state_fates import COPIES, Case, Copy, fate_of, fate_on_disk
from tests.cluster.state_trial import COMMON, KINDS, NEVER, WAIT_S, WORKERS, Seen, Trial, copy_of
from tests.cluster.test_control import asked  # noqa: F401 - a fixture
from tests.support import inventory
from tests.support.cluster import Zygote, cluster
from tests.support.snapshot import Values
from tools.states import LOGGED, TABLE, Event, Fate, State

pytestmark = pytest.mark.cluster

REPLICATED = {
    "replicated in sync": Event.REPLICA_SYNC, "replicated in async": Event.REPLICA_ASYNC,
    "sharded, replicated in sync": Event.REPLICA_SYNC, "sharded, replicated in async": Event.REPLICA_ASYNC,
}  # fmt: skip
WHILE_IT_RUNS = {
    Event.EVALUATION, Event.EXPORT, Event.PAUSE, Event.WORKER, Event.CHIEF, Event.PS, Event.COORDINATOR, Event.DRAIN,
    Event.WHOLE, Event.DELTA, Event.DAMAGED, Event.OTHER_PS, Event.WARM_START,
}  # fmt: skip
DRIVEN: dict[str, tuple[set[Event], set[State]]] = {  # by the kind of the job
    "scheduled": (WHILE_IT_RUNS | {Event.COMMAND, Event.SCHEDULED}, set(State) - {State.SHARDS}),
    "sharded": (WHILE_IT_RUNS, set(State) - {State.INPUT, State.ATTEMPT, State.SCHEDULE}),
    "replicated in sync": ({Event.REPLICA_SYNC}, set(State) - {State.SHARDS, State.SCHEDULE}),
    "replicated in async": ({Event.REPLICA_ASYNC}, set(State) - {State.SHARDS, State.SCHEDULE}),
    "sharded, replicated in sync": ({Event.REPLICA_SYNC}, {State.SHARDS}),
    "sharded, replicated in async": ({Event.REPLICA_ASYNC}, {State.SHARDS}),
}


@dataclass
class Book:
    """The cells that a job has shown, and what was wrong with them."""

    kind: str
    played: set[tuple[State, Event]] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def states(self, event: Event) -> list[State]:
        """Those that such a job can show."""
        states = DRIVEN[self.kind][1]
        return [state for state in State if state in states and TABLE[state][event].fate is not Fate.NONE]

    def judge(self, case: Case, workers: Sequence[int] = range(WORKERS)) -> None:
        for state in self.states(case.event):
            self.note(state, case.event, fate_of(state, case, workers))

    def note(self, state: State, event: Event, seen: Fate | str) -> None:
        self.played.add((state, event))
        says = TABLE[state][event].fate
        if seen is not says:
            found = seen.value if isinstance(seen, Fate) else seen
            self.wrong.append(f"{state.name} x {event.name}: the table says {says.value}; it is: {found}")
            print(self.wrong[-1])  # also where the story does not come to its end

    def close(self) -> None:
        assert not self.wrong, "\n".join(self.wrong)
        events, states = DRIVEN[self.kind]
        assert self.played == {(s, e) for e in events for s in states if TABLE[s][e].fate is not Fate.NONE}


class Story:
    """A job of a kind, and what it becomes."""

    def __init__(self, kind: str, zygote: Zygote, folder: Path, asked: Any) -> None:  # noqa: F811
        self.book = Book(kind)
        self._zygote, self._folder, self._asked = zygote, folder, asked
        self._settings = {**COMMON, **KINDS[kind]}
        self._schedule = Schedule.of(self._settings.get("schedule", ""))
        self.left = folder / "left"  # the checkpoints of the first job

    @contextmanager
    def trial(self, name: str, checkpoints: Path, **more: Any) -> Iterator[Trial]:
        """A job, which has ended at the end, or is killed."""
        folder = self._folder / name
        folder.mkdir()
        settings = {**self._settings, "checkpoint_dir": checkpoints, **more}
        with cluster(self._zygote, folder, **settings) as job:
            trial = Trial(job, self._zygote, self._asked(job), checkpoints, "sharded" in self.book.kind)
            yield trial
            trial.kill_all()

    def begin(self, trial: Trial) -> None:
        self.trial_now = trial
        self.first = trial.look()
        trial.control("learning-rate-scale", 0.5)
        self.saved = self._saved()

    def _saved(self) -> Seen:
        """After some steps, and a checkpoint which is measured."""
        self.trial_now.move()
        self.trial_now.save()
        return self.trial_now.look()

    def play(
        self, event: Event, act: Callable[[Seen], dict[str, Any]], is_ready: Callable[[Seen], bool] = lambda _: True
    ) -> None:
        """act: given what is before; returns what of the case it decides, and `workers`, whom to look at.

        is_ready: whether what is before can show it; if not, the job moves on.
        """
        self.trial_now.move()
        while not (is_ready(before := self.trial_now.look()) and self._shows_copies(before)):
            self.trial_now.move()
        lines = self._told(event)
        facts = act(before)
        workers = facts.pop("workers", range(WORKERS))
        after, copies = self.trial_now.look(), facts.pop("copies", [Copy.of(self.saved)])
        assert not LOGGED[event] or self._told(event) > lines, f"{event.name}: no line of the log says {LOGGED[event]}"
        self.saved = self._saved()
        case = Case(
            event,
            self.first,
            before,
            after,
            self.saved,
            copies,
            schedule=self._schedule,
            position=self.trial_now.position(),
            **facts,
        )
        self.book.judge(case, workers)

    def _shows_copies(self, before: Seen) -> bool:
        """Whether each worker's own copies are others than the chief's of the newest checkpoint."""
        saved = self.saved.held.workers[self.saved.chief]
        own = [before.held.workers[worker] for worker in range(WORKERS)]
        return all(values[name] != saved[name] for values in own for name in COPIES[State.OWN])

    def _told(self, event: Event) -> int:
        """How often a log says it."""
        return sum(proc.text.count(f" {LOGGED[event]} ") for proc in self.trial_now.job.procs)

    def start_again(self, event: Event, trial: Trial, before: Seen, copies: Sequence[Copy] = ()) -> Seen:
        """Judges what a job began with; returns it after some steps and a checkpoint."""
        self.trial_now = trial
        after = trial.look()
        assert self._told(event), f"{event.name}: no line of the log says {LOGGED[event]}"
        later = self._saved()
        case = Case(
            event, self.first, before, after, later, copies, started=True, schedule=self._schedule,
            position=trial.position(),
        )  # fmt: skip
        self.book.judge(case)
        return later


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["scheduled", "sharded"])
def test_a_job_through_every_event(kind: str, zygote: Zygote, tmp_path: Path, asked: Any) -> None:  # noqa: F811
    story = Story(kind, zygote, tmp_path, asked)
    with story.trial("first", story.left) as trial:
        story.begin(trial)
        while_it_runs(story, trial, zygote)
        before = drained(story, trial, zygote)
    for name in ("again", "fewer", "warm"):
        copy_of(story.left, name)
    with story.trial("whole", tmp_path / "again", delta_every=NEVER - 1) as trial:
        with_delta = started_from_a_whole_one(story, trial, before, tmp_path / "delta")
    damage(copy_of(tmp_path / "delta", "damaged"))
    with story.trial("from-delta", tmp_path / "delta") as trial:
        story.start_again(Event.DELTA, trial, with_delta)
    with story.trial("from-damaged", tmp_path / "damaged") as trial:
        story.start_again(Event.DAMAGED, trial, with_delta, [Copy.of(before)])
    with story.trial("other-ps", tmp_path / "fewer", ps=1) as trial:
        story.start_again(Event.OTHER_PS, trial, before)
    with story.trial("new", tmp_path / "new", warm_start=tmp_path / "warm") as trial:
        story.start_again(Event.WARM_START, trial, before)
    story.book.close()


def while_it_runs(story: Story, trial: Trial, zygote: Zygote) -> None:
    def save(before: Seen) -> dict[str, Any]:
        trial.save()
        return {"copies": []}

    def export(before: Seen) -> dict[str, Any]:
        flags = [f"--checkpoint-dir={story.left}", "--model=tests.cluster.state_models", f"--out={trial.job.folder}/e"]
        proc = zygote.start("export", ["export", *flags, f"--data-dir={trial.diaries}"], trial.job.folder / "e.log", [])
        assert proc.wait(WAIT_S) == 0, proc.text
        trial.job.procs.append(proc)
        return {}

    def pause(before: Seen) -> dict[str, Any]:
        trial.control("pause")
        return {}

    def lose(role: str, index: int, **facts: Any) -> dict[str, Any]:
        trial.replace(role, index)
        return facts

    def other_chief(before: Seen) -> dict[str, Any]:
        trial.replace("worker", before.chief)
        assert trial.look().chief != before.chief
        return {"workers": [worker for worker in range(WORKERS) if worker != before.chief]}

    def worker(before: Seen) -> dict[str, Any]:
        lost = next(worker for worker in range(WORKERS) if worker != before.chief)
        return lose("worker", lost, lost_worker=lost, workers=[lost])

    story.play(Event.EVALUATION, save)
    story.play(Event.EXPORT, export)
    story.play(Event.PAUSE, pause)
    story.play(Event.WORKER, worker)
    story.play(Event.CHIEF, other_chief)
    if story.book.kind == "scheduled":
        story.play(Event.COMMAND, lambda _: trial.control("mode", "async") and {})
        story.play(Event.SCHEDULED, lambda _: trial.control("mode", "schedule") and {})
    story.play(Event.PS, lambda _: lose("ps", 1, lost_ps=1))
    story.play(Event.COORDINATOR, lambda _: lose("ps", 0, lost_ps=0))


def drained(story: Story, trial: Trial, zygote: Zygote) -> Seen:
    """What it was before it was drained, in a mode that no flag says."""
    if story.book.kind == "scheduled":
        trial.control("mode", "async")
    trial.move()
    before = trial.look()
    trial.control("drain")
    ended = [proc.wait(WAIT_S) for proc in trial.job.procs if proc.code is None]
    assert set(ended) == {0}
    found = inventory.newest_checkpoint(story.left)
    assert found
    path, _ = found
    values = inventory.of_checkpoint(zygote, trial.job.folder, path).values
    facts = json.loads(Path(f"{path}{SUFFIX}").read_text())
    best = json.loads((story.left / "best" / "best.json").read_text())
    for state in story.book.states(Event.DRAIN):
        if state is State.SCHEDULE:  # a job that is started again says it
            story.book.played.add((state, Event.DRAIN))
        else:
            story.book.note(state, Event.DRAIN, fate_on_disk(state, before, values, facts, best))
    return before


def started_from_a_whole_one(story: Story, trial: Trial, before: Seen, delta: Path) -> Seen:
    """Leaves a copy of its folder when the newest checkpoint there is a delta; returns what it was then."""
    story.start_again(Event.WHOLE, trial, before)
    trial.control("learning-rate-scale", 0.5)
    trial.move()
    at_delta = trial.look()
    trial.control("save")
    copy_of(trial.checkpoints, delta.name)
    assert list(delta.glob("*.delta-*.index"))
    return at_delta


def damage(folder: Path) -> None:
    """Cuts the newest checkpoint off, a delta."""
    (index,) = folder.glob("*.delta-*.index")
    index.write_bytes(index.read_bytes()[:20])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", REPLICATED)
def test_a_job_that_comes_back_from_a_replica(kind: str, zygote: Zygote, tmp_path: Path, asked: Any) -> None:  # noqa: F811
    story = Story(kind, zygote, tmp_path, asked)
    with story.trial("first", story.left) as trial:
        story.begin(trial)

        def lose(before: Seen) -> dict[str, Any]:
            trial.replace("ps", 1)
            return {
                "lost_ps": 1,
                "copies": [replica_of(before, number, kind, story.saved.shards) for number in range(2)],
            }

        def is_ready(before: Seen) -> bool:
            """Whether the newest replica is newer than the checkpoint, and two steps older than the variables.

            In mode sync the workers' copies in it are those of one step later.
            """
            steps = [int(step_of_ps(replica_of(before, number, "sync", None).ps)) for number in range(2)]
            return step_of_ps(story.saved.held.ps) < max(steps) <= step_of_ps(before.held.ps) - 2

        story.play(REPLICATED[kind], lose, is_ready)
    story.book.close()


def step_of_ps(ps: Values) -> float:
    return ps.get("psruntime/master/global_step", [0.0])[0]


def replica_of(before: Seen, number: int, kind: str, shards: tuple[int, int] | None) -> Copy:
    """What a buffer of the replicas held: in mode sync of all ps, else of the one that is lost.

    shards: the position, which no replica has.
    """
    end = f"/replica_{number}"
    held = {name.removesuffix(end): value for name, value in before.held.ps.items() if name.endswith(end)}
    wanted = {name: value for name, value in held.items() if "sync" in kind.split() or before.held.where[name] == 1}
    copies = {name.removeprefix("psruntime/home/"): value for name, value in wanted.items()}
    return Copy(wanted, copies, shards)


def test_every_cell_is_played() -> None:
    played = {(state, event) for events, states in DRIVEN.values() for event in events for state in states}
    cells = {(state, event) for state in State for event in Event if TABLE[state][event].fate is not Fate.NONE}
    assert not cells - played
