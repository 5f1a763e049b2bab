"""A coordinator under watch: every call goes through a model that knows what must come of it.

The model is slower and plainer than the coordinator: it counts the silence of each member instead of keeping
leases, and remembers everything that anybody was ever told.  laws.py has what must hold after each call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from psruntime.config import JobConfig
from psruntime.core.coordinator import Coordinator
from psruntime.core.facts import Answer, Join, LeaveKind, NotYet, PsBeat, WorkerBeat
from psruntime.core.membership import Role
from psruntime.core.plan import VariableSpec
from psruntime.core.view import Phase
from psruntime.errors import (
    IndexHeldError,
    JobDoneError,
    JobFailedError,
    ModelDiffersError,
    PsRuntimeError,
    ReplacedError,
    UsageError,
)
from tests.core import laws

Admitted = tuple[tuple[int, int], ...]  # (worker index, incarnation), by index
FIRST_INCARNATION = 1000  # so that nobody takes one for an index


@dataclass
class Seat:
    """What the model knows of one live member."""

    join: Join
    heard_s: float  # when it was admitted or last heard
    silent_s: float = 0.0  # since then, as far as the coordinator was running
    base: int = 0  # worker: its clock when it was admitted, or when the view began
    clock: int = 0
    retired: bool = False  # worker: it has said in this view that it takes no further step
    beat: WorkerBeat = field(default_factory=WorkerBeat)
    wrote: int | None = None  # ps: the fence revision that it last reported, if it had been told it by then


@dataclass
class Gone:
    """A worker that left or was lost, while an update that was pulled before may be under way."""

    for_s: float = 0.0
    unmoved: dict[int, int] = field(default_factory=dict)  # who was there -> reports of progress still to come


class Watched:
    """Calls go in here; an AssertionError comes out when the coordinator breaks a law."""

    def __init__(self, job: JobConfig) -> None:
        self.job = job
        self.core = Coordinator(job, 0.0)
        self.now_s = self.judged_s = 0.0
        self.live: dict[int, Seat] = {}  # by incarnation
        self.joins: dict[int, Join] = {}  # by incarnation: all that ever asked, admitted or not
        self.asked_s: dict[str, float] = {}  # join id -> when it was first asked
        self.missing_s: dict[int, float] = {}  # lost ps, by index: for how long
        self.gone: list[Gone] = []
        self.chief: int | None = None  # incarnation
        self.specs: tuple[VariableSpec, ...] | None = None
        self.floor = self.global_step = self.steps_lost = 0
        self.had_all_stopped = False  # when the latest call began
        self.unsettled_s = job.lease_s  # for which workers may yet return that were lost, or were there before
        self.told: dict[int, Answer] = {}  # by incarnation: the last answer
        self.fences: dict[int, dict[int, Admitted]] = {}  # ps incarnation -> fence revision -> table, as it was told
        self.seen: Counter[str] = Counter()  # what happened, so that a test can show that it did

    # Calls.

    def join(self, join: Join) -> None:
        self.pass_time()
        asked_s = self.asked_s.setdefault(join.join_id, self.now_s)
        join = replace(join, waited_s=self.now_s - asked_s)
        incarnation = FIRST_INCARNATION + len(self.joins)
        self.joins[incarnation] = join
        kind, holder = self.verdict(join, asked_s)
        if kind is Answer and holder is None:
            self.live[incarnation] = Seat(join, self.now_s, base=self.floor, clock=self.floor)
            if join.role is Role.PS:
                self.missing_s.pop(join.index, None)
            else:
                self.specs = join.specs
                self.chief = self.chief or incarnation
                self.pass_on_the_chief(self.core.phase)
        result = self.call("join", holder or incarnation, self.core.join, join, incarnation, self.now_s)
        assert type(result) is kind, result
        if isinstance(result, NotYet):
            assert (result.holder_incarnation, result.probe) == (holder, self.joins[holder].health_address)  # type: ignore[index]

    def verdict(self, join: Join, asked_s: float) -> tuple[type, int | None]:
        """What must come of a join, and who holds its index."""
        holder = self.holder(join.role, join.index)
        seat = self.live[holder] if holder else None
        if self.failing():
            return (JobDoneError if self.core.phase is Phase.DONE else JobFailedError), holder
        if not 0 <= join.index < (self.job.ps if join.role is Role.PS else self.job.max_workers):
            return UsageError, holder
        if ":" not in join.address:
            return UsageError, holder
        if any(is_loopback(join) != is_loopback(other.join) for other in self.live.values()):
            return UsageError, holder
        if join.role is Role.WORKER and self.specs not in (None, join.specs):
            return ModelDiffersError, holder
        if seat is None or seat.join.join_id == join.join_id:
            return Answer, holder
        return (IndexHeldError if seat.heard_s > asked_s else NotYet), holder

    def heartbeat(self, incarnation: int, beat: PsBeat | WorkerBeat) -> None:
        self.pass_time()
        join = self.joins[incarnation]
        if seat := self.live.get(incarnation):
            seat.heard_s, seat.silent_s = self.now_s, 0.0
            if isinstance(beat, PsBeat):
                seat.wrote = beat.fence_revision if beat.fence_revision in self.fences[incarnation] else None
            else:
                drains = self.core.phase is Phase.DRAINING and not self.view_is_void()
                overtaken = drains and seat.beat.stopped and seat.beat.view == beat.view
                seat.beat = replace(beat, stopped=True) if overtaken else beat
                if beat.view == self.core.view.number > 0:
                    self.move(incarnation, seat.base + beat.steps)
                    self.raise_floor()
                    if beat.stopped:
                        self.retire(incarnation)
            if beat.view == self.core.view.number and self.core.phase.prepared and not self.view_is_void():
                self.global_step = max(self.global_step, beat.global_step)
            self.pass_on_the_chief(self.core.phase)
        result = self.call(
            "heartbeat", incarnation, self.core.heartbeat, join.role, join.index, incarnation, beat, self.now_s
        )
        assert type(result) is (Answer if incarnation in self.live else ReplacedError), result

    def report_clock(self, incarnation: int, view: int, steps: int) -> int | None:
        """Returns the floor; None for one that is no member."""
        self.pass_time()
        seat = self.live.get(incarnation)
        if seat and view == self.core.view.number > 0:
            self.move(incarnation, seat.base + steps)
            self.raise_floor()
        index = self.joins[incarnation].index
        result = self.call(
            "report_clock", incarnation, self.core.report_clock, index, incarnation, view, steps, self.now_s
        )
        if seat is None or seat.join.role is Role.PS:
            assert type(result) is ReplacedError, result
            return None
        floor, reason = result
        assert floor == (self.floor if view == self.core.view.number else 0)
        if view == self.core.view.number:
            waits = not seat.retired and self.job.bound is not None and seat.clock - self.floor > self.job.bound
            assert (f"{seat.clock - self.floor} steps ahead of worker " in reason) if waits else reason == ""
            self.seen["has to wait"] += waits
        return int(floor)

    def report(self, incarnation: int, view: int, global_step: int | None) -> None:
        """`report_prepared`, or without a global step `report_finished`."""
        self.pass_time()
        index = self.joins[incarnation].index
        ready = view == self.core.view.number and incarnation == self.chief and not self.view_is_void()
        if global_step is None:
            arguments: tuple[Any, ...] = (self.core.report_finished, index, incarnation, view, self.now_s)
            drains = self.core.phase is Phase.DRAINING or (
                self.core.phase is Phase.TRAINING and self.settled and self.had_all_stopped
            )
            expected = Phase.DONE if ready and drains else None
        else:
            arguments = (self.core.report_prepared, index, incarnation, view, global_step, self.now_s)
            expected = Phase.TRAINING if ready and self.core.phase is Phase.PREPARING else None
            if expected:
                self.steps_lost += max(0, self.global_step - global_step)
                self.global_step = global_step
                self.pass_on_the_chief(Phase.TRAINING)
        result = self.call("report", incarnation, *arguments, moves_to=expected)
        accepted = incarnation in self.live and incarnation == self.chief
        assert type(result) is (Answer if accepted else ReplacedError), result

    def leave(self, incarnation: int, kind: LeaveKind) -> None:
        self.pass_time()
        join = self.joins[incarnation]
        fatal = kind is LeaveKind.FATAL and incarnation in self.live and not self.failing()
        self.drop(incarnation, for_good=fatal)
        result = self.call(
            f"leave {kind}", None, self.core.leave, join.role, join.index, incarnation, kind, "broke", self.now_s,
            moves_to=Phase.FAILED if fatal else None,
        )  # fmt: skip
        assert result is None

    def confirm_lost(self, incarnation: int) -> None:
        self.pass_time()
        self.lose(incarnation)
        assert self.call("confirm_lost", None, self.core.confirm_lost, incarnation, self.now_s) is None

    def advance(self) -> None:
        self.pass_time()
        assert self.call("advance", None, self.core.advance, self.now_s) is None

    def look(self, incarnation: int) -> None:
        join = self.joins[incarnation]
        result = self.call("standing", incarnation, self.core.standing, join.role, join.index, incarnation)
        assert type(result) is (Answer if incarnation in self.live else ReplacedError), result

    # The model.

    def holder(self, role: Role, index: int) -> int | None:
        """The live incarnation that holds an index."""
        return next((n for n, s in self.live.items() if (s.join.role, s.join.index) == (role, index)), None)

    def live_of(self, role: Role) -> list[int]:
        """Live incarnations of a role, by index."""
        return sorted((n for n, s in self.live.items() if s.join.role is role), key=lambda n: self.joins[n].index)

    def view_is_void(self) -> bool:
        return any(entry.incarnation not in self.live for entry in self.core.view.ps)

    def failing(self) -> bool:
        """Whether the job is over, or will be as soon as the coordinator looks at the time."""
        return self.core.phase.over or max(self.missing_s.values(), default=0.0) > self.job.ps_timeout_s

    def pass_time(self) -> None:
        self.fall_silent()
        self.had_all_stopped = laws.all_stopped(self)

    def fall_silent(self) -> None:
        """What the time since the last call does: it counts as silence, unless the coordinator was paused."""
        gap_s, self.judged_s = self.now_s - self.judged_s, self.now_s
        if gap_s > self.job.lease_s / 2:
            self.seen["paused"] += 1
            return
        for index in self.missing_s:
            self.missing_s[index] += gap_s
        self.unsettled_s -= gap_s
        for gone in self.gone:
            gone.for_s += gap_s
        self.gone = [gone for gone in self.gone if gone.for_s < self.job.lease_s or gone.unmoved]
        for seat in self.live.values():
            seat.silent_s += gap_s
        for incarnation in self.live_of(Role.PS) + self.live_of(Role.WORKER):
            if self.live[incarnation].silent_s < self.job.lease_s:
                continue
            self.lose(incarnation)
            self.seen["lease ended"] += 1

    @property
    def settled(self) -> bool:
        return self.unsettled_s <= 0

    def lose(self, incarnation: int) -> None:
        """Without a word, so it may return."""
        if incarnation in self.live_of(Role.WORKER) and self.core.view.number:
            self.unsettled_s = self.job.lease_s
        self.drop(incarnation)

    def drop(self, incarnation: int, for_good: bool = False) -> None:
        """Takes out a member; `for_good`: with it the job is over, and nobody follows as chief."""
        seat = self.live.pop(incarnation, None)
        if seat and seat.join.role is Role.WORKER:
            for gone in self.gone:
                gone.unmoved.pop(incarnation, None)
            others = [n for n in self.live_of(Role.WORKER) if self.core.view.number and not self.live[n].retired]
            self.gone.append(Gone(unmoved=dict.fromkeys(others, 2)))
        if seat and seat.join.role is Role.PS and self.core.view.number:
            self.missing_s[seat.join.index] = 0.0
        workers = self.live_of(Role.WORKER)
        if not workers and not self.core.view.number:
            self.specs = None
        if self.chief == incarnation and not self.core.phase.over and not for_good:
            busy = [n for n in workers if self.core.phase is Phase.TRAINING and not laws.has_stopped(self, n)]
            self.chief = next(iter(busy or workers), None)
        self.raise_floor()

    def pass_on_the_chief(self, phase: Phase) -> None:
        """The chief is one that trains, while the training goes on."""
        ends = self.job.train_steps is not None and self.global_step >= self.job.train_steps
        trains = phase is Phase.TRAINING and not ends and not self.view_is_void()
        if trains and laws.has_stopped(self, self.chief or 0):
            busy = [n for n in self.live_of(Role.WORKER) if not laws.has_stopped(self, n)]
            self.chief = busy[0] if busy else self.chief
            self.seen["chief passed on"] += bool(busy)

    def move(self, incarnation: int, clock: int) -> None:
        """A worker tells its clock."""
        if clock > self.live[incarnation].clock and not self.live[incarnation].retired:
            self.live[incarnation].clock = clock
            for gone in self.gone:
                gone.unmoved[incarnation] = gone.unmoved.get(incarnation, 0) - 1
                if gone.unmoved[incarnation] <= 0:
                    del gone.unmoved[incarnation]

    def retire(self, incarnation: int) -> None:
        """A worker has stopped: nobody waits for it any more."""
        self.live[incarnation].retired, self.live[incarnation].base = True, 0
        for gone in self.gone:
            gone.unmoved.pop(incarnation, None)
        self.raise_floor()

    def pacing(self) -> dict[int, int]:
        """Worker index -> clock, of those that may take a step."""
        seats = [self.live[n] for n in self.live_of(Role.WORKER)]
        return {seat.join.index: seat.clock for seat in seats if not seat.retired}

    def raise_floor(self) -> None:
        self.floor = max(self.floor, min(self.pacing().values(), default=0))

    def call(
        self,
        name: str,
        incarnation: int | None,
        method: Callable[..., Any],
        *arguments: Any,
        moves_to: Phase | None = None,
    ) -> Any:
        """Makes the call and checks everything; gives back the answer or the error.  `moves_to`: what it must do."""
        before = laws.Before.of(self.core)
        try:
            result = method(*arguments)
        except PsRuntimeError as error:
            result = error
        self.seen[f"{name}: {type(result).__name__}"] += 1
        if self.core.view.number != before.view.number:
            self.floor = 0
            for seat in self.live.values():
                seat.base = seat.clock = 0
                seat.retired = False
            for gone in self.gone:
                gone.unmoved = {}
        laws.check_events(self, before, moves_to)
        laws.check_state(self, before)
        if isinstance(result, Answer):
            assert incarnation is not None
            laws.check_answer(self, incarnation, result)
        return result


def is_loopback(join: Join) -> bool:
    return join.address.startswith("127.")
