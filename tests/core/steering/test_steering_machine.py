"""Commands in any order, while workers pause, get stuck, come and go, ps are lost, and the coordinator with ps 0.

steered_job.py checks, whenever a step begins or ends and a round is closed, that every ps goes by the same settings,
and by those of when it began.  Here is checked that no step begins while the job is paused, and at the end that no
command hangs once everybody live has answered.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from psruntime.config.schedule import named
from psruntime.core.clocks import adaptive_bound
from psruntime.core.coordinator import steered
from psruntime.core.members.membership import Role
from psruntime.core.members.view import Phase
from psruntime.core.steering.barrier import BarrierState
from psruntime.core.steering.commands import ADAPTIVE_BOUND, Kind, Outcome, Overrides
from psruntime.errors import JobOverError, UnreachableError, UsageError
from tests.core.steering.steered_job import SteeredJob
from tests.support.selection import examples, plays_all

WORKERS = st.integers(0, 3)
PS = st.integers(0, 1)
FLAG = st.booleans()
CHANGES = st.sampled_from([Kind.PAUSE, Kind.RESUME, Kind.BOUND, Kind.LEARNING_RATE_SCALE, Kind.MODE])
MODES = ("async", "bounded", "sync")
SCHEDULES = (
    "async:20, bounded 2:15, sync", "sync:12, bounded 0:20, bounded 3:9, async", "bounded 2:9, sync:9, async",
    "async:6, sync:1, bounded 1:2, async:1, sync", "async:5, local:20, bounded 2:6, local:8, sync:3, local:9, async",
)  # fmt: skip
BEGINNINGS: tuple[dict[str, object], ...] = (
    *({"schedule": schedule} for schedule in SCHEDULES),
    *({"mode": mode} for mode in ("async", "sync")),
    *({"mode": "bounded", "bound": bound} for bound in (4, "auto:0-3", "auto:2-9", "auto:1-2")),
)
SETTLES_S, VIEWS = 60, 12  # until nothing changes any more, once nothing is lost; and the views that it takes at most
MUST_HAPPEN = (
    *(f"{kind} done" for kind in Kind), "pause given up", "learning-rate-scale given up", "save given up",
    "ps lost at build", "worker lost at build", "worker joined at build", "coordinator lost at build", "steps at build",
    "rounds at build", "cannot build",
    "ps lost at pause", "ps lost at apply", "worker lost at pause", "worker lost at apply", "worker joined at pause",
    "coordinator lost at pause", "coordinator lost at apply", "coordinator lost while paused", "settings survived",
    "refused", "asked too early", "over", "steps", "rounds", "scaled rounds", "local rounds", "mode given up",
    *(f"from {before} to {after}" for before in MODES for after in (*MODES, "schedule") if before != after),
    "stage 0", "stage 1", "stage 2", "due done", "due given up", "choice done",
)  # fmt: skip  # that a choice is given up: test_automatic_bound.py


def of(settings_in_force: Overrides) -> Overrides:
    """Without the step of which they are."""
    return replace(settings_in_force, from_global_step=0)


class SteeringMachine(RuleBasedStateMachine):
    """Two ps and up to four workers."""

    seen: Counter[str] = Counter()

    @initialize(began=st.sampled_from(BEGINNINGS))
    def begin(self, began: dict[str, object]) -> None:
        self.job = SteeredJob(**began, checkpoint_dir="/c", ps_timeout_s=1e6, drain_timeout_s=1e5, min_workers=1)
        self.asked: dict[str, Kind] = {}
        self.done: set[str] = set()
        self.job.run(6)

    @property
    def at(self) -> BarrierState:
        return self.job.core.state.steering.barrier.state

    def ask(self, kind: Kind, repeated: bool, **facts: object) -> None:
        known = [name for name, each in self.asked.items() if each is kind] if repeated else []
        try:
            name = self.job.ask(kind, known[-1] if known else "", **facts)
        except UsageError:
            self.seen["refused"] += 1
        except UnreachableError:
            self.seen["asked too early"] += 1
        except JobOverError:
            self.seen["over"] += 1
        else:
            self.asked[name] = kind

    # Operators.

    @rule(kind=CHANGES, bound=st.integers(0, 9), scale=st.sampled_from([0.1, 0.5, 1.0, 3.0]), repeated=FLAG)
    def a_change(self, kind: Kind, bound: int, scale: float, repeated: bool) -> None:
        if kind is Kind.BOUND and bound > 7:
            self.ask(kind, repeated, automatic=True)
        elif kind is Kind.BOUND:
            self.ask(kind, repeated, bound=bound)
        elif kind is Kind.LEARNING_RATE_SCALE:
            self.ask(kind, repeated, scale=scale)
        elif kind is Kind.MODE:
            mode = (*MODES, "schedule")[bound % 4]
            self.seen[f"from {self.job.core.state.mode} to {mode}"] += 1
            if mode == "schedule":
                self.ask(kind, repeated, automatic=True)
            else:
                self.ask(kind, repeated, mode=mode, bound=bound)
        else:
            self.ask(kind, repeated)

    @rule(repeated=FLAG)
    def a_checkpoint(self, repeated: bool) -> None:
        self.ask(Kind.SAVE, repeated)

    @rule(worker=WORKERS)
    def a_worker_is_drained(self, worker: int) -> None:
        self.ask(Kind.DRAIN_WORKER, False, worker=worker)

    @precondition(lambda self: len(self.asked) > 3)
    @rule()
    def the_job_is_drained(self) -> None:
        self.ask(Kind.DRAIN, True)

    # Members.

    @rule(worker=WORKERS)
    def a_worker_moves(self, worker: int) -> None:
        self.job.beat_worker(worker)

    @rule(ps=PS)
    def a_ps_writes(self, ps: int) -> None:
        self.job.beat_ps(ps)

    @rule(seconds=st.integers(1, 3))
    def all_go_on(self, seconds: int) -> None:
        at, (steps, rounds) = self.at, self.made()
        self.job.run(seconds)
        self.seen[f"steps at {at}"] += at is self.at and self.made()[0] > steps
        self.seen[f"rounds at {at}"] += at is self.at and self.made()[1] > rounds

    def made(self) -> tuple[int, int]:
        """Steps and rounds."""
        return self.job.seen.steps, len(self.job.seen.rounds)

    @rule(late=FLAG, seconds=st.integers(3, 20))
    def steps_take_otherwise(self, late: bool, seconds: int) -> None:
        for index, worker in self.job.steppers.items():
            worker.step_s = tuple(9.0 if late and step % 5 == index else 1.0 for step in range(50))
        self.job.run(seconds)

    @rule(late=FLAG, kind=st.sampled_from([Kind.BOUND, Kind.MODE, None]), bound=st.integers(0, 7))
    def a_change_comes_while_workers_pause_for_a_choice(self, late: bool, kind: Kind | None, bound: int) -> None:
        self.steps_take_otherwise(late, 0)
        for beat in range(40):
            held = self.job.core.state.steering.revocable
            if held and held.by == ADAPTIVE_BOUND:
                if kind is None:
                    self.job.run(4)
                else:
                    self.a_change(kind, bound, 1.0, False)
                return
            self.job.now_s += 0.5
            self.job.beat_worker(beat % 4)
            self.job.beat_ps(beat % 2)

    @rule(worker=WORKERS, stuck=FLAG)
    def a_step_takes_long(self, worker: int, stuck: bool) -> None:
        if worker in self.job.steppers:
            self.job.steppers[worker].stuck = stuck

    @rule(worker=WORKERS, kind=CHANGES, seconds=st.integers(0, 3), ends=FLAG)
    def a_change_comes_while_a_step_takes_long(self, worker: int, kind: Kind, seconds: int, ends: bool) -> None:
        for _ in range(2):
            if worker in self.job.steppers and self.job.steppers[worker].began is None:
                self.job.beat_worker(worker)
        self.a_step_takes_long(worker, True)
        self.a_change(kind, 7, 0.2, False)
        self.job.run(seconds)
        if ends:
            self.a_step_takes_long(worker, False)

    @rule(worker=WORKERS, slowly=FLAG, failure=st.sampled_from(["", "no optimizer"]))
    def a_worker_builds_otherwise(self, worker: int, slowly: bool, failure: str) -> None:
        if worker in self.job.steppers:
            self.job.steppers[worker].builds_slowly = slowly
            self.job.steppers[worker].failure = failure

    @rule(worker=WORKERS, mode=st.integers(0, len(MODES) - 1), seconds=st.integers(1, 4))
    def a_mode_is_wanted_while_a_worker_builds_slowly(self, worker: int, mode: int, seconds: int) -> None:
        self.a_worker_builds_otherwise(worker, True, "")
        self.a_change(Kind.MODE, mode, 1.0, False)
        self.all_go_on(seconds)

    @rule(
        worker=WORKERS, bound=st.integers(0, 7), failure=st.sampled_from(["", "no optimizer"]),
        then=st.sampled_from(["", "joins", "is lost", "ps 1", "ps 0"]),
    )  # fmt: skip
    def a_mode_comes_while_a_worker_builds(self, worker: int, bound: int, failure: str, then: str) -> None:
        self.a_worker_builds_otherwise(worker, not failure, failure)
        self.a_change(Kind.MODE, bound, 1.0, False)
        if then == "joins":
            self.a_worker_joins((worker + 1) % 4)
        elif then == "is lost":
            self.a_worker_is_lost(worker)
        elif then == "ps 1":
            self.ps_1_is_lost(True, 3)
        elif then == "ps 0" and self.job.core.state.phase is Phase.TRAINING:
            self.ps_0_is_lost_with_the_coordinator()
        self.all_go_on(2)

    @rule(worker=WORKERS)
    def a_worker_joins(self, worker: int) -> None:
        self.seen[f"worker joined at {self.at}"] += worker not in self.job.steppers
        self.job.join(Role.WORKER, worker)

    @rule(worker=WORKERS)
    def a_worker_is_lost(self, worker: int) -> None:
        self.seen[f"worker lost at {self.at}"] += worker in self.job.steppers
        self.job.lose(Role.WORKER, worker)

    @rule(back=FLAG, steps_lost=st.integers(0, 30))
    def ps_1_is_lost(self, back: bool, steps_lost: int) -> None:
        self.seen[f"ps lost at {self.at}"] += 1 in self.job.ps
        if 1 in self.job.ps:
            self.job.go_back(steps_lost)
        self.job.lose(Role.PS, 1)
        if back:
            self.job.join(Role.PS, 1)

    @rule()
    def ps_1_joins(self) -> None:
        self.job.join(Role.PS, 1)

    @precondition(lambda self: self.job.core.state.phase is Phase.TRAINING)
    @rule()
    def ps_0_is_lost_with_the_coordinator(self) -> None:
        """The change that was under way is given up or done, and nothing between."""
        barrier = self.job.core.state.steering.barrier
        self.seen[f"coordinator lost at {barrier.state}"] += 1
        self.seen["coordinator lost while paused"] += barrier.in_force.paused
        may_have = {barrier.in_force, *([barrier.target] if barrier.state is BarrierState.APPLY else [])}
        heard = any(member.past.settings == barrier.in_force for member in self.others())
        self.count()
        self.asked = {}
        self.job.lose_the_coordinator()
        if heard:
            found = self.job.core.state.steering.settings
            assert of(found) in map(of, may_have), f"{found} instead of one of {may_have}"
            self.seen["settings survived"] += found.revision > 0

    @precondition(lambda self: self.job.core.state.phase is Phase.TRAINING)
    @rule(
        scale=st.sampled_from([0.1, 0.5, 3.0]), heard=FLAG, worker=WORKERS,
        then=st.sampled_from(["ps 0", "ps 1", "is lost", "joins"]),
    )  # fmt: skip
    def a_process_comes_or_goes_while_the_ps_write(self, scale: float, heard: bool, worker: int, then: str) -> None:
        self.ask(Kind.LEARNING_RATE_SCALE, False, scale=scale)
        for _ in range(4):
            self.job.beat_workers()
        if heard:
            self.job.beat_ps(1)
        if then == "joins":
            self.a_worker_joins(worker)
        elif then == "is lost":
            self.a_worker_is_lost(worker)
        elif then == "ps 1":
            self.ps_1_is_lost(True, 3)
        elif self.job.core.state.phase is Phase.TRAINING:
            self.ps_0_is_lost_with_the_coordinator()

    def others(self) -> list[object]:
        return [*(ps for index, ps in self.job.ps.items() if index), *self.job.steppers.values()]

    @invariant()
    def no_step_begins_while_the_job_is_paused(self) -> None:
        if not hasattr(self, "job"):
            return
        state = self.job.core.state
        barrier = state.steering.barrier
        if state.phase is Phase.TRAINING and barrier.in_force.paused and barrier.state is not BarrierState.PAUSE:
            begun = [
                index
                for index, worker in self.job.steppers.items()
                if worker.began and worker.view == state.view.number
            ]
            assert not begun, f"workers {begun} are in a step, under {barrier.in_force}"

    @invariant()
    def no_step_begins_in_a_mode_that_the_schedule_does_not_have(self) -> None:
        """At its global step the job is in the mode of the schedule, or nobody begins a step."""
        if not hasattr(self, "job"):
            return
        state = self.job.core.state
        settings = state.steering.settings
        if state.schedule is None or not settings.automatic or state.phase is not Phase.TRAINING:
            return
        stage = state.schedule.at(state.global_step)
        is_due = (settings.mode, settings.bound) != (stage.mode, stage.bound)
        assert not is_due or state.steering.barrier.pause_epoch, f"{settings} at global step {state.global_step}"
        rounds = state.sync.rounds
        if rounds.open and not is_due:
            assert state.schedule.at(rounds.round - 1).mode == "sync", f"round {rounds.round} is one too many"
        self.seen[f"stage {state.schedule.number_at(state.global_step)}"] += not is_due

    def count(self) -> None:
        """What became of what was asked of this coordinator."""
        for name, kind in self.asked.items():
            reply = self.job.reply(name)
            if name not in self.done and reply.outcome is not Outcome.PENDING:
                self.done.add(name)
                self.seen[f"{kind} {reply.outcome}"] += 1

    def settle(self) -> None:
        """What is due takes effect in the end, and then the mode is that of the schedule."""
        state = self.job.core.state
        views = state.view.number
        for _ in range(SETTLES_S):
            if not state.steering.is_changing:
                break
            self.job.run(1)
        assert not state.steering.is_changing, f"{steered.status(state)} does not end"
        assert state.view.number <= views + VIEWS, "one view after the other"
        if state.schedule and state.steering.settings.automatic and state.phase is Phase.TRAINING:
            stage = state.schedule.at(state.global_step)
            assert steered.mode_of(state) == named(stage.mode, stage.bound), "the schedule was left by itself"

    def teardown(self) -> None:
        if not hasattr(self, "job"):
            return
        job = self.job
        for worker in job.steppers.values():
            worker.stuck = worker.builds_slowly = False
        job.join(Role.PS, 1)
        job.join(Role.WORKER, 0)
        job.run(20)
        job.join(Role.WORKER, 0)  # it may have been drained
        job.run(40)
        self.count()
        self.settle()
        for facts in job.take_facts("steered")[0]:
            self.seen["cannot build"] += "cannot train in mode" in facts["reason"]
            self.seen[f"due {facts['outcome']}"] += facts["command"].endswith(", as scheduled")
            self.seen[f"choice {facts['outcome']}"] += facts["command"].endswith(", auto")
        left = {str(kind): job.reply(name).text for name, kind in self.asked.items() if name not in self.done}
        assert not left, f"commands hang: {left}"
        self.seen["steps"] += job.seen.steps
        self.seen["rounds"] += len(job.seen.rounds)
        self.seen["local rounds"] += len(job.seen.local_rounds)
        self.seen["scaled rounds"] += sum(scale != 1 for scale in job.seen.rounds.values())


@pytest.mark.timeout(900)  # it takes seconds, but the smallest history that breaks a law is worth some minutes
def test_no_step_is_between_two_settings_and_no_command_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_bound, "STEPS_BETWEEN", 2)  # so that short histories have choices
    monkeypatch.setattr(adaptive_bound, "SECONDS_BETWEEN", 1.0)
    SteeringMachine.seen.clear()
    run_state_machine_as_test(
        SteeringMachine,
        settings=settings(
            max_examples=examples(800) // (1 if plays_all() else 4), stateful_step_count=40, deadline=None,
            derandomize=True, report_multiple_bugs=False,
        ),
    )  # fmt: skip
    missing = [name for name in MUST_HAPPEN if not SteeringMachine.seen[name]]
    assert not missing or not plays_all(), f"never happened: {missing}; what did: {SteeringMachine.seen}"
