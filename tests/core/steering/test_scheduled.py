"""A job with --schedule: its mode is that of its global step, and what operators and losses make of it."""

from __future__ import annotations

from typing import Any

import pytest

from psruntime.core.coordinator import steered
from psruntime.core.coordinator.answers import job_status
from psruntime.core.members.membership import Role
from psruntime.core.members.view import Phase
from psruntime.core.steering.barrier import BarrierState
from psruntime.core.steering.commands import Kind, Outcome
from psruntime.errors import UsageError
from tests.core.steering.steered_job import SteeredJob

TEXT = "async:20, bounded 2:16, sync"


def job_of(schedule: str, **settings: Any) -> SteeredJob:
    return SteeredJob(schedule=schedule, checkpoint_dir="/c", **settings)


def run_until(job: SteeredJob, global_step: int) -> None:
    for _ in range(200):
        if job.core.state.global_step >= global_step:
            return
        job.run(1)
    raise AssertionError(f"global step {job.core.state.global_step} after 200 s, not {global_step}")


def mode(job: SteeredJob) -> str:
    return steered.mode_of(job.core.state)


def test_each_stage_begins_where_the_one_before_ends() -> None:
    job = job_of(TEXT)
    run_until(job, 60)
    said = [(facts["command"], facts["global_step"]) for facts in job.take_facts("steered")[0]]
    assert [command for command, _ in said] == ["mode bounded 2, as scheduled", "mode sync, as scheduled"]
    assert all(begins <= step <= begins + 4 for begins, (_, step) in zip((20, 36), said, strict=True))
    assert mode(job) == "sync" and job.core.state.steps_lost == 0


def test_a_stage_of_rounds_ends_after_as_many() -> None:
    job = job_of("sync:12, async")
    run_until(job, 30)
    assert max(job.seen.rounds) == 12
    ((done,),) = job.take_facts("steered")
    assert done["global_step"] == 12


@pytest.mark.parametrize(("back_to", "stage"), [(30, "bounded 2"), (3, "async")])
def test_a_job_that_goes_back_is_in_the_stage_of_its_global_step(back_to: int, stage: str) -> None:
    job = job_of(TEXT)
    run_until(job, 45)
    assert mode(job) == "sync"
    job.lose(Role.PS, 1)
    job.go_back(job.global_step - back_to)
    job.join(Role.PS, 1)
    while job.core.state.phase is not Phase.TRAINING or job.core.state.steering.is_changing:
        job.run(1)
    assert mode(job) == stage
    run_until(job, 60)
    assert mode(job) == "sync"


def test_a_change_that_is_not_due_any_more_is_given_up() -> None:
    job = job_of(TEXT)
    run_until(job, 15)
    job.steppers[0].stuck = True
    run_until(job, 20)
    job.run(3)
    assert job.core.state.steering.barrier.state is BarrierState.PAUSE
    job.lose(Role.PS, 1)
    job.go_back(12)
    job.join(Role.PS, 1)
    job.steppers[0].stuck = False
    job.run(4)
    ((withdrawn,),) = job.take_facts("steered")
    assert withdrawn["outcome"] is Outcome.GIVEN_UP
    assert withdrawn["reason"] == f"not due any more at global step {withdrawn['global_step']}"
    assert mode(job) == "async"
    run_until(job, 60)
    assert mode(job) == "sync", "it comes again"


@pytest.mark.parametrize("facts", [{"kind": Kind.MODE, "mode": "async"}, {"kind": Kind.BOUND, "bound": 7}])
def test_an_operator_leaves_the_schedule_and_follows_it_again(facts: dict[str, Any]) -> None:
    job = job_of(TEXT)
    run_until(job, 24)
    by_hand = job.ask(**facts)
    run_until(job, 50)
    assert job.reply(by_hand).outcome is Outcome.DONE
    assert mode(job) == ("async" if facts["kind"] is Kind.MODE else "bounded 7")
    job.lose_the_coordinator()
    run_until(job, 60)
    assert not job.core.state.steering.settings.automatic, "that outlives ps 0"
    again = job.ask(Kind.MODE, automatic=True)
    run_until(job, 80)
    assert job.reply(again).text.startswith("mode sync, as scheduled at global step ")
    assert mode(job) == "sync" and job.core.state.steering.settings.automatic


