"""Control over a real server: a command waits until it has taken effect, is taken once, and has its caller logged."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import pytest

from psruntime.commands import control
from psruntime.config import JobConfig
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Prepared, PsBeat, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.core.steering.commands import Command, Kind, Outcome, Overrides, Reply
from psruntime.errors import UsageError
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.server.servicer import caller_of
from psruntime.rpc.wire.messages import ChiefReport, ControlRequest
from tests.rpc.conftest import JOB_ID, LONG, Stage, a_beat, a_join, hold
from tests.support.polling import poll_until

JOB = JobConfig(job_id=JOB_ID, ps=1, train_steps=2000, lease_s=LONG, ps_timeout_s=LONG, mode="bounded", bound=3)


class TrainingJob:
    """One ps and one worker that train, and answer when the test says so."""

    def __init__(self, stage: Stage, job: JobConfig = JOB) -> None:
        self.server = stage.coordinator(job)
        self.client = stage.client(self.server)
        self.ps = self.joined(Role.PS)
        self.worker = self.joined(Role.WORKER)
        self.client.report_prepared(ChiefReport(0, self.worker.incarnation, 1, Prepared(0)))
        self.ps_writes()
        self.worker_says(steps=5)

    def joined(self, role: Role) -> Answer:
        answer = self.client.join(a_join(role, 0))
        assert isinstance(answer, Answer)
        return answer

    def ps_writes(self) -> None:
        """Its instructions now."""
        for _ in range(2):
            wrote = PsBeat(self.ps.instructions.fence_revision, 1, 5)
            self.ps = self.client.heartbeat(a_beat(self.ps, Role.PS, 0, wrote))

    def worker_says(self, steps: int, paused_epoch: int = 0) -> None:
        self.worker = self.client.heartbeat(
            a_beat(self.worker, Role.WORKER, 0, WorkerBeat(1, steps, steps, paused_epoch=paused_epoch))
        )

    def everybody_answers(self) -> None:
        """The worker gets the pause, ends its step and reports that; the ps writes its instructions."""
        self.worker_says(5)
        self.worker_says(5, self.worker.instructions.pause_epoch)
        self.ps_writes()
        self.worker_says(5)


@pytest.fixture
def job(stage: Stage) -> TrainingJob:
    return TrainingJob(stage)


def a_request(kind: Kind = Kind.PAUSE, wait_s: float = 0.0, name: str = "one", **facts: Any) -> ControlRequest:
    return ControlRequest(Command(kind, name, **facts), wait_s)


def test_a_command_is_held_until_it_has_taken_effect(job: TrainingJob, pool: Executor) -> None:
    asked = pool.submit(job.client.control, a_request(wait_s=LONG), LONG)
    poll_until(lambda: job.client.get_status()[0].steering.pending == ("pause",), 10, "it is taken")
    assert job.client.control(a_request()) == Reply(Outcome.PENDING, 0, "waits for worker 0 to end its step")
    job.worker_says(5)
    assert job.worker.instructions.pause_epoch == 1 and not asked.done()
    job.worker_says(5, paused_epoch=1)
    assert job.client.control(a_request()).text == "waits for ps 0 to write the new settings"
    job.ps_writes()
    assert asked.result(30) == Reply(Outcome.DONE, 5, "paused at global step 5")
    status = job.client.get_status()[0]
    assert (
        status.steering.settings == Overrides(1, 5, 3, 1.0, paused=True, mode="bounded")
        and status.phase is Phase.TRAINING
    )


def test_a_held_heartbeat_brings_the_hold_and_its_end(job: TrainingJob, pool: Executor) -> None:
    """So a change takes milliseconds and not the time between two heartbeats."""
    held = hold(pool, job.client, a_beat(job.worker, Role.WORKER, 0, WorkerBeat(1, 5, 5)))
    job.client.control(a_request(Kind.BOUND, bound=1))
    instructions = held.result(30).instructions
    assert instructions.pause_epoch == 1 and instructions.settings.bound == 3
    job.worker = held.result()
    job.worker_says(5, paused_epoch=1)
    held = hold(pool, job.client, a_beat(job.worker, Role.WORKER, 0, WorkerBeat(1, 5, 5, paused_epoch=1)))
    job.ps_writes()
    instructions = held.result(30).instructions
    assert instructions.pause_epoch == 0 and instructions.settings.bound == 1


def test_a_request_that_is_repeated_counts_once(job: TrainingJob, stage: Stage) -> None:
    job.client.control(a_request())
    job.everybody_answers()
    job.client.control(a_request(Kind.RESUME, name="two"))
    job.everybody_answers()
    assert job.client.control(a_request()) == Reply(Outcome.DONE, 5, "paused at global step 5")
    assert not job.client.get_status()[0].steering.settings.paused
    assert [facts["command"] for facts in stage.events.named("control")] == ["pause", "resume"]
    assert [facts["reason"] for facts in stage.events.named("steered")] == [
        "paused at global step 5", "resumed at global step 5",
    ]  # fmt: skip
    assert re.fullmatch(r"127\.0\.0\.1:\d+", stage.events.named("control")[0]["by"])


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (a_request(name=""), "request_id must have 1 to 64 characters, got 0"),
        (a_request(Kind.LEARNING_RATE_SCALE, scale=-1.0), "command.scale must be a number from 1e-30 to 1e"),
        (a_request(Kind.SAVE), "the job has no --checkpoint-dir, so nothing is saved"),
        (a_request(Kind.DRAIN_WORKER, worker=3), "there is no worker 3; live are: 0"),
        (a_request(Kind.DRAIN_WORKER, worker=0), "worker 0 is the only one that stays"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(job: TrainingJob, request_: ControlRequest, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        job.client.control(request_)


@pytest.mark.parametrize(
    ("peer", "caller"),
    [("ipv4:10.0.0.1:5", "10.0.0.1:5"), ("ipv6:%5B::1%5D:5", "[::1]:5"), ("unix:/tmp/socket", "unix:/tmp/socket")],
)
def test_the_caller_is_told_as_people_write_addresses(peer: str, caller: str) -> None:
    assert caller_of(peer) == caller


# The command.


def command(job: TrainingJob, *words: str) -> int:
    return control.main([f"--coordinator=127.0.0.1:{job.server.port}", *words])


def test_the_command_says_what_it_waits_for_and_what_is_so(
    job: TrainingJob, pool: Executor, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = pool.submit(command, job, "bound", "1")
    poll_until(lambda: job.client.get_status()[0].steering.pending, 10, "it is taken")
    time.sleep(2 * control.POLL_S)
    job.everybody_answers()
    assert asked.result(30) == 0
    said = capsys.readouterr()
    assert said.out == "bound 1 at global step 5\n"
    first, *later = said.err.splitlines()
    assert first == "psruntime control: waits for worker 0 to end its step"
    assert set(later) <= {"psruntime control: waits for ps 0 to write the new settings"}  # if it asks in this moment


def test_a_command_that_takes_too_long_is_still_wanted(job: TrainingJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(job, "pause", "--timeout", "0.2") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "psruntime control: pause has not taken effect within 0.2 s (--timeout): waits for worker 0 to end its step; "
        "it is still wanted"
    )
    job.everybody_answers()
    assert job.client.get_status()[0].steering.settings.paused


def test_the_command_is_told_of_the_end_of_the_job(job: TrainingJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.client.control(a_request())
    job.client.heartbeat(a_beat(job.ps, Role.PS, 0, PsBeat(0, 1, 2000)))
    assert job.client.control(a_request()).outcome is Outcome.GIVEN_UP
    assert command(job, "resume") == 2
    assert (
        "the job is about to end, so nothing is changed any more: global step 2000 of 2000" in capsys.readouterr().err
    )
    job.worker = job.client.heartbeat(a_beat(job.worker, Role.WORKER, 0, WorkerBeat(1, 5, 2000, stopped=True)))
    job.client.report_finished(ChiefReport(0, job.worker.incarnation, 1))
    assert command(job, "pause") == 1
    assert capsys.readouterr().err == "psruntime control: the job is done: global step 2000\n"


def test_a_command_outlives_the_loss_of_a_call(
    job: TrainingJob, stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to its first call is lost: it asks again, and counts once."""
    calls, real = [], CoordinatorClient.control
    lost = threading.Event()

    def losing(client: CoordinatorClient, request: ControlRequest, deadline_s: float) -> Reply:
        calls.append(request)
        reply = real(client, replace(request, max_wait_s=0.0), deadline_s)
        if not lost.is_set():
            lost.set()
            raise control.UnreachableError("the answer was lost")
        job.everybody_answers()
        return reply

    monkeypatch.setattr(CoordinatorClient, "control", losing)
    assert command(job, "pause") == 0
    assert capsys.readouterr().out == "paused at global step 5\n"
    assert len(calls) > 1 and len({call.command.request_id for call in calls}) == 1
    assert len(stage.events.named("control")) == 1
