"""The coordinator's RPCs: answers at once, held heartbeats, status, malformed calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psruntime.config import JobConfig
from psruntime.core.members.membership import Role, tag_of
from psruntime.core.members.messages import LeaveKind, NotYet, Prepared, PsBeat, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.errors import (
    IndexHeldError,
    JobDoneError,
    JobFailedError,
    ModelDiffersError,
    OtherJobError,
    ReplacedError,
    StopRequested,
    UnreachableError,
    UsageError,
)
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.join import end_reported
from psruntime.rpc.wire.messages import ChiefReport, Leave
from tests.rpc.conftest import JOB_ID, LONG, SPECS, a_beat, a_join, hold
from tests.support.polling import poll_until

JOB = JobConfig(job_id=JOB_ID, ps=1, train_steps=2000, lease_s=LONG, ps_timeout_s=LONG, max_staleness=3)


@pytest.fixture
def client(stage):
    return stage.client(stage.coordinator(JOB))


def test_the_settings_of_the_job(client):
    assert client.get_job() == JOB


def test_no_model_before_a_worker(client):
    assert client.get_model() is None
    client.join(a_join(Role.WORKER, 0))
    assert client.get_model() == SPECS


def test_a_repeated_join_is_one_join(client):
    first = client.join(a_join(Role.PS, 0))
    again = client.join(a_join(Role.PS, 0))
    assert again == first
    assert 1 <= first.incarnation < 2**63


def test_a_whole_life(client, stage):
    ps = client.join(a_join(Role.PS, 0))
    worker = client.join(a_join(Role.WORKER, 0))
    assert worker.instructions.phase is Phase.PREPARING
    assert worker.instructions.chief
    view = worker.instructions.view.number
    answer = client.report_prepared(ChiefReport(0, worker.incarnation, view, Prepared(0)))
    assert answer.instructions.phase is Phase.TRAINING
    ps = client.heartbeat(a_beat(ps, Role.PS, 0))
    assert ps.instructions.admitted == ((0, worker.incarnation),)
    client.heartbeat(a_beat(ps, Role.PS, 0, PsBeat(fence_revision=ps.instructions.fence_revision)))
    last = WorkerBeat(view, steps=5, global_step=JOB.train_steps, stopped=True)
    answer = client.heartbeat(a_beat(answer, Role.WORKER, 0, last))
    assert answer.instructions.admitted_by_ps
    assert (answer.instructions.phase, answer.instructions.close) == (Phase.DRAINING, True)
    assert client.report_finished(ChiefReport(0, worker.incarnation, view)).instructions.phase is Phase.DONE
    with pytest.raises(JobDoneError, match="the job is done: global step 2000"):
        client.join(a_join(Role.WORKER, 1))
    client.leave(Leave(Role.WORKER, 0, worker.incarnation, LeaveKind.OVER, "done"))
    client.leave(Leave(Role.WORKER, 0, worker.incarnation, LeaveKind.OVER, "done"))
    assert len(stage.events.named("member_left")) == 1
    status, job = client.get_status()
    assert job == JOB
    assert (status.phase, status.global_step) == (Phase.DONE, JOB.train_steps)
    assert [m.role for m in status.members] == [Role.PS]
    assert [facts["now"] for facts in stage.events.named("phase")] == ["PREPARING", "TRAINING", "DRAINING", "DONE"]


def test_a_heartbeat_without_a_wait_is_answered_at_once(client):
    answer = client.join(a_join(Role.PS, 0))
    assert client.heartbeat(a_beat(answer, Role.PS, 0)) == answer


def test_a_member_that_has_not_seen_the_latest_is_answered_at_once(client):
    answer = client.join(a_join(Role.PS, 0))
    assert client.heartbeat(a_beat(answer, Role.PS, 0, wait_s=LONG, seen=0)) == answer


def test_a_held_heartbeat_is_answered_when_the_phase_changes(client, pool):
    answer = client.join(a_join(Role.PS, 0))
    held = hold(pool, client, a_beat(answer, Role.PS, 0))
    client.join(a_join(Role.WORKER, 0))
    news = held.result(30)
    assert news.instructions.phase is Phase.PREPARING
    assert news.revision > answer.revision


def test_a_held_heartbeat_is_answered_when_another_beat_changes_its_standing(client, pool):
    ps = client.join(a_join(Role.PS, 0))
    worker = client.join(a_join(Role.WORKER, 0))
    ps = client.heartbeat(a_beat(ps, Role.PS, 0))
    held = hold(pool, client, a_beat(worker, Role.WORKER, 0))
    client.heartbeat(a_beat(ps, Role.PS, 0, PsBeat(fence_revision=ps.instructions.fence_revision)))
    assert held.result(30).instructions.admitted_by_ps


def test_a_held_heartbeat_of_the_chief_is_answered_when_the_last_worker_stops(client, pool):
    client.join(a_join(Role.PS, 0))
    first = client.join(a_join(Role.WORKER, 0))
    second = client.join(a_join(Role.WORKER, 1))
    view = first.instructions.view.number
    client.report_prepared(ChiefReport(0, first.incarnation, view, Prepared(0)))
    stopped = WorkerBeat(view, steps=1, global_step=JOB.train_steps, stopped=True)
    first = client.heartbeat(a_beat(first, Role.WORKER, 0, stopped))
    assert not first.instructions.close
    held = hold(pool, client, a_beat(first, Role.WORKER, 0, stopped))
    client.heartbeat(a_beat(second, Role.WORKER, 1, stopped))
    assert held.result(30).instructions.close


def test_a_held_heartbeat_ends_unchanged_after_its_wait(client):
    answer = client.join(a_join(Role.PS, 0))
    assert client.heartbeat(a_beat(answer, Role.PS, 0, wait_s=0.05), 60.0) == answer


def test_a_wait_is_cut_at_a_third_of_the_lease(stage):
    job = JobConfig(job_id=JOB_ID, lease_s=0.5)
    client = stage.client(stage.coordinator(job))
    answer = client.join(a_join(Role.PS, 0))
    assert client.heartbeat(a_beat(answer, Role.PS, 0, wait_s=LONG), 60.0) == answer


def test_a_held_heartbeat_ends_with_an_error_when_its_member_goes(client, pool):
    answer = client.join(a_join(Role.PS, 0))
    held = hold(pool, client, a_beat(answer, Role.PS, 0))
    client.leave(Leave(Role.PS, 0, answer.incarnation, LeaveKind.ASKED, "bye"))
    with pytest.raises(ReplacedError, match="ps 0 is not a member"):
        held.result(30)


def test_a_held_heartbeat_that_is_called_off_leaves_nothing_behind(client, stage):
    answer = client.join(a_join(Role.PS, 0))
    with pytest.raises(UnreachableError, match="DEADLINE_EXCEEDED"):
        client.heartbeat(a_beat(answer, Role.PS, 0, wait_s=LONG), 0.05)
    assert client.join(a_join(Role.WORKER, 0)).instructions.phase is Phase.PREPARING
    assert client.heartbeat(a_beat(answer, Role.PS, 0)).instructions.phase is Phase.PREPARING
    assert not stage.events.named("defect")


def test_a_silent_member_loses_its_lease(stage):
    """The coordinator's clock is ours: it moves by less than half a lease at a time, or it would count as paused."""
    now_s = [1000.0]
    client = stage.client(stage.coordinator(JOB, now=lambda: now_s[0]))
    ps = client.join(a_join(Role.PS, 0))
    worker = client.join(a_join(Role.WORKER, 0))
    for _ in range(4):
        now_s[0] += 0.3 * LONG
        ps = client.heartbeat(a_beat(ps, Role.PS, 0))
    with pytest.raises(ReplacedError, match="join again"):
        client.heartbeat(a_beat(worker, Role.WORKER, 0))
    assert stage.events.named("member_lost")[0]["member"] == "worker 0"