def test_the_mode_that_it_has_is_taken_as_a_mode_of_its_own() -> None:
    job = job_of(TEXT)
    run_until(job, 5)
    view = job.core.state.view.number
    job.ask(Kind.MODE, mode="async")
    run_until(job, 40)
    assert mode(job) == "async" and job.core.state.view.number == view, "and no new view is formed for it"


def test_ps_0_comes_back_to_the_stage_of_the_global_step() -> None:
    job = job_of(TEXT)
    run_until(job, 26)
    job.lose_the_coordinator()
    run_until(job, 33)
    assert mode(job) == "bounded 2"
    run_until(job, 60)
    assert mode(job) == "sync"


def test_resume_does_not_withdraw_what_the_schedule_wants() -> None:
    job = job_of(TEXT)
    run_until(job, 15)
    job.steppers[0].stuck = True
    run_until(job, 20)
    job.run(3)
    resume = job.ask(Kind.RESUME)
    job.run(3)
    assert job.core.state.steering.barrier.state is BarrierState.PAUSE
    job.steppers[0].stuck = False
    run_until(job, 30)
    assert job.reply(resume).outcome is Outcome.DONE and mode(job) == "bounded 2"


@pytest.mark.parametrize("facts", [{"kind": Kind.MODE, "mode": "async"}, {"kind": Kind.MODE, "mode": "sync"}])
def test_a_worker_that_hangs_at_the_end_of_a_stage_is_got_rid_of(facts: dict[str, Any]) -> None:
    """In mode async nobody waits for it, but the change does; whoever leaves the schedule withdraws that."""
    job = job_of("async:20, sync")
    run_until(job, 15)
    job.steppers[0].stuck = True
    run_until(job, 20)
    job.run(9)
    still = job.global_step
    by_hand = job.ask(**facts)
    if facts["mode"] == "sync":  # which waits for it again, once the others are ready
        job.run(9)
        held = job.global_step
        job.run(9)
        assert job.reply(by_hand).outcome is Outcome.PENDING and job.global_step == held
        assert job_status(job.core.state, job.now_s).steering.pending == ("mode sync",), "it is not due besides"
        job.ask(Kind.RESUME)
        job.ask(Kind.MODE, mode="async")
    job.run(9)
    assert mode(job) == "async" and job.global_step > still
    assert not job.core.state.steering.settings.automatic


@pytest.mark.parametrize(
    "schedule", ["async:19, sync:1, async", "async:19, bounded 2:1, sync", "sync:5, async:1, sync"]
)
def test_a_stage_that_is_over_before_it_begins_is_passed_over(schedule: str) -> None:
    job = job_of(schedule)
    run_until(job, 60)
    assert mode(job) == schedule.rsplit(" ", 1)[1]
    assert job.core.state.view.number <= 3


def test_a_stage_of_rounds_behind_another_ends_at_its_global_step() -> None:
    job = job_of("async:19, sync:10, async")
    run_until(job, 60)
    assert max(job.seen.rounds) == 29 and min(job.seen.rounds) in range(20, 24)


@pytest.mark.parametrize(
    ("schedule", "is_local", "first"),
    [
        ("local:20, sync", {20}, 21),
        ("local:20, async", {20}, 20),
        ("local:20, bounded 2:10, sync", {20}, 20),
        ("sync:5, local:10, sync", {15}, 1),
        ("async:10, local:30, sync:3, local:7, async", {40, 50}, 40),
    ],
)
def test_a_local_stage_is_one_round(schedule: str, is_local: set[int], first: int) -> None:
    """It leads from where the stage before has ended to its own end, and others are not local."""
    job = job_of(schedule)
    run_until(job, 70)
    assert job.seen.local_rounds == is_local
    assert job.core.state.steps_lost == 0 and mode(job) == schedule.rsplit(", ", 1)[1]
    said = [record for record in job.records if record["record"] == "round" and record.get("local")]
    assert {record["round"] for record in said} == is_local
    assert all(record["global_step"] == record["round"] for record in said)
    assert min(job.seen.rounds) == min(first, *is_local)


