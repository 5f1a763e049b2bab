"""The gate with a real coordinator: who waits and for whom, what ends a wait, and who makes the calls."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from psruntime.config import JobConfig
from psruntime.core.clocks import clocks
from psruntime.core.clocks.clocks import REPORT_S, ClockAnswer, ClockReport
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Assignment, LeaveKind, Prepared, PsBeat, WorkerBeat, WorkerStats
from psruntime.core.members.view import Phase, View
from psruntime.core.steering.commands import Command, Kind, Outcome
from psruntime.errors import JobFailedError, ReplacedError, StopRequested, UsageError
from psruntime.rpc.client.coordinator_client import ClientContext, CoordinatorClient
from psruntime.rpc.client.join import Registration
from psruntime.rpc.client.membership_client import MembershipClient
from psruntime.rpc.wire.messages import ChiefReport, ControlRequest, Leave
from psruntime.rpc.worker.step_gate import Gate
from psruntime.rpc.worker.worker_control import WorkerControl
from psruntime.rpc.worker.worker_facts import WorkerFacts
from psruntime.rpc.worker.worker_membership import worker_membership
from tests.rpc.conftest import JOB_ID, LONG, SPECS, Stage, a_beat, a_join
from tests.support.polling import poll_until

BOUND = 2
JOB = JobConfig(
    job_id=JOB_ID, mode="bounded", bound=BOUND, min_workers=3, train_steps=10**6, lease_s=LONG, ps_timeout_s=LONG
)
NOWHERE = Assignment(View(), 0, prepare=False)  # of a worker that has not entered a view
ALWAYS = lambda: True  # noqa: E731


class CountingClient(CoordinatorClient):
    """Counts the calls that reach the channel, by the thread that makes them."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.calls: Counter[str] = Counter()
        self._stub = _Counted(self._stub, self.calls)


class _Counted:
    def __init__(self, stub: Any, calls: Counter[str]) -> None:
        self._stub, self._calls = stub, calls

    def __getattr__(self, rpc: str) -> Any:
        call, calls = getattr(self._stub, rpc), self._calls

        class Rpc:
            def __call__(self, *arguments: Any, **options: Any) -> Any:
                calls[threading.current_thread().name] += 1
                return call(*arguments, **options)

            def future(self, *arguments: Any, **options: Any) -> Any:
                calls[threading.current_thread().name] += 1
                return call.future(*arguments, **options)

        return Rpc()


@dataclass
class Worker:
    """A process's membership, control, facts and gate."""

    index: int
    membership: MembershipClient
    client: CountingClient
    control: WorkerControl
    gate: Gate | None
    facts: WorkerFacts
    assignment: Assignment = NOWHERE

    def enter(self) -> None:
        self.assignment = self.control.await_view()
        self.control.entered(self.assignment)

    def beat(self) -> WorkerBeat:
        return self.facts.beat(self.assignment.incarnation)

    def steps(self, count: int) -> None:
        for step in range(count):
            assert self.control.may_step()
            self.control.stepped(step)


class Job:
    """A coordinator with one ps; workers join, prepare and enter."""

    def __init__(self, stage: Stage, job: JobConfig) -> None:
        self.stage, self.job = stage, job
        self.server = stage.coordinator(job)
        self.client = stage.client(self.server)
        self.ps = self.client.join(a_join(Role.PS, 0))
        self.fence = 0
        self.stop = threading.Event()

    def workers(self, *indices: int) -> list[Worker]:
        workers = [self.join(index) for index in indices]
        if indices[0] == 0:
            answer = workers[0].membership.wait_until(lambda a: a.instructions.phase is Phase.PREPARING, 30)
            self.client.report_prepared(ChiefReport(0, answer.incarnation, 1, Prepared(0)))
        self.write_fence()
        for worker in workers:
            worker.enter()
        return workers

    def join(self, index: int) -> Worker:
        client, me = CountingClient(f"127.0.0.1:{self.server.port}"), f"127.0.0.1:{2000 + index}"
        at_exit = self.stage._at_exit
        control, membership = worker_membership(
            ClientContext(client, self.job, self.stop, self.stage.events),
            Registration(Role.WORKER, index, me, "127.0.0.1:9", SPECS),
            lambda waiting: WorkerStats(waiting=waiting),
            at_exit,
            on_answer=lambda _: None,
        )
        membership.start(30.0)
        at_exit.callback(client.close)
        at_exit.callback(membership.leave, LeaveKind.ASKED, "the test is over")
        return Worker(index, membership, client, control, control._gate, control._facts)

    def write_fence(self) -> None:
        """What a ps does with its answer."""
        self.ps = self.client.heartbeat(a_beat(self.ps, Role.PS, 0, PsBeat(self.fence)))
        self.fence = self.ps.instructions.fence_revision
        self.client.heartbeat(a_beat(self.ps, Role.PS, 0, PsBeat(self.fence)))

    def floor(self) -> int:
        return self.client.get_status()[0].floor


