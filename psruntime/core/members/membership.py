"""Membership: who is live, by lease in judged time, and under which incarnation.

Pure state; the caller brings the random incarnation numbers.

Law: at most one live member holds a (role, index).
Law: an incarnation is admitted once and never comes back; who lost its lease joins as a new one.
Law: leases end in judged time; ages, and the time for which a claimant has waited, are of real time.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from psruntime.errors import IndexHeldError, ReplacedError

T = TypeVar("T")


class JudgedClock:
    """The time that the coordinator's callers bring, in seconds of their monotonic clock, without its standstills.

    A standstill is a stopped process or a suspended machine.
    Law: judged time stands while the coordinator does not run; no time goes back.

    now_s: judged time, by which leases and limits end.
    real_s: the same with all standstills, for ages, and for what other processes measure.
    """

    def __init__(self, now_s: float, longest_gap_s: float = math.inf) -> None:
        """longest_gap_s: from one call of `advance` to the next; a longer one is a standstill."""
        self.now_s = self.real_s = now_s
        self._longest_gap_s = longest_gap_s

    def advance(self, now_s: float) -> None:
        """It is `now_s`; an earlier time than before changes nothing."""
        gap_s = now_s - self.real_s
        if 0 < gap_s <= self._longest_gap_s:
            self.now_s += gap_s
        self.real_s = max(now_s, self.real_s)


class Since(Generic[T]):
    """How long a value has been the same, in judged time."""

    def __init__(self, clock: JudgedClock) -> None:
        self.what: T | None = None  # the value; None for none
        self._clock = clock
        self._since_s = clock.now_s

    def update(self, what: T | None) -> None:
        """Sets the present value."""
        if what != self.what:
            self.begin(what)

    def begin(self, what: T | None) -> None:
        """Sets the value and restarts the time, also if the value is the same."""
        self.what, self._since_s = what, self._clock.now_s

    @property
    def for_s(self) -> float:
        """Seconds; 0 if there is no value."""
        return 0.0 if self.what is None else self._clock.now_s - self._since_s


class Role(str, Enum):
    PS = "ps"
    WORKER = "worker"

    def __str__(self) -> str:
        return self.value


def tag_of(incarnation: int) -> str:
    """What an incarnation is called in logs, messages and the status: 10 hexadecimal digits.

    An incarnation is a secret between a member and the coordinator, since a process that has it can act as the
    member.  Its tag is different from that of others and does not lead back to it.
    """
    return hashlib.sha256(incarnation.to_bytes(8, "big")).hexdigest()[:10]


@dataclass(frozen=True)
class Member:
    """One admitted process.

    `address` is where TensorFlow reaches it, `health_address` where grpc.health.v1 does, `join_id` the
    random text by which a repeated join is recognised.  The times are set when it is admitted.
    """

    role: Role
    index: int
    address: str
    health_address: str
    join_id: str
    incarnation: int
    admitted_at_s: float = 0.0
    renewed_at_s: float = 0.0
    expires_at_s: float = 0.0  # in judged time

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"

    @property
    def tag(self) -> str:
        return tag_of(self.incarnation)


@dataclass(frozen=True)
class Busy:
    """The index may become free: ask again.  `holder` is who has it now."""

    reason: str
    holder: Member


class Membership:
    """The live members.

    Invariant: after `end_leases`, every member's lease ends in the future.
    """

    def __init__(self, lease_s: float, clock: JudgedClock) -> None:
        self.lease_s = lease_s
        self._clock = clock
        self._members: dict[Role, dict[int, Member]] = {role: {} for role in Role}
        self._quiet_until_s = clock.now_s  # no lease ends before; most inputs come before it, and look at no member

    def live(self, role: Role) -> list[Member]:
        """Live members of a role, by index."""
        return sorted(self._members[role].values(), key=lambda m: m.index)

    def workers(self) -> list[int]:
        """Indices of the live workers."""
        return sorted(self._members[Role.WORKER])

    def count(self, role: Role) -> int:
        """How many live members of a role there are."""
        return len(self._members[role])

    def holder(self, role: Role, index: int) -> Member | None:
        return self._members[role].get(index)

    def get(self, role: Role, index: int, incarnation: int) -> Member:
        """The live member with this incarnation.

        Raises:
            ReplacedError: the incarnation was lost, replaced or never admitted.
        """
        member = self.holder(role, index)
        if member is None:
            raise ReplacedError(f"{role} {index} is not a member: its lease ended or it never joined; join again")
        if member.incarnation != incarnation:
            raise ReplacedError(f"{role} {index} was replaced by incarnation {member.tag}; join again")
        return member

    def claim(self, role: Role, index: int, join_id: str, waited_s: float) -> Member | Busy | None:
        """Whether an index can be had: None if it is free, the same member if this join is a repeat.

        A held index may belong to a process that died a moment ago.  The claimant is asked to wait
        (`Busy`) until the holder either proves that it is live, by renewing its lease after the
        claimant first asked, or loses it.

        Raises:
            IndexHeldError: held by a member that is certainly live.
        """
        holder, now_s = self.holder(role, index), self._clock.real_s
        if holder is None or holder.join_id == join_id:
            return holder
        since = f"incarnation {holder.tag}, admitted {now_s - holder.admitted_at_s:.0f} s ago"
        if holder.renewed_at_s > now_s - waited_s:
            raise IndexHeldError(
                f"{holder.name} is held by a live process at {holder.address} ({since}); use a free index"
            )
        return Busy(f"{holder.name} is held ({since}); waiting for its lease to end or to be renewed", holder)

    def admit(self, member: Member) -> Member:
        """Adds a member under a fresh lease; its index must be free."""
        if self.holder(member.role, member.index) is not None:
            raise ValueError(f"{member.name} admitted twice")
        return self.renew(replace(member, admitted_at_s=self._clock.real_s))

    def renew(self, member: Member) -> Member:
        """Renews the lease of a live member."""
        expires_at_s = self._clock.now_s + self.lease_s
        renewed = replace(member, renewed_at_s=self._clock.real_s, expires_at_s=expires_at_s)
        self._members[member.role][member.index] = renewed
        return renewed

    def remove(self, member: Member) -> None:
        del self._members[member.role][member.index]

    def end_leases(self) -> list[Member]:
        """Removes the members whose lease has ended; returns them by role and index."""
        now_s = self._clock.now_s
        if now_s < self._quiet_until_s:
            return []
        everyone = [member for members in self._members.values() for member in members.values()]
        lost = [member for member in everyone if member.expires_at_s <= now_s]
        for member in lost:
            self.remove(member)
        left_s = (member.expires_at_s for member in everyone if member.expires_at_s > now_s)
        self._quiet_until_s = min(left_s, default=now_s)
        return sorted(lost, key=lambda m: (m.role, m.index))
