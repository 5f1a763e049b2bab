"""What must come of the calls of a coordinator: a model of it, slower and plainer.

It counts the silence of each member instead of keeping leases, and remembers everything that anybody was ever told.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from psruntime.config import JobConfig
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.coordinator.job_state import JobState
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Join, NotYet, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.identity import ModelIdentity, differences
from psruntime.errors import (
    IndexHeldError,
    JobDoneError,
    JobFailedError,
    ModelDiffersError,
    OtherJobError,
    UsageError,
)
from tests.core.coordinator import laws

Admitted = tuple[tuple[int, int], ...]  # (worker index, incarnation), by index
FAILURES = 10  # of one process, without a step
FIRST_INCARNATION = 1000  # so that nobody takes one for an index


@dataclass
class LiveMember:
    """What the model knows of one live member."""

    join: Join
    heard_s: float  # when it was admitted or last heard
    silent_s: float = 0.0  # since then, as far as the coordinator was running
    base: int = 0  # worker: its clock when it was admitted, or when the view began
    clock: int = 0
    retired: bool = False  # worker: it has said in this view that it takes no further step
    beat: WorkerBeat = field(default_factory=WorkerBeat)
    rests: bool = False  # worker: it came, or had stopped, while the view drained
    wrote: int | None = None  # ps: the fence revision that it last reported, if it had been told it by then


@dataclass
class Gone:
    """A worker that left or was lost, while an update that was pulled before may be under way."""

    for_s: float = 0.0
    unmoved: dict[int, int] = field(default_factory=dict)  # who was there -> reports of progress still to come


class Expected:
    """What is expected of the coordinator `core` now, and what has been seen of it."""

    def __init__(self, job: JobConfig) -> None:
        self.job = job
        self.core = Coordinator(job, 0.0)
        self.now_s = self.judged_s = 0.0
        self.live: dict[int, LiveMember] = {}  # by incarnation
        self.joins: dict[int, Join] = {}  # by incarnation: all that ever asked, admitted or not
        self.asked_s: dict[str, float] = {}  # join id -> when it was first asked
        self.missing_s: dict[int, float] = {}  # lost ps, by index: for how long
        self.gone: list[Gone] = []
        self.chief: int | None = None  # incarnation
        self.specs: tuple[VariableSpec, ...] | None = None
        self.identity: ModelIdentity | None = None
        self.floor = self.global_step = self.steps_lost = 0
        self.had_all_stopped = False  # when the latest call began
        self.drains = False  # whether the job drained when the latest call began
        self.waits: object = None  # what the end waited for then
        self.waited_s = 0.0  # for how long, as far as the coordinator was running
        self.cut_off: set[tuple[int, str]] = set()  # (worker index, address), in this drain
        self.doomed = False  # nobody is left to end the job
        self.preparing: object = None  # who prepared which view when the latest call began, and whether it had begun
        self.preparing_s = 0.0  # for how long, as far as the coordinator was running
        self.avoided: set[tuple[int, str]] = set()  # (worker index, address) of chiefs that were late
        self.patience = 1
        self.failures: Counter[str] = Counter()  # by the name of the process, since the global step last changed
        self.failing_s = 0.0  # since the first of them, as far as the coordinator was running
        self.failed_at = 0  # the global step then
        self.over = False
        self.unsettled_s = job.lease_s  # for which workers may yet return that were lost, or were there before
        self.told: dict[int, Answer] = {}  # by incarnation: the last answer
        self.fences: dict[int, dict[int, Admitted]] = {}  # ps incarnation -> fence revision -> table, as it was told
        self.seen: Counter[str] = Counter()  # what happened, so that a test can show that it did

    @property
    def state(self) -> JobState:
        """What the coordinator has made of it."""
        return self.core.state

    def draw_incarnation(self) -> int:
        return FIRST_INCARNATION + len(self.joins)

    def verdict(self, join: Join, asked_s: float) -> tuple[type, int | None]:
        """What must come of a join, and who holds its index."""
        holder = self.holder(join.role, join.index)
        member = self.live[holder] if holder else None
        if self.failing():
            return (JobDoneError if self.state.phase is Phase.DONE else JobFailedError), holder
        if join.job_id != self.job.job_id:
            return OtherJobError, holder
        if not 0 <= join.index < (self.job.ps if join.role is Role.PS else self.job.max_workers):
            return UsageError, holder
        if not (is_address(join.address) and is_address(join.health_address)):
            return UsageError, holder
        if any(is_loopback(join) != is_loopback(other.join) for other in self.live.values()):
            return UsageError, holder
        if join.role is Role.WORKER and self.specs not in (None, join.variables):
            return ModelDiffersError, holder
        if join.role is Role.WORKER and self.identity and any(differences(join.identity, self.identity, "the job")):
            return ModelDiffersError, holder
        if member is None or member.join.join_id == join.join_id:
            return Answer, holder
        return (IndexHeldError if member.heard_s > asked_s else NotYet), holder

    def holder(self, role: Role, index: int) -> int | None:
        """The live incarnation that holds an index."""
        return next((n for n, s in self.live.items() if (s.join.role, s.join.index) == (role, index)), None)

    def live_of(self, role: Role) -> list[int]:
        """Live incarnations of a role, by index."""
        return sorted((n for n, s in self.live.items() if s.join.role is role), key=lambda n: self.joins[n].index)

    def view_is_void(self) -> bool:
        return any(entry.incarnation not in self.live for entry in self.state.view.ps)

    def failing(self) -> bool:
        """Whether the job is over, or will be as soon as the coordinator looks at the time."""
        gone_s = max(self.missing_s.values(), default=0.0)
        fails = max(self.failures.values(), default=0) >= FAILURES and self.failing_s >= self.job.ps_timeout_s
        return self.state.phase.over or self.doomed or gone_s > self.job.ps_timeout_s or fails

    def pass_time(self) -> None:
        """What the coordinator does before anything else in a call, in its order."""
        self.over = self.state.phase.over
        gap_s, self.judged_s = self.now_s - self.judged_s, self.now_s
        if gap_s > self.job.lease_s / 2:
            self.seen["paused"] += 1
            gap_s = 0.0
        self.fall_silent(gap_s)
        self.had_all_stopped = laws.all_stopped(self)
        self.judge_the_preparation(gap_s)
        self.judge_the_end(gap_s)
        self.judge_the_failures(gap_s)
        self.over = self.failing()

    def judge_the_preparation(self, gap_s: float) -> None:
        """A chief that is late is cut off, if there is another worker that was not."""
        view, chief = self.state.view.number, self.chief
        what, begun = None, False
        if self.state.phase is Phase.PREPARING and chief and not self.view_is_void() and not self.over:
            beat = self.live[chief].beat
            begun = beat.prepares == view or not beat.view  # it has to build its sessions first
            what = (view, chief, begun)
        self.preparing_s = self.preparing_s + gap_s if what == self.preparing and what is not None else 0.0
        self.preparing = what
        longest_s = self.state.chief_progress._longest_step_s
        soon_s = min(max(3 * self.job.lease_s, 2 * longest_s), self.job.drain_timeout_s)
        limit_s = self.patience * (self.job.drain_timeout_s if begun else soon_s)
        others = [n for n in self.live_of(Role.WORKER) if n != chief and self.place(n) not in self.avoided]
        if what is not None and chief and others and self.preparing_s >= limit_s:
            self.seen["relieved"] += 1
            self.avoided.add(self.place(chief))
            self.patience *= 2
            self.drop(chief)

    def judge_the_failures(self, gap_s: float) -> None:
        """Those since the global step last changed."""
        self.failing_s += gap_s
        if self.state.global_step != self.failed_at:
            self.failed_at, self.failures = self.state.global_step, Counter()

    def fail(self, incarnation: int) -> None:
        """This process leaves because of an error."""
        if incarnation in self.live and not self.over:
            self.failing_s = self.failing_s if self.failures else 0.0
            join = self.joins[incarnation]
            self.failures[f"{join.role} {join.index}"] += 1
            self.seen["failed again and again"] += max(self.failures.values()) == FAILURES

    def judge_the_end(self, gap_s: float) -> None:
        """Whoever holds the end up for too long is cut off."""
        phase = self.state.phase
        drains = phase is Phase.DRAINING or (phase is Phase.TRAINING and self.settled and self.had_all_stopped)
        self.drains = drains and not self.view_is_void()
        waits, late = self.what_the_end_waits_for() if self.drains else (None, [])
        self.waited_s = self.waited_s + gap_s if waits == self.waits and waits is not None else 0.0
        self.waits = waits
        if waits is None:
            self.cut_off = set()
            if not self.over:
                self.fill_in_a_chief()
        elif self.waited_s >= self.job.drain_timeout_s:
            self.seen[f"cut off: {'nobody' if not late else 'closes' if self.had_all_stopped else 'steps'}"] += 1
            self.cut_off |= {self.place(n) for n in late}
            for incarnation in late:
                self.drop(incarnation)
            self.doomed = self.chief is None

    def what_the_end_waits_for(self) -> tuple[object, list[int]]:
        """As something to compare, and the workers that it is about."""
        if not self.chief:
            return "anybody", []
        if not laws.all_stopped(self):
            return "stop", [n for n in self.live_of(Role.WORKER) if not laws.has_stopped(self, n)]
        return (self.chief, self.live[self.chief].beat.closed_parts), [self.chief]

    def place(self, incarnation: int) -> tuple[int, str]:
        return self.joins[incarnation].index, self.joins[incarnation].address

    def may_be_chief(self) -> list[int]:
        """Of the live workers, those that have not been cut off, by index."""
        return [n for n in self.live_of(Role.WORKER) if not (self.drains and self.place(n) in self.cut_off)]

    def fill_in_a_chief(self) -> None:
        """If there is none, and one that may be."""
        workers = self.may_be_chief()
        self.seen["barred"] += not self.chief and len(workers) < len(self.live_of(Role.WORKER))
        busy = [n for n in workers if self.state.phase is Phase.TRAINING and not laws.has_stopped(self, n)]
        candidates = busy or workers
        first = [n for n in candidates if self.place(n) not in self.avoided]
        self.chief = self.chief or next(iter(first or candidates), None)

    def fall_silent(self, gap_s: float) -> None:
        """What the time since the last call does: it counts as silence."""
        for index in self.missing_s:
            self.missing_s[index] += gap_s
        self.unsettled_s -= gap_s
        for gone in self.gone:
            gone.for_s += gap_s
        self.gone = [gone for gone in self.gone if gone.for_s < self.job.lease_s or gone.unmoved]
        for member in self.live.values():
            member.silent_s += gap_s
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
        if incarnation in self.live_of(Role.WORKER) and self.state.view.number:
            self.unsettled_s = self.job.lease_s
        self.drop(incarnation)

    def drop(self, incarnation: int, for_good: bool = False) -> None:
        """Takes out a member; `for_good`: with it the job is over, and nobody follows as chief."""
        member = self.live.pop(incarnation, None)
        if member and member.join.role is Role.WORKER:
            for gone in self.gone:
                gone.unmoved.pop(incarnation, None)
            others = [n for n in self.live_of(Role.WORKER) if self.state.view.number and not self.live[n].retired]
            self.gone.append(Gone(unmoved=dict.fromkeys(others, 2)))
        if member and member.join.role is Role.PS and self.state.view.number:
            self.missing_s[member.join.index] = 0.0
        if not self.live_of(Role.WORKER) and not self.state.view.number:
            self.specs = self.identity = None
        self.drains = self.drains and not self.view_is_void()
        if not self.over and not for_good:
            self.chief = None if self.chief == incarnation else self.chief
            self.fill_in_a_chief()
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
        workers = [self.live[n] for n in self.live_of(Role.WORKER)]
        return {member.join.index: member.clock for member in workers if not member.retired}

    def raise_floor(self) -> None:
        self.floor = max(self.floor, min(self.pacing().values(), default=0))


def is_address(text: str) -> bool:
    found = re.fullmatch(r".+:(\d+)", text, re.DOTALL)
    return found is not None and int(found[1]) < 2**16


def is_loopback(join: Join) -> bool:
    return join.address.startswith(("127.", "localhost:", "[::1]:"))