def test_the_tick_ends_leases_without_any_call(stage):
    client = stage.client(stage.coordinator(JobConfig(job_id=JOB_ID, lease_s=0.5)))
    client.join(a_join(Role.PS, 0))
    poll_until(lambda: stage.events.named("member_lost"), 20, "the lease has ended")


def test_refusals_keep_their_kind(client):
    client.join(a_join(Role.WORKER, 0, health="127.0.0.1:9"))
    with pytest.raises(ModelDiffersError, match="has another model than the job"):
        client.join(replace(a_join(Role.WORKER, 1), variables=()))
    with pytest.raises(UsageError, match="ps index 5 is out of range: the job has ps 1"):
        client.join(a_join(Role.PS, 5))
    with pytest.raises(UsageError, match="join_id must have 1 to 64 characters, got 65"):
        client.join(a_join(Role.PS, 0, join_id="x" * 65))
    with pytest.raises(ReplacedError):
        client.report_prepared(ChiefReport(7, 12345, 1, Prepared(0)))


def test_what_ends_a_worker_before_its_join_is_reported(client):
    def report(error: Exception, index: int = 1) -> None:
        with pytest.raises(type(error)), end_reported(client, index):
            raise error

    assert client.get_job(worker=1) == JOB
    client.join(a_join(Role.WORKER, 0))
    report(UsageError("no such flag"), 0)  # a member has the index
    for error in (JobDoneError("it is done"), IndexHeldError("held"), OtherJobError("another"), StopRequested("asked")):
        report(error)
    assert not client.get_status()[0].departures
    report(UsageError("no such flag"))
    report(OSError("no space left"))
    gone = client.get_status()[0].departures
    assert [(d.role, d.index, d.incarnation, d.kind, d.reason) for d in gone] == [
        (Role.WORKER, 1, "", LeaveKind.USAGE, "no such flag"),
        (Role.WORKER, 1, "", LeaveKind.ERROR, "OSError: no space left"),
    ]