@pytest.fixture
def job(stage: Stage, pool: ThreadPoolExecutor) -> Iterator[Job]:
    """Ends before the pool, so that no wait outlives a test that fails."""
    job = Job(stage, JOB)
    yield job
    job.stop.set()


def waits(pool: ThreadPoolExecutor, worker: Worker) -> Future[bool]:
    """A worker at its bound asks to step; returns once the coordinator holds its call."""
    turn = pool.submit(worker.control.may_step)
    assert worker.gate
    poll_until(lambda: worker.gate.reason != "" or turn.done(), 30, "the coordinator says for whom")
    assert not turn.done()
    return turn


def test_a_worker_goes_bound_steps_ahead_and_on_when_the_slowest_reports(job, pool):
    fast, slow, other = job.workers(0, 1, 2)
    fast.steps(BOUND + 1)
    other.steps(1)
    turn = waits(pool, fast)
    poll_until(lambda: fast.gate.reason == "3 steps ahead of worker 1, bound 2", 30, "the slowest is named")
    slow.steps(1)
    assert turn.result(30) is True
    assert job.floor() == 1
    assert fast.gate.max_lead == BOUND
    assert job.client.get_status()[0].max_lead <= BOUND


def test_steps_that_are_under_way_count_for_the_bound_and_are_not_waited_for(job, pool):
    fast, slow, other = job.workers(0, 1, 2)
    other.steps(2)
    assert [fast.control.may_step(under_way) for under_way in range(BOUND + 2)] == [True] * (BOUND + 1) + [False]
    assert fast.gate.max_lead == BOUND
    slow.steps(1)
    clocks = [0, 1, 2]
    poll_until(lambda: [m.clock for m in job.client.get_status()[0].members[1:]] == clocks, 30, "their reports")
    fast.steps(1)
    poll_until(lambda: fast.control.may_step(BOUND), 30, "its answer tells that the floor rose")
    assert not fast.control.may_step(BOUND + 1)


def test_the_step_thread_makes_no_call_whether_it_waits_or_not(job, pool):
    workers = job.workers(0, 1, 2)

    def train(worker: Worker) -> str:
        worker.steps(100)
        return threading.current_thread().name

    threads = set(pool.map(train, workers))
    for worker in workers:
        assert all(worker.client.calls[name] == 0 for name in threads)
        assert worker.client.calls["clock-reports"] > 0
        assert worker.gate.max_lead <= BOUND
    poll_until(lambda: job.floor() == 100, 30, "the last reports")


def test_far_from_its_bound_a_worker_makes_1000_steps_on_what_it_knows(stage):
    job = Job(stage, replace(JOB, bound=5000))
    (fast, _, _) = job.workers(0, 1, 2)
    step_thread = threading.current_thread().name
    before = fast.client.calls[step_thread]
    fast.steps(1000)
    assert fast.client.calls[step_thread] == before
    assert fast.gate.max_lead == 999
    poll_until(lambda: job.client.get_status()[0].members[1].clock == 1000, 30, "the last report")
    assert 0 < fast.client.calls["clock-reports"] < 500, "reports are coalesced"


def test_at_its_bound_a_worker_does_not_wait_for_what_the_others_have_put_off(stage, pool, monkeypatch):
    monkeypatch.setattr(clocks, "REPORTS_PER_S", 0.001)  # three workers leave an hour between reports
    job = Job(stage, replace(JOB, bound=8))
    workers = fast, slow, other = job.workers(0, 1, 2)
    poll_until(lambda: all(worker.gate._every_s > 60 for worker in workers), 30, "all know it")
    for worker in slow, other:
        worker.steps(1)
    poll_until(lambda: slow.gate._schedule._reported == other.gate._schedule._reported == 1, 30, "the urgent reports")
    for worker in slow, other:
        worker.steps(1)
    fast.steps(9)
    turn = pool.submit(fast.steps, 2)
    try:
        turn.result(30)
        assert job.floor() == 2
    finally:
        job.stop.set()


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_in_other_modes_nothing_of_this_runs(stage, mode):
    job = Job(stage, JobConfig(job_id=JOB_ID, mode=mode, min_workers=3, lease_s=LONG, ps_timeout_s=LONG))
    (fast, _, _) = job.workers(0, 1, 2)
    fast.steps(100)
    assert fast.client.calls["clock-reports"] == 0
    assert "clock-reports" not in [thread.name for thread in threading.enumerate()]


