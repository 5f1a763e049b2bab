"""The job as an operator sees it, composed from the coordinator's state.  Reads only."""

from __future__ import annotations

from dataclasses import replace

from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.departures import missing
from psruntime.core.members.membership import Member, Role
from psruntime.core.members.messages import JobStatus, MemberStatus, PsBeat, PsTraffic
from psruntime.core.members.view import Phase

SLOW_S = 1.0  # a round that waits for longer is worth a word


def job_status(coordinator: Coordinator, now_s: float) -> JobStatus:
    """Phase, view, global step, and a line for each live member, ps first."""
    members = [*coordinator.members.live(Role.PS), *coordinator.members.live(Role.WORKER)]
    clocks = coordinator.pace.clocks.clocks
    totals = coordinator.accounts.totals()
    traffic = coordinator.traffic.of_ps()
    return JobStatus(
        phase=coordinator.phase,
        reason=_reason(coordinator, now_s),
        view=coordinator.view,
        floor=coordinator.pace.floor,
        global_step=coordinator.global_step,
        steps_lost=coordinator.steps_lost,
        members=tuple(_line(coordinator, member, clocks, traffic, now_s) for member in members),
        max_lead=coordinator.pace.max_lead,
        balanced=totals.balanced,
        unanswered=dict(totals.unanswered),
        departures=coordinator.departures.at(now_s),
    )


def _reason(coordinator: Coordinator, now_s: float) -> str:
    """Why the phase is what it is, for whom it waits, and why those are gone."""
    if coordinator.phase.over:
        return coordinator.reason
    if coordinator.phase is Phase.FORMING:
        workers = [] if coordinator.members.workers() else _gone(coordinator, Role.WORKER, now_s)
        return "; ".join([coordinator.reason, *_gone(coordinator, Role.PS, now_s), *workers])
    if coordinator.phase is Phase.DRAINING:
        return f"{coordinator.reason}; {coordinator.draining.progress(coordinator)}"
    if not coordinator.members.workers():
        return "; ".join([coordinator.reason, "no worker is live", *_gone(coordinator, Role.WORKER, now_s)])
    if coordinator.phase is Phase.PREPARING:
        return f"{coordinator.reason}; waiting for worker {coordinator.chief}, the chief, to prepare it"
    waited_s = coordinator.turns.waited_s(now_s)
    if waited_s > SLOW_S:
        whom = coordinator.turns.waits_for(coordinator.members.workers(), coordinator.chief)
        return f"{coordinator.reason}; {whom}, for {waited_s:.1f} s"
    return coordinator.reason


def _gone(coordinator: Coordinator, role: Role, now_s: float) -> list[str]:
    """What became of those who had an index of this role that nobody has now."""
    live = {member.index for member in coordinator.members.live(role)}
    return missing(coordinator.departures.at(now_s), role, live)


def _line(
    coordinator: Coordinator, member: Member, clocks: dict[int, int], traffic: dict[int, PsTraffic], now_s: float
) -> MemberStatus:
    """`clocks`: worker index -> clock.  `traffic`: incarnation of a ps -> what it moves."""
    line = MemberStatus(
        role=member.role,
        index=member.index,
        address=member.address,
        health_address=member.health_address,
        incarnation=member.tag,
        admitted_s=now_s - member.admitted_at_s,
        silent_s=now_s - member.renewed_at_s,
    )
    if member.role is Role.PS:
        stats = coordinator.ps_beats.get(member.incarnation, PsBeat()).stats
        return replace(line, ps_stats=stats, ps_traffic=traffic.get(member.incarnation))
    beat = coordinator.worker_beats.get(member.incarnation)
    floor = coordinator.pace.floor
    clock = clocks.get(member.index, floor)
    return replace(
        line,
        chief=coordinator.chief == member.index,
        stopped=coordinator.worker_beats.has_stopped(member.incarnation),
        clock=clock,
        lead=clock - floor,
        worker_stats=beat.stats,
        worker_traffic=coordinator.traffic.of_worker(member.incarnation),
    )