def test_a_local_stage_begins_with_all_who_are_there() -> None:
    """One that has no session yet is waited for, though other rounds begin with whom there is; but not for ever."""
    job = job_of("sync:4, local:20, sync", min_workers=1, round_warn_s=10)
    run_until(job, 3)
    job.steppers[1].stuck = True
    job.lose(Role.PS, 1)
    job.join(Role.PS, 1)
    run_until(job, 4)
    job.run(5)
    assert not job.seen.local_rounds and not job.core.state.sync.rounds.open
    job.run(10)
    assert job.seen.local_rounds, "who is there has waited long enough"


def test_nobody_is_slow_while_all_train_by_themselves() -> None:
    job = job_of("local:20, sync", round_warn_s=5)
    run_until(job, 0)
    while not job.seen.local_rounds:
        job.run(1)
    for worker in job.steppers.values():
        worker.stuck = True
    job.run(30)
    assert not job.take_facts("slow_round")[0]
    reason = job.core.state.sync.waits_for([], job.core.state.chief)
    assert reason == "the local stage to global step 20 waits for worker 0, 1"
    job.steppers[0].stuck = False
    job.run(30)
    ((slow,),) = job.take_facts("slow_round")
    assert slow["reason"] == "the local stage to global step 20 waits for worker 1"


@pytest.mark.parametrize("schedule", ["local:20, sync", "async:8, local:20, sync"])
def test_a_checkpoint_is_saved_in_a_local_stage(schedule: str) -> None:
    """The variables stand still in it, so one of the step before it will do."""
    job = job_of(schedule)
    while not job.seen.local_rounds:
        job.run(1)
    for worker in job.steppers.values():
        worker.stuck = True
    name, at = job.ask(Kind.SAVE), job.global_step
    job.run(3)
    reply = job.reply(name)
    assert (reply.outcome, reply.global_step, reply.text) == (Outcome.DONE, at, f"saved at global step {at}")


def test_a_local_stage_begins_anew_where_a_ps_is_lost_in_it() -> None:
    job = job_of("local:20, sync")
    run_until(job, 25)
    job.lose(Role.PS, 1)
    job.go_back(25)
    job.join(Role.PS, 1)
    job.seen.local_rounds.clear()
    run_until(job, 30)
    assert job.seen.local_rounds == {20}


def test_whoever_leaves_the_schedule_leaves_the_local_stage_and_comes_back_to_what_is_left_of_it() -> None:
    job = job_of("async:10, local:200, sync")
    run_until(job, 8)
    job.ask(Kind.MODE, mode="sync")
    run_until(job, 50)
    assert not job.seen.local_rounds and mode(job) == "sync"
    job.ask(Kind.MODE, automatic=True)
    run_until(job, 230)
    assert job.seen.local_rounds == {210}


def test_a_job_that_begins_at_a_checkpoint_is_in_its_stage_at_once() -> None:
    job = job_of(TEXT)
    job.global_step = 45
    run_until(job, 50)
    assert mode(job) == "sync" and min(job.seen.rounds) == 46, "no step was taken in another mode"


def test_a_paused_job_stays_in_its_stage() -> None:
    job = job_of(TEXT)
    run_until(job, 10)
    job.ask(Kind.PAUSE)
    job.run(30)
    assert mode(job) == "async" and job.core.state.global_step < 20
    job.ask(Kind.RESUME)
    run_until(job, 30)
    assert mode(job) == "bounded 2"


def test_a_job_without_a_schedule_cannot_follow_it() -> None:
    job = SteeredJob(mode="async")
    job.run(5)
    with pytest.raises(UsageError, match="the job has no --schedule that its mode could follow"):
        job.ask(Kind.MODE, automatic=True)
