"""Members that must not notice what a stranger does, and the look at them afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from psruntime.config import JobConfig
from psruntime.core.members.membership import Role, tag_of
from psruntime.core.members.messages import Answer, Assignment, LeaveKind, Prepared
from psruntime.core.members.view import Phase
from psruntime.core.plan.buckets import VariableSpec
from psruntime.rpc.wire.messages import Leave
from tests.rpc.client.membership_clients import joined, phase_is
from tests.rpc.conftest import JOB_ID, LONG, SPECS, Stage, a_join
from tests.support.polling import poll_until

# Leases are short, since a harm that ends one takes as long; but this machine may be busy with other things too.
JOB = JobConfig(
    job_id=JOB_ID,
    ps=1,
    min_workers=2,
    max_workers=8,
    train_steps=10,
    lease_s=3.0,
    ps_timeout_s=LONG,
    mode="bounded",
    bound=3,
)
PLACES = ((Role.PS, 0), (Role.WORKER, 0), (Role.WORKER, 1))  # worker 0 is chief
NEWCOMER = 5  # a worker index that is free


class Server(Protocol):
    """A coordinator, in this process or another."""

    port: int


class Honest:
    """Members of a job in its training, each with a connection of its own.

    `told(event)` is what the coordinator's log has of these events.
    """

    def __init__(
        self,
        stage: Stage,
        server: Server,
        told: Callable[[str], list[dict[str, Any]]],
        job: JobConfig = JOB,
        specs: tuple[VariableSpec, ...] = SPECS,
    ) -> None:
        self.health = stage.health()  # all of them listen there
        self.client = stage.client(server)
        self._stage, self._told, self._specs = stage, told, specs
        self._members = [
            joined(stage, stage.client(server), role, index, job, health=self.health, specs=specs)[0]
            for role, index in PLACES
        ]
        chief = self._members[1]
        answer = chief.wait_until(phase_is(Phase.PREPARING), 30)
        assert answer is not None
        chief.report_prepared(Assignment(answer.instructions.view, answer.incarnation, prepare=True), Prepared(0))
        self.answers = [member.wait_until(phase_is(Phase.TRAINING), 30) for member in self._members]

    @property
    def incarnations(self) -> list[int]:
        return [answer.incarnation for answer in self.answers if answer]

    def check(self, with_liar: bool = False) -> None:
        """They are the members that they were, nobody else is one, and who joins as it should is admitted.

        With a liar among the members the job may have come to its end by what that said.
        """
        assert [member.answer.incarnation for member in self._members] == self.incarnations
        status, _ = self.client.get_status()
        assert [m.incarnation for m in status.members] == [tag_of(n) for n in self.incarnations]
        assert status.view.number == 1
        assert with_liar or (status.phase, status.global_step) == (Phase.TRAINING, 0)
        self.check_events()
        join = replace(a_join(Role.WORKER, NEWCOMER, health=self.health), variables=self._specs)
        answer = poll_until(lambda: self.client.join(join), 30, "a newcomer is admitted")
        assert isinstance(answer, Answer)
        self.client.leave(Leave(Role.WORKER, NEWCOMER, answer.incarnation, LeaveKind.ASKED, "the test is over"))

    def check_events(self) -> None:
        """No member has lost its place, not even for a moment, and the coordinator has met nothing odd."""
        names = {f"{role} {index}" for role, index in PLACES}
        for event in ("member_lost", "member_left"):
            assert not [facts for facts in self._told(event) if facts["member"] in names]
        assert not self._stage.events.named("rejoining")
        assert self._told("defect") == []
