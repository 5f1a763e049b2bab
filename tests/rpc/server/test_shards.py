"""Data shards over gRPC: a call is held until there is a shard, or until the job does something else."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

import pytest

from psruntime.config import JobConfig
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import LeaveKind, Prepared
from psruntime.core.shards.shard_messages import Position, ShardAnswer, Sharding, ShardNews, ShardRequest
from psruntime.errors import ReplacedError, UsageError
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.wire.messages import ChiefReport, Leave
from tests.rpc.conftest import JOB_ID, LONG, Stage, a_join
from tests.support.polling import poll_until

SHARDING = Sharding(10, 5)


class Job:
    """A coordinator that trains in view 1, with two workers that take shards, of which there are two an epoch."""

    def __init__(self, stage: Stage, pool: Executor) -> None:
        job = JobConfig(job_id=JOB_ID, epochs=1, lease_s=LONG, ps_timeout_s=LONG)
        self.calls = 0
        self.server = stage.coordinator(job, make=partial(Counting, self, job))
        self.client: CoordinatorClient = stage.client(self.server)
        self.pool = pool
        self.ps = self.client.join(a_join(Role.PS, 0))
        self.workers = [self.client.join(a_join(Role.WORKER, index)) for index in range(2)]
        position = Position(1, (), SHARDING)
        self.client.report_prepared(ChiefReport(0, self.workers[0].incarnation, 1, Prepared(0, position=position)))

    def take(
        self, worker: int, seen: int = 0, *news: ShardNews, max_wait_s: float = 0.0, sharding: Sharding = SHARDING
    ) -> ShardAnswer:
        request = ShardRequest(worker, self.workers[worker].incarnation, sharding, seen, news, max_wait_s)
        answer = self.client.take_shard(request, lambda: True, LONG)
        assert answer is not None
        return answer

    def hold(self, worker: int, seen: int = 0) -> Future[ShardAnswer]:
        """Asks in another thread; returns when the coordinator has told it to wait."""
        before = self.calls
        held = self.pool.submit(self.take, worker, seen, max_wait_s=LONG)
        poll_until(lambda: self.calls > before, 10, "the call has arrived")
        assert not held.done()
        return held


class Counting(Coordinator):
    """Counts the calls that have been answered, at least with a wait."""

    def __init__(self, job: Job, config: JobConfig, now_s: float) -> None:
        super().__init__(config, now_s)
        self._job = job

    def take_shard(self, *args: Any) -> ShardAnswer:
        answer = super().take_shard(*args)
        self._job.calls += 1
        return answer


@pytest.fixture
def job(pool, stage):  # in this order: the stage ends the calls for which the pool would wait
    return Job(stage, pool)


def test_a_call_waits_until_a_shard_of_a_lost_worker_is_there(job):
    first, second = job.take(0).shard, job.take(1).shard
    assert {first.begin, second.begin} == {0, 5} and second.ticket > first.ticket
    waits = job.take(1, second.ticket)
    assert waits == ShardAnswer(None, "others hold the rest of epoch 1")
    held = job.hold(1, second.ticket)
    job.client.leave(Leave(Role.WORKER, 0, job.workers[0].incarnation, LeaveKind.ERROR, "bye"))
    again = held.result(30).shard
    assert (again.begin, again.end) == (first.begin, first.end) and again.ticket > second.ticket


def test_the_last_shard_ends_the_job_and_the_calls_that_wait(job):
    first, second = job.take(0).shard, job.take(1).shard
    held = job.hold(0, first.ticket)
    job.take(1, second.ticket, ShardNews(second.ticket, 2, frozenset({0, 1})))
    assert job.client.get_position().done in (((0, 1),), ((1, 2),))
    status = job.client.get_status()[0]
    assert (status.shards.epoch, status.shards.done, status.shards.of) == (1, 1, 2)
    job.take(0, first.ticket, ShardNews(first.ticket, 0))
    assert held.result(30).reason == "nothing is read in phase DRAINING"
    assert job.client.get_position() == Position(2, (), SHARDING)
    assert job.client.get_status()[0].reason.startswith("epoch 1 of 1 is done, at global step 0")


def test_another_cut_and_another_incarnation_are_refused(job):
    job.take(0)
    with pytest.raises(UsageError, match=r"context\.shards has 11 examples in shards of 5 here"):
        job.take(1, sharding=Sharding(11, 5))
    with pytest.raises(ReplacedError):
        job.client.take_shard(ShardRequest(1, 7, SHARDING), lambda: True, LONG)
