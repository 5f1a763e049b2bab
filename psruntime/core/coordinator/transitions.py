"""What comes of a change of the state: the next view, chief and phase, and who is removed.

Each function changes the state; what to change is decided by the rules in lifecycle.py.  The Coordinator calls `judge`
when time has passed, and `reconsider` after any other input.
"""

from __future__ import annotations

from psruntime.config.schedule import SYNC
from psruntime.core.accounting.accounts import account_facts
from psruntime.core.coordinator import lifecycle, steered
from psruntime.core.coordinator.job_state import JobState
from psruntime.core.members.membership import Member, Role
from psruntime.core.members.messages import FailedSaves, LeaveKind
from psruntime.core.members.view import MOVES, Phase, View, listed


def judge(state: JobState) -> None:
    """Ends the leases and limits that are over."""
    state.pace.forget_gone()
    for member in state.members.end_leases():
        silent_s = state.clock.real_s - member.renewed_at_s
        _forget(state, member, "member_lost", f"silent for {silent_s:.1f} s")
    reconsider(state)
    _judge_the_chief(state)
    _judge_the_drain(state)
    state.failures.trained(state.global_step)
    if not state.phase.over and (reason := lifecycle.why_fail(state)):
        move(state, Phase.FAILED, reason)


def reconsider(state: JobState) -> None:
    """Draws the consequences of any change.  Idempotent."""
    if state.phase.over:
        if not state.members.count(Role.PS) and (totals := state.accounts.last_word()):
            late = {"late": state.sync.late} if state.job.backup_workers else {}
            state.note("accounts", **account_facts(totals), **late)
        return
    _void_the_view_without_its_ps(state)
    if _stop(state):
        return
    _choose_the_chief(state)
    if state.phase is Phase.FORMING:
        _form(state)
    fails = state.stop.fails and lifecycle.all_stopped(state)  # no worker is left to apply a round
    if state.phase is Phase.TRAINING and (fails or not state.sync.rounds.being_applied):
        reason = lifecycle.why_drain(state) or steered.why_drain(state)
        state.stop.cuts_short = bool(state.stop.reason and not reason)
        if reason := reason or state.stop.reason:
            move(state, Phase.DRAINING, reason)
    _steer(state)
    needed = min(state.job.min_workers, state.members.count(Role.WORKER))
    state.sync.update(state.members.workers, needed, state.chief)
    _note_the_loss_of_all_workers(state)


def move(state: JobState, phase: Phase, reason: str) -> None:
    """Moves the job to another phase."""
    if phase not in MOVES[state.phase]:
        raise ValueError(f"illegal move {state.phase} -> {phase} ({reason}); the phase was: {state.reason}")
    state.note("phase", was=state.phase, now=phase, reason=reason)
    state.phase, state.reason = phase, reason
    if phase is not Phase.TRAINING:
        state.sync.rounds.end()
    if phase.over:
        steered.steer(state)


def fail_in_order(state: JobState, reason: str) -> None:
    """The job fails, once what was trained is saved, if it can be."""
    if state.stop.fails:
        return  # its workers repeat it while they save, and after the loss of a ps
    if state.phase is Phase.DRAINING or lifecycle.can_save(state):
        _begin_to_stop(state, reason, fails=True)
    else:
        move(state, Phase.FAILED, reason)


def stop_now(state: JobState, reason: str) -> None:
    """Ends a job that was asked to stop, or whose failure was put off."""
    move(state, Phase.FAILED if state.stop.fails else Phase.STOPPED, reason)


def relieve(state: JobState, chief: Member, reason: str) -> None:
    """Lets another worker be chief."""
    state.reliefs.add(chief, reason)
    state.note("relieved", worker=chief.index, reason=reason)
    reconsider(state)
    state.reason = lifecycle.why_not_prepared(state) or state.reason


def remove(state: JobState, member: Member, event: str, reason: str, kind: LeaveKind | None = None) -> None:
    """Takes out a live member.  kind: of its farewell, if there was one."""
    state.members.remove(member)
    _forget(state, member, event, reason, kind)