def test_after_mode_bounded_nothing_of_this_runs_any_more(job, monkeypatch):
    """A worker at its bound asks again and again where its view is over; in the next, of another mode, it does not."""
    asked: list[ClockReport] = []

    def answers_at_once(report: ClockReport, *_: Any) -> ClockAnswer:
        asked.append(report)
        return ClockAnswer(0, "the view is 2, not 1")

    (fast, _, _) = job.workers(0, 1, 2)
    monkeypatch.setattr(fast.client, "report_clock", answers_at_once)
    fast.steps(BOUND + 1)
    poll_until(lambda: len(asked) > 2, 10, "it asks again")
    fast.gate.reset()
    time.sleep(REPORT_S)
    before = len(asked)
    time.sleep(3 * REPORT_S)
    assert len(asked) == before


def test_mode_bounded_begins_within_a_view_with_all_at_one_clock(stage, pool):
    """What a fast worker has done in mode async is no lead, and from then on the bound holds, also for who joins."""
    job = Job(stage, replace(JOB, mode="async", bound=None))
    fast, slow, other = job.workers(0, 1, 2)
    fast.steps(50)
    slow.steps(3)
    command = Command(Kind.MODE, "request", "test", bound=BOUND, mode="bounded")
    poll_until(
        lambda: job.client.control(ControlRequest(command), 10).text.startswith("waits for ps 0"), 10, "all hold"
    )
    job.write_fence()
    job.write_fence()
    assert job.client.control(ControlRequest(command, 5.0), 10).outcome is Outcome.DONE
    poll_until(lambda: all(w.control.mode == "bounded" for w in (fast, slow, other)), 10, "the news")
    status = job.client.get_status()[0]
    assert status.view.number == 1 and status.floor == 50 and status.max_lead == 0
    fast.steps(BOUND + 1)
    turn = waits(pool, fast)
    try:
        slow.steps(1)
        assert not turn.done()
        other.steps(1)
        assert turn.result(30) and fast.gate.max_lead == BOUND
        (late,) = job.workers(3)
        assert late.assignment.clock == job.floor() == 51
        late.steps(1)
    finally:
        job.stop.set()


def test_a_slowest_worker_that_leaves_lets_the_others_go_on(job, pool):
    fast, slow, other = job.workers(0, 1, 2)
    other.steps(1)
    fast.steps(BOUND + 1)
    turn = waits(pool, fast)
    slow.membership.leave(LeaveKind.ASKED, "enough")
    assert turn.result(30) is True


def test_a_late_joiner_enters_at_the_floor(job):
    first = job.workers(0, 1, 2)
    for worker in first:
        worker.steps(2)
    poll_until(lambda: job.floor() == 2, 30, "the floor")
    (late,) = job.workers(7)
    assert late.assignment.clock == 2
    late.steps(BOUND + 1)
    assert late.gate.max_lead == BOUND


def test_being_asked_to_stop_ends_the_wait(job, pool):
    fast, _, _ = job.workers(0, 1, 2)
    fast.steps(BOUND + 1)
    turn = waits(pool, fast)
    job.stop.set()
    with pytest.raises(StopRequested):
        turn.result(30)
    fast.gate._reporter.join(30)
    assert not fast.gate._reporter.is_alive()


def test_a_job_that_fails_ends_the_wait(job, pool):
    fast, slow, _ = job.workers(0, 1, 2)
    fast.steps(BOUND + 1)
    turn = waits(pool, fast)
    job.client.leave(Leave(Role.WORKER, slow.index, slow.assignment.incarnation, LeaveKind.FATAL, "nan"))
    with pytest.raises(JobFailedError, match="nan"):
        turn.result(30)


def test_a_job_that_drains_ends_the_wait(job, pool):
    fast, _, _ = job.workers(0, 1, 2)
    fast.steps(BOUND + 1)
    turn = waits(pool, fast)
    number = job.ps.instructions.view.number
    job.client.heartbeat(a_beat(job.ps, Role.PS, 0, PsBeat(job.fence, number, JOB.train_steps)))
    assert turn.result(30) is False


def test_a_view_that_is_over_ends_the_wait_and_the_session_finds_out(job, pool):
    fast, _, _ = job.workers(0, 1, 2)
    fast.steps(BOUND + 1)
    turn = waits(pool, fast)
    job.client.leave(Leave(Role.PS, 0, job.ps.incarnation, LeaveKind.ERROR, "disk full"))
    assert turn.result(30) is True
    assert not fast.control.is_current(fast.assignment)


def test_a_session_lost_in_the_same_view_keeps_the_clock(job, pool):
    fast, _, _ = job.workers(0, 1, 2)
    fast.steps(BOUND + 1)
    fast.enter()
    turn = waits(pool, fast)
    job.stop.set()
    with pytest.raises(StopRequested):
        turn.result(30)


