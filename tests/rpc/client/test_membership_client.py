"""A process's membership against a real coordinator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from psruntime.config import JobConfig
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role, tag_of
from psruntime.core.members.messages import Answer, Assignment, LeaveKind, Prepared
from psruntime.core.members.view import Phase
from psruntime.errors import (
    EXIT_USAGE,
    IndexHeldError,
    JobDoneError,
    ModelDiffersError,
    OtherJobError,
    PsRuntimeError,
    ReplacedError,
    UnreachableError,
)
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.membership_client import a_poll_s
from psruntime.rpc.wire.messages import Leave
from tests.rpc.client.membership_clients import joined, phase_is
from tests.rpc.conftest import JOB_ID, LONG, PAIR, SPECS, a_beat, a_join
from tests.support.polling import poll_until


def test_a_job_from_forming_to_done(stage, client):
    ps, ps_facts = joined(stage, client, Role.PS)
    chief, chief_facts = joined(stage, client, Role.WORKER, 0)
    assert chief.answer.instructions.phase is Phase.FORMING
    other, other_facts = joined(stage, client, Role.WORKER, 1)
    everyone = (ps, chief, other)

    preparing = chief.wait_until(phase_is(Phase.PREPARING), 30)
    assert preparing.instructions.chief
    view = preparing.instructions.view
    assignment = Assignment(view, preparing.incarnation, prepare=True)
    chief.report_prepared(assignment, Prepared(0))
    for member in everyone:
        assert member.wait_until(phase_is(Phase.TRAINING), 30).instructions.view == view
    for member in (chief, other):
        assert member.wait_until(lambda a: a.instructions.admitted_by_ps, 30)
    assert dict(ps_facts.received[-1].instructions.admitted).keys() == {0, 1}

    chief_facts.global_step = 10
    assert chief.beat_now().instructions.phase is Phase.DRAINING
    for member, facts in ((chief, chief_facts), (other, other_facts)):
        member.wait_until(phase_is(Phase.DRAINING), 30)
        facts.stopped = True
        member.beat_now()
    assert chief.wait_until(lambda a: a.instructions.close, 30)
    assert chief.report_finished(assignment).instructions.phase is Phase.DONE
    for member in everyone:
        member.wait_until(phase_is(Phase.DONE), 30)
        member.leave(LeaveKind.OVER, "the job is done")
        member.leave(LeaveKind.OVER, "the job is done")
    assert client.get_status()[0].members == ()
    assert len(stage.events.named("member_left")) == 3
    late = stage.membership(client, PAIR, Role.WORKER, 5)
    with pytest.raises(JobDoneError, match="the job is done"):
        late.start(30.0)


def test_every_new_answer_is_heard_before_the_next_beat(stage, client):
    """The revision in a beat is that of the table which the answer before it carried."""
    ps, facts = joined(stage, client, Role.PS)
    workers = [joined(stage, client, Role.WORKER, index)[0] for index in range(2)]
    for worker in workers:
        assert worker.wait_until(lambda a: a.instructions.admitted_by_ps, 30)
    assert facts.received[0].instructions.fence_revision == 0
    assert [a.revision for a in facts.received] == sorted({a.revision for a in facts.received})
    assert ps.answer == facts.received[-1]


class Disturbed(CoordinatorClient):
    """Once, in the middle of a call, something else happens; `before_heartbeat` and `after_join` say what."""

    before_heartbeat: Callable[[], None] | None = None
    after_join: Callable[[], None] | None = None

    def heartbeat(self, heartbeat, deadline_s=5.0):
        disturb, self.before_heartbeat = self.before_heartbeat, None
        if disturb:
            disturb()
        return super().heartbeat(heartbeat, deadline_s)

    def join(self, join, deadline_s=5.0):
        result = super().join(join, deadline_s)
        disturb, self.after_join = self.after_join, None
        if disturb:
            disturb()
        return result


@pytest.fixture
def disturbed(server):
    client = Disturbed(f"127.0.0.1:{server.port}")
    yield client
    client.close()


def test_what_another_thread_hears_first_is_handed_over_all_the_same(stage, client, disturbed):
    """Between a heartbeat that failed and its repeat, `beat_now` brings news: the repeat is not held for them."""
    news: list[Answer] = []

    def disturb() -> None:
        client.join(a_join(Role.WORKER, 0))
        news.append(member.beat_now())
        raise UnreachableError("the link is down")

    member, facts = joined(stage, disturbed, Role.PS)
    disturbed.before_heartbeat = disturb
    client.join(a_join(Role.WORKER, 1))  # ends the heartbeat that is held, the next one is disturbed
    poll_until(lambda: news, 10, "the heartbeat was disturbed")
    poll_until(lambda: facts.received[-1].revision >= news[0].revision, 10, "the answer is handed over")


def test_a_join_whose_answer_was_lost_is_repeated_and_not_made_twice(stage, disturbed):
    def disturb() -> None:
        raise UnreachableError("the answer was lost")

    disturbed.after_join = disturb
    joined(stage, disturbed, Role.WORKER)
    assert len(stage.events.named("unreachable")) == 1
    assert len(stage.events.named("member_joined")) == 1


def test_leaving_in_the_middle_of_joining_again_leaves_no_member_behind(stage, client, disturbed):
    member, _ = joined(stage, disturbed, Role.WORKER)
    disturbed.after_join = lambda: member.leave(LeaveKind.ASKED, "bye")
    client.leave(Leave(Role.WORKER, 0, member.answer.incarnation, LeaveKind.ERROR, "taken for dead"))
    poll_until(lambda: len(stage.events.named("member_left")) == 2, 10, "the new incarnation has left too")
    assert client.get_status()[0].members == ()


def test_a_seat_that_was_replaced_joins_again(stage, client):
    member, facts = joined(stage, client, Role.WORKER)
    before = member.answer.incarnation
    client.leave(Leave(Role.WORKER, 0, before, LeaveKind.ERROR, "taken for dead"))
    after = member.wait_until(lambda a: a.incarnation != before, 30)
    poll_until(lambda: facts.received[-1].incarnation == after.incarnation, 10, "the new incarnation is heard of")
    assert "worker 0 is not a member" in str(stage.events.named("rejoining")[0]["reason"])
    assert [m.incarnation for m in client.get_status()[0].members] == [tag_of(after.incarnation)]


class Usurped(Coordinator):
    """Whoever leaves is replaced in the same moment by a live process."""

    usurper: Answer
    health: str

    def leave(self, role, index, incarnation, kind, reason, now_s):
        super().leave(role, index, incarnation, kind, reason, now_s)
        if reason == "taken for dead":
            self.usurper = self.join(a_join(role, index, "usurper", self.health), 777, now_s)


def test_a_seat_whose_place_was_given_to_a_live_process_has_lost_it(stage):
    coordinator = Usurped(PAIR, time.monotonic())
    coordinator.health = stage.health()
    client = stage.client(stage.coordinator(PAIR, make=lambda _: coordinator))
    member, _ = joined(stage, client, Role.WORKER)
    client.leave(Leave(Role.WORKER, 0, member.answer.incarnation, LeaveKind.ERROR, "taken for dead"))
    poll_until(lambda: stage.events.named("join_waits"), 10, "the process asks for its index")
    client.heartbeat(a_beat(coordinator.usurper, Role.WORKER, 0))
    with pytest.raises(ReplacedError, match="worker 0 lost its place: worker 0 is held by a live process"):
        member.wait_until(lambda _: False, 60)


def test_a_new_coordinator_at_the_same_address_is_joined(stage, server, client):
    """ps 0 was restarted."""
    member, _ = joined(stage, client, Role.WORKER)
    before = member.answer.incarnation
    server.stop(0.0)
    poll_until(lambda: stage.events.named("unreachable"), 30, "the loss is noticed")
    stage.coordinator(PAIR, f"127.0.0.1:{server.port}")
    member.wait_until(lambda a: a.incarnation != before, 30)
    assert stage.events.named("reached")


@pytest.mark.parametrize("role", Role)
def test_the_coordinator_of_another_job_at_the_same_address_is_not_joined(stage, server, client, role):
    """Else it would adopt what a ps still holds of the job before."""
    member, _ = joined(stage, client, role)
    server.stop(0.0)
    poll_until(lambda: stage.events.named("unreachable"), 30, "the loss is noticed")
    other = JobConfig(job_id="other", lease_s=LONG, ps_timeout_s=LONG)
    stage.coordinator(other, f"127.0.0.1:{server.port}")
    said = (
        f"{role} 0 at 127.0.0.1:2000 still serves job tests, this is the coordinator of job other: start {role} 0 anew"
    )
    with pytest.raises(OtherJobError, match=f"^{said}$") as ended:
        member.wait_until(lambda _: False, 60)
    assert ended.value.exit_code == EXIT_USAGE
    with pytest.raises(OtherJobError):
        assert member.answer
    assert [str(facts["reason"]) for facts in stage.events.named("refused")] == [said]
    status, job = client.get_status()
    assert (status.members, job) == ((), other)

    anew, _ = joined(stage, client, role, job=other)
    assert [m.incarnation for m in client.get_status()[0].members] == [tag_of(anew.answer.incarnation)]


def test_a_dead_holder_is_replaced_while_its_lease_runs(stage, client):
    held = client.join(a_join(Role.WORKER, 0, "crashed", health=stage.refusing()))
    member, _ = joined(stage, client, Role.WORKER)
    assert member.answer.incarnation != held.incarnation


def test_a_live_holder_keeps_its_index(stage, client):
    """It proves that it lives with the next heartbeat."""
    holder = client.join(a_join(Role.WORKER, 0, "holder", health=stage.health()))
    refused: list[Exception] = []

    def take() -> None:
        try:
            stage.membership(client, PAIR, Role.WORKER, 0).start(30.0)
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
    job = JobConfig(job_id=JOB_ID, lease_s=0.5)
    client = stage.client(stage.coordinator(job))
    held = client.join(a_join(Role.WORKER, 0, "paused", health=stage.health()))
    member, _ = joined(stage, client, Role.WORKER, job=job)
    assert member.answer.incarnation != held.incarnation
    assert len(stage.events.named("join_waits")) == 1
    assert "silent for" in stage.events.named("member_lost")[0]["reason"]


def test_another_model_is_refused(stage, client):
    client.join(a_join(Role.WORKER, 1))
    member = stage.membership(client, PAIR, Role.WORKER, 0, specs=SPECS[:1])
    with pytest.raises(ModelDiffersError, match="dense/bias"):
        member.start(30.0)


def test_ps_0_says_the_global_step_every_second_and_the_others_as_the_lease_wants_it() -> None:
    job = JobConfig(lease_s=30.0)
    others = [a_poll_s(job, role, index) for role, index in ((Role.PS, 1), (Role.WORKER, 0)) for _ in range(50)]
    assert 0.5 * job.heartbeat_s <= min(others) < max(others) <= job.heartbeat_s
    first = [a_poll_s(job, Role.PS, 0) for _ in range(50)]
    assert 0.5 <= min(first) < max(first) <= 1.0
    assert a_poll_s(JobConfig(lease_s=0.6, ps_timeout_s=1.0), Role.PS, 0) <= 0.2
