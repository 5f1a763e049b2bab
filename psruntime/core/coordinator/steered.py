"""Steering, carried out on the job: which commands it can take, what the barrier sees, what its moves change.

The Coordinator calls `take` for a command, and `steer` whenever anything has changed:

    take   ->  Steering.take                                                queued
    steer  ->  automatic.begin_next_or_due  ->  Steering.begin_next  ->  Barrier.begin
           ->  look_at  ->  Barrier.decide  ->  Barrier.halt, Barrier.apply, Steering.release
"""

from __future__ import annotations

from dataclasses import replace

from psruntime.config.job import as_started_so
from psruntime.config.schedule import SYNC, named
from psruntime.core.coordinator import automatic
from psruntime.core.coordinator.job_state import JobState, Unbuilt
from psruntime.core.coordinator.lifecycle import can_save
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import PsBeat
from psruntime.core.members.view import Phase, listed, over_error
from psruntime.core.rounds.rounds import NAMED
from psruntime.core.steering.barrier import Look, Move
from psruntime.core.steering.commands import Command, Kind, Outcome, Reply, SteeringStatus, check_bound, check_scale
from psruntime.core.steering.steering import Request
from psruntime.errors import UnreachableError, UsageError, some


def take(state: JobState, command: Command) -> None:
    """Takes a command; a repeat of one that was taken changes nothing.

    Raises:
        UsageError: it cannot be carried out in this job.
        JobDoneError, JobStoppedError, JobFailedError: the job is over.
    """
    if state.steering.has_request(command.request_id):
        return
    if state.phase.over:
        raise over_error(state.phase, state.reason)
    command = automatic.resolved(state, command) if command.automatic else command
    _require(state, command)
    worker = state.members.holder(Role.WORKER, command.worker) if command.kind is Kind.DRAIN_WORKER else None
    state.steering.take(command, state.global_step, worker.incarnation if worker else 0, state.failed_saves.count)


def steer(state: JobState) -> bool:
    """Advances the commands as far as possible; returns whether instructions have changed."""
    steering, barrier = state.steering, state.steering.barrier
    before = (steering.revision, barrier.pause_epoch, barrier.state)
    if not state.phase.may_train:
        is_done = state.phase is Phase.DONE if state.phase.over else None
        steering.end(f"{state.phase}: {state.reason}", state.global_step, is_done)
    for request in steering.open_of(Kind.SAVE):
        request.at_step = min(request.at_step, state.global_step)  # the job may have gone back since
        if (saved_step := _saved_since(state, request)) is not None:
            steering.finish(request, saved_step, "saved")
        elif state.failed_saves.count > request.failed_saves:
            steering.finish(request, state.global_step, state.failed_saves.cause, Outcome.GIVEN_UP)
        else:
            request.failed_saves = min(request.failed_saves, state.failed_saves.count)  # another chief counts from 0
    for request in steering.open_of(Kind.DRAIN_WORKER):
        holder = state.members.holder(Role.WORKER, request.command.worker)
        if holder is None or holder.incarnation != request.incarnation:
            steering.finish(request, state.global_step, f"worker {request.command.worker} has left")
    while state.view.number and automatic.begin_next_or_due(state):  # before the first view others may know more
        _take_up(state)
        if _gave_up_unbuilt(state):
            continue
        move = barrier.decide(look_at(state)).move
        if not move:
            break
        if move == Move.HALT:
            barrier.halt()
        elif move == Move.APPLY:
            barrier.apply(state.fence.renew(), state.global_step)
            state.pace.rebound(barrier.for_ps.bound)
            if barrier.for_ps.mode != barrier.in_force.mode:
                state.pace.level(state.members.live(Role.WORKER))
        else:
            steering.release(state.global_step)
    _take_up(state)
    return before != (steering.revision, barrier.pause_epoch, barrier.state)


