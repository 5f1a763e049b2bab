"""A process's membership against a real coordinator."""

from __future__ import annotations

import threading
import time

import pytest

from psruntime.config import JobConfig
from psruntime.core.coordinator import Coordinator
from psruntime.core.facts import Answer, LeaveKind, PsBeat, WorkerBeat
from psruntime.core.membership import Role
from psruntime.core.view import Phase
from psruntime.errors import (
    IndexHeldError,
    JobDoneError,
    JobFailedError,
    ModelDiffersError,
    PsRuntimeError,
    ReplacedError,
    StopRequested,
    UnreachableError,
)
from psruntime.rpc.convert import Leave
from tests.rpc.conftest import LONG, SPECS, a_beat, a_join
from tests.support.polling import poll_until

JOB = JobConfig(ps=1, min_workers=2, train_steps=10, lease_s=LONG, ps_timeout_s=LONG)


class Facts:
    """What a process says in its heartbeats, and what it hears; the fence is written as soon as it is heard."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.view = self.global_step = self.fence_revision = 0
        self.stopped = False
        self.heard: list[Answer] = []

    def beat(self) -> PsBeat | WorkerBeat:
        if self.role is Role.PS:
            return PsBeat(self.fence_revision, self.view, self.global_step)
        return WorkerBeat(self.view, self.global_step, self.global_step, self.stopped)

    def hear(self, answer: Answer) -> None:
        self.heard.append(answer)
        self.fence_revision = answer.standing.fence_revision
        self.view = answer.standing.view.number


@pytest.fixture
def server(stage):
    return stage.coordinator(JOB)


@pytest.fixture
def client(stage, server):
    return stage.client(server)


def seated(stage, client, role, index=0, job=JOB, **options):
    """A seat that is taken, and its facts."""
    facts = Facts(role)
    seat = stage.seat(client, job, role, index, facts.beat, facts.hear, **options)
    seat.take(30.0)
    return seat, facts


def phase_is(phase: Phase):
    return lambda answer: answer.standing.phase is phase


def test_a_job_from_forming_to_done(stage, client):
    ps, ps_facts = seated(stage, client, Role.PS)
    chief, chief_facts = seated(stage, client, Role.WORKER, 0)
    assert chief.answer.standing.phase is Phase.FORMING
    other, other_facts = seated(stage, client, Role.WORKER, 1)
    everyone = (ps, chief, other)

    preparing = chief.wait_until(phase_is(Phase.PREPARING), 30)
    assert preparing.standing.chief
    view = preparing.standing.view
    chief.report_prepared(view.number, 0)
    for seat in everyone:
        assert seat.wait_until(phase_is(Phase.TRAINING), 30).standing.view == view
    for seat in (chief, other):
        assert seat.wait_until(lambda a: a.standing.fenced_in, 30)
    assert dict(ps_facts.heard[-1].standing.admitted).keys() == {0, 1}

    chief_facts.global_step = 10
    assert chief.beat_now().standing.phase is Phase.DRAINING
    for seat, facts in ((chief, chief_facts), (other, other_facts)):
        seat.wait_until(phase_is(Phase.DRAINING), 30)
        facts.stopped = True
        seat.beat_now()
    assert chief.wait_until(lambda a: a.standing.close, 30)
    assert chief.report_finished(view.number).standing.phase is Phase.DONE
    for seat in everyone:
        seat.wait_until(phase_is(Phase.DONE), 30)
        seat.leave(LeaveKind.OVER, "the job is done")
        seat.leave(LeaveKind.OVER, "the job is done")
    assert client.get_status()[0].members == ()
    assert len(stage.events.named("member_left")) == 3
    late = stage.seat(client, JOB, Role.WORKER, 5)
    with pytest.raises(JobDoneError, match="the job is done"):
        late.take(30.0)


def test_every_new_answer_is_heard_before_the_next_beat(stage, client):
    """The revision in a beat is that of the table which the answer before it carried."""
    ps, facts = seated(stage, client, Role.PS)
    workers = [seated(stage, client, Role.WORKER, index)[0] for index in range(2)]
    for worker in workers:
        assert worker.wait_until(lambda a: a.standing.fenced_in, 30)
    assert facts.heard[0].standing.fence_revision == 0
    assert [a.revision for a in facts.heard] == sorted({a.revision for a in facts.heard})
    assert ps.answer == facts.heard[-1]


def test_what_another_thread_hears_first_is_handed_over_all_the_same(stage, client):
    """Every time this thread is answered first, the heartbeat thread is not held back for it."""
    seat, facts = seated(stage, client, Role.PS)
    for index in range(20):
        client.join(a_join(Role.WORKER, index))
        news = seat.beat_now()
        poll_until(lambda news=news: facts.heard[-1].revision >= news.revision, 10, "the answer is handed over")


def test_a_seat_that_was_replaced_joins_again(stage, client):
    seat, facts = seated(stage, client, Role.WORKER)
    before = seat.answer.incarnation
    client.leave(Leave(Role.WORKER, 0, before, LeaveKind.ERROR, "taken for dead"))
    after = seat.wait_until(lambda a: a.incarnation != before, 30)
    poll_until(lambda: facts.heard[-1].incarnation == after.incarnation, 10, "the new incarnation is heard of")
    assert "worker 0 is not a member" in str(stage.events.named("rejoining")[0]["reason"])
    assert [m.incarnation for m in client.get_status()[0].members] == [after.incarnation]


class Usurped(Coordinator):
    """Whoever leaves is replaced in the same moment by a live process."""

    usurper: Answer
    health: str

    def leave(self, role, index, incarnation, kind, reason, now_s):
        super().leave(role, index, incarnation, kind, reason, now_s)
        if reason == "taken for dead":
            self.usurper = self.join(a_join(role, index, "usurper", self.health), 777, now_s)


def test_a_seat_whose_place_was_given_to_a_live_process_has_lost_it(stage):
    coordinator = Usurped(JOB, time.monotonic())
    coordinator.health = stage.health()
    client = stage.client(stage.coordinator(JOB, make=lambda _: coordinator))
    seat, _ = seated(stage, client, Role.WORKER)
    client.leave(Leave(Role.WORKER, 0, seat.answer.incarnation, LeaveKind.ERROR, "taken for dead"))
    poll_until(lambda: stage.events.named("join_waits"), 10, "the seat asks for its place")
    client.heartbeat(a_beat(coordinator.usurper, Role.WORKER, 0))
    with pytest.raises(ReplacedError, match="worker 0 lost its place: worker 0 is held by a live process"):
        seat.wait_until(lambda _: False, 60)


def test_a_new_coordinator_at_the_same_address_is_joined(stage, server, client):
    """ps 0 was restarted."""
    seat, _ = seated(stage, client, Role.WORKER)
    before = seat.answer.incarnation
    server.stop(0.0)
    poll_until(lambda: stage.events.named("unreachable"), 30, "the loss is noticed")
    stage.coordinator(JOB, f"127.0.0.1:{server.port}")
    seat.wait_until(lambda a: a.incarnation != before, 30)
    assert stage.events.named("reached")


def test_a_coordinator_that_stays_away_fails_the_seat(stage, server, client):
    job = JobConfig(lease_s=0.5, ps_timeout_s=0.5)
    seat, _ = seated(stage, client, Role.WORKER, job=job)
    server.stop(0.0)
    with pytest.raises(UnreachableError, match=r"was not reached for 0.5 s; is ps 0 running there\? \(--ps-timeout\)"):
        seat.wait_until(lambda _: False, 60)
    with pytest.raises(UnreachableError):
        seat.beat_now()


def test_a_coordinator_that_goes_after_the_end_is_no_failure_of_its_own(stage, server, client):
    worker, _ = seated(stage, client, Role.WORKER)
    stranger = client.join(a_join(Role.WORKER, 1))
    client.leave(Leave(Role.WORKER, 1, stranger.incarnation, LeaveKind.FATAL, "loss is NaN"))
    assert worker.wait_until(phase_is(Phase.FAILED), 30)
    server.stop(0.0)
    with pytest.raises(JobFailedError, match="the job failed: worker 1: loss is NaN"):
        worker.wait_until(lambda _: False, 60)


def test_a_coordinator_that_never_comes_is_reported_with_the_flag(stage):
    client = stage.client(stage.coordinator(JOB))
    seat = stage.seat(client, JOB, Role.WORKER, 0)
    client.close()
    with pytest.raises(UnreachableError, match=r"was not reached for 0.2 s.*\(--connect-timeout\)"):
        seat.take(0.2)


def test_a_dead_holder_is_replaced_while_its_lease_runs(stage, client):
    held = client.join(a_join(Role.WORKER, 0, "crashed", health=stage.refusing()))
    seat, _ = seated(stage, client, Role.WORKER)
    assert seat.answer.incarnation != held.incarnation


def test_a_live_holder_keeps_its_index(stage, client):
    """It proves that it lives with the next heartbeat."""
    holder = client.join(a_join(Role.WORKER, 0, "holder", health=stage.health()))
    refused: list[Exception] = []

    def take() -> None:
        try:
            stage.seat(client, JOB, Role.WORKER, 0).take(30.0)
        except PsRuntimeError as error:
            refused.append(error)

    claimant = threading.Thread(target=take)
    claimant.start()
    poll_until(lambda: stage.events.named("join_waits"), 10, "the claimant waits")
    client.heartbeat(a_beat(holder, Role.WORKER, 0))
    claimant.join(30)
    assert isinstance(refused[0], IndexHeldError)
    assert len(stage.events.named("join_waits")) == 1


def test_a_paused_holder_is_waited_for_until_its_lease_ends(stage):
    job = JobConfig(lease_s=0.5)
    client = stage.client(stage.coordinator(job))
    held = client.join(a_join(Role.WORKER, 0, "paused", health=stage.health()))
    seat, _ = seated(stage, client, Role.WORKER, job=job)
    assert seat.answer.incarnation != held.incarnation
    assert "silent for" in stage.events.named("member_lost")[0]["reason"]


def test_another_model_is_refused(stage, client):
    client.join(a_join(Role.WORKER, 1))
    seat = stage.seat(client, JOB, Role.WORKER, 0, specs=SPECS[:1])
    with pytest.raises(ModelDiffersError, match="dense/bias"):
        seat.take(30.0)


def test_a_stop_ends_every_wait(stage, client):
    held = client.join(a_join(Role.WORKER, 1, "holder", health=stage.health()))
    seat, _ = seated(stage, client, Role.WORKER)
    waiting = stage.seat(client, JOB, Role.WORKER, 1)
    outcomes: list[Exception] = []

    def record(call) -> None:
        try:
            call()
        except PsRuntimeError as error:
            outcomes.append(error)

    threads = [
        threading.Thread(target=record, args=(lambda: seat.wait_until(lambda _: False, None),)),
        threading.Thread(target=record, args=(lambda: waiting.take(30.0),)),
    ]
    for thread in threads:
        thread.start()
    poll_until(lambda: stage.events.named("join_waits"), 10, "both wait")
    stage.stop.set()
    for thread in threads:
        thread.join(30)
    assert [type(outcome) for outcome in outcomes] == [StopRequested] * 2
    assert held.incarnation in [m.incarnation for m in client.get_status()[0].members]


def test_a_seat_that_left_waits_for_nothing(stage, client):
    seat, _ = seated(stage, client, Role.WORKER)
    seat.leave(LeaveKind.ASKED, "bye")
    with pytest.raises(StopRequested, match="has left"):
        seat.wait_until(lambda _: True, None)
    assert client.get_status()[0].members == ()


def test_leaving_never_raises(stage, server, client):
    stage.seat(client, JOB, Role.PS, 0).leave(LeaveKind.ASKED, "never came")
    seat, _ = seated(stage, client, Role.WORKER)
    server.stop(0.0)
    seat.leave(LeaveKind.ASKED, "bye")
    assert stage.events.named("leave_unheard")


def test_leaving_while_joining_again_leaves_no_member_behind(stage, client):
    for _ in range(5):
        seat, _ = seated(stage, client, Role.WORKER)
        client.leave(Leave(Role.WORKER, 0, seat.answer.incarnation, LeaveKind.ERROR, "taken for dead"))
        seat.leave(LeaveKind.ASKED, "bye")
        poll_until(lambda: client.get_status()[0].members == (), 10, "nobody is left")


def test_a_defect_of_the_process_fails_its_seat(stage, client):
    def hear(_: Answer) -> None:
        raise ZeroDivisionError("cannot write the fence")

    seat = stage.seat(client, JOB, Role.PS, 0, on_answer=hear)
    seat.take(30.0)
    with pytest.raises(PsRuntimeError, match="the heartbeats of ps 0 ended: ZeroDivisionError: cannot write the fence"):
        seat.wait_until(lambda _: False, 60)
    assert "ZeroDivisionError" in stage.events.named("defect")[0]["traceback"]


def test_an_error_of_the_process_fails_its_seat_as_itself(stage, client):
    def hear(_: Answer) -> None:
        raise JobFailedError("the disk is full")

    seat = stage.seat(client, JOB, Role.PS, 0, on_answer=hear)
    seat.take(30.0)
    with pytest.raises(JobFailedError, match="the disk is full"):
        seat.wait_until(lambda _: False, 60)
    assert not stage.events.named("defect")
