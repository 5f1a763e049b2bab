"""What a job changes by itself: the mode, where its schedule has another stage, and the bound that it chooses.

A change that is due is a command like those of operators, asked by SCHEDULE or ADAPTIVE_BOUND.
"""

from __future__ import annotations

from dataclasses import replace

from psruntime.config.schedule import BOUNDED
from psruntime.core.coordinator.job_state import JobState
from psruntime.core.members.membership import Role
from psruntime.core.members.view import Phase
from psruntime.core.steering.commands import ADAPTIVE_BOUND, SCHEDULE, Command, Kind
from psruntime.errors import UsageError


def begin_next_or_due(state: JobState) -> bool:
    """Begins the next change if none is under way; returns whether one is.

    What is due is taken when no operator wants a change, or workers still build for another one; it is given up if
    another is due before a ps has got it.
    """
    steering, due, revocable = state.steering, _due(state), state.steering.revocable
    if revocable and revocable.is_due and state.phase is Phase.TRAINING and not (due and revocable.wants_what(due)):
        steering.withdraw(f"not due any more at global step {state.global_step}", state.global_step)
    if steering.begin_next(state.global_step) and not steering.is_building:
        return True
    due = _due(state)
    if due and not (steering.is_building and steering.changing.wants_what(due)):
        steering.take(due, state.global_step)
    return steering.begin_next(state.global_step)


def resolved(state: JobState, command: Command) -> Command:
    """A command for what the job makes of its mode or bound itself, with what this is now.

    Raises:
        UsageError: the job has no schedule, or no range of bounds.
    """
    if command.kind is Kind.BOUND:
        if state.adaptive_bound is None:
            raise UsageError(f"the job has no range of bounds to choose from: {ADAPTIVE_BOUND}:LOW-HIGH starts one so")
        return replace(command, bound=state.adaptive_bound.range.nearest(state.steering.settings.bound or 0))
    if state.schedule is None:
        raise UsageError(f"the job has no {SCHEDULE} that its mode could follow")
    stage = state.schedule.at(state.global_step)
    return replace(command, mode=stage.mode, bound=stage.bound or 0)


def last_round(state: JobState) -> int | None:
    """The global step after which no round follows: the end of the training, or of the stage; None: not known."""
    ends = [state.job.train_steps]
    if state.schedule is not None and state.steering.settings.automatic:
        ends.append(state.schedule.end_at(state.global_step))
    return min((end for end in ends if end is not None), default=None)


def local_round(state: JobState) -> int | None:
    """The number of the round after the open one, or of the next, if it is local, else None: a stage of the schedule
    that is local is one round."""
    if state.schedule is None or not state.steering.settings.automatic:
        return None
    rounds = state.sync.rounds
    return state.schedule.local_end_at(rounds.round if rounds.open else rounds.round - 1)


def _due(state: JobState) -> Command | None:
    """The change by which mode and bound are again what the job makes of them itself."""
    settings, adaptive = state.steering.settings, state.adaptive_bound
    if adaptive is not None and not (settings.automatic and settings.mode == BOUNDED):
        adaptive.forget()
    if not settings.automatic or state.phase is not Phase.TRAINING:
        return None
    command = _stage(state) or _bound(state)
    return None if command is None or command.change(settings) == settings else command


def _stage(state: JobState) -> Command | None:
    """To the stage that the schedule has at the global step as it is now."""
    if state.schedule is None:
        return None
    request_id = f"{SCHEDULE} {state.steering.revision}"
    return resolved(state, Command(Kind.MODE, request_id, SCHEDULE, automatic=True))


def _bound(state: JobState) -> Command | None:
    """To the bound that is chosen from the last steps of the workers."""
    settings, adaptive = state.steering.settings, state.adaptive_bound
    if adaptive is None or settings.mode != BOUNDED or settings.bound is None:
        return None
    at = settings.bound, settings.revision, state.view.number, state.pace.floor
    wanted = adaptive.wanted(*at, lambda: _durations(state))
    request_id = f"{ADAPTIVE_BOUND} {state.steering.revision}"
    return Command(Kind.BOUND, request_id, ADAPTIVE_BOUND, bound=wanted, automatic=True)


def _durations(state: JobState) -> list[tuple[float, ...]]:
    """How long the last steps of each worker that steps took, without waiting for others, in seconds."""
    beats, workers = state.worker_beats, state.members.live(Role.WORKER)
    return [beats.get(each.incarnation).step_times_s for each in workers if not beats.has_stopped(each.incarnation)]
