"""Seats for tests: what their processes say and hear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psruntime.config import JobConfig
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, PsBeat, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.membership_client import Seat
from tests.rpc.conftest import PAIR, Stage


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


def seated(
    stage: Stage, client: CoordinatorClient, role: Role, index: int = 0, job: JobConfig = PAIR, **options: Any
) -> tuple[Seat, Facts]:
    """A seat that is taken, and its facts."""
    facts = Facts(role)
    seat = stage.seat(client, job, role, index, facts.beat, facts.hear, **options)
    seat.take(30.0)
    return seat, facts


def phase_is(phase: Phase) -> Callable[[Answer], bool]:
    return lambda answer: answer.standing.phase is phase
