"""How a membership ends: by leaving, by a stop, by the loss of the coordinator, by a defect."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from psruntime.config import JobConfig
from psruntime.core.members.membership import Role, tag_of
from psruntime.core.members.messages import Answer, LeaveKind
from psruntime.core.members.view import Phase
from psruntime.errors import (
    EXIT_RESTART,
    CredentialsError,
    JobFailedError,
    PsRuntimeError,
    StopRequested,
    UnreachableError,
)
from psruntime.rpc.wire.messages import Leave
from psruntime.rpc.wire.security import Security
from tests.rpc.client.membership_clients import joined, phase_is
from tests.rpc.conftest import JOB_ID, PAIR, a_join
from tests.support.certificates import TOKEN
from tests.support.polling import poll_until


def test_a_coordinator_that_stays_away_fails_the_membership(stage, server, client):
    job = JobConfig(job_id=JOB_ID, lease_s=0.5, ps_timeout_s=0.5)
    member, _ = joined(stage, client, Role.WORKER, job=job)
    server.stop(0.0)
    with pytest.raises(UnreachableError, match=r"was not reached for 0.5 s; is ps 0 running there\? \(--ps-timeout\)"):
        member.wait_until(lambda _: False, 60)
    with pytest.raises(UnreachableError):
        member.beat_now()


def test_a_coordinator_that_goes_after_the_end_is_no_failure_of_its_own(stage, server, client):
    worker, _ = joined(stage, client, Role.WORKER)
    stranger = client.join(a_join(Role.WORKER, 1))
    client.leave(Leave(Role.WORKER, 1, stranger.incarnation, LeaveKind.FATAL, "loss is NaN"))
    assert worker.wait_until(phase_is(Phase.FAILED), 30)
    server.stop(0.0)
    with pytest.raises(JobFailedError, match="the job failed: worker 1: loss is NaN"):
        worker.wait_until(lambda _: False, 60)


def test_a_coordinator_that_comes_back_with_a_token_is_asked_again_and_then_the_process_is_to_be_restarted(stage):
    """Its files may be about to change; a start with other ones may help, so the code is not that of a mistake."""
    job = replace(PAIR, lease_s=1.0, ps_timeout_s=1.0)
    server = stage.coordinator(job)
    member, _ = joined(stage, stage.client(server), Role.WORKER, job=job)
    server.stop(0.0)
    stage.coordinator(job, f"127.0.0.1:{server.port}", security=Security(tokens=(TOKEN,)))
    with pytest.raises(UnreachableError, match=r"was not reached for 1 s.*which has no token") as failed:
        member.wait_until(lambda _: False, 60)
    assert failed.value.exit_code == EXIT_RESTART


def test_after_the_end_the_token_of_the_next_job_is_no_failure(stage, client, monkeypatch):
    beat, refused = client.heartbeat, []

    def heartbeat(*arguments):
        if worker.answer.instructions.phase.over:
            refused.append(arguments)
            raise CredentialsError("the coordinator refuses the call, which has another token than the job's")
        return beat(*arguments)

    worker, _ = joined(stage, client, Role.WORKER)
    monkeypatch.setattr(client, "heartbeat", heartbeat)
    stranger = client.join(a_join(Role.WORKER, 1))
    client.leave(Leave(Role.WORKER, 1, stranger.incarnation, LeaveKind.FATAL, "loss is NaN"))
    poll_until(lambda: refused, 30, "a heartbeat after the end")
    with pytest.raises(JobFailedError, match="the job failed: worker 1: loss is NaN"):
        worker.wait_until(lambda _: False, 60)


def test_the_end_of_the_job_is_told_once(stage, server, client):
    """Though the coordinator goes then, and the membership fails."""
    told: list[PsRuntimeError] = []
    worker, _ = joined(stage, client, Role.WORKER, on_end=told.append)
    stranger = client.join(a_join(Role.WORKER, 1))
    assert worker.wait_until(lambda _: True, 30) and not told
    client.leave(Leave(Role.WORKER, 1, stranger.incarnation, LeaveKind.FATAL, "loss is NaN"))
    poll_until(lambda: told, 30, "the end is told")
    server.stop(0.0)
    with pytest.raises(JobFailedError):
        worker.wait_until(lambda _: False, 60)
    assert [(type(error), str(error)) for error in told] == [(JobFailedError, "the job failed: worker 1: loss is NaN")]


def test_a_seat_that_fails_tells_so(stage, server, client):
    told: list[PsRuntimeError] = []
    job = JobConfig(job_id=JOB_ID, lease_s=0.5, ps_timeout_s=0.5)
    joined(stage, client, Role.WORKER, job=job, on_end=told.append)
    server.stop(0.0)
    poll_until(lambda: told, 30, "the failure is told")
    assert isinstance(told[0], UnreachableError) and len(told) == 1


def test_a_coordinator_that_never_comes_is_reported_with_the_flag(stage):
    client = stage.client(stage.coordinator(PAIR))
    member = stage.membership(client, PAIR, Role.WORKER, 0)
    client.close()
    with pytest.raises(UnreachableError, match=r"was not reached for 0.2 s.*\(--connect-timeout\)"):
        member.start(0.2)


def test_a_stop_ends_every_wait(stage, client):
    held = client.join(a_join(Role.WORKER, 1, "holder", health=stage.health()))
    member, _ = joined(stage, client, Role.WORKER)
    waiting = stage.membership(client, PAIR, Role.WORKER, 1)
    outcomes: list[Exception] = []

    def record(call) -> None:
        try:
            call()
        except PsRuntimeError as error:
            outcomes.append(error)

    threads = [
        threading.Thread(target=record, args=(lambda: member.wait_until(lambda _: False, None),)),
        threading.Thread(target=record, args=(lambda: waiting.start(30.0),)),
    ]
    for thread in threads:
        thread.start()
    poll_until(lambda: stage.events.named("join_waits"), 10, "both wait")
    stage.stop.set()
    for thread in threads:
        thread.join(30)
    assert [type(outcome) for outcome in outcomes] == [StopRequested] * 2
    assert tag_of(held.incarnation) in [m.incarnation for m in client.get_status()[0].members]


def test_a_seat_that_left_waits_for_nothing(stage, client):
    member, _ = joined(stage, client, Role.WORKER)
    member.leave(LeaveKind.ASKED, "bye")
    with pytest.raises(StopRequested, match="has left"):
        member.wait_until(lambda _: True, None)
    assert client.get_status()[0].members == ()


def test_leaving_never_raises(stage, server, client):
    stage.membership(client, PAIR, Role.PS, 0).leave(LeaveKind.ASKED, "never came")
    member, _ = joined(stage, client, Role.WORKER)
    server.stop(0.0)
    member.leave(LeaveKind.ASKED, "bye")
    assert stage.events.named("leave_unheard")


def test_a_defect_of_the_process_fails_its_membership(stage, client):
    def receive(_: Answer) -> None:
        raise ZeroDivisionError("cannot write the fence")

    member = stage.membership(client, PAIR, Role.PS, 0, on_answer=receive)
    member.start(30.0)
    with pytest.raises(PsRuntimeError, match="the heartbeats of ps 0 ended: ZeroDivisionError: cannot write the fence"):
        member.wait_until(lambda _: False, 60)
    assert "ZeroDivisionError" in stage.events.named("defect")[0]["traceback"]


def test_an_error_of_the_process_fails_its_seat_as_itself(stage, client):
    def receive(_: Answer) -> None:
        raise JobFailedError("the disk is full")

    member = stage.membership(client, PAIR, Role.PS, 0, on_answer=receive)
    member.start(30.0)
    with pytest.raises(JobFailedError, match="the disk is full"):
        member.wait_until(lambda _: False, 60)
    assert not stage.events.named("defect")
