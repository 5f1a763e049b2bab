"""The table of faults in docs/operations.md: what stands there in code type is what is said when it happens."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psruntime.config import JobConfig
from psruntime.core.accounting.accounts import LIMIT, LIMIT_PER_WORKER, RefusedPushes
from psruntime.core.coordinator.answers import job_status
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Assignment, FailedSaves, PsStats, WorkerBeat, WorkerStats
from psruntime.core.members.view import Phase, PsEntry, View
from psruntime.core.recovery.recovery import lost_work, obstacle
from psruntime.observe.render import saves_fail
from psruntime.rpc.worker.worker_facts import WorkerFacts
from tests.core.coordinator.test_after_a_restart import Job
from tests.core.coordinator.test_scenarios import act_out
from tests.rpc.worker.test_worker_control import Stage, answer
from tests.support import docs
from tests.test_operations import logged_events

SCENARIOS = Path(__file__).parent / "core/coordinator/scenarios"
FOLDER = obstacle(None, 100, "/other")


def scenario(name: str) -> Callable[[Any], str]:
    return lambda _: act_out((SCENARIOS / f"{name}.txt").read_text())


def long_work(clock: Callable[[float], None]) -> str:
    facts = WorkerFacts(lambda waiting: WorkerStats(waiting=waiting), Stage(answer(Phase.TRAINING)).asked)
    facts.waits("")
    clock(150.0)
    return facts.beat(1).stats.waiting


def ps_does_not_return(_: Any) -> str:
    job = Job(ps=2, ps_timeout_s=JobConfig.ps_timeout_s)
    job.join(Role.PS, 0)
    job.join(Role.PS, 1)
    job.join(Role.WORKER, 0)
    job.core.confirm_lost(job.incarnations.pop((Role.PS, 1)), job.now_s)
    job.wait(302)
    return job.reason


def nobody_sees_the_checkpoint(_: Any) -> str:
    job = Job()
    job.join(Role.PS, 0)
    job.join(Role.WORKER, 0)
    job.refuses(0, FOLDER)
    return job.reason + job_status(job.core.state, job.now_s).reason


def relieved(_: Any) -> str:
    job = Job()
    job.join(Role.PS, 0)
    for index in range(2):
        job.join(Role.WORKER, index)
    job.refuses(0, FOLDER)
    return "".join(f"{event.name} {event.facts}" for event in job.core.take_effects().events)


def no_session(clock: Callable[[float], None]) -> str:
    stage = Stage(answer(Phase.TRAINING))
    assignment = Assignment(View(1, (PsEntry(0, "10.0.0.2:2222", 1),)), 9, prepare=False)
    for _ in range(2):
        stage.control.no_session(assignment, "ps 1 is not reached")
        clock(30.0)
    return str(stage.events) + stage.beat().stats.waiting


def not_finite(_: Any) -> str:
    from psruntime.graph.session.worker_run import StepResult, require_finite

    with pytest.raises(Exception, match="not finite") as raised:
        require_finite(StepResult(0.5, False, 12, 64, 0, 1))
    return str(raised.value)


def stood_still(_: Any) -> str:
    job = Job()
    job.join(Role.PS, 0)
    job.join(Role.WORKER, 0)
    incarnation = job.incarnations[Role.WORKER, 0]
    job.core.heartbeat(Role.WORKER, 0, incarnation, WorkerBeat(stood_still_s=15.2), job.now_s)
    return str([event.facts for event in job.core.take_effects().events])


def nothing_applied(_: Any) -> str:
    refused, limit = RefusedPushes(), LIMIT + LIMIT_PER_WORKER
    for count in (0, limit):
        refused.update(0, PsStats(buckets=1, received=count, dropped={"not_finite": count}))
    return refused.why_hopeless(1)


SAID: dict[str, Callable[[Callable[[float], None]], str]] = {
    "a step, a restore or an input takes minutes": long_work,
    "a ps is killed, stands still or is cut off, in a step of any length": scenario("ps_lost"),
    "it does not come back": ps_does_not_return,
    "the chief is stuck when a view has to be prepared": scenario("chief_does_not_prepare"),
    "the chief is stuck, and nothing is saved": scenario("chief_does_not_save"),
    "the chief sees another checkpoint folder, or none": relieved,
    "no worker sees it": nobody_sees_the_checkpoint,
    "all ps lost their variables, and there is no checkpoint": lambda _: lost_work(120, "why", "what"),
    "the disk is full for a checkpoint": lambda _: saves_fail(FailedSaves(3, "No space left on device")),
    "a worker reaches the coordinator and not a ps": no_session,
    "a loss or a gradient is not finite": not_finite,
    "nothing is applied for long": nothing_applied,
    "a process fails whenever it is started, and the job makes no step": scenario("worker_fails_again_and_again"),
    "a machine is suspended, or native code keeps Python's lock": stood_still,
    "the job is asked to stop": scenario("stopped_by_ps_0"),
}
ROWS = {row[0]: row for row in docs.table("docs/operations.md", "faults")}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the time on."""
    now_s = [1000.0]
    monkeypatch.setattr("psruntime.rpc.worker.worker_facts.time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("psruntime.rpc.worker.worker_control.RETRY_S", 0.0)

    def move(seconds: float) -> None:
        now_s[0] += seconds

    return move


@pytest.mark.parametrize("fault", ROWS)
def test_what_the_table_quotes_is_said(fault: str, clock: Callable[[float], None]) -> None:
    quoted = re.findall(r"`([^`]+)`", ROWS[fault][1])
    texts = [text for text in quoted if text not in logged_events()]
    if fault not in SAID:
        assert not texts, "nobody shows that this is said"
        return
    said = SAID[fault](clock)
    for text in texts:
        assert text in said, f"{text!r} is not in: {said}"


def test_every_fault_of_the_table_is_said_in_its_words() -> None:
    assert set(SAID) <= set(ROWS)
    assert all(len(row) == 4 and row[2] for row in ROWS.values())
