"""A job of honest members on a real coordinator, for commands: each follows its instructions, one heartbeat at a time.

A worker is a `Stepper`: it begins a step unless it holds, ends it with its next turn, and says so.  In mode sync it
takes turns.  What it begins is checked against what every ps has written.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from psruntime.config import JobConfig
from psruntime.config.schedule import Schedule
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import (
    GraphsBuilt,
    Instructions,
    Join,
    LeaveKind,
    Prepared,
    PsBeat,
    WorkerBeat,
)
from psruntime.core.members.view import UNKNOWN, Past, Phase
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.rounds.round_messages import Action, ActionKind, Applied, Pushed, Report
from psruntime.core.steering.barrier import BarrierState
from psruntime.core.steering.commands import UNCHANGED, Command, Kind, Overrides, Reply
from psruntime.errors import PsRuntimeError, ReplacedError

MODEL = (VariableSpec("kernel", (4,), "float32"),)
BATCH = 8.0


@dataclass
class Ps:
    """What a ps has written, and what it will tell the next coordinator."""

    incarnation: int
    past: Past = UNKNOWN
    wrote: int = 0
    settings: Overrides | None = None


@dataclass
class Stepper:
    """A worker.  began: the settings of the ps when its step began; None: it is in none.  mode: of its session."""

    incarnation: int
    past: Past = UNKNOWN
    view: int = 0
    steps: int = 0
    began: list[Overrides] | None = None
    pulled: int = 0  # how many steps had ended then
    mode: str = ""
    stuck: bool = False  # in a step
    report: Report | None = None  # mode sync: what it says with its next turn
    is_local: bool = False  # what it is at, in mode sync
    work: tuple[int, int, bool] | None = None  # the same: round, attempt and whether it closes, under way
    batches: int = 0
    saved: int | None = None
    heard: Instructions | None = None
    step_s: tuple[float, ...] = ()  # how long it says that its last steps took
    graphs: set[bool] = field(default_factory=set)  # those that it has: of mode sync, of the others
    ready: set[bool] = field(default_factory=set)  # those that it says it has: not that of a mode that it left
    builds_slowly: bool = False  # it builds none at the moment
    failure: str = ""  # why it cannot build another
    failed: tuple[str, int] = ("", 0)  # what it says of that, and of which change


@dataclass
class Seen:
    """What a history has met."""

    steps: int = 0
    bounded: int = 0  # of the steps
    local_rounds: set[int] = field(default_factory=set)
    rounds: dict[int, float] = field(default_factory=dict)  # round -> the learning rate scale that it was closed with


class SteeredJob:
    """Two ps and two workers, in training.  Times in seconds; a `run` of n is n of them, with a beat of everybody."""

    def __init__(self, specs: tuple[VariableSpec, ...] = MODEL, **settings: Any) -> None:
        self.job = JobConfig(**{"ps": 2, "min_workers": 2, "max_workers": 4, "lease_s": 4.0, **settings})
        self.specs = specs
        self.now_s = 0.0
        self.core = Coordinator(self.job, 0.0)
        self.numbers, self.requests = count(1), count(1)
        self.ps: dict[int, Ps] = {}
        self.steppers: dict[int, Stepper] = {}
        self.global_step = 0
        self.facts: list[tuple[str, dict[str, Any]]] = []
        self.records: list[dict[str, Any]] = []  # of the rounds log
        self.seen = Seen()
        for role, index in ((Role.PS, 0), (Role.PS, 1), (Role.WORKER, 0), (Role.WORKER, 1)):
            self.join(role, index)

    # Operators.

    def ask(self, kind: Kind, request_id: str = "", by: str = "127.0.0.1:9", **facts: Any) -> str:
        """Returns the request's id."""
        name = request_id or f"request {next(self.requests)}"
        self.core.control(Command(kind, name, by, **facts), self.now_s)
        self.collect()
        return name

    def reply(self, request_id: str) -> Reply:
        return self.core.control_reply(request_id)

    # Members.

    def join(self, role: Role, index: int, past: Past | None = None) -> None:
        members: dict[int, Any] = self.ps if role is Role.PS else self.steppers
        if index in members or self.core.state.phase.over:
            return
        number = next(self.numbers)
        address, specs = f"127.0.0.1:{5000 + number}", self.specs if role is Role.WORKER else ()
        join = Join(role, index, address, address, f"join {number}", self.job.job_id, 0.0, specs, past or UNKNOWN)
        incarnation = self.core.join(join, number, self.now_s).incarnation  # type: ignore[union-attr]
        members[index] = (Ps if role is Role.PS else Stepper)(incarnation, past or UNKNOWN)
        if role is Role.WORKER:
            self.steppers[index].graphs = self.built_at_start()
            self.steppers[index].ready = {*self.steppers[index].graphs}
        self.collect()

    def built_at_start(self) -> set[bool]:
        """The graphs of a worker that joins.  Where a change is made already it builds the other when it gets there."""
        state = self.core.state
        if state.steering.barrier.state in (BarrierState.PAUSE, BarrierState.APPLY):
            return {True, False}
        modes = [stage.mode for stage in state.schedule.stages] if state.schedule else [state.mode]
        return {mode == "sync" for mode in modes}

    def lose(self, role: Role, index: int) -> None:
        members: dict[int, Any] = self.ps if role is Role.PS else self.steppers
        if index in members:
            self.core.confirm_lost(members.pop(index).incarnation, self.now_s)
            self.collect()

    def go_back(self, steps: int) -> None:
        """With the next view: what is lost is restored from a checkpoint."""
        self.global_step = max(0, self.global_step - steps)
        self.seen.rounds = {number: scale for number, scale in self.seen.rounds.items() if number <= self.global_step}

    def lose_the_coordinator(self) -> None:
        """With ps 0; the others join the next one, and tell it what they remember.  Their steps go on meanwhile."""
        pasts = {(Role.PS, i): ps.past for i, ps in self.ps.items() if i}
        pasts |= {(Role.WORKER, i): worker.past for i, worker in self.steppers.items()}
        steppers = self.steppers
        self.core = Coordinator(self.job, self.now_s)
        self.ps, self.steppers = {i: ps for i, ps in self.ps.items() if i}, {}
        others, self.ps = self.ps, {}
        self.join(Role.PS, 0)
        for (role, index), past in pasts.items():
            self.join(role, index, past)
        for index, ps in others.items():
            self.ps[index].settings = ps.settings  # of variables, which the process has
        for index, before in steppers.items():
            worker = self.steppers[index]
            worker.began, worker.stuck, worker.batches = before.began, before.stuck, before.batches
            worker.mode = before.mode  # of the step that is under way: one of a round is not begun anew by itself
            # The mode may be an older one again, for which it builds when it gets there.
            worker.ready, worker.graphs = {True, False}, {True, False}
            worker.builds_slowly, worker.failure = before.builds_slowly, before.failure

    def ps_told(self, index: int) -> Instructions:
        return self.core.answer(Role.PS, index, self.ps[index].incarnation).instructions

    def worker_told(self, index: int) -> Instructions:
        return self.core.answer(Role.WORKER, index, self.steppers[index].incarnation).instructions

    def beat_ps(self, index: int) -> None:
        """A ps writes its instructions, and reports that."""
        ps = self.ps.get(index)
        if ps is None:
            return
        instructions = self.ps_told(index)
        ps.wrote, ps.settings = instructions.fence_revision, instructions.settings
        ps.past = ps.past.after(instructions.phase.prepared, instructions.saved_step, instructions.seen_step).steered(
            instructions.settings
        )
        step = self.global_step if index == 0 and instructions.phase.prepared else 0
        with suppress(PsRuntimeError):
            self.core.heartbeat(
                Role.PS, index, ps.incarnation, PsBeat(ps.wrote, instructions.view.number, step), self.now_s
            )
        self.collect()

    def beat_workers(self) -> None:
        for index in list(self.steppers):
            self.beat_worker(index)

    def beat_worker(self, index: int) -> None:
        """One move of a worker: it hears, ends a step or begins one, and says so."""
        worker = self.steppers.get(index)
        if worker is None:
            return
        try:
            worker.heard = instructions = self.worker_told(index)
        except ReplacedError:  # it was cut off
            del self.steppers[index]
            return
        if not instructions.phase.over:
            worker.past = worker.past.after(
                instructions.phase.prepared, instructions.saved_step, instructions.seen_step
            )
            worker.past = worker.past.steered(instructions.settings)
        with suppress(ReplacedError):
            self.prepare_or_close(index, worker, instructions)
            if instructions.phase.prepared and instructions.admitted_by_ps and worker.view != instructions.view.number:
                worker.view, worker.steps = instructions.view.number, 0
                worker.report = worker.work = None
                again = worker.began is not None and "sync" not in (worker.mode, instructions.settings.mode)
                worker.mode, worker.ready = instructions.settings.mode, {instructions.settings.mode == "sync"}
                worker.began = self.written() if again else None  # what was interrupted is begun anew
                worker.pulled = self.seen.steps
            if instructions.phase.prepared and worker.view == instructions.view.number and not worker.stuck:
                (self.next_action if worker.mode == "sync" else self.step)(index, worker, instructions)
            self.say(index, worker)
        if instructions.leave and worker.began is None and index in self.steppers:
            self.core.leave(Role.WORKER, index, worker.incarnation, LeaveKind.ASKED, "asked to stop", self.now_s)
            del self.steppers[index]
        self.collect()

    def say(self, index: int, worker: Stepper) -> None:
        instructions = worker.heard
        assert instructions is not None
        if instructions.build and not worker.builds_slowly and not worker.failure:
            worker.graphs.add(instructions.build == "sync")
            worker.ready.add(instructions.build == "sync")
        if instructions.build_number != worker.failed[1]:
            worker.failed = (
                (worker.failure, instructions.build_number) if instructions.build and worker.failure else ("", 0)
            )
        graphs = GraphsBuilt(True in worker.ready, False in worker.ready, *worker.failed)
        if instructions.save and instructions.chief and worker.view == instructions.view.number:
            worker.saved = self.global_step
        stopped = instructions.phase is Phase.DRAINING and worker.began is None
        paused = instructions.pause_epoch if worker.began is None else 0
        step = self.global_step if worker.view == instructions.view.number else 0
        beat = WorkerBeat(
            worker.view, worker.steps, step, stopped, saved_step=worker.saved, asked_to_stop=instructions.leave,
            paused_epoch=paused, step_times_s=worker.step_s, graphs=graphs,
        )  # fmt: skip
        self.core.heartbeat(Role.WORKER, index, worker.incarnation, beat, self.now_s)

    def prepare_or_close(self, index: int, worker: Stepper, instructions: Instructions) -> None:
        if instructions.chief and instructions.phase is Phase.PREPARING and instructions.admitted_by_ps:
            attempt = self.core.state.sync.rounds.attempt
            prepared = Prepared(self.global_step, attempt)
            self.core.report_prepared(index, worker.incarnation, instructions.view.number, prepared, self.now_s)
        if instructions.chief and instructions.close:
            self.core.report_finished(index, worker.incarnation, instructions.view.number, self.now_s)

    def step(self, index: int, worker: Stepper, instructions: Instructions) -> None:
        """Modes async and bounded: ends the step, or begins one if it may."""
        if worker.began is not None:
            self.check_step(worker.began)
            worker.began = None
            self.check_staleness(worker)
            worker.steps += 1
            self.global_step += 1
            self.seen.steps += 1
        elif (
            instructions.phase is Phase.TRAINING
            and not instructions.pause_epoch
            and not instructions.leave
            and self.opens(worker, instructions)
        ):
            worker.began, worker.pulled = self.written(), self.seen.steps
            worker.mode = instructions.settings.mode
            self.check_mode(worker)
            if worker.mode == "bounded":
                assert {settings.bound for settings in worker.began} == {instructions.settings.bound}, (
                    "a ps has another bound"
                )

    def opens(self, worker: Stepper, instructions: Instructions) -> bool:
        """Mode bounded: whether the worker is within the bound."""
        lead = instructions.clock + worker.steps - self.core.state.pace.floor
        return instructions.settings.mode != "bounded" or lead <= (instructions.settings.bound or 0)

    def check_staleness(self, worker: Stepper) -> None:
        """In mode bounded no step is staler than what the ps let pass."""
        limit = self.core.state.pace.max_staleness(self.core.state.members.count(Role.WORKER))
        if worker.mode == "bounded" and worker.view == self.core.state.view.number and limit is not None:
            assert self.seen.steps - worker.pulled <= limit, f"{self.seen.steps - worker.pulled} steps of others"
            self.seen.bounded += 1

    def next_action(self, index: int, worker: Stepper, instructions: Instructions) -> None:
        """Mode sync: ends its work, says so, and begins what its next turn is."""
        if worker.work is not None:
            number, attempt, closes = worker.work
            if closes:
                self.close(number)
                worker.report = Applied(number, attempt, number)
            else:
                worker.report = Pushed(number, attempt, worker.batches, BATCH, apart=worker.is_local)
                worker.batches += 1
            worker.work = worker.began = None
        if instructions.leave and worker.report is None:
            return
        action = self.core.next_action(index, worker.incarnation, worker.view, worker.report, self.now_s)
        worker.report = None
        if action.kind in (ActionKind.PUSH, ActionKind.APPLY) and not instructions.leave:
            worker.work = (action.round, action.attempt, False)
            if action.kind is ActionKind.APPLY and action.closes is not None:
                worker.work = (action.closes.round, action.closes.attempt, True)
            elif action.closes is not None:
                self.close(action.closes.round)
            worker.began = self.written()
            worker.is_local = action.local
            self.check_mode(worker)
            self.check_local(action)
            if action.kind is ActionKind.PUSH:
                self.check_step(worker.began)

    def check_local(self, action: Action) -> None:
        """A round is local in a local stage and nowhere else, while the schedule is followed."""
        is_local = action.closes.local if action.closes and action.kind is ActionKind.APPLY else action.local
        if is_local:
            schedule = Schedule.of(self.job.schedule)
            assert schedule is not None and schedule.local_end_at(action.round - 1) == action.round
            assert self.global_step >= action.round or schedule.local_end_at(self.global_step) == action.round
            self.seen.local_rounds.add(action.round)

    def close(self, number: int) -> None:
        """A round is applied on every ps, with the scale that each has written then; a repeat changes nothing."""
        (scale,) = {settings.learning_rate_scale for settings in self.written()}
        self.seen.rounds.setdefault(number, scale)
        self.global_step = max(self.global_step, number)

    def written(self) -> list[Overrides]:
        """By the ps of the view."""
        view = {entry.incarnation for entry in self.core.state.view.ps}
        return [ps.settings or UNCHANGED for ps in self.ps.values() if ps.incarnation in view]

    def check_mode(self, worker: Stepper) -> None:
        """A step begins in the mode that is in force, which every ps of the view has in its instructions."""
        assert worker.began is not None
        assert (worker.mode == "sync") in worker.graphs, f"it has no graph of mode {worker.mode}"
        modes = {settings.mode for settings in worker.began} | {self.core.state.mode}
        if len(worker.began) == self.job.ps:
            assert modes == {worker.mode}, f"a step of mode {worker.mode} begins where {modes} are in force"

    def check_step(self, began: list[Overrides]) -> None:
        """Every ps goes by the same settings while a step is under way, and they are those in force when it began."""
        now = self.written()
        if len(now) == len(began) == self.job.ps:
            rules = [replace(settings, revision=0, from_global_step=0, automatic=False) for settings in (*began, *now)]
            assert len(set(rules)) == 1, f"begun under {began}, ended under {now}"
            if not (self.job.schedule or self.job.bound_range):  # by leaving which only the revision changes
                assert len({settings.revision for settings in (*began, *now)}) == 1, f"begun under {began}: {now}"

    # Time.

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.core.advance(self.now_s)
            self.collect()
            self.beat_workers()
            for index in list(self.ps):
                self.beat_ps(index)

    def collect(self) -> None:
        effects = self.core.take_effects()
        self.facts += [(event.name, event.facts) for event in effects.events]
        self.records += [dict(record) for record in effects.records]
        for record in effects.records:
            if record["record"] == "round" and record["round"] in self.seen.rounds:
                said = record.get("learning_rate_scale", 1.0)
                assert self.seen.rounds[record["round"]] == said, "the record has another scale than the ps"

    def take_events(self) -> list[str]:
        """Their names, since the last call."""
        return [name for name, _ in self.take_all()]

    def take_facts(self, *names: str) -> list[list[dict[str, Any]]]:
        """Of the events of each name, since the last call."""
        events = self.take_all()
        return [[facts for event, facts in events if event == name] for name in names]

    def take_all(self) -> list[tuple[str, dict[str, Any]]]:
        events, self.facts = self.facts, []
        return events
