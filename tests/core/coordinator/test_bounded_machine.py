"""Bounded workers on a watched coordinator: no step starts further ahead than the bound, in any order of anything.

Each worker keeps a floor that it has heard some time ago.  Its reports and the answers to them arrive late, twice,
in any order or never; workers come, go and are replaced, ps are lost and with them views.

The law, asserted whenever a step starts in the view of now: the worker's clock is at most `bound` above the clock of
every live worker of that view, as those themselves count them (what they entered with, and steps completed since).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from psruntime.config import JobConfig
from psruntime.core.clocks.clocks import within
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Join, LeaveKind, PsBeat, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.core.plan.buckets import VariableSpec
from tests.core.coordinator.watched import Watched
from tests.support.selection import examples

LEASE_S = 4.0
MODEL = (VariableSpec("w", (3, 2), "float32"),)
PICK = st.integers(0, 59)  # chooses one of those that are there, modulo their number


@dataclass
class Stepper:
    """A worker in a view, under one incarnation, as it counts itself."""

    incarnation: int
    view: int
    base: int
    floor: int  # as it remembers it
    steps: int = 0
    stepping: bool = False
    reports: list[int] = field(default_factory=lambda: [0])  # steps, as sent; any may arrive, and again
    answers: list[int] = field(default_factory=list)  # floors, likewise

    @property
    def clock(self) -> int:
        return self.base + self.steps


class BoundedMachine(RuleBasedStateMachine):
    """One ps and up to four workers; everybody who is admitted trains as soon as it hears of a view."""

    seen: Counter[str] = Counter()

    @initialize(bound=st.integers(0, 3))
    def begin(self, bound: int) -> None:
        self.job = JobConfig(
            mode="bounded", bound=bound, max_workers=4, train_steps=10**6, lease_s=LEASE_S, ps_timeout_s=1e6
        )
        self.watched = Watched(self.job)
        self.steppers: dict[int, Stepper] = {}  # by incarnation: in the newest view that it entered
        self.ports = 0
        for index in range(3):
            self.arrive(Role.WORKER, index)
        self.arrive(Role.PS, 0)
        self.all_hear()

    def teardown(self) -> None:
        if hasattr(self, "watched"):
            BoundedMachine.seen.update(self.watched.seen)

    def arrive(self, role: Role, index: int) -> None:
        self.ports += 1
        port = 5000 + self.ports
        specs = MODEL if role is Role.WORKER else ()
        addresses = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1000}"
        self.watched.join(Join(role, index, *addresses, f"join {port}", self.job.job_id, variables=specs))

    def all_hear(self) -> None:
        """Everybody beats; the chief prepares.  Workers enter a view that is new to them."""
        watched, state = self.watched, self.watched.state
        for incarnation in list(watched.live):
            self.beat(incarnation)
        if state.phase is Phase.PREPARING and watched.chief:
            watched.report(watched.chief, state.view.number, 0)
        for incarnation in watched.live_of(Role.WORKER):
            self.beat(incarnation)

    def beat(self, incarnation: int) -> None:
        watched = self.watched
        if incarnation not in watched.live:
            return
        if watched.joins[incarnation].role is Role.PS:
            told = watched.told[incarnation].instructions
            watched.heartbeat(incarnation, PsBeat(told.fence_revision))
            return
        stepper = self.steppers.get(incarnation)
        watched.heartbeat(incarnation, WorkerBeat(stepper.view, stepper.steps) if stepper else WorkerBeat())
        if incarnation not in watched.live:
            return
        told = watched.told[incarnation].instructions
        if told.phase.prepared and (stepper is None or stepper.view != told.view.number):
            self.steppers[incarnation] = Stepper(incarnation, told.view.number, told.clock, told.clock)
            watched.seen["entered later"] += told.clock > 0

    def known(self, pick: int) -> Stepper:
        """A stepper; the gone ones go on, not knowing it."""
        all_of_them = list(self.steppers.values())
        return all_of_them[pick % len(all_of_them)]

    def of_now(self) -> list[Stepper]:
        number = self.watched.state.view.number
        return [s for n, s in self.steppers.items() if n in self.watched.live and s.view == number]

    # Steps.

    @rule(pick=PICK)
    def a_step(self, pick: int) -> None:
        """Starts, or is completed."""
        if self.steppers:
            self.go_on(self.known(pick))

    def go_on(self, stepper: Stepper) -> None:
        if stepper.stepping:
            stepper.stepping = False
            stepper.steps += 1
            stepper.reports.append(stepper.steps)
        elif within(self.job.bound, stepper.clock, stepper.floor):
            stepper.stepping = True
            self.started(stepper)
        else:
            self.watched.seen["waits"] += 1

    @rule(picks=st.lists(PICK, min_size=4, max_size=20))
    def many_steps(self, picks: list[int]) -> None:
        for pick in picks:
            self.a_step(pick)

    @rule(pick=PICK)
    def one_runs_ahead(self, pick: int) -> None:
        """To the bound, over the floor that it knows."""
        stepper = self.known(pick) if self.steppers else None
        while stepper and (stepper.stepping or within(self.job.bound, stepper.clock, stepper.floor)):
            self.go_on(stepper)

    def started(self, stepper: Stepper) -> None:
        if stepper not in self.of_now():
            self.watched.seen["stepped without a place"] += 1
            return
        bound = self.job.bound
        assert bound is not None
        slowest = min(other.clock for other in self.of_now())
        assert stepper.clock - slowest <= bound, f"lead {stepper.clock - slowest}, bound {bound}"
        self.watched.seen["at the bound"] += stepper.clock - slowest == bound > 0

    # Reports and answers.

    @rule(pick=PICK, which=PICK)
    def a_report_arrives(self, pick: int, which: int) -> None:
        """Any that was ever sent; often the newest."""
        if not self.steppers:
            return
        stepper = self.known(pick)
        recent = (stepper.reports[::-1] * 2)[: len(stepper.reports) + 3]
        floor = self.watched.report_clock(stepper.incarnation, stepper.view, recent[which % len(recent)])
        if floor is not None:
            stepper.answers.append(floor)
            self.watched.seen["report for an old view"] += stepper.view < self.watched.state.view.number
        self.check_measured_lead()

    @rule(pick=PICK, which=PICK)
    def an_answer_arrives(self, pick: int, which: int) -> None:
        if answered := [stepper for stepper in self.steppers.values() if stepper.answers]:
            stepper = answered[pick % len(answered)]
            floor = stepper.answers[-1 - which % len(stepper.answers)]
            self.watched.seen["late answer"] += floor < stepper.floor
            stepper.floor = max(stepper.floor, floor)

    @rule()
    def everything_arrives(self) -> None:
        """Then somebody can go on."""
        self.all_hear()
        for _ in range(2):  # the second time all have heard of the floor that the first one made
            for stepper in self.of_now():
                floor = self.watched.report_clock(stepper.incarnation, stepper.view, stepper.steps)
                if floor is not None:
                    stepper.answers.append(floor)
                    stepper.floor = max(stepper.floor, floor)
        ready = [s for s in self.of_now() if s.stepping or within(self.job.bound, s.clock, s.floor)]
        assert ready or not self.of_now(), "all wait for each other"
        self.check_measured_lead()

    def check_measured_lead(self) -> None:
        bound = self.job.bound
        assert bound is not None
        lead = self.watched.state.pace.max_lead
        assert lead <= bound, "what reports prove is within the bound, too"
        self.watched.seen["lead measured"] += lead > 0

    @rule()
    def everybody_makes_a_step(self) -> None:
        """So the floor rises, and answers from before it are late."""
        self.everything_arrives()
        for stepper in self.of_now() * 2:
            self.go_on(stepper)
        self.everything_arrives()

    # Coming and going.

    @rule(index=st.integers(0, 3))
    def a_worker_arrives(self, index: int) -> None:
        self.arrive(Role.WORKER, index)
        self.all_hear()

    @precondition(lambda self: self.watched.live_of(Role.WORKER))
    @rule(pick=PICK, leaves=st.booleans(), returns=st.booleans())
    def a_worker_goes(self, pick: int, leaves: bool, returns: bool) -> None:
        workers = self.watched.live_of(Role.WORKER)
        gone = workers[pick % len(workers)]
        if leaves:
            self.watched.leave(gone, LeaveKind.ASKED)
        else:
            self.watched.confirm_lost(gone)
        if returns:
            self.arrive(Role.WORKER, self.watched.joins[gone].index)
            self.watched.seen["rejoined"] += 1
            self.all_hear()

    @precondition(lambda self: len(self.watched.joins) > 4)
    @rule()
    def the_ps_is_replaced(self) -> None:
        for incarnation in self.watched.live_of(Role.PS):
            self.watched.confirm_lost(incarnation)
        self.arrive(Role.PS, 0)
        self.watched.seen["new view"] += 1

    @rule(gap_s=st.sampled_from([0.0, 1.0, LEASE_S / 2]))
    def time_passes(self, gap_s: float) -> None:
        self.watched.now_s += gap_s
        self.watched.advance()


@pytest.mark.timeout(900)  # it takes seconds, but the smallest history that breaks a law is worth some minutes
def test_no_step_starts_further_ahead_than_the_bound() -> None:
    BoundedMachine.seen.clear()
    run_state_machine_as_test(
        BoundedMachine,
        settings=settings(
            max_examples=examples(500),
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            report_multiple_bugs=False,
        ),
    )
    wanted = ["at the bound", "waits", "late answer", "rejoined", "new view", "entered later", "lease ended",
              "stepped without a place", "report for an old view", "lead measured"]  # fmt: skip
    missing = [name for name in wanted if not BoundedMachine.seen[name]]
    assert not missing, f"never happened: {missing}; what did: {BoundedMachine.seen}"
