"""What is kept of a job: bounded, without a clock or a connection."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from psruntime.config import JobConfig
from psruntime.core.members.job_status import JobStatus, PsTraffic, WorkerTraffic
from psruntime.core.members.messages import STALENESS_LIMITS, WorkerStats
from psruntime.core.members.view import Phase
from psruntime.dashboard.history import History, late_of, why_waits
from tests.observe.test_render import JOB, PS, STATUS, WORKER

BOUNDED = JobConfig(mode="bounded", bound=2)


def counts(*first: int) -> tuple[int, ...]:
    """Updates by staleness."""
    return first + (0,) * (len(STALENESS_LIMITS) + 1 - len(first))


def with_workers(*stats: WorkerStats, **more: object) -> JobStatus:
    workers = [
        replace(WORKER, index=i, incarnation=f"{i:04}", worker_stats=each, silent_s=0.0) for i, each in enumerate(stats)
    ]
    return replace(STATUS, members=(PS, *workers), **more)


def as_process(incarnation: str, health_address: str, staleness: tuple[int, ...]) -> JobStatus:
    """Worker 0 is this one."""
    status = with_workers(WorkerStats(staleness_counts=staleness))
    worker = replace(status.members[1], incarnation=incarnation, health_address=health_address)
    return replace(status, members=(PS, worker))


def test_before_the_first_answer_there_is_nothing() -> None:
    history = History()
    assert (history.status, history.workers, history.late_share()) == (None, [], {})
    assert sum(history.staleness()) == 0


def test_a_sample_has_the_numbers_of_the_job() -> None:
    history = History()
    ps = replace(PS, ps_traffic=PsTraffic(10.0, 20.0))
    slow, fast = WorkerStats(examples_per_s=10, loss=2.0), WorkerStats(examples_per_s=30, loss=4.0)
    status = with_workers(slow, fast, WorkerStats(loss=math.nan), global_step=500)
    status = replace(status, members=(ps, *status.members[1:]))
    history.observe(status, BOUNDED, 1000.0)
    history.observe(replace(status, global_step=530), BOUNDED, 1003.0)
    sample = history.samples[-1]
    assert (sample.steps_per_s, sample.examples_per_s) == (10.0, 40.0)
    assert (sample.loss_least, sample.loss, sample.loss_most) == (2.0, 3.0, 4.0)
    assert (sample.floor, sample.lead_most, sample.bound, sample.workers) == (40, 2, 2, 3)
    assert (sample.ps[0].received_per_s, sample.ps[0].sent_per_s, sample.ps[0].bytes_held) == (20.0, 10.0, 12_345_678)
    assert not math.isnan(history.samples[0].ps[0].bytes_held)
    without_bound = History()
    without_bound.observe(STATUS, JOB, 1000.0)
    assert math.isnan(without_bound.samples[-1].bound)


def test_memory_is_bounded() -> None:
    history = History(samples=10, events=5)
    for second in range(40):
        history.observe(replace(STATUS, saved_step=second), JOB, 1000.0 + second)
    assert (len(history.samples), len(history.events)) == (10, 5)
    assert history.events[-1].subject == "global step 39"


def test_a_rollback_makes_no_negative_speed() -> None:
    history = History()
    history.observe(STATUS, JOB, 1000.0)
    history.observe(replace(STATUS, global_step=100), JOB, 1001.0)
    assert history.samples[-1].steps_per_s == 0.0


def test_the_time_in_which_a_job_forms_does_not_lower_its_speed() -> None:
    history, forming = History(), replace(STATUS, phase=Phase.FORMING, global_step=0)
    for second in range(4):
        history.observe(forming, JOB, 1000.0 + second)
    history.observe(replace(STATUS, global_step=0), JOB, 1004.0)
    assert history.samples[-1].steps_per_s == 0.0
    history.observe(replace(STATUS, global_step=100), JOB, 1005.0)
    assert history.samples[-1].steps_per_s == 100.0


def test_staleness_is_that_of_all_workers_over_their_restarts() -> None:
    history = History()
    history.observe(with_workers(WorkerStats(staleness_counts=counts(5, 1))), JOB, 1000.0)
    history.observe(with_workers(WorkerStats(staleness_counts=counts(7, 1))), JOB, 1050.0)
    history.observe(as_process("new", "h:2", counts(9, 1)), JOB, 1080.0)  # another process, which was fast
    assert history.staleness()[:3] == (16, 2, 0)
    assert history.staleness(60.0)[:3] == (11, 1, 0)


def test_a_process_that_joins_again_goes_on_counting() -> None:
    history = History()
    history.observe(as_process("first", "h:1", counts(5, 1)), JOB, 1000.0)
    history.observe(as_process("second", "h:1", counts(6, 1)), JOB, 1001.0)
    assert history.staleness()[:2] == (6, 1)
    history.observe(as_process("third", "h:1", counts(2, 0)), JOB, 1002.0)  # a new one at the same address
    assert history.staleness()[:2] == (8, 1)


def test_staleness_of_the_last_minute_is_not_that_from_before_the_first_look() -> None:
    history = History()
    history.observe(with_workers(WorkerStats(staleness_counts=counts(5000, 100))), JOB, 1000.0)
    assert sum(history.staleness(60.0)) == 0
    history.observe(with_workers(WorkerStats(staleness_counts=counts(5003, 101))), JOB, 1001.0)
    assert history.staleness(60.0)[:2] == (3, 1)
    assert history.staleness()[:2] == (5003, 101)


def test_staleness_is_of_one_job() -> None:
    history = History()
    history.observe(as_process("a", "h:1", counts(5, 1)), JOB, 1000.0)
    history.observe(as_process("b", "h:1", counts(7, 1)), JobConfig(job_id="other"), 1001.0)
    assert history.staleness()[:2] == (7, 1)
    assert sum(history.staleness(60.0)) == 0


def test_an_absence_of_the_coordinator_is_told_once_and_ends() -> None:
    history = History()
    history.observe(STATUS, JOB, 1000.0)
    history.observe_failure("coordinator a:1: down", 1001.0)
    history.observe_failure("coordinator a:1: still down", 1002.0)
    assert (history.gone_since_s, history.gone_reason) == (1001.0, "coordinator a:1: still down")
    assert history.status is STATUS, "what was known last"
    history.observe(STATUS, JOB, 1011.0)
    assert history.gone_since_s is None
    assert [str(event) for event in history.events] == [
        "coordinator: not reachable, coordinator a:1: down", "coordinator: answers again, after 10 s",
    ]  # fmt: skip


def test_another_job_begins_anew() -> None:
    history = History()
    history.observe(STATUS, JOB, 1000.0)
    history.observe(STATUS, JobConfig(job_id="other"), 1001.0)
    assert (len(history.samples), history.generation) == (1, 1)
    assert [event.kind for event in history.events] == ["job"]


def test_who_waits_says_why_and_who_is_at_the_bound_too() -> None:
    quiet = replace(WORKER, worker_stats=WorkerStats(), lead=3)
    assert why_waits(quiet, "async", None) == why_waits(quiet, "bounded", 3) == ""
    assert why_waits(quiet, "bounded", 2) == "3 steps ahead of the slowest, bound 2"
    assert why_waits(WORKER, "bounded", 2) == "PREPARING: view 2 is complete"
    assert why_waits(replace(quiet, stopped=True), "async", None) == "the others to stop"
    assert why_waits(replace(quiet, lead=1), "sync", None) == "the others to contribute to the round"


def test_late_is_the_slowest_while_others_wait() -> None:
    ahead, middle, slow, other = (replace(WORKER, index=i, lead=lead) for i, lead in enumerate((3, 1, 0, 0)))
    assert late_of([ahead, middle, slow], {0}) == {2}
    assert late_of([ahead, middle, slow], ()) == frozenset()
    assert late_of([ahead, slow, other], {0}) == {2, 3}


def test_the_share_of_looks_at_which_a_worker_was_late() -> None:
    history = History()
    waiting, stepping = WorkerStats(waiting="round 7 waits for worker 1"), WorkerStats()
    for second in range(4):
        history.observe(with_workers(waiting if second < 1 else stepping, stepping), BOUNDED, 1000.0 + second)
    assert history.late_share() == {0: 0.0, 1: 0.25}


def test_rates_of_a_worker() -> None:
    history = History()
    for second in range(5):
        status = with_workers(WorkerStats(pushes=100 + 20 * second))
        worker = replace(status.members[1], worker_traffic=WorkerTraffic(3.0, 5.0))
        history.observe(replace(status, members=(PS, worker)), JOB, 1000.0 + second)
    (worker,) = history.workers
    assert history.rates.steps_per_s(worker) == pytest.approx(20.0)
    assert history.rates.bytes_per_s(worker) == pytest.approx((100.0, 60.0))
    assert history.rates.steps_per_s(replace(worker, incarnation="unknown")) == 0.0
