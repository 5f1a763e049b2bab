"""The schedule, carried out on the job: which change is due at its global step, and where rounds end.

A change that is due is a command like those of operators, asked by SCHEDULE.
"""

from __future__ import annotations

from dataclasses import replace

from psruntime.core.coordinator.job_state import JobState
from psruntime.core.members.view import Phase
from psruntime.core.steering.commands import SCHEDULE, Command, Kind
from psruntime.errors import UsageError


def begin_next(state: JobState) -> bool:
    """Begins the next change if none is under way; returns whether one is.

    What is due is taken when no operator wants a change; it is given up if another is due before a ps was told of it.
    """
    steering, due, held = state.steering, _due(state), state.steering.held
    if held and held.is_due and state.phase is Phase.TRAINING and not (due and held.wants_what(due)):
        steering.withdraw(f"not due any more at global step {state.global_step}", state.global_step)
    if steering.begin_next(state.global_step):
        return True
    if due := _due(state):
        steering.take(due, state.global_step)
    return steering.begin_next(state.global_step)


def resolved(state: JobState, command: Command) -> Command:
    """A command for the mode of the schedule, with the mode that this is now.

    Raises:
        UsageError: the job has no schedule.
    """
    if state.schedule is None:
        raise UsageError(f"the job has no {SCHEDULE} that its mode could follow")
    stage = state.schedule.at(state.global_step)
    return replace(command, mode=stage.mode, bound=stage.bound or 0)


def last_round(state: JobState) -> int | None:
    """The global step after which no round follows: the end of the training, or of the stage; None: not known."""
    ends = [state.job.train_steps]
    if state.schedule is not None and state.steering.settings.scheduled:
        ends.append(state.schedule.end_at(state.global_step))
    return min((end for end in ends if end is not None), default=None)


def _due(state: JobState) -> Command | None:
    """The change by which the mode is that of the schedule again, at the global step as it is now."""
    settings = state.steering.settings
    if state.schedule is None or not settings.scheduled or state.phase is not Phase.TRAINING:
        return None
    request_id = f"{SCHEDULE} {state.steering.revision}"
    command = resolved(state, Command(Kind.MODE, request_id, SCHEDULE, scheduled=True))
    return None if command.change(settings) == settings else command
