"""Actions over gRPC: held until there is something to do, and every record on file before the answer."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from psruntime.config import JobConfig
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import LeaveKind, Prepared
from psruntime.core.rounds.round_messages import Action, ActionKind, Applied, Broken, Complete, Pushed, Taken
from psruntime.errors import ReplacedError, UnreachableError, UsageError
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.wire.messages import ActionRequest, ChiefReport, Leave
from tests.rpc.conftest import JOB_ID, LONG, Stage, a_join
from tests.support.polling import poll_until

JOB = JobConfig(job_id=JOB_ID, mode="sync", ps=1, min_workers=2, train_steps=3, lease_s=LONG, ps_timeout_s=LONG)


class Job:
    """A coordinator that trains in view 1, with two workers in round 1; worker 0 is the chief."""

    def __init__(self, stage: Stage, pool: Executor, job: JobConfig = JOB, **options: Any) -> None:
        self.calls = 0  # turns that the coordinator was asked for
        self.server = stage.coordinator(job, make=partial(Counting, self, job), **options)
        self.client: CoordinatorClient = stage.client(self.server)
        self.pool = pool
        self.ps = self.client.join(a_join(Role.PS, 0))
        self.workers = [self.client.join(a_join(Role.WORKER, index)) for index in range(2)]
        self.client.report_prepared(ChiefReport(0, self.workers[0].incarnation, 1, Prepared(0)))
        assert self.take(0).kind in (ActionKind.WAIT, ActionKind.PUSH)
        assert self.take(1).kind in (ActionKind.WAIT, ActionKind.PUSH)

    def take(self, worker: int, done: Any = None, max_wait_s: float = 0.0, view: int = 1) -> Action:
        request = ActionRequest(worker, self.workers[worker].incarnation, view, done, max_wait_s)
        action = self.client.next_action(request, lambda: True, LONG)
        assert action is not None
        return action

    def hold(self, worker: int, done: Any = None) -> Future[Action]:
        """Takes a turn in another thread; returns when the coordinator has told it to wait."""
        before = self.calls
        held = self.pool.submit(self.take, worker, done, LONG)
        poll_until(lambda: self.calls > before, 10, "the call has arrived")
        assert not held.done()
        return held

    def leave(self, role: Role, incarnation: int, index: int = 0) -> None:
        self.client.leave(Leave(role, index, incarnation, LeaveKind.ASKED, "bye"))


class Counting(Coordinator):
    """Counts the turns that it was asked for, once they have been taken."""

    def __init__(self, job: Job, config: JobConfig, now_s: float) -> None:
        super().__init__(config, now_s)
        self._job = job

    def next_action(self, *args: Any) -> Action:
        action = super().next_action(*args)
        self._job.calls += 1
        return action


@pytest.fixture
def job(pool, stage):  # in this order: the stage ends the calls for which the pool would wait
    return Job(stage, pool)


def share(worker, attempt=1, number=1, apart=True):
    return Pushed(number, attempt, 0, 8.0 + worker, apart)


def test_a_whole_round(job):
    assert job.take(1, share(1)).kind is ActionKind.WAIT
    action = job.take(0, share(0))
    assert action == Action(ActionKind.APPLY, round=1, attempt=1, opened=1, closes=Complete(1, 1, 2, 17.0), counted=1)
    assert job.take(0, Applied(1, 1, 1)) == Action(ActionKind.PUSH, round=2, attempt=2, opened=2, counted=1)
    assert job.client.get_status()[0].global_step == 1


def test_a_call_waits_for_the_last_contribution_and_for_the_close(job):
    chief = job.hold(0, share(0))
    other = job.hold(1, share(1))
    assert chief.result(30).kind is ActionKind.APPLY
    assert not other.done()
    assert job.take(0, Applied(1, 1, 1)).kind is ActionKind.PUSH
    assert other.result(30) == Action(ActionKind.PUSH, round=2, attempt=2, opened=2, counted=1)


def test_a_round_that_the_next_one_closes(job):
    held = job.hold(0, share(0, apart=False))
    action = job.take(1, share(1, apart=False))
    assert action == Action(ActionKind.PUSH, round=2, attempt=2, opened=2, closes=Complete(1, 1, 2, 17.0), counted=1)
    assert held.result(30) == action
    assert job.client.get_status()[0].global_step == 0, "nobody has said yet that it is closed"
    assert job.take(1, share(1, 2, 2, apart=False)).kind is ActionKind.WAIT
    assert job.client.get_status()[0].global_step == 1
    assert job.take(0) == Action(ActionKind.PUSH, round=2, attempt=2, opened=2, counted=1)


def test_a_call_hears_that_its_attempt_became_void(job):
    held = job.hold(1, share(1))
    job.leave(Role.WORKER, job.workers[0].incarnation)
    assert held.result(30) == Action(ActionKind.PUSH, round=1, attempt=2, opened=1)


def test_the_successor_of_a_chief_hears_that_it_closes(job):
    job.take(0, share(0))
    held = job.hold(1, share(1))
    job.leave(Role.WORKER, job.workers[0].incarnation)
    closes = Complete(1, 1, 2, 17.0)
    assert held.result(30) == Action(ActionKind.APPLY, round=1, attempt=1, opened=1, closes=closes, counted=1)


def test_a_call_ends_with_its_view(job):
    held = job.hold(0, share(0))
    job.leave(Role.PS, job.ps.incarnation)
    assert held.result(30).kind is ActionKind.NONE
    assert job.take(1).kind is ActionKind.NONE


def test_a_call_ends_when_the_round_is_torn(job):
    job.take(0, share(0))
    held = job.hold(1, share(1))
    assert job.take(0, Broken(1, 1, "cut off")).kind is ActionKind.NONE
    assert held.result(30).kind is ActionKind.NONE
    assert job.client.get_status()[0].view.number == 2


def test_a_call_ends_with_the_last_round(job):
    for number in (1, 2):
        job.take(1, share(1, number, number))
        job.take(0, share(0, number, number))
        job.take(0, Applied(number, number, number))
    held = job.hold(1, share(1, 3, 3))
    assert job.take(0, share(0, 3, 3)).kind is ActionKind.APPLY
    assert not held.done()
    assert job.take(0, Applied(3, 3, 3)).kind is ActionKind.NONE
    assert held.result(30).kind is ActionKind.NONE


def test_a_call_ends_with_its_own_incarnation(job):
    held = job.hold(1, share(1))
    job.leave(Role.WORKER, job.workers[1].incarnation, 1)
    job.take(0, share(0))  # what changes for the others wakes it
    with pytest.raises(ReplacedError):
        held.result(30)
    with pytest.raises(ReplacedError):
        job.take(1)


def test_a_call_ends_unchanged_after_its_wait(job):
    action = job.take(1, share(1), 0.05)
    assert (action.kind, action.reason) == (ActionKind.WAIT, "round 1 waits for worker 0")


def test_a_wait_is_cut_at_a_third_of_the_lease(pool, stage):
    job = Job(stage, pool, JobConfig(job_id=JOB_ID, mode="sync", ps=1, min_workers=2, lease_s=3.0))
    assert job.take(1, share(1), LONG).kind is ActionKind.WAIT


def test_a_call_that_is_called_off_returns_nothing(job):
    wanted = [True, True, False]
    request = ActionRequest(1, job.workers[1].incarnation, 1, share(1), LONG)
    assert job.client.next_action(request, lambda: wanted.pop(0), LONG) is None
    assert job.take(0, share(0)).kind is ActionKind.APPLY, "what it said was heard all the same"


def test_a_call_ends_when_the_coordinator_stops(job):
    held = job.hold(1, share(1))
    job.server.stop(5.0)
    assert held.result(30).kind is ActionKind.WAIT


def test_a_call_of_a_caller_that_closes_ends(job):
    held = job.hold(1, share(1))
    job.client.close()
    with pytest.raises(UnreachableError):
        held.result(30)


def test_turns_and_the_status_have_the_shares_of_the_round(pool, stage):
    job = Job(stage, pool, replace(JOB, batch_policy="throughput", train_steps=None))

    def shares() -> list[int]:
        return [member.share for member in job.client.get_status()[0].members if member.role is Role.WORKER]

    assert shares() == [0, 0], "nobody has told its batch size"
    for number in range(1, 6):
        for worker, speed in enumerate((10, 30)):
            taken = Taken(0, 8, 8, 8 / speed)
            action = job.take(worker, replace(share(worker, number, number, apart=False), taken=taken))
    assert action == Action(ActionKind.PUSH, 6, 6, 6, Complete(5, 5, 2, 17.0), share=12, counted=5)
    assert job.take(0).share == 4 and shares() == [4, 12]


def test_only_the_chief_closes(job):
    job.take(0, share(0))
    job.take(1, share(1))
    with pytest.raises(ReplacedError, match="worker 1 does not close the round, worker 0 does"):
        job.take(1, Applied(1, 1, 1))


def test_malformed_words_are_refused(job):
    with pytest.raises(UsageError, match=r"pushed\.examples must be a finite number from 0"):
        job.take(1, Pushed(1, 1, 0, float("nan")))


def test_a_record_is_kept_before_the_answer_and_before_the_others_hear(pool, stage):
    records: list[dict[str, Any]] = []
    waiting: list[Future[Action]] = []
    seen: list[bool] = []

    def record(line: dict[str, Any]) -> None:
        records.append(line)
        seen.extend(held.done() for held in waiting)

    job = Job(stage, pool, record=record)
    assert [r["record"] for r in records] == ["prepared"]
    job.take(0, share(0))
    waiting.append(job.hold(1, share(1)))
    closer = pool.submit(job.take, 0, Applied(1, 1, 1))
    waiting.append(closer)
    closer.result(30)
    assert [r["record"] for r in records] == ["prepared", "round"]
    assert not any(seen)
    parts = [(p["worker"], p["batch"], p["examples"]) for p in records[-1]["parts"]]
    assert parts == [(0, 0, 8.0), (1, 0, 9.0)]
