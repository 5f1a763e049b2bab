"""A coordinator that is not the job's first: what it learns from those who join again, and what it waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from psruntime.config import JobConfig
from psruntime.core.coordinator.chief import AGAIN_S
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Instructions, Join, Prepared, PsBeat, WorkerBeat
from psruntime.core.members.view import UNKNOWN, Past, Phase
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.identity import TENSORFLOW, UNSAID, ModelIdentity
from psruntime.errors import ModelDiffersError

PS_TIMEOUT_S = 15.0
SPECS = (VariableSpec("kernel", (4,), "float32"),)
BEFORE = Past(began=True, global_step=120, saved_step=100)  # what a member of the coordinator before remembers
STARTED_S = 1000.0


class Job:
    """A coordinator that started at STARTED_S; members join and beat as they are told to."""

    def __init__(self, **settings: Any) -> None:
        self.job = JobConfig(**{"ps_timeout_s": PS_TIMEOUT_S, **settings})
        self.core = Coordinator(self.job, STARTED_S)
        self.now_s = STARTED_S
        self.incarnations: dict[tuple[Role, int], int] = {}

    @property
    def phase(self) -> Phase:
        return self.core.state.phase

    @property
    def reason(self) -> str:
        return self.core.state.reason

    def join(self, role: Role, index: int, past: Past = UNKNOWN, identity: ModelIdentity = UNSAID) -> None:
        number = len(self.incarnations) + 1
        self.incarnations[role, index] = number
        specs = SPECS if role is Role.WORKER else ()
        address = f"127.0.0.1:{number}"
        join = Join(
            role, index, address, address, f"{number}", self.job.job_id, variables=specs, past=past, identity=identity
        )
        assert isinstance(self.core.join(join, number, self.now_s), Answer)

    def told(self, role: Role, index: int) -> Instructions:
        return self.core.answer(role, index, self.incarnations[role, index]).instructions

    def beat(self) -> None:
        """Everybody says that it is there; the ps write the fence."""
        for (role, index), incarnation in self.incarnations.items():
            told = self.told(role, index)
            beat = PsBeat(told.fence_revision) if role is Role.PS else WorkerBeat()
            self.core.heartbeat(role, index, incarnation, beat, self.now_s)

    def wait(self, seconds: float) -> None:
        """With heartbeats."""
        for _ in range(int(seconds)):
            self.now_s += 1.0
            if not self.phase.over:
                self.beat()
        self.core.advance(self.now_s)

    def refuses(self, index: int, obstacle: str) -> None:
        """As chief."""
        view = self.core.state.view.number
        self.core.report_obstacle(index, self.incarnations[Role.WORKER, index], view, obstacle, self.now_s)


def with_workers(number: int) -> Job:
    """A ps and as many workers are there: the first is to prepare a view."""
    job = Job(min_workers=number)
    job.join(Role.PS, 0)
    for index in range(number):
        job.join(Role.WORKER, index)
    return job


def test_a_ps_that_does_not_come_back_with_the_coordinator_fails_the_job_in_time() -> None:
    job = Job(ps=2, min_workers=2)
    job.join(Role.PS, 0)
    job.join(Role.WORKER, 0, BEFORE)
    job.wait(PS_TIMEOUT_S - 1)
    assert job.phase is Phase.FORMING and "waiting for ps 1 of 2" in job.reason
    job.wait(3)
    assert job.phase is Phase.FAILED
    assert job.reason == "ps 1 did not return within 15 s (ps_timeout_s)"


def test_a_ps_of_a_job_that_has_not_begun_is_waited_for() -> None:
    job = Job(ps=2)
    job.join(Role.PS, 0, Past(saved_step=100))
    job.join(Role.WORKER, 0, Past(saved_step=100))
    job.wait(3 * PS_TIMEOUT_S)
    assert job.phase is Phase.FORMING


@pytest.mark.parametrize("who", [Role.PS, Role.WORKER])
def test_a_job_that_has_begun_goes_on_with_the_workers_that_are_left(who: Role) -> None:
    job = Job(ps=2, min_workers=3)
    job.join(Role.PS, 0)
    job.join(Role.PS, 1, BEFORE if who is Role.PS else UNKNOWN)
    assert job.phase is Phase.FORMING
    job.join(Role.WORKER, 4, BEFORE if who is Role.WORKER else UNKNOWN)
    assert job.phase is Phase.PREPARING


def test_the_chief_is_told_what_must_not_be_lost() -> None:
    job = Job()
    job.join(Role.PS, 0, Past(saved_step=80))
    job.join(Role.WORKER, 0, BEFORE)
    told = job.told(Role.WORKER, 0)
    assert (told.chief, told.saved_step, told.seen_step) == (True, 100, 120)
    job.beat()
    job.core.report_prepared(0, job.incarnations[Role.WORKER, 0], 1, Prepared(60, saved_step=60), job.now_s)
    for role in Role:
        assert job.told(role, 0).saved_step == 60  # an older one was meant: the chief says which
    assert job.told(Role.WORKER, 0).seen_step == 0
    beat = WorkerBeat(1, 10, 130, saved_step=130)
    job.core.heartbeat(Role.WORKER, 0, job.incarnations[Role.WORKER, 0], beat, job.now_s)
    assert job.told(Role.PS, 0).saved_step == 130
    job.join(Role.WORKER, 1, Past(saved_step=500))  # of a folder of its own
    assert job.told(Role.PS, 0).saved_step == 130


@pytest.mark.parametrize("role", Role)
def test_who_only_saw_a_preparation_tells_the_next_coordinator_what_must_not_be_lost(role: Role) -> None:
    """A member that came after the loss, and is the only one that outlives the next."""
    job = Job(ps=2)
    job.join(Role.WORKER, 0, BEFORE)
    job.join(Role.PS, 0)
    job.join(role, 1)
    survivor = UNKNOWN
    for _ in range(2):  # FORMING, then PREPARING for a ps
        told = job.told(role, 1)
        survivor = survivor.after(told.phase.prepared, told.saved_step, told.seen_step)
    assert survivor == BEFORE
    successor = Job(ps=2)
    successor.join(Role.PS, 0)
    successor.join(role, 1, survivor)
    successor.join(*((Role.PS, 1) if role is Role.WORKER else (Role.WORKER, 0)))
    chief = 1 if role is Role.WORKER else 0
    told = successor.told(Role.WORKER, chief)
    assert (told.phase, told.chief, told.saved_step, told.seen_step) == (Phase.PREPARING, True, 100, 120)


def test_a_chief_that_does_not_see_the_checkpoint_is_relieved() -> None:
    job = Job(min_workers=2)
    job.join(Role.PS, 0)
    job.join(Role.WORKER, 0)
    job.join(Role.WORKER, 1, Past(saved_step=100))
    assert job.told(Role.WORKER, 0).chief
    job.refuses(0, "checkpoint 100 is not here")
    events = {event.name: event.facts for event in job.core.take_effects().events}
    assert events["relieved"] == {"worker": 0, "reason": "checkpoint 100 is not here"}
    assert not job.told(Role.WORKER, 0).chief and job.told(Role.WORKER, 1).chief
    job.wait(2 * PS_TIMEOUT_S)
    assert job.phase is Phase.PREPARING and job.core.state.chief == 1  # it takes its time


def test_a_view_that_nobody_can_prepare_says_why_and_fails_the_job_in_time() -> None:
    job = Job(min_workers=2)
    job.join(Role.PS, 0)
    for index in range(2):
        job.join(Role.WORKER, index)
        job.wait(1)
    for index in range(2):
        job.refuses(index, "checkpoint 100 is not here")
    why = "no worker can prepare view 1: worker 0: checkpoint 100 is not here; worker 1: checkpoint 100 is not here"
    assert job.phase is Phase.PREPARING and job.reason == why
    for _ in range(int(PS_TIMEOUT_S) + 1):
        for index in range(2):
            if job.told(Role.WORKER, index).chief:  # it is asked again, and finds the same
                job.refuses(index, "checkpoint 100 is not here")
        assert job.phase is Phase.PREPARING and job.reason == why
        job.wait(1)
    assert job.phase is Phase.FAILED
    assert job.reason == f"{why}; none that can came within 15 s (ps_timeout_s)"


def test_a_worker_that_can_prepare_may_come_later() -> None:
    job = with_workers(1)
    job.refuses(0, "checkpoint 100 is not here")
    job.wait(AGAIN_S - 1)
    job.join(Role.WORKER, 1, Past(saved_step=100))
    assert job.told(Role.WORKER, 1).chief
    job.wait(PS_TIMEOUT_S)
    assert job.phase is Phase.PREPARING and job.told(Role.WORKER, 1).chief


def test_all_are_asked_before_anybody_is_asked_again() -> None:
    job, asked = with_workers(5), []
    for _ in range(10):
        chief = job.core.state.chief
        asked.append(chief)
        job.wait(AGAIN_S / 3)  # it takes its time to find out
        job.refuses(chief, "checkpoint 100 is not here")
    assert asked == [*range(5), *range(5)]


def test_a_worker_that_could_not_prepare_is_asked_again() -> None:
    """Its file system was away for a moment."""
    job = with_workers(1)
    job.refuses(0, "checkpoint 100 is not here")
    job.wait(AGAIN_S - 1)
    assert not job.told(Role.WORKER, 0).chief
    job.wait(2)
    assert job.told(Role.WORKER, 0).chief
    job.core.report_prepared(0, job.incarnations[Role.WORKER, 0], 1, Prepared(100, saved_step=100), job.now_s)
    assert job.phase is Phase.TRAINING
    assert job.core.state.reliefs.waited_s == 0.0


def test_attempts_go_on_although_nobody_holds_them_any_more() -> None:
    """All ps and the coordinator were lost; a worker remembers."""
    job = Job(mode="sync")
    job.join(Role.PS, 0)
    job.join(Role.WORKER, 0, Past(began=True, global_step=50, saved_step=40, attempt=57))
    job.beat()
    worker = job.incarnations[Role.WORKER, 0]
    job.core.report_prepared(0, worker, 1, Prepared(40, attempt=0, saved_step=40), job.now_s)
    job.beat()
    action = job.core.next_action(0, worker, 1, None, job.now_s)
    assert (action.round, action.attempt) == (41, 58)


OLD, NEW = (ModelIdentity(((TENSORFLOW, version),)) for version in ("2.20.0", "2.21.0"))


def test_a_ps_with_another_version_is_refused_and_the_status_says_why() -> None:
    job = Job(ps=2, min_workers=1)
    job.join(Role.PS, 0, identity=NEW)
    job.join(Role.WORKER, 0, identity=NEW)
    with pytest.raises(ModelDiffersError, match=r"^ps 1 has other versions than the job: TensorFlow: 2\.20\.0, where"):
        job.join(Role.PS, 1, identity=OLD)
    del job.incarnations[Role.PS, 1]
    job.wait(1)
    assert job.phase is Phase.FORMING and "ps 1 has other versions than the job" in job.reason
    job.join(Role.PS, 1, identity=NEW)
    job.wait(1)
    assert job.phase is Phase.PREPARING


def test_a_ps_0_that_returns_with_another_version_does_not_push_out_the_members_before_it() -> None:
    job = Job(ps=1, min_workers=1)
    job.join(Role.PS, 0, identity=NEW)
    job.join(Role.WORKER, 0, replace(BEFORE, identity=OLD), identity=OLD)
    assert not job.core.state.members.live(Role.PS)
    with pytest.raises(ModelDiffersError, match=r"TensorFlow: 2\.21\.0, where the job has 2\.20\.0"):
        job.join(Role.PS, 0, identity=NEW)
    del job.incarnations[Role.PS, 0]
    job.join(Role.PS, 0, identity=OLD)
    job.wait(1)
    assert job.phase is Phase.PREPARING
