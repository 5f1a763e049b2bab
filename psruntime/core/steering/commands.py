"""What an operator may ask of a running job, and what is answered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from psruntime.core.steering.settings import UNCHANGED, Settings
from psruntime.modes import BOUNDED, named


class Kind(str, Enum):
    """What is asked.  CHANGES change settings, at the barrier."""

    PAUSE = "pause"
    RESUME = "resume"
    BOUND = "bound"
    LEARNING_RATE_SCALE = "learning-rate-scale"
    MODE = "mode"
    SAVE = "save"
    DRAIN = "drain"
    DRAIN_WORKER = "drain worker"

    def __str__(self) -> str:
        return self.value


CHANGES = (Kind.PAUSE, Kind.RESUME, Kind.BOUND, Kind.LEARNING_RATE_SCALE, Kind.MODE)

SCHEDULE = "--schedule"  # by whom a change is wanted that no operator has asked for


@dataclass(frozen=True)
class Command:
    """request_id: random text, the same in every repeat of this request.  by: from where it came, for people; SCHEDULE.

    bound, scale, mode, worker: of the kind that needs one; bound also of mode bounded.  scheduled: it is the mode that
    the job's schedule has now, and follows the schedule from then on.
    """

    kind: Kind
    request_id: str
    by: str = ""
    bound: int = 0
    scale: float = 1.0
    mode: str = ""
    worker: int = 0
    scheduled: bool = False

    def __str__(self) -> str:
        """As it was typed; one for the mode of the schedule with that mode, once it is known."""
        mode = named(self.mode, self.of_mode)
        if self.scheduled:
            mode = f"{mode}, as scheduled" if mode else "schedule"
        argument: dict[Kind, object] = {
            Kind.BOUND: self.bound,
            Kind.LEARNING_RATE_SCALE: f"{self.scale:g}",
            Kind.MODE: mode,
            Kind.DRAIN_WORKER: self.worker,
        }
        return f"{self.kind} {argument[self.kind]}" if self.kind in argument else str(self.kind)

    @property
    def is_due(self) -> bool:
        """Whether it is the schedule's change from one stage to the next."""
        return self.by == SCHEDULE

    @property
    def leaves_schedule(self) -> bool:
        """Whether the job is in a mode by hand after it."""
        return self.kind in (Kind.MODE, Kind.BOUND) and not self.scheduled

    def wants_what(self, other: Command) -> bool:
        """Whether both are for the same mode and bound."""
        return (self.mode, self.of_mode) == (other.mode, other.of_mode)

    @property
    def of_mode(self) -> int | None:
        """The bound that the settings have under this command for a mode."""
        return self.bound if self.mode == BOUNDED else None

    def why_not(self, settings: Settings) -> str:
        """Why it cannot be done under these settings; empty if it can."""
        if self.kind is Kind.BOUND and settings.mode != BOUNDED:
            return f"bound is for mode bounded, and the job's mode is {settings.mode}"
        return ""

    def change(self, settings: Settings) -> Settings:
        """The settings as this command makes them of those."""
        if self.kind is Kind.BOUND:
            return replace(settings, bound=self.bound, scheduled=False)
        if self.kind is Kind.LEARNING_RATE_SCALE:
            return replace(settings, learning_rate_scale=self.scale)
        if self.kind is Kind.MODE:
            return replace(settings, mode=self.mode, bound=self.of_mode, scheduled=self.scheduled)
        return replace(settings, paused=self.kind is Kind.PAUSE)


class Outcome(str, Enum):
    """What has become of a command."""

    PENDING = "pending"
    DONE = "done"
    GIVEN_UP = "given up"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Reply:
    """text: what was done and from which global step on, why it was given up, or what it waits for; for people."""

    outcome: Outcome
    global_step: int = 0
    text: str = ""


@dataclass(frozen=True)
class SteeringStatus:
    """What of a job was changed while it runs, and what is about to be.

    settings: in force.  pending: each command that has not taken effect.  waits_for: what the first of them waits for;
    empty while there is none.
    """

    settings: Settings = UNCHANGED
    pending: tuple[str, ...] = ()
    waits_for: str = ""


UNSTEERED = SteeringStatus()