def look_at(state: JobState) -> Look:
    """The job, as the barrier sees it."""
    trains = state.phase is Phase.TRAINING
    mode, late = state.steering.barrier.to_build, _unbuilt(state).late
    written = {ps.index: state.ps_beats.get(ps.incarnation, PsBeat()).fence_revision for ps in state.view.ps}
    least = min(written.values(), default=0)
    behind = [index for index, revision in written.items() if revision == least]
    return Look(
        trains,
        f"{state.phase}: {state.reason}",
        f"waits for worker {some(list(map(str, late)), NAMED)} to build the steps of mode {mode}" if late else "",
        _stepping(state) if trains and not state.steering.is_building else "",
        least,
        f"waits for ps {listed(behind[:NAMED])} to write the new settings",
        state.global_step,
    )


def status(state: JobState) -> SteeringStatus:
    """What is in force, what is pending, and what that waits for."""
    shown = state.steering.status(lambda: look_at(state), lambda request: _waits_for(state, request))
    adaptive = state.adaptive_bound
    return replace(shown, bound_reason=adaptive.reason(shown.settings.bound)) if adaptive else shown


def reply(state: JobState, request_id: str) -> Reply:
    """What has become of a request that was taken, or what it waits for."""
    known = state.steering.reply(request_id)
    return Reply(known.outcome, known.global_step, known.text or status(state).waits_for)


def mode_of(state: JobState) -> str:
    """The mode in force, for people."""
    return named(state.mode, state.steering.settings.bound)


def pause_of(state: JobState) -> tuple[int, str]:
    """The epoch of the pause in which no worker begins a step, and its reason; 0 if there is none."""
    barrier = state.steering.barrier
    if not barrier.pause_epoch or not state.phase.may_train:
        return 0, ""
    if barrier.target is None or barrier.to_build:
        return barrier.pause_epoch, f"paused by control at global step {barrier.in_force.from_global_step}"
    changing = state.steering.changing
    return barrier.pause_epoch, f"a change by {changing.by if changing.is_due else 'control'}"


def to_build(state: JobState) -> tuple[str, int]:
    """The mode for whose steps workers get ready while they step on, and the number of the change; else empty and 0."""
    barrier = state.steering.barrier
    return (barrier.to_build, barrier.builds) if barrier.to_build and state.phase.may_train else ("", 0)


def is_paused_by_command(state: JobState) -> bool:
    """Whether the job is paused on command, so that no worker is late with anything."""
    return state.steering.settings.paused


def wants_save(state: JobState) -> bool:
    """Whether a command waits for a checkpoint."""
    return next(state.steering.open_of(Kind.SAVE), None) is not None


def why_drain(state: JobState) -> str:
    """The command that ends the job although it could train on, for people; empty if there is none."""
    for request in state.steering.open_of(Kind.DRAIN):
        return f"drained by control ({request.command.by}) at global step {state.global_step}"
    return ""


def is_to_leave(state: JobState, incarnation: int) -> bool:
    """Whether this worker is asked to leave."""
    return any(request.incarnation == incarnation for request in state.steering.open_of(Kind.DRAIN_WORKER))


def _take_up(state: JobState) -> None:
    """Sets the rounds to the settings in force and the pause."""
    rounds, barrier = state.sync.rounds, state.steering.barrier
    rounds.stay_closed(barrier.pause_epoch > 0)
    rounds.learning_rate_scale = barrier.in_force.learning_rate_scale
    rounds.limit, rounds.local_end = automatic.last_round(state), automatic.local_round(state)


def _stepping(state: JobState) -> str:
    """The workers that may be in a step that began before the pause, for people; empty if none is."""
    if state.mode == SYNC:
        rounds = state.sync.rounds
        return rounds.waits_for(state.chief) if rounds.open or rounds.unsettled else ""
    pause_epoch, beats = state.steering.barrier.pause_epoch, state.worker_beats
    late = [
        worker.index
        for worker in state.members.live(Role.WORKER)
        if beats.get(worker.incarnation).paused_epoch != pause_epoch and not beats.has_stopped(worker.incarnation)
    ]
    if not late:
        return ""
    return f"waits for worker {some(list(map(str, late)), NAMED)} to end its step"


