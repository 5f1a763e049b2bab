"""The events of a job, from two successive statuses.

Pure: no clock, no connection.  A change that is undone between two statuses is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psruntime.config import JobConfig
from psruntime.core.accounting.traffic import why_heavy
from psruntime.core.members.job_status import Departure, JobStatus, MemberStatus
from psruntime.core.members.membership import Role
from psruntime.core.members.view import listed
from psruntime.observe.render import bound_of, mode_of

IN_THE_LOG = "the log of ps 0 has the reason"  # of a member without a departure: a status has the latest alone


@dataclass(frozen=True)
class JobEvent:
    """at_s: seconds since 1970, of the status.  subject: the member or thing.  reason: the coordinator's."""

    at_s: float
    kind: str
    subject: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}" + (f", {self.reason}" if self.reason else "")


def events_between(before: JobStatus | None, now: JobStatus, job: JobConfig, at_s: float) -> list[JobEvent]:
    """The events up to `now`, the oldest first; for a first status, without one before it, those of its departures."""
    found = list(_departures(before, now, at_s))
    if before is not None:
        found += [JobEvent(at_s, "gone", _name(each), IN_THE_LOG) for each in gone_without_departure(before, now)]
        found += _arrivals(before, now, at_s)
        found += _moves(before, now, at_s)
        found += _settings(before, now, job, at_s)
        found += _state(before, now, job, at_s)
    return sorted(found, key=lambda event: event.at_s)


def gone_without_departure(before: JobStatus, now: JobStatus) -> list[MemberStatus]:
    """Members that are gone without a departure: more went between the two statuses than a status has.

    None if the job is over, whose members leave without a departure, or after a restart of ps 0, whose new coordinator
    has no earlier members.
    """
    live = {member.incarnation for member in now.members}
    first = next((member for member in before.members if member.role is Role.PS and member.index == 0), None)
    if now.phase.over or (first and first.incarnation not in live):
        return []
    departed = {departure.incarnation for departure in now.departures}
    return [member for member in before.members if member.incarnation not in live | departed]


def _departures(before: JobStatus | None, now: JobStatus, at_s: float) -> Iterator[JobEvent]:
    def key(departure: Departure) -> tuple[Any, ...]:
        return departure.role, departure.index, departure.incarnation

    known = {key(departure) for departure in before.departures} if before else set()
    for each in now.departures:
        if key(each) not in known:
            kind = "lost" if each.kind is None else f"left ({each.kind})"
            yield JobEvent(at_s - each.ago_s, kind, f"{each.role} {each.index}", each.reason)


def _arrivals(before: JobStatus, now: JobStatus, at_s: float) -> Iterator[JobEvent]:
    known = {member.incarnation for member in before.members}
    gone = {(each.role, each.index) for each in now.departures} | {(each.role, each.index) for each in before.members}
    for each in now.members:
        if each.incarnation not in known:
            again = "again, as a new incarnation" if (each.role, each.index) in gone else ""
            yield JobEvent(at_s - each.admitted_s, "joined", _name(each), again)


def _moves(before: JobStatus, now: JobStatus, at_s: float) -> Iterator[JobEvent]:
    """Events of phase, view and chief."""
    if now.phase is not before.phase:
        yield JobEvent(at_s, "phase", f"{before.phase} -> {now.phase}", now.reason)
    if now.view != before.view:
        ps = listed(entry.index for entry in now.view.ps)
        yield JobEvent(at_s, "view", f"{before.view.number} -> {now.view.number}", f"ps {ps} live" if ps else "")
    chiefs = [next((_name(member) for member in each.members if member.chief), "none") for each in (before, now)]
    if chiefs[0] != chiefs[1]:
        yield JobEvent(at_s, "chief", f"{chiefs[0]} -> {chiefs[1]}")


def _settings(before: JobStatus, now: JobStatus, job: JobConfig, at_s: float) -> Iterator[JobEvent]:
    """Events of settings that may be changed while the job runs."""
    for pending in now.steering.pending:
        if pending not in before.steering.pending:
            yield JobEvent(at_s, "control", pending, "to take effect")
    old, new = before.steering.settings, now.steering.settings
    why = f"from global step {new.from_global_step}" if new.revision != old.revision else ""
    if mode_of(before, job) != mode_of(now, job):
        yield JobEvent(at_s, "mode", f"{mode_of(before, job)} -> {mode_of(now, job)}", why)
    if bound_of(before, job) != bound_of(now, job) and bound_of(now, job) is not None:
        because = now.steering.bound_reason or why
        yield JobEvent(at_s, "bound", f"{bound_of(before, job)} -> {bound_of(now, job)}", because)
    if old.paused != new.paused:
        yield JobEvent(at_s, "control", "paused" if new.paused else "resumed", why)
    if old.learning_rate_scale != new.learning_rate_scale:
        yield JobEvent(at_s, "control", f"learning rates times {new.learning_rate_scale:g}", why)


def _state(before: JobStatus, now: JobStatus, job: JobConfig, at_s: float) -> Iterator[JobEvent]:
    """Events of checkpoints, rollbacks, the ledgers, and of a ps with too much traffic."""
    if now.saved_step is not None and now.saved_step != before.saved_step:
        yield JobEvent(at_s - (now.saved_ago_s or 0.0), "checkpoint", f"global step {now.saved_step}")
    if now.failed_saves.count and not before.failed_saves.count:
        yield JobEvent(at_s, "checkpoint", "fails", now.failed_saves.cause)
    if now.steps_lost > before.steps_lost:
        lost = now.steps_lost - before.steps_lost
        yield JobEvent(at_s, "rollback", f"{lost} steps lost", f"global step {now.global_step}; {now.reason}")
    if before.balanced and not now.balanced:
        yield JobEvent(at_s, "ledger", "does not balance", "received is not applied + dropped + rolled back")
    heavy = {member.index for member in before.members if member.ps_traffic and member.ps_traffic.heavy}
    for each in now.members:
        moved = each.ps_traffic
        if moved and moved.heavy and moved.share is not None and each.index not in heavy:
            yield JobEvent(at_s, "heavy", _name(each), why_heavy(each.index, moved.share * job.ps, job.ps))


def _name(member: MemberStatus) -> str:
    return f"{member.role} {member.index}"
