"""Messages that only rpc knows, beside those of core, and the job's settings on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from psruntime.config import JobConfig
from psruntime.config.job import check_job_id
from psruntime.core.fields import LOCAL, Incarnation, IncarnationOrZero, Positive, Words
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, LeaveKind, NotYet, Prepared, PsBeat, Variables, WorkerBeat
from psruntime.core.rounds.round_messages import Report
from psruntime.core.steering.commands import Command
from psruntime.errors import UsageError
from psruntime.rpc.wire.codec import from_wire, to_wire, whole_of
from psruntime.v1 import coordination_pb2 as pb


@dataclass(frozen=True)
class JoinResult:
    """What became of a join."""

    result: Answer | NotYet


@dataclass(frozen=True)
class Model:
    """The variables of a model, in its order."""

    variables: Variables = ()


@dataclass(frozen=True)
class Heartbeat:
    """A member's facts, the revision of its latest answer, and how long it waits for news."""

    role: Role
    index: int
    incarnation: Incarnation
    beat: PsBeat | WorkerBeat
    seen_revision: int = 0
    max_wait_s: float = 0.0

    def checked(self) -> Heartbeat:
        """Itself.  Raises UsageError if its facts are those of the other role."""
        if isinstance(self.beat, PsBeat) is not (self.role is Role.PS):
            raise UsageError(f"beat must be that of a {self.role}, got the other")
        return self


@dataclass(frozen=True)
class ChiefReport:
    """The chief's report on a view: prepared, finished (without `prepared`), or the obstacle to it."""

    worker_index: int
    incarnation: Incarnation
    view: Positive
    prepared: Annotated[Prepared | None, LOCAL] = None
    obstacle: Annotated[Words, LOCAL] = ""


@dataclass(frozen=True)
class ActionRequest:
    """A worker's report on its last action, and how long it waits for the next one, in seconds.

    starved_since: the attempt since which the worker has had no batch; None: it has one.
    """

    worker_index: int
    incarnation: Incarnation
    view: Positive
    report: Report | None = None
    max_wait_s: float = 0.0
    starved_since: int | None = None


@dataclass(frozen=True)
class Leave:
    """A member leaves, or a worker ends before its join, with incarnation NOT_JOINED."""

    role: Role
    index: int
    incarnation: IncarnationOrZero
    kind: LeaveKind
    reason: Words


@dataclass(frozen=True)
class ControlRequest:
    """A command, and how long its outcome is waited for."""

    command: Command
    max_wait_s: float = 0.0


def job_to_wire(job: JobConfig) -> pb.JobSettings:
    """Raises UsageError for a setting that does not fit its field."""
    for place in pb.JobSettings.DESCRIPTOR.fields:
        if isinstance(value := getattr(job, place.name, None), int):
            whole_of(place)(place.name, value)
    return to_wire(job, pb.JobSettings)


def job_from_wire(wire: pb.JobSettings) -> JobConfig:
    """JobConfig makes the checks of ranges."""
    check_job_id("job_id", wire.job_id)
    return from_wire(JobConfig, wire)