def _forget(state: JobState, member: Member, event: str, reason: str, kind: LeaveKind | None = None) -> None:
    """Drops what was kept for a member that is gone, and keeps why it went."""
    of_kind = {} if kind is None else {"kind": kind}
    state.note(event, member=member.name, incarnation=member.tag, **of_kind, reason=reason)
    if not state.phase.over:
        state.departures.add(member.role, member.index, member.tag, state.clock.real_s, reason, kind)
        state.failures.left(member.role, member.index, reason, for_good=kind is LeaveKind.USAGE)
        if kind is LeaveKind.ERROR and not steered.is_paused_by_command(state):
            state.failures.add(member.name, reason)
    state.forget(member, was_lost=event == "member_lost")


def _judge_the_chief(state: JobState) -> None:
    """Removes a chief that is late with preparing or saving."""
    progress, chief = state.chief_progress, state.chief_member
    progress.preparing.update(lifecycle.preparation(state))
    if steered.is_paused_by_command(state):
        progress.pauses()
    elif chief and lifecycle.can_save(state):
        progress.trains(state.global_step, chief.incarnation, state.worker_beats.get(chief.incarnation))
    else:
        progress.reset()
    if (reason := lifecycle.overdue_checkpoint(state)) and progress.is_news():
        state.note("checkpoint_overdue", worker=state.chief, reason=reason)
    if chief and (reason := lifecycle.why_relieve(state)):
        progress.pass_over(chief)
        remove(state, chief, "cut_off", reason)
        reconsider(state)


def _judge_the_drain(state: JobState) -> None:
    """Removes the workers that the end of the job has waited for long enough."""
    state.drain_timer.update(lifecycle.drain_wait(state))
    overdue = lifecycle.whom_to_cut_off(state)
    for member, reason in overdue:
        state.drain_timer.cut_off(member, reason)
    for member, reason in overdue:
        remove(state, member, "cut_off", reason)
        reconsider(state)


def _steer(state: JobState) -> None:
    """Advances the commands of operators.  To and from mode sync the job continues in a view of its own."""
    was_sync = state.mode == SYNC
    state.news |= steered.steer(state)
    if (state.mode == SYNC) != was_sync and state.phase is Phase.TRAINING:
        move(state, Phase.FORMING, f"mode {steered.mode_of(state)} from global step {state.global_step}")
        _form(state)


def _stop(state: JobState) -> bool:
    """Takes up that the job was asked to stop; returns whether it is over now."""
    if not state.stop.reason and (reason := lifecycle.why_stop(state)):
        _begin_to_stop(state, reason)
    if reason := lifecycle.why_stopped(state):
        stop_now(state, reason)
    return state.phase.over


def _begin_to_stop(state: JobState, reason: str, fails: bool = False) -> None:
    state.stop.begin(reason, fails)
    state.drain_timer.hurry(state.job.stop_grace_s / 2)
    state.note("job_stopping", reason=reason, within_s=state.job.stop_grace_s)


def _note_the_loss_of_all_workers(state: JobState) -> None:
    """Notes it once.  A job that drains waits for no other worker."""
    had, state.had_workers = state.had_workers, state.members.count(Role.WORKER) > 0
    if had and not state.had_workers and state.phase is not Phase.DRAINING:
        state.note("no_workers", reason="the last worker is gone; the job waits until one joins")


def _void_the_view_without_its_ps(state: JobState) -> None:
    live = state.live_ps()
    if state.phase is not Phase.FORMING and live != state.view.ps:
        lost = sorted(ps.index for ps in set(state.view.ps) - set(live))
        move(state, Phase.FORMING, f"ps {listed(lost)} lost")


def _choose_the_chief(state: JobState) -> None:
    before, state.chief = state.chief, lifecycle.next_chief(state)
    if state.chief != before:
        state.failed_saves = FailedSaves()
    if state.chief not in (None, before):
        state.note("chief", worker=state.chief)
        state.sync.rounds.revision += 1  # this chief closes what the one before should have closed


def _form(state: JobState) -> None:
    """Forms the next view, or sets the reason to what it lacks."""
    if missing := lifecycle.what_is_missing(state):
        state.reason = missing
        return
    state.view = View(state.view.number + 1, state.live_ps())
    state.pace.begin(state.members.live(Role.WORKER))
    state.worker_beats.begin(state.view.number)
    state.note("view", number=state.view.number, ps=" ".join(ps.address for ps in state.view.ps))
    move(state, Phase.PREPARING, f"view {state.view.number} is complete")
