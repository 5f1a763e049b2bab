"""What an operator may ask of a running job, what is answered, and the settings in force."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

from psruntime.config.schedule import BOUNDED, MODES, SYNC, named
from psruntime.config.values import AUTO
from psruntime.core.fields import LOCAL, AtMost, Line, Words
from psruntime.errors import UsageError

LARGEST_BOUND = 2**53 - 1  # steps, as of --bound
SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e30  # a ps multiplies in float32, which has to tell it from 0 and infinity


def check_bound(name: str, bound: int) -> int:
    """Raises UsageError unless it can be one."""
    if not 0 <= bound <= LARGEST_BOUND:
        raise UsageError(f"{name} must be from 0 to {LARGEST_BOUND}, got {bound}")
    return bound


def check_scale(name: str, scale: float) -> float:
    """Raises UsageError unless it can be one."""
    if not (math.isfinite(scale) and SMALLEST_SCALE <= scale <= LARGEST_SCALE):
        raise UsageError(f"{name} must be a number from {SMALLEST_SCALE:g} to {LARGEST_SCALE:g}, got {scale:g}")
    return scale


@dataclass(frozen=True)
class Overrides:
    """revision: counts the changes since the job was started, over the lives of all its coordinators.

    from_global_step: the change before which no worker took a step under these settings, and after which none did under
    those before.  bound: in mode bounded, else None.  learning_rate_scale: by which every learning rate is multiplied.
    paused: no step begins.  mode: by which steps are taken; empty where that is not known.  automatic: mode and bound
    are what the job makes them itself, by its schedule, or the bound that it chooses; else an operator's.
    """

    revision: int = 0
    from_global_step: int = 0
    bound: int | None = None
    learning_rate_scale: Annotated[float, check_scale] = 1.0
    paused: bool = False
    mode: str = ""
    automatic: bool = False

    def same_steps(self, other: Overrides) -> bool:
        """Whether steps are taken alike under both."""
        return replace(self, automatic=other.automatic) == other

    def same_graph(self, other: Overrides) -> bool:
        """Whether the steps under both are of one graph, as those of modes async and bounded are."""
        return (self.mode == SYNC) == (other.mode == SYNC)

    def newer(self, other: Overrides) -> Overrides:
        """The ones of both with the higher revision; of the same, those that were in force, not only sent to the ps."""
        ours, theirs = ((each.revision, each.from_global_step) for each in (self, other))
        return other if theirs > ours else self


UNCHANGED = Overrides()  # of a process that has got no change


class Kind(str, Enum):
    """What is asked.

    changes: whether it changes settings, at the barrier.  is_judged: whether the job's settings and members decide if
    it can be done, so it has to wait until they are known.  argument: what is typed behind it; empty: nothing.
    done: what is reported of it afterwards; empty: the command as it was typed.
    """

    changes: bool
    is_judged: bool
    argument: str
    done: str

    PAUSE = "pause", True, False, "", "paused"
    RESUME = "resume", True, False, "", "resumed"
    BOUND = "bound", True, True, "N"
    LEARNING_RATE_SCALE = "learning-rate-scale", True, True, "X"
    MODE = "mode", True, True, "M"
    SAVE = "save", False, True
    DRAIN = "drain", False, False
    DRAIN_WORKER = "drain worker", False, True, "N"

    def __new__(cls, text: str, changes: bool, is_judged: bool, argument: str = "", done: str = "") -> Kind:
        kind = str.__new__(cls, text)
        kind._value_, kind.changes, kind.is_judged, kind.argument, kind.done = text, changes, is_judged, argument, done
        return kind

    def __str__(self) -> str:
        return str(self.value)


REQUEST_ID_CHARS = 64
PENDING_COMMANDS = 64  # in one message
COMMAND_CHARS = 64
SCHEDULE, ADAPTIVE_BOUND = "--schedule", f"--bound {AUTO}"  # by what a change is wanted that no operator asked for


@dataclass(frozen=True)
class Command:
    """request_id: random text, the same in every repeat of this request.

    by: from where it came, for people; SCHEDULE or ADAPTIVE_BOUND.  bound, scale, mode, worker: of the kind that needs
    one; bound also of mode bounded.  automatic: it is the mode that the job's schedule has now, or the bound that the
    job chooses itself, and from then on it follows them.
    """

    kind: Kind
    request_id: Annotated[str, Line(REQUEST_ID_CHARS, least=1)]
    by: Annotated[str, LOCAL] = ""
    bound: int = 0
    scale: Annotated[float, check_scale] = 1.0
    mode: str = ""
    worker: int = 0
    automatic: bool = False

    def checked(self) -> Command:
        """The command without what its kind does not need.  Raises UsageError if its mode is missing."""
        automatic = self.automatic and self.kind in (Kind.MODE, Kind.BOUND)
        mode = self.mode if self.kind is Kind.MODE and not automatic else ""
        if self.kind is Kind.MODE and not (automatic or mode):
            raise UsageError(f"mode must be one of {', '.join(MODES)}")
        has_bound = not automatic and (self.kind is Kind.BOUND or mode == BOUNDED)
        return Command(
            self.kind,
            self.request_id,
            self.by,
            self.bound if has_bound else 0,
            self.scale if self.kind is Kind.LEARNING_RATE_SCALE else 1.0,
            mode,
            self.worker if self.kind is Kind.DRAIN_WORKER else 0,
            automatic,
        )

    def __str__(self) -> str:
        """As it was typed; one for the mode of the schedule with that mode, once it is known, and so for the bound."""
        mode, bound = named(self.mode, self.of_mode), str(self.bound)
        if self.automatic:
            mode = f"{mode}, as scheduled" if mode else "schedule"
            bound = f"{bound}, {AUTO}" if self.is_due else AUTO
        scale, worker = f"{self.scale:g}", str(self.worker)
        of = {Kind.BOUND: bound, Kind.LEARNING_RATE_SCALE: scale, Kind.MODE: mode, Kind.DRAIN_WORKER: worker}
        return f"{self.kind} {of[self.kind]}" if self.kind.argument else str(self.kind)

    @property
    def done(self) -> str:
        """What is reported when it has taken effect."""
        return self.kind.done or str(self)

    @property
    def is_due(self) -> bool:
        """Whether the job makes this change itself."""
        return self.by in (SCHEDULE, ADAPTIVE_BOUND)

    @property
    def is_by_hand(self) -> bool:
        """Whether the job is in a mode by hand after it."""
        return self.kind in (Kind.MODE, Kind.BOUND) and not self.automatic

    def wants_what(self, other: Command) -> bool:
        """Whether both are for the same mode and bound."""
        return (self.kind, self.mode, self.bound) == (other.kind, other.mode, other.bound)

    @property
    def of_mode(self) -> int | None:
        """The bound that the settings have under this command for a mode."""
        return self.bound if self.mode == BOUNDED else None

    def why_not(self, settings: Overrides) -> str:
        """Why it cannot be done under these settings; empty if it can."""
        if self.kind is Kind.BOUND and settings.mode != BOUNDED:
            return f"bound is for mode bounded, and the job's mode is {settings.mode}"
        return ""

    def change(self, settings: Overrides) -> Overrides:
        """The settings as this command makes them of those.  Raises ValueError if its kind changes none."""
        match self.kind:
            case Kind.PAUSE | Kind.RESUME:
                return replace(settings, paused=self.kind is Kind.PAUSE)
            case Kind.BOUND:
                return replace(settings, bound=self.bound, automatic=self.automatic)
            case Kind.LEARNING_RATE_SCALE:
                return replace(settings, learning_rate_scale=self.scale)
            case Kind.MODE:
                return replace(settings, mode=self.mode, bound=self.of_mode, automatic=self.automatic)
        raise ValueError(f"{self.kind} changes no settings")


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
    text: Words = ""


@dataclass(frozen=True)
class SteeringStatus:
    """What of a job was changed while it runs, and what is about to be.

    settings: in force.  pending: each command that has not taken effect.  waits_for: what the first of them waits for;
    empty while there is none.  bound_reason: why the bound is what it is, where the job chooses it.
    """

    settings: Overrides = UNCHANGED
    pending: Annotated[tuple[Annotated[str, Line(COMMAND_CHARS)], ...], AtMost(PENDING_COMMANDS)] = ()
    waits_for: Words = ""
    bound_reason: Words = ""


UNSTEERED = SteeringStatus()