def test_after_a_second_of_waiting_status_and_log_say_for_whom_once(job, pool):
    fast, slow, other = job.workers(0, 1, 2)
    other.steps(2)
    reason = "3 steps ahead of worker 1, bound 2"
    fast.steps(BOUND + 1)
    turn = pool.submit(fast.control.may_step)
    poll_until(lambda: fast.beat().stats.waiting == reason, 30, "the reason in the heartbeat")
    slow.steps(1)
    assert turn.result(30)
    assert fast.beat().stats.waiting == ""
    assert fast.beat().stats.max_lead == BOUND
    fast.control.stepped(1)
    turn = pool.submit(fast.control.may_step)
    poll_until(lambda: fast.beat().stats.waiting == reason, 30, "the reason again")
    slow.steps(1)
    assert turn.result(30)
    assert [e["reason"] for e in job.stage.events.named("waiting")].count(reason) == 1


# The call.


def plain(job: Job) -> list[int]:
    """Incarnations of workers 0.. of a job that trains, that send no heartbeats."""
    incarnations = [job.client.join(a_join(Role.WORKER, i, f"w{i}")).incarnation for i in range(3)]
    job.client.report_prepared(ChiefReport(0, incarnations[0], 1, Prepared(0)))
    return incarnations


def test_a_report_is_answered_at_once_without_a_wish(job):
    mine, *_ = plain(job)
    assert job.client.report_clock(ClockReport(0, mine, 1, 3), ALWAYS) == ClockAnswer(
        0, "3 steps ahead of worker 1, bound 2"
    )
    assert job.client.report_clock(ClockReport(0, mine, 1, 2), ALWAYS) == ClockAnswer(
        0, "3 steps ahead of worker 1, bound 2"
    ), "a late one changes nothing"
    assert job.client.report_clock(ClockReport(0, mine, 1, 3, 0, LONG), ALWAYS).floor == 0
    assert job.client.report_clock(ClockReport(0, mine, 2, 9, 9, LONG), ALWAYS) == ClockAnswer(
        0, "the view is 1, not 2"
    )


def test_a_wish_is_held_until_the_floor_is_there(job, pool):
    mine, second, third = plain(job)
    call = pool.submit(job.client.report_clock, ClockReport(0, mine, 1, 3, 2, LONG), ALWAYS, LONG)
    poll_until(lambda: job.client.get_status()[0].members[1].clock == 3, 30, "the report is there")
    job.client.report_clock(ClockReport(1, second, 1, 5), ALWAYS)
    job.client.report_clock(ClockReport(2, third, 1, 1), ALWAYS)
    assert not call.done(), "the floor is 1"
    job.client.report_clock(ClockReport(2, third, 1, 2), ALWAYS)
    assert call.result(30) == ClockAnswer(2, "")


def test_the_wait_ends_by_itself(job):
    mine, *_ = plain(job)
    answer = job.client.report_clock(ClockReport(0, mine, 1, 3, 2, 0.05), ALWAYS)
    assert answer == ClockAnswer(0, "3 steps ahead of worker 1, bound 2")


def test_a_call_that_nobody_needs_is_called_off(job):
    mine, *_ = plain(job)
    asked = iter([True, False])
    assert job.client.report_clock(ClockReport(0, mine, 1, 3, 2, LONG), lambda: next(asked), LONG) is None


def test_a_worker_that_was_replaced_hears_it_and_so_does_one_that_waits(job, pool):
    mine, *_ = plain(job)
    with pytest.raises(ReplacedError):
        job.client.report_clock(ClockReport(0, mine + 1, 1, 3), ALWAYS)
    call = pool.submit(job.client.report_clock, ClockReport(0, mine, 1, 3, 2, LONG), ALWAYS, LONG)
    poll_until(lambda: job.client.get_status()[0].members[1].clock == 3, 30, "the report is there")
    job.client.leave(Leave(Role.WORKER, 0, mine, LeaveKind.ASKED, "enough"))
    job.client.leave(Leave(Role.PS, 0, job.ps.incarnation, LeaveKind.ASKED, "enough"))
    with pytest.raises(ReplacedError):
        call.result(30)


def test_a_malformed_report_is_refused(job):
    with pytest.raises(UsageError, match="view must be from 1"):
        job.client.report_clock(ClockReport(0, 5, 0, 3), ALWAYS)


def test_a_coordinator_that_stops_answers_those_that_wait(job, pool):
    mine, *_ = plain(job)
    call = pool.submit(job.client.report_clock, ClockReport(0, mine, 1, 3, 2, LONG), ALWAYS, LONG)
    poll_until(lambda: job.client.get_status()[0].members[1].clock == 3, 30, "the report is there")
    job.server.stop(5.0)
    assert call.result(30) == ClockAnswer(0, "3 steps ahead of worker 1, bound 2")
