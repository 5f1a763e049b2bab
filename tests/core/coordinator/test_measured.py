"""What the chief measures and fails to save: the status has it, an early stop drains, a command to save is answered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psruntime.core.coordinator.answers import job_status
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import FailedSaves, HeldOut, Measurements, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.core.steering.commands import Command, Kind, Outcome
from tests.core.coordinator.test_stop_requests import Job

LAST = Measurements(HeldOut(3, {"loss": 0.5}), HeldOut(2, {"loss": 0.25}))
FULL = FailedSaves(1, "No space left on device")


def training(mode: str = "async") -> Job:
    job = Job(mode, "/saved")
    job.pass_time(3)
    assert job.phase is Phase.TRAINING
    return job


def beat(job: Job, index: int, **facts: object) -> None:
    before = job.core.state.worker_beats.get(job.incarnations[Role.WORKER, index])
    beat = replace(before or WorkerBeat(), **facts)  # type: ignore[arg-type]
    job.core.heartbeat(Role.WORKER, index, job.incarnations[Role.WORKER, index], beat, job.now_s)


def test_the_status_has_what_the_chief_measured_last() -> None:
    job = training()
    assert job_status(job.core.state, job.now_s).held_out == Measurements()
    beat(job, 0, held_out=LAST)
    beat(job, 1, held_out=Measurements(HeldOut(1, {"loss": 9.0})))
    assert job_status(job.core.state, job.now_s).held_out == LAST


def test_the_next_chief_takes_nothing_of_it_back() -> None:
    job = training()
    beat(job, 0, held_out=LAST, failed_saves=FULL)
    job.die((Role.WORKER, 0))
    beat(job, 1, held_out=Measurements())
    status = job_status(job.core.state, job.now_s)
    assert job.core.state.chief == 1 and status.held_out == LAST
    assert status.failed_saves == FailedSaves(), "it has not failed yet"


def test_a_coordinator_that_knows_nothing_takes_what_the_chief_measured_before_it_was_chief() -> None:
    job = training()
    beat(job, 1, held_out=LAST)
    assert job_status(job.core.state, job.now_s).held_out == Measurements()
    job.die((Role.WORKER, 0))
    beat(job, 1)
    assert job_status(job.core.state, job.now_s).held_out == LAST


def test_what_failed_while_another_was_chief_is_not_of_now() -> None:
    job = training()
    beat(job, 1, failed_saves=FULL)
    job.die((Role.WORKER, 0))
    beat(job, 1)
    assert job.core.state.chief == 1 and job_status(job.core.state, job.now_s).failed_saves == FailedSaves()
    assert save(job, "a") is Outcome.PENDING
    beat(job, 1, failed_saves=replace(FULL, count=2))
    assert job.core.control_reply("a").outcome is Outcome.GIVEN_UP


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_an_early_stop_is_an_end_in_order(mode: str) -> None:
    job = training(mode)
    why = "loss got no better in 2 checkpoints: best was 0.2500 at global step 2"
    beat(job, 0, early_stop=why)
    state = job.core.state
    assert state.phase is Phase.DRAINING and state.reason.startswith(f"{why}; ended early, at global step ")
    job.pass_time(10)
    assert job.phase is Phase.DONE


def save(job: Job, request_id: str) -> Outcome:
    return job.core.control(Command(Kind.SAVE, request_id), job.now_s).outcome


def test_a_save_is_answered_with_the_cause_of_a_try_after_it() -> None:
    job = training()
    beat(job, 0, failed_saves=FULL)
    assert save(job, "a") is Outcome.PENDING, "the next try may succeed"
    assert job_status(job.core.state, job.now_s).failed_saves == FULL
    beat(job, 0, failed_saves=replace(FULL, count=2))
    reply = job.core.control_reply("a")
    assert (reply.outcome, reply.text) == (Outcome.GIVEN_UP, FULL.cause)
    assert save(job, "b") is Outcome.PENDING
    beat(job, 0, failed_saves=FailedSaves(), saved_step=job.core.state.global_step + 1)
    assert job.core.control_reply("b").outcome is Outcome.DONE
    assert job_status(job.core.state, job.now_s).failed_saves == FailedSaves()


def test_the_failures_of_another_chief_are_counted_anew() -> None:
    job = training()
    beat(job, 0, failed_saves=replace(FULL, count=7))
    assert save(job, "a") is Outcome.PENDING
    job.die((Role.WORKER, 0))
    beat(job, 1)
    assert job.core.control_reply("a").outcome is Outcome.PENDING
    beat(job, 1, failed_saves=FULL)
    assert job.core.control_reply("a").outcome is Outcome.GIVEN_UP
