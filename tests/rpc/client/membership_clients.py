"""Memberships for tests: what their processes report and receive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psruntime.config import JobConfig
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, PsBeat, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.membership_client import MembershipClient
from tests.rpc.conftest import PAIR, Stage


class Facts:
    """What a process says in its heartbeats, and what it receives; the fence is written at once."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.view = self.global_step = self.fence_revision = 0
        self.stopped = False
        self.received: list[Answer] = []

    def beat(self, _incarnation: int = 0) -> PsBeat | WorkerBeat:
        if self.role is Role.PS:
            return PsBeat(self.fence_revision, self.view, self.global_step)
        return WorkerBeat(self.view, self.global_step, self.global_step, self.stopped)

    def receive(self, answer: Answer) -> None:
        self.received.append(answer)
        self.fence_revision = answer.instructions.fence_revision
        self.view = answer.instructions.view.number


def joined(
    stage: Stage, client: CoordinatorClient, role: Role, index: int = 0, job: JobConfig = PAIR, **options: Any
) -> tuple[MembershipClient, Facts]:
    """A membership that has joined, and its facts."""
    facts = Facts(role)
    membership = stage.membership(client, job, role, index, facts.beat, facts.receive, **options)
    membership.start(30.0)
    return membership, facts


def phase_is(phase: Phase) -> Callable[[Answer], bool]:
    return lambda answer: answer.instructions.phase is phase
