"""What must hold when processes of a job are asked to stop, in any order of what happens meanwhile.

Whole conversations with it are in scenarios/stopped_*.txt and scenarios/ps_asked_to_stop.txt.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from psruntime.config import JobConfig
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Join, LeaveKind, Prepared, PsBeat, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.core.plan.buckets import VariableSpec
from psruntime.errors import PsRuntimeError
from tests.support.selection import examples, plays_all

GRACE_S = 8.0
CLOSING_S = 2  # for the last checkpoint
SPECS = (VariableSpec("kernel", (4,), "float32"),)
MEMBERS = [(Role.PS, 0), (Role.PS, 1), (Role.WORKER, 0), (Role.WORKER, 1)]
WHO = st.sampled_from(MEMBERS)
seen: Counter[str] = Counter()


class Job:
    """Two ps and two workers that do what they are told, but for what the test makes of them."""

    def __init__(self, mode: str, checkpoint_dir: str) -> None:
        self.job = JobConfig(
            ps=2, mode=mode, lease_s=4.0, train_steps=12, checkpoint_dir=checkpoint_dir, stop_grace_s=GRACE_S
        )
        self.core = Coordinator(self.job, 0.0)
        self.now_s, self.joined = 0.0, 0
        self.incarnations: dict[tuple[Role, int], int] = {}
        self.asked: set[tuple[Role, int]] = set()
        self.stuck: set[tuple[Role, int]] = set()
        self.steps = self.closing = 0
        self.stopping_s: float | None = None  # since when the job stops
        for who in MEMBERS:
            self.join(who)

    @property
    def phase(self) -> Phase:
        return self.core.state.phase

    def join(self, who: tuple[Role, int]) -> None:
        if who in self.incarnations or self.phase.over:
            return
        self.joined += 1
        role, index = who
        address = f"127.0.0.1:{self.joined}"
        specs = SPECS if role is Role.WORKER else ()
        join = Join(role, index, address, address, f"{self.joined}", self.job.job_id, variables=specs)
        if isinstance(self.core.join(join, self.joined, self.now_s), Answer):
            self.incarnations[who] = self.joined
            self.asked.discard(who)
            self.stuck.discard(who)

    def ask(self, who: tuple[Role, int]) -> None:
        if who in self.incarnations:
            self.asked.add(who)

    def get_stuck(self, who: tuple[Role, int]) -> None:
        if who[0] is Role.WORKER:
            self.stuck.add(who)

    def die(self, who: tuple[Role, int]) -> None:
        if who in self.incarnations:
            self.core.confirm_lost(self.incarnations.pop(who), self.now_s)

    def pass_time(self, seconds: int) -> None:
        """With a beat of everybody each second, and a step of every worker that may."""
        for _ in range(seconds):
            self.now_s += 1.0
            self.core.advance(self.now_s)
            for who in MEMBERS:
                self.act(who)
                self.check()

    def act(self, who: tuple[Role, int]) -> None:
        role, index = who
        if (incarnation := self.incarnations.get(who)) is None or self.phase.over:
            return
        try:
            told = self.core.answer(role, index, incarnation).instructions
            self.steps += told.phase is Phase.TRAINING and role is Role.WORKER
            view, asked = told.view.number, who in self.asked
            beat = (
                PsBeat(told.fence_revision, view, self.steps, asked_to_stop=asked)
                if role is Role.PS
                else WorkerBeat(
                    view, self.steps, self.steps, told.phase is Phase.DRAINING and who not in self.stuck,
                    saved_step=self.steps if told.save else None, asked_to_stop=asked,
                )
            )  # fmt: skip
            told = self.core.heartbeat(role, index, incarnation, beat, self.now_s).instructions
            if who in self.stuck:
                return
            if told.chief and told.phase is Phase.PREPARING:
                self.core.report_prepared(index, incarnation, view, Prepared(self.steps), self.now_s)
            if told.chief:
                self.closing = self.closing + 1 if told.close else min(self.closing, 0)
            if self.closing > CLOSING_S:
                self.core.report_finished(index, incarnation, view, self.now_s)
            leaves = told.leave if role is Role.PS else not (told.stopping or told.phase is Phase.DRAINING)
            if asked and leaves and not self.phase.over:
                seen[f"{role} leaves"] += 1
                self.core.leave(role, index, incarnation, LeaveKind.ASKED, "asked", self.now_s)
                del self.incarnations[who]
        except PsRuntimeError:
            del self.incarnations[who]

    def check(self) -> None:
        stop = self.core.state.stop
        if stop.reason and not stop.fails and self.stopping_s is None:
            self.stopping_s = self.now_s
            seen["stops"] += 1
        if self.stopping_s is not None:
            assert self.phase.over or self.now_s - self.stopping_s < GRACE_S, "it stops within the time"
            assert self.phase is not Phase.TRAINING or self.job.mode == "sync", "no step begins"
        if self.phase is Phase.STOPPED:
            assert stop.reason, "somebody has asked"
            said = "saved" if stop.cuts_short and "not saved" not in self.core.state.reason else "not saved"
            seen[f"STOPPED, {said}"] += 1
        if self.phase is Phase.DONE:
            seen["DONE though asked"] += bool(stop.reason)
            assert not stop.cuts_short


INPUTS = st.one_of(
    st.tuples(st.just("pass_time"), st.integers(1, 5)),
    st.tuples(st.sampled_from(["ask", "ask", "join", "get_stuck", "die"]), WHO),
)


ALL_IS_PLAYED = plays_all()  # by the examples below: another file may import this one before its own profile is loaded


@settings(max_examples=examples(400), deadline=None, derandomize=True)
@given(
    mode=st.sampled_from(["async", "sync"]),
    folder=st.sampled_from(["", "/saved"]),
    inputs=st.lists(INPUTS, min_size=4, max_size=25),
)
def histories(mode: str, folder: str, inputs: list[tuple[str, object]]) -> None:
    job = Job(mode, folder)
    for name, argument in inputs:
        getattr(job, name)(argument)
        job.check()
    asked = [who for who in MEMBERS if who in job.asked and who in job.incarnations]
    job.pass_time(int(2 * GRACE_S))
    for who in asked:
        assert job.phase.over or who not in job.incarnations or who in job.stuck, "who was asked is gone"


def test_whoever_is_asked_goes_and_what_is_asked_to_stop_is_over_in_time() -> None:
    seen.clear()
    histories()
    must_happen = ["stops", "ps leaves", "worker leaves", "STOPPED, saved", "STOPPED, not saved", "DONE though asked"]
    missing = [name for name in must_happen if not seen[name]]
    assert not missing or not ALL_IS_PLAYED, f"never happened: {missing}; what did: {seen}"


def test_without_any_time_a_signal_is_no_wish() -> None:
    core = Coordinator(JobConfig(stop_grace_s=0.0), 0.0)
    join = Join(Role.PS, 0, "127.0.0.1:1", "127.0.0.1:1", "1", core.state.job.job_id)
    assert isinstance(core.join(join, 1, 0.0), Answer)
    core.heartbeat(Role.PS, 0, 1, PsBeat(asked_to_stop=True), 1.0)
    assert core.state.phase is Phase.FORMING


def failing(stuck: bool) -> Job:
    """A job that trains, of which worker 1 says that its code has failed.  stuck: worker 0 does not stop."""
    job = Job("async", "/saved")
    job.pass_time(3)
    assert job.phase is Phase.TRAINING
    if stuck:
        job.get_stuck((Role.WORKER, 0))
    incarnation = job.incarnations[Role.WORKER, 1]
    beat = WorkerBeat(job.core.state.view.number, 1, job.steps, stopped=True, failure="KeyError: no such column")
    job.core.heartbeat(Role.WORKER, 1, incarnation, beat, job.now_s)
    return job


def test_a_job_that_fails_is_not_cut_off_while_its_chief_saves() -> None:
    job = failing(stuck=False)
    job.closing = -int(3 * GRACE_S)  # so long the last checkpoint takes
    job.pass_time(int(2 * GRACE_S))
    assert job.phase is Phase.DRAINING
    job.pass_time(int(3 * GRACE_S))
    assert job.phase is Phase.FAILED and "not saved" not in job.core.state.reason, job.core.state.reason


def test_a_job_that_fails_ends_though_no_chief_ends_its_save() -> None:
    job = failing(stuck=False)
    job.closing = -10_000
    limit_s = 2 * job.job.drain_timeout_s + 2 * GRACE_S  # each of two workers may try
    job.pass_time(int(limit_s))
    assert job.phase is Phase.FAILED


def test_a_job_that_fails_ends_in_time_though_a_worker_does_not_stop() -> None:
    job = failing(stuck=True)
    job.closing = -10_000
    job.pass_time(1)
    job.pass_time(int(job.job.drain_timeout_s + 3 * GRACE_S))
    assert job.phase is Phase.FAILED
