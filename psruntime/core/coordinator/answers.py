"""What members and operators get of the job's state: the instructions of each member, and the status."""

from __future__ import annotations

from dataclasses import replace

from psruntime.core.coordinator import steered
from psruntime.core.coordinator.job_state import JobState
from psruntime.core.coordinator.lifecycle import all_stopped, can_save, drain_progress, overdue_checkpoint, stops_short
from psruntime.core.coordinator.steered import is_to_leave, pause_of, to_build, wants_save
from psruntime.core.members.departures import missing
from psruntime.core.members.job_status import JobStatus, MemberStatus, PsTraffic
from psruntime.core.members.membership import Member, Role
from psruntime.core.members.messages import Answer, Instructions, PsBeat
from psruntime.core.members.view import Phase


def answer(state: JobState, member: Member) -> Answer:
    """Everything that the member needs in order to act, and how many times that has changed."""
    instructions = _for_ps(state, member) if member.role is Role.PS else _for_worker(state, member)
    last, revision = state.instructions.get(member.incarnation, (None, 0))
    if instructions != last:
        revision += 1
        state.instructions[member.incarnation] = instructions, revision
    return Answer(member.incarnation, instructions, revision)


def _for_ps(state: JobState, ps: Member) -> Instructions:
    admitted = tuple((worker.index, worker.incarnation) for worker in state.members.live(Role.WORKER))
    return Instructions(
        state.phase,
        state.reason,
        state.view,
        admitted=admitted,
        fence_revision=state.fence.revision,
        max_staleness=state.pace.max_staleness(len(admitted)),
        saved_step=state.past.saved_step,
        seen_step=_seen_step(state),
        leave=not state.stop.reason
        and state.phase is not Phase.DRAINING
        and state.stop.lets_go(ps, state.past.saved_step, state.global_step, can_save(state)),
        settings=state.steering.barrier.for_ps,
        identity=state.identity,
    )


def _seen_step(state: JobState) -> int:
    """For everybody: each may be the only one that the next coordinator hears it from."""
    is_known = state.phase.prepared or state.phase.over
    return 0 if is_known else max(state.past.global_step, state.global_step)


def _for_worker(state: JobState, worker: Member) -> Instructions:
    is_chief = state.chief == worker.index
    pause_epoch, pause_reason = pause_of(state)
    build, build_number = to_build(state)
    saves = state.stop.wants_save(state.past.saved_step, state.global_step) or wants_save(state)
    return Instructions(
        state.phase,
        state.reason,
        state.view,
        chief=is_chief,
        restore=is_chief and state.restore,
        admitted_by_ps=_is_admitted_by_ps(state, worker),
        close=is_chief and state.phase is Phase.DRAINING and all_stopped(state),
        clock=state.pace.entered_at(worker.incarnation),
        report_every_s=state.pace.report_every_s(worker),
        saved_step=state.past.saved_step,
        seen_step=_seen_step(state),
        stopping=stops_short(state),
        save=is_chief and can_save(state) and saves,
        leave=is_to_leave(state, worker.incarnation),
        settings=state.steering.settings,
        pause_epoch=pause_epoch,
        pause_reason=pause_reason,
        build=build,
        build_number=build_number,
    )


def _is_admitted_by_ps(state: JobState, worker: Member) -> bool:
    written = (state.ps_beats.get(ps.incarnation, PsBeat()).fence_revision for ps in state.view.ps)
    return state.fence.is_admitted(worker.incarnation, written)


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
        held_out=state.held_out,
        failed_saves=state.failed_saves,
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
