"""The job as an operator sees it, composed from the state."""

from __future__ import annotations

from dataclasses import replace

from psruntime.core.coordinator import steered
from psruntime.core.coordinator.job_state import JobState
from psruntime.core.coordinator.lifecycle import drain_progress, overdue_checkpoint
from psruntime.core.members.departures import missing
from psruntime.core.members.job_status import JobStatus, MemberStatus, PsTraffic
from psruntime.core.members.membership import Member, Role
from psruntime.core.members.messages import PsBeat
from psruntime.core.members.view import Phase

SLOW_S = 1.0  # a round that waits for longer is worth a word


def job_status(state: JobState, now_s: float) -> JobStatus:
    """Phase, view, global step, and a line for each live member, ps first."""
    members = [*state.members.live(Role.PS), *state.members.live(Role.WORKER)]
    clocks = state.pace.clocks.clocks
    totals = state.accounts.totals()
    traffic = state.traffic.of_ps()
    rounds = state.sync.rounds
    if rounds.active:  # the clocks of heartbeats are as old as these, and a round is shorter
        done = rounds.contributed
        clocks = {member.index: state.pace.floor + (member.index in done) for member in state.members.live(Role.WORKER)}
    return JobStatus(
        phase=state.phase,
        reason=_reason(state, now_s),
        view=state.view,
        floor=state.pace.floor,
        global_step=state.global_step,
        steps_lost=state.steps_lost,
        members=tuple(_line(state, member, clocks, traffic, now_s) for member in members),
        max_lead=state.pace.max_lead,
        balanced=totals.balanced,
        unanswered=dict(totals.unanswered),
        departures=state.departures.at(now_s),
        shards=state.shards.status,
        steering=steered.status(state),
        saved_step=state.past.saved_step,
        saved_ago_s=None if state.saved_at_s is None else now_s - state.saved_at_s,
    )


def _reason(state: JobState, now_s: float) -> str:
    """Why the phase is what it is, for whom it waits, and why those are gone."""
    if state.phase.over:
        return state.reason
    if state.phase is Phase.FORMING:
        enough = state.members.count(Role.WORKER) >= state.workers_needed
        workers = [] if enough else _gone(state, Role.WORKER, now_s)
        return "; ".join([state.reason, *_gone(state, Role.PS, now_s), *workers])
    if state.phase is Phase.DRAINING:
        return f"{state.reason}; {drain_progress(state)}"
    if not state.members.workers():
        return "; ".join([state.reason, "no worker is live", *_gone(state, Role.WORKER, now_s)])
    if state.phase is Phase.PREPARING:
        return f"{state.reason}; waiting for worker {state.chief}, the chief, to prepare it"
    waited_s, parts = state.sync.waited_s, [state.reason]
    if pause := steered.pause_of(state)[1]:
        parts.append(pause)
    if waited_s > SLOW_S:
        parts.append(f"{state.sync.waits_for(state.members.workers(), state.chief)}, for {waited_s:.1f} s")
    if overdue := overdue_checkpoint(state):
        parts.append(f"{overdue}; worker {state.chief} is the chief")
    return "; ".join(parts)


def _gone(state: JobState, role: Role, now_s: float) -> list[str]:
    """The departures of the members of this role whose index is free now."""
    live = {member.index for member in state.members.live(role)}
    return missing(state.departures.at(now_s), role, live)


def _line(
    state: JobState, member: Member, clocks: dict[int, int], traffic: dict[int, PsTraffic], now_s: float
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
        stats = state.ps_beats.get(member.incarnation, PsBeat()).stats
        return replace(line, ps_stats=stats, ps_traffic=traffic.get(member.incarnation))
    beat = state.worker_beats.get(member.incarnation)
    floor = state.pace.floor
    clock = clocks.get(member.index, floor)
    shares = state.sync.rounds.shares
    return replace(
        line,
        chief=state.chief == member.index,
        stopped=state.worker_beats.has_stopped(member.incarnation),
        clock=clock,
        lead=clock - floor,
        worker_stats=beat.stats,
        worker_traffic=state.traffic.of_worker(member.incarnation),
        share=shares.of(member.incarnation) if shares else 0,
    )
