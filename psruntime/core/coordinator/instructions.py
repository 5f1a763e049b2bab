"""The instructions of each member, derived from the job's state."""

from __future__ import annotations

from psruntime.core.coordinator.job_state import JobState
from psruntime.core.coordinator.lifecycle import all_stopped, can_save, stops_short
from psruntime.core.coordinator.steered import is_to_leave, pause_of, to_build, wants_save
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
        fenced_in=_is_fenced_in(state, worker),
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


def _is_fenced_in(state: JobState, worker: Member) -> bool:
    written = (state.ps_beats.get(ps.incarnation, PsBeat()).fence_revision for ps in state.view.ps)
    return state.fence.encloses(worker.incarnation, written)