def test_a_fatal_leave_ends_the_job_for_all(client):
    worker = client.join(a_join(Role.WORKER, 0))
    client.leave(Leave(Role.WORKER, 0, worker.incarnation, LeaveKind.FATAL, "loss is NaN"))
    with pytest.raises(JobFailedError, match="the job failed: worker 0: loss is NaN"):
        client.join(a_join(Role.WORKER, 1))


def test_a_holder_that_proved_itself_live_is_not_disturbed(client, stage):
    health = stage.health()
    holder = client.join(a_join(Role.WORKER, 0, health=health))
    claim = client.join(a_join(Role.WORKER, 0, "two"))
    assert isinstance(claim, NotYet)
    assert (claim.tag, claim.holder) == (tag_of(holder.incarnation), None)
    client.heartbeat(a_beat(holder, Role.WORKER, 0))
    with pytest.raises(IndexHeldError, match=r"worker 0 is held by a live process at 127\.0\.0\.1:2000"):
        client.join(a_join(Role.WORKER, 0, "two", waited_s=LONG))


def test_an_index_whose_holder_is_dead_is_given_at_once(client, stage):
    dead = stage.refusing()
    holder = client.join(a_join(Role.WORKER, 0, health=dead))
    successor = client.join(a_join(Role.WORKER, 0, "two"))
    assert successor.incarnation != holder.incarnation
    assert stage.events.named("member_lost")[0]["reason"] == "nothing listens at its address"


def test_who_listens_at_the_health_address_of_the_holder_has_outlived_it(client, stage):
    """A process restarted with the same --health-port."""
    health = stage.health()
    holder = client.join(a_join(Role.WORKER, 0, health=health))
    assert client.join(a_join(Role.WORKER, 0, "two", health=health)).incarnation != holder.incarnation


def test_a_member_whose_heartbeat_is_held_is_live_whatever_its_address_says(client, stage, pool):
    dead = stage.refusing()
    holder = client.join(a_join(Role.WORKER, 0, health=dead))
    held = hold(pool, client, a_beat(holder, Role.WORKER, 0))
    assert isinstance(client.join(a_join(Role.WORKER, 0, "two")), NotYet)
    client.leave(Leave(Role.WORKER, 0, holder.incarnation, LeaveKind.ASKED, "bye"))
    with pytest.raises(ReplacedError):
        held.result(30)


def test_another_server_is_not_taken_for_a_coordinator(stage):
    client = CoordinatorClient(stage.health())
    with pytest.raises(UsageError, match="answers UNIMPLEMENTED"):
        client.get_job()
    client.close()
