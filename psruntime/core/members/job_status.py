"""The status of the job: what an operator sees of it.  Plain data, as messages.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from psruntime.core.fields import Address, Sent, Tag, Words, share
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import (
    NO_FAILED_SAVES,
    UNMEASURED,
    ByWorker,
    FailedSaves,
    LeaveKind,
    Measurements,
    PsStats,
    WorkerStats,
)
from psruntime.core.members.view import Phase, View
from psruntime.core.shards.shard_messages import ShardsStatus
from psruntime.core.steering.commands import UNSTEERED, SteeringStatus
from psruntime.errors import UsageError


@dataclass(frozen=True)
class PsTraffic:
    """What a ps moves; of the last 10 to 20 s, or one to two leases if those are longer.

    share: its part of the bytes of all ps, 0 to 1; None while not all of them report theirs.
    heavy: it carries more than 1.5 times what each would if it were even (core/accounting/traffic.py).
    """

    sent_per_s: float
    received_per_s: float
    share: Annotated[float, share] | None = None
    heavy: bool = False


@dataclass(frozen=True)
class WorkerTraffic:
    """Bytes that a worker moves for each push: over the same time, or longer, so that it has some pushes."""

    sent_per_step: float
    received_per_step: float


@dataclass(frozen=True)
class MemberStatus:
    """One line of the status: a member and its last report."""

    role: Role
    index: int
    address: Address
    health_address: Address
    incarnation: Tag  # its tag: anybody may read a status
    admitted_s: float  # seconds since admission
    silent_s: float  # seconds since its last heartbeat
    chief: bool = False
    stopped: bool = False
    clock: int = 0
    lead: int = 0
    ps_stats: PsStats | None = None
    worker_stats: WorkerStats | None = None
    ps_traffic: PsTraffic | None = None  # None: not known, or not yet
    worker_traffic: WorkerTraffic | None = None
    share: int = 0  # examples that a worker computes of the open round; 0: not known, or rounds have no shares

    def checked(self) -> MemberStatus:
        """Itself.  Raises UsageError if it has stats or traffic of the other role."""
        is_ps = self.role is Role.PS
        if (self.worker_stats if is_ps else self.ps_stats) is not None:
            raise UsageError(f"stats must be that of a {self.role}")
        if (self.worker_traffic if is_ps else self.ps_traffic) is not None:
            raise UsageError(f"traffic must be that of a {self.role}")
        return self


@dataclass(frozen=True)
class Departure:
    """A process that is no member any more, or ended before it was one."""

    role: Role
    index: int
    incarnation: Tag  # its tag; empty: it had not joined
    kind: LeaveKind | None  # None: it was lost or cut off
    reason: Words
    ago_s: float

    def __str__(self) -> str:
        how = "was lost" if self.kind is None else "left" if self.incarnation else "ended before it joined,"
        why = "" if self.kind is None else f" ({self.kind})"
        return f"{self.role} {self.index} {how} {self.ago_s:.0f} s ago{why}: {self.reason}"


@dataclass(frozen=True)
class JobStatus:
    """The job as the coordinator sees it."""

    phase: Phase
    reason: Words
    view: Annotated[View, Sent(View.without_secrets)]
    floor: int
    global_step: int
    steps_lost: int
    members: tuple[MemberStatus, ...]
    max_lead: int = 0  # the largest lead at which a step was started, as far as reports prove it
    balanced: bool = True  # the ledgers account for every push that arrived
    unanswered: ByWorker = field(default_factory=dict)  # pushes that some bucket has not received
    departures: tuple[Departure, ...] = ()  # the latest last
    shards: ShardsStatus | None = None  # None: its workers take none
    steering: SteeringStatus = UNSTEERED
    saved_step: int | None = None  # global step of the newest checkpoint; None: there is none
    saved_ago_s: float | None = None  # since the coordinator knows that one; None: it was there before
    held_out: Measurements = UNMEASURED  # on held-out data
    failed_saves: FailedSaves = NO_FAILED_SAVES  # since the newest checkpoint
