"""A job with --bound auto:LOW-HIGH: the coordinator chooses the bound from the steps that its workers tell of."""

from __future__ import annotations

from typing import Any

import pytest

from psruntime.core.clocks.adaptive_bound import STEPS, STEPS_BETWEEN
from psruntime.core.coordinator import automatic, steered
from psruntime.core.members.membership import Role
from psruntime.core.members.view import Phase
from psruntime.core.steering.commands import Kind, Outcome
from psruntime.errors import UsageError
from tests.core.steering.steered_job import SteeredJob

EVEN = (0.01,) * STEPS


def late(worker: int) -> tuple[float, ...]:
    """Steps of a worker that is late now and then, when the others are not."""
    return tuple(0.08 if (step + 3 * worker) % 10 == 0 else 0.01 for step in range(STEPS))


def job_of(**settings: Any) -> SteeredJob:
    return SteeredJob(mode="bounded", bound="auto:1-8", checkpoint_dir="/c", **settings)


def tell(job: SteeredJob, is_late: bool) -> None:
    for index, worker in job.steppers.items():
        worker.step_s = late(index) if is_late else EVEN


def bound(job: SteeredJob) -> int:
    found = job.core.state.steering.settings.bound
    assert found is not None
    return found


def run_until_it_is_chosen(job: SteeredJob, is_late: bool) -> dict[str, Any]:
    """What the log says of it."""
    tell(job, is_late)
    before = bound(job)
    for _ in range(3 * STEPS_BETWEEN):
        job.run(1)
        tell(job, is_late)
        if bound(job) != before:
            return [facts for event, facts in job.facts if event == "bound_chosen"][-1]
    raise AssertionError(f"the bound stays {before}")


def test_it_rises_where_workers_are_late_in_turn_and_falls_when_they_are_not_any_more() -> None:
    job = job_of()
    job.run(3)
    assert bound(job) == 1
    said = run_until_it_is_chosen(job, is_late=True)
    chosen = bound(job)
    assert 1 < chosen <= 8 and (said["bound"], said["was"]) == (chosen, 1)
    state = job.core.state
    assert steered.status(state).bound_reason == said["reason"]
    assert state.pace.max_staleness(2) == 2 * chosen + 1, "the ps let pass what belongs to it"
    assert run_until_it_is_chosen(job, is_late=False)["bound"] == bound(job) == 1
    assert state.pace.max_staleness(2) == 3
    commands = [facts["command"] for facts in job.take_facts("steered")[0]]
    assert commands == [f"bound {chosen}, auto", "bound 1, auto"]
    assert job.seen.bounded > 100 and state.view.number == 1


def test_what_an_operator_sets_stays_until_it_is_left_to_the_job_again() -> None:
    job = job_of()
    job.run(3)
    job.ask(Kind.BOUND, bound=3)
    job.run(3)
    tell(job, is_late=True)
    job.run(4 * STEPS_BETWEEN)
    assert bound(job) == 3 and not job.core.state.steering.settings.automatic
    again = job.ask(Kind.BOUND, automatic=True)
    job.run(3)
    assert job.reply(again).outcome is Outcome.DONE and job.reply(again).text.startswith("bound auto at global step ")
    run_until_it_is_chosen(job, is_late=True)


def test_an_operator_who_wants_another_bound_is_not_kept_waiting_by_what_the_job_wants() -> None:
    job = job_of()
    job.run(3)
    tell(job, is_late=True)
    job.run(STEPS_BETWEEN)
    for beat in range(4 * STEPS_BETWEEN):
        if job.core.state.steering.revocable:
            break
        job.now_s += 0.5
        job.beat_worker(beat % 2)
        job.beat_ps(beat % 2)
    assert job.core.state.steering.revocable, "no choice was met while workers hold for it"
    wanted = job.ask(Kind.BOUND, bound=5)
    job.run(4)
    assert job.reply(wanted).outcome is Outcome.DONE and bound(job) == 5
    withdrawn = [facts for facts in job.take_facts("steered")[0] if "withdrawn by bound 5" in facts["reason"]]
    assert [(facts["outcome"], facts["command"][-6:]) for facts in withdrawn] == [(Outcome.GIVEN_UP, ", auto")]


def test_ps_0_does_not_take_the_choice_with_it() -> None:
    job = job_of()
    job.run(3)
    run_until_it_is_chosen(job, is_late=True)
    chosen = bound(job)
    job.run(3)
    job.lose_the_coordinator()
    job.run(10)
    state = job.core.state
    assert state.phase is Phase.TRAINING and bound(job) == chosen and state.steering.settings.automatic
    assert run_until_it_is_chosen(job, is_late=False)["was"] == chosen


def test_a_view_begins_a_new_count_and_nobody_is_judged_by_what_is_not_told() -> None:
    job = job_of()
    tell(job, is_late=True)
    job.run(STEPS_BETWEEN)
    job.lose(Role.PS, 1)
    job.join(Role.PS, 1)
    for worker in job.steppers.values():
        worker.step_s = ()
    job.run(4 * STEPS_BETWEEN)
    assert bound(job) == 1


def test_who_has_stopped_raises_no_bound() -> None:
    job = job_of()
    job.run(3)
    for worker in job.core.state.members.live(Role.WORKER):
        job.steppers[worker.index].step_s = late(worker.index)
    job.run(2)
    state = job.core.state
    assert len(automatic._durations(state)) == 2
    state.worker_beats.stop(job.steppers[1].incarnation)
    assert automatic._durations(state) == [late(0)]


def test_what_was_chosen_before_an_operator_came_does_not_come_back() -> None:
    job = job_of()
    job.run(3)
    run_until_it_is_chosen(job, is_late=True)
    chosen = bound(job)
    assert steered.status(job.core.state).bound_reason
    job.ask(Kind.BOUND, bound=chosen)
    job.run(3)
    assert steered.status(job.core.state).bound_reason == "", "an operator wants it so"
    job.ask(Kind.MODE, mode="async")
    tell(job, is_late=True)
    job.run(STEPS_BETWEEN)
    job.ask(Kind.MODE, mode="bounded", bound=1)
    job.run(3)
    job.ask(Kind.BOUND, automatic=True)
    job.take_all()
    job.run(STEPS_BETWEEN // 2)
    assert bound(job) == 1, "of steps that were taken in mode async"
    run_until_it_is_chosen(job, is_late=True)


def test_a_job_without_a_range_has_no_bound_to_choose() -> None:
    job = SteeredJob(mode="bounded", bound=4, checkpoint_dir="/c")
    job.run(3)
    with pytest.raises(UsageError, match="the job has no range of bounds to choose from: --bound auto:LOW-HIGH starts"):
        job.ask(Kind.BOUND, automatic=True)


def test_in_another_mode_nothing_is_chosen() -> None:
    job = job_of()
    job.run(3)
    job.ask(Kind.MODE, mode="async")
    job.run(4)
    with pytest.raises(UsageError, match="bound is for mode bounded, and the job's mode is async"):
        job.ask(Kind.BOUND, automatic=True)
    tell(job, is_late=True)
    job.run(4 * STEPS_BETWEEN)
    assert not job.take_facts("bound_chosen")[0]
