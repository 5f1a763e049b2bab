"""The coordinator under any order of calls, honest and odd ones, and of time that runs, jumps and stands still.

Each rule makes calls on a watched coordinator; watched.py knows what must come of them, laws.py what must hold
after them.  The test shows at the end that the histories were not tame: everything in `MUST_HAPPEN` happened.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from psruntime.config import JobConfig
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Join, LeaveKind, PsBeat, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.core.plan.buckets import VariableSpec
from tests.core.coordinator.watched import Watched
from tests.support.selection import examples, plays_all

LEASE_S = 4.0
PS_TIMEOUT_S = 9.0
DRAIN_TIMEOUT_S = 6.0
TRAIN_STEPS = 40
MODEL = (VariableSpec("w", (3, 2), "float32"), VariableSpec("b", (2,), "float32"))
OTHER_MODEL = (VariableSpec("w", (3, 2), "float32"), VariableSpec("b", (5,), "float32"))

PICK = st.integers(0, 59)  # chooses one of those that are there, modulo their number
WORKERS = st.integers(0, 2)
STEPS = st.integers(0, 9)
FLAG = st.booleans()
SHIFTS = st.sampled_from([0, -1, 1])  # of a view number: this view, the one before, one that there is not yet
REVISIONS = st.integers(-3, 2)  # of the fence: counted back from the latest that was told, or on from it

MUST_HAPPEN = (
    "FORMING -> PREPARING", "PREPARING -> TRAINING", "TRAINING -> DRAINING", "DRAINING -> DONE",
    "PREPARING -> FORMING", "TRAINING -> FORMING", "DRAINING -> FORMING",
    "FORMING -> FAILED", "PREPARING -> FAILED", "TRAINING -> FAILED", "DRAINING -> FAILED",
    "join: Answer", "join: NotYet", "join: IndexHeldError", "join: UsageError", "join: ModelDiffersError",
    "join: OtherJobError", "join: JobDoneError", "join: JobFailedError", "event refused",
    "heartbeat: Answer", "heartbeat: ReplacedError", "report: Answer", "report: ReplacedError",
    "report_clock: ClockAnswer", "report_clock: ReplacedError", "has to wait", "limit kept",
    "answer: Answer", "answer: ReplacedError",
    "event member_lost", "event member_left", "lease ended", "paused", "ps timeout",
    "admitted by the ps", "not admitted by the ps", "close", "second view", "steps lost", "all stopped",
    "chief passed on", "waits for who may return",
    "event cut_off", "cut off: steps", "cut off: closes", "cut off: nobody", "barred",
    "relieved",
)  # fmt: skip


class CoordinatorMachine(RuleBasedStateMachine):
    """Processes that join, beat, report, leave and die, and a clock."""

    seen: Counter[str] = Counter()

    @initialize(
        ps=st.integers(1, 3), min_workers=st.integers(1, 2), remote=FLAG, bound=st.none() | st.integers(0, 3),
        limit=st.sampled_from([TRAIN_STEPS, TRAIN_STEPS, None]),
    )  # fmt: skip
    def begin(self, ps: int, min_workers: int, remote: bool, bound: int | None, limit: int | None) -> None:
        self.remote = remote
        self.joins: list[Join] = []
        self.job = JobConfig(
            ps=ps, min_workers=min_workers, max_workers=3, train_steps=limit, lease_s=LEASE_S,
            ps_timeout_s=PS_TIMEOUT_S, drain_timeout_s=DRAIN_TIMEOUT_S,
            mode="async" if bound is None else "bounded", bound=bound,
        )  # fmt: skip
        self.watched = Watched(self.job)

    def teardown(self) -> None:
        if hasattr(self, "watched"):
            self.watched.seen["second view"] += self.watched.state.view.number > 1
            self.watched.seen["steps lost"] += self.watched.steps_lost > 0
            CoordinatorMachine.seen.update(self.watched.seen)

    # Joining.

    def fresh_join(self, role: Role, index: int, remote: bool) -> Join:
        port = 5000 + len(self.joins)
        host = f"10.0.0.{1 + index % 250}" if remote else "127.0.0.1"
        specs = MODEL if role is Role.WORKER else ()
        places = (f"{host}:{port}", f"{host}:{port + 1000}")
        return Join(role, index, *places, f"join {port}", self.job.job_id, variables=specs)

    def try_join(self, join: Join) -> None:
        self.joins.append(join)
        self.watched.join(join)

    @rule(pick=PICK)
    def a_ps_arrives(self, pick: int) -> None:
        self.try_join(self.fresh_join(Role.PS, pick % self.job.ps, self.remote))

    @rule(index=WORKERS)
    def a_worker_arrives(self, index: int) -> None:
        self.try_join(self.fresh_join(Role.WORKER, index, self.remote))

    @rule()
    def all_that_are_missing_arrive(self) -> None:
        for index in range(self.job.ps):
            if self.watched.holder(Role.PS, index) is None:
                self.a_ps_arrives(index)
        for index in range(2):
            if self.watched.holder(Role.WORKER, index) is None:
                self.a_worker_arrives(index)

    @rule(
        role=st.sampled_from(Role), index=WORKERS, flaw=st.sampled_from(["index", "address", "network", "model", "job"])
    )
    def one_that_does_not_fit_arrives(self, role: Role, index: int, flaw: str) -> None:
        join = self.fresh_join(role, index, self.remote != (flaw == "network"))
        if flaw == "index":
            join = replace(join, index=index - 3 if index else 3)
        if flaw == "address":
            join = replace(join, address="nowhere")
        if flaw == "job":
            join = replace(join, job_id="another")
        if flaw == "model" and role is Role.WORKER:
            join = replace(join, variables=OTHER_MODEL)
        self.try_join(join)

    @precondition(lambda self: self.joins)
    @rule(pick=PICK)
    def a_join_is_repeated(self, pick: int) -> None:
        recent = self.joins[-6:]
        self.watched.join(recent[pick % len(recent)])

    # Heartbeats.

    def anybody(self, pick: int) -> int:
        """An incarnation: often a live one, else one that is gone or was never admitted."""
        live = list(self.watched.live)
        known = live * 3 + list(self.watched.joins)[-8:]
        return known[pick % len(known)]

    def honest_beat(self, incarnation: int, progress: int, stopped: bool, closed_parts: int = 0) -> None:
        watched = self.watched
        instructions = watched.told[incarnation].instructions
        global_step = watched.state.global_step + progress if instructions.phase.prepared else 0
        if watched.joins[incarnation].role is Role.PS:
            watched.heartbeat(incarnation, PsBeat(instructions.fence_revision, instructions.view.number, global_step))
        else:
            steps = watched.live[incarnation].clock - watched.live[incarnation].base + progress
            beat = WorkerBeat(instructions.view.number, steps, global_step, stopped, closed_parts=closed_parts)
            watched.heartbeat(incarnation, beat)

    @precondition(lambda self: self.watched.live)
    @rule(pick=PICK, progress=STEPS)
    def a_member_beats(self, pick: int, progress: int) -> None:
        live = list(self.watched.live)
        self.honest_beat(live[pick % len(live)], progress, stopped=self.watched.state.phase is Phase.DRAINING)

    def everybody_beats(self, progress: int, stopped: bool) -> None:
        for incarnation in list(self.watched.live):
            if incarnation in self.watched.live:  # an earlier one of these calls may have ended its lease
                self.honest_beat(incarnation, progress, stopped)

    @rule(progress=st.lists(STEPS, min_size=1, max_size=4))
    def the_job_goes_on(self, progress: list[int]) -> None:
        """All do what they should, once or several times."""
        state = self.watched.state
        for steps in progress:
            if state.phase is Phase.FORMING:
                self.all_that_are_missing_arrive()
            self.everybody_beats(steps, stopped=state.phase is Phase.DRAINING)
            if state.phase is Phase.PREPARING and self.watched.chief:
                self.the_chief_prepares(state.global_step // 2)
            elif state.phase is Phase.DRAINING and self.watched.chief and steps > 7:
                self.the_chief_finishes(0)

    @precondition(lambda self: self.watched.state.phase is Phase.TRAINING and self.job.train_steps is not None)
    @rule()
    def the_limit_is_reached(self) -> None:
        view = self.watched.state.view
        self.watched.heartbeat(view.ps[0].incarnation, PsBeat(0, view.number, TRAIN_STEPS))

    @precondition(lambda self: self.watched.state.phase.prepared)
    @rule(progress=STEPS)
    def all_workers_stop_by_themselves(self, progress: int) -> None:
        for incarnation in self.watched.live_of(Role.WORKER):
            if incarnation in self.watched.live:
                self.honest_beat(incarnation, progress, stopped=True)

    @precondition(lambda self: self.watched.joins)
    @rule(pick=PICK, shift=SHIFTS, steps=STEPS, gain=st.integers(-9, TRAIN_STEPS), revisions=REVISIONS, stopped=FLAG)
    def an_odd_one_beats(self, pick: int, shift: int, steps: int, gain: int, revisions: int, stopped: bool) -> None:
        """With another view, an older or newer fence than it was told, fewer steps, a global step from nowhere."""
        watched, incarnation = self.watched, self.anybody(pick)
        view, global_step = max(0, watched.state.view.number + shift), max(0, watched.state.global_step + gain)
        if watched.joins[incarnation].role is Role.WORKER:
            watched.heartbeat(incarnation, WorkerBeat(view, steps, global_step, stopped))
        else:
            told = sorted(watched.fences.get(incarnation, {0: ()}))
            revision = told[max(revisions, -len(told))] if revisions < 0 else told[-1] + 1 + revisions
            watched.heartbeat(incarnation, PsBeat(revision, view, global_step))

    @precondition(lambda self: self.watched.state.phase.prepared and self.watched.chief in self.watched.live)
    @rule(pick=PICK, steps=STEPS, gain=STEPS)
    def a_worker_beats_that_has_not_heard_of_the_view(self, pick: int, steps: int, gain: int) -> None:
        workers = self.watched.live_of(Role.WORKER)
        view, global_step = self.watched.state.view.number - 1, self.watched.state.global_step + gain
        self.watched.heartbeat(workers[pick % len(workers)], WorkerBeat(view, steps, global_step, stopped=True))

    # Reports and departures.

    @precondition(lambda self: self.watched.live_of(Role.WORKER))
    @rule(pick=PICK, steps=STEPS)
    def a_worker_reports_its_clock(self, pick: int, steps: int) -> None:
        workers = self.watched.live_of(Role.WORKER)
        self.watched.report_clock(workers[pick % len(workers)], self.watched.state.view.number, steps)

    @precondition(lambda self: self.watched.joins)
    @rule(pick=PICK, shift=SHIFTS, steps=STEPS)
    def somebody_reports_a_clock(self, pick: int, shift: int, steps: int) -> None:
        """Late, or of another view, or of one that is gone, or of a ps."""
        self.watched.report_clock(self.anybody(pick), max(0, self.watched.state.view.number + shift), steps)

    @precondition(lambda self: self.watched.chief in self.watched.live)
    @rule(shift=SHIFTS, global_step=st.integers(0, TRAIN_STEPS + 2))
    def the_chief_prepares(self, global_step: int, shift: int = 0) -> None:
        assert self.watched.chief
        self.watched.report(self.watched.chief, self.watched.state.view.number + shift, global_step)

    @precondition(lambda self: self.watched.state.phase.prepared and self.watched.chief in self.watched.live)
    @rule(shift=SHIFTS)
    def the_chief_finishes(self, shift: int) -> None:
        assert self.watched.chief
        self.watched.report(self.watched.chief, self.watched.state.view.number + shift, None)

    @precondition(lambda self: self.watched.joins)
    @rule(pick=PICK, shift=SHIFTS, global_step=st.none() | STEPS)
    def somebody_reports(self, pick: int, shift: int, global_step: int | None) -> None:
        self.watched.report(self.anybody(pick), self.watched.state.view.number + shift, global_step)

    @precondition(lambda self: self.watched.joins)
    @rule(pick=PICK, kind=st.sampled_from([LeaveKind.OVER, LeaveKind.ASKED, LeaveKind.ERROR]))
    def somebody_leaves(self, pick: int, kind: LeaveKind) -> None:
        self.watched.leave(self.anybody(pick), kind)

    @precondition(lambda self: len(self.watched.joins) > 6)
    @rule(pick=PICK)
    def somebody_breaks(self, pick: int) -> None:
        """It ends the history, so not at once."""
        self.watched.leave(self.anybody(pick), LeaveKind.FATAL)

    @precondition(lambda self: self.watched.joins)
    @rule(pick=PICK)
    def somebody_is_found_dead(self, pick: int) -> None:
        self.watched.confirm_lost(self.anybody(pick))

    @precondition(lambda self: self.watched.joins)
    @rule(pick=PICK)
    def somebody_looks(self, pick: int) -> None:
        self.watched.look(self.anybody(pick))

    # Time.

    @rule(gap_s=st.sampled_from([0.0, 0.25, 1.0, LEASE_S / 2]))
    def a_tick(self, gap_s: float) -> None:
        self.watched.now_s += gap_s
        self.watched.advance()

    @rule(gap_s=st.sampled_from([0.25, 1.0, LEASE_S / 2]))
    def time_passes_unseen(self, gap_s: float) -> None:
        """The next call, whatever it is, has to notice."""
        self.watched.now_s += gap_s

    @rule(picks=st.lists(PICK, max_size=3))
    def a_lease_passes(self, picks: list[int]) -> None:
        """Whoever is not among the picked ones falls silent."""
        self.watched.advance()
        live = list(self.watched.live)
        speaking = {live[pick % len(live)] for pick in picks if live}
        for _ in range(3):
            self.a_tick(LEASE_S / 2 - 0.25)
            for incarnation in sorted(speaking & set(self.watched.live)):
                self.honest_beat(incarnation, 0, stopped=False)
        assert set(self.watched.live) <= speaking

    @precondition(lambda self: self.watched.state.phase.prepared)
    @rule(picks=st.lists(PICK, max_size=2), parts=FLAG, successor_dies=FLAG)
    def the_end_takes_long(self, picks: list[int], parts: bool, successor_dies: bool) -> None:
        """Heartbeats go on, but the picked ones do not stop, and nobody closes; with `parts` it gets on for a while.

        Who is cut off joins again, from the same address.
        """
        workers = self.watched.live_of(Role.WORKER)
        stuck = {workers[pick % len(workers)] for pick in picks if workers}
        if self.watched.state.phase is Phase.TRAINING and self.job.train_steps is not None:
            self.the_limit_is_reached()
        for second in range(int(DRAIN_TIMEOUT_S) + 2):
            self.a_tick(1.0)
            for incarnation in list(self.watched.live):
                if incarnation in self.watched.live:
                    done = second if parts and second < 3 else 0
                    self.honest_beat(incarnation, 0, stopped=incarnation not in stuck, closed_parts=done)
        for index, address in sorted(self.watched.cut_off):
            places = {"address": address, "health_address": address}
            self.try_join(replace(self.fresh_join(Role.WORKER, index, self.remote), **places))
        if successor_dies and self.watched.chief:
            self.watched.confirm_lost(self.watched.chief)
            self.a_tick(1.0)

    @precondition(lambda self: self.watched.state.phase is Phase.PREPARING)
    @rule(seconds=st.integers(3, int(4 * LEASE_S)), begins=FLAG)
    def the_chief_does_not_prepare(self, seconds: int, begins: bool) -> None:
        """Heartbeats go on; it may say that it has begun."""
        for _ in range(seconds):
            self.a_tick(1.0)
            for incarnation in list(self.watched.live):
                if incarnation not in self.watched.live:
                    continue
                if begins and incarnation == self.watched.chief:
                    view = self.watched.state.view.number
                    beat = WorkerBeat(view - 1, prepares=view)
                    self.watched.heartbeat(incarnation, beat)
                else:
                    self.honest_beat(incarnation, 0, stopped=False)

    @precondition(lambda self: self.watched.state.phase is Phase.DRAINING)
    @rule(back=FLAG)
    def all_workers_die_while_it_drains(self, back: bool) -> None:
        for incarnation in self.watched.live_of(Role.WORKER):
            self.watched.confirm_lost(incarnation)
        for _ in range(2 if back else int(DRAIN_TIMEOUT_S) + 1):
            self.a_tick(1.0)
            for incarnation in self.watched.live_of(Role.PS):
                self.honest_beat(incarnation, 0, stopped=False)

    @rule(gap_s=st.sampled_from([LEASE_S, PS_TIMEOUT_S + LEASE_S, 1e6]))
    def the_coordinator_is_paused(self, gap_s: float) -> None:
        before, phase = set(self.watched.live), self.watched.state.phase
        self.a_tick(gap_s)
        assert set(self.watched.live) == before
        assert self.watched.state.phase is phase

    @precondition(lambda self: self.watched.missing_s and not self.watched.failing() and len(self.watched.joins) > 12)
    @rule()
    def a_lost_ps_stays_away(self) -> None:
        self.watched.advance()
        ticks = int(PS_TIMEOUT_S // (LEASE_S / 2)) + 1
        for _ in range(ticks):
            self.a_tick(LEASE_S / 2)
        assert self.watched.state.phase is Phase.FAILED
        assert "did not return within 9 s (ps_timeout_s)" in self.watched.state.reason


@pytest.mark.timeout(900)  # it takes seconds, but the smallest history that breaks a law is worth some minutes
def test_the_coordinator_keeps_its_laws_in_any_history() -> None:
    CoordinatorMachine.seen.clear()
    run_state_machine_as_test(
        CoordinatorMachine,
        settings=settings(
            max_examples=examples(450),
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            report_multiple_bugs=False,
        ),
    )
    missing = [name for name in MUST_HAPPEN if not CoordinatorMachine.seen[name]]
    assert not missing or not plays_all(), f"never happened: {missing}; what did: {CoordinatorMachine.seen}"