def _unbuilt(state: JobState) -> Unbuilt:
    """The workers without the graph of the next steps."""
    barrier, unbuilt = state.steering.barrier, state.unbuilt
    unbuilt.look(barrier.to_build, barrier.builds, state.members, state.worker_beats)
    return unbuilt


def _gave_up_unbuilt(state: JobState) -> bool:
    """Withdraws the change to a mode in which a worker cannot train; returns whether it did."""
    failed, mode = _unbuilt(state).failed, state.steering.barrier.to_build
    if failed is not None:
        state.steering.withdraw(f"worker {failed[0]} cannot train in mode {mode}: {failed[1]}", state.global_step)
    return failed is not None


def _saved_since(state: JobState, request: Request) -> int | None:
    """The step of a checkpoint that a request for one may be answered with.

    The global step is known exactly while the job is paused, and in a local stage; else others may have been made since
    the last heartbeat.
    """
    step, steering = state.past.saved_step, state.steering
    if step is None or not state.phase.prepared:
        return None
    is_paused = steering.settings.paused and (steering.barrier.target is None or steering.is_building)
    is_quiescent = is_paused or state.sync.rounds.is_quiescent
    return step if step > request.at_step or (is_quiescent and step >= state.global_step) else None


def _waits_for(state: JobState, request: Request) -> str:
    """What a command waits for that changes no settings."""
    if request.command.kind is Kind.DRAIN_WORKER:
        return f"waits for worker {request.command.worker} to end its step and leave"
    if request.command.kind is Kind.SAVE and can_save(state):
        return f"waits for worker {state.chief}, the chief, to write a checkpoint"
    return f"{state.phase}: {state.reason}"


def _require(state: JobState, command: Command) -> None:
    """Raises UsageError unless the job can do it."""
    kind, job = command.kind, state.job
    if kind.is_judged and not state.view.number:  # members may know more, and are not all there
        raise UnreachableError(f"it is not known yet what the job can do: {state.phase}: {state.reason}")
    if state.steering.is_full_for(command.by):
        raise UsageError("too many commands have not taken effect yet; wait for them")
    if state.stop.reason or (state.phase is Phase.DRAINING and kind is not Kind.DRAIN):
        why = state.stop.reason or state.reason
        raise UsageError(f"the job is about to end, so nothing is changed any more: {why}")
    if why := command.why_not(state.steering.settings):
        raise UsageError(why)
    if kind is Kind.BOUND:
        check_bound("bound", command.bound)
    if kind is Kind.MODE:
        _require_mode(state, command)
    if kind is Kind.LEARNING_RATE_SCALE:
        check_scale("learning-rate-scale", command.scale)
        _require_model(state, "its optimizers are its own")
    if kind is Kind.SAVE:
        _require_model(state, "its own hooks save")
        if not job.checkpoint_dir:
            raise UsageError("the job has no --checkpoint-dir, so nothing is saved")
    if kind is Kind.DRAIN_WORKER:
        _require_others(state, command.worker)


def _require_mode(state: JobState, command: Command) -> None:
    """The job is as one that was started in this mode, with its other settings; that refuses what does not fit."""
    _require_model(state, "its mode stays as it is")
    as_started_so(state.job, command.mode, command.bound)
    if state.job.replicate_every:
        raise UsageError("the mode of a job with --replicate-every cannot be changed: a replica is of one mode")
    if state.shards.are_used:
        raise UsageError("the mode of a job with data shards (context.shards) cannot be changed")


def _require_model(state: JobState, why: str) -> None:
    if not state.specs:
        raise UsageError(f"the job is a script's own: {why}")


def _require_others(state: JobState, index: int) -> None:
    """The last worker that goes takes the job with it, which is to stop."""
    worker = state.members.holder(Role.WORKER, index)
    if worker is None:
        live = listed(state.members.workers()) or "none"
        raise UsageError(f"there is no worker {index}; live are: {live}")
    others = [other for other in state.members.live(Role.WORKER) if other.index != index]
    if all(state.stop.has_asked(other) or is_to_leave(state, other.incarnation) for other in others):
        raise UsageError(
            f"worker {index} is the only one that stays, and the job would stop with it; "
            "start another one first, or end the job with drain"
        )
