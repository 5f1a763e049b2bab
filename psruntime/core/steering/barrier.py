"""The barrier: how the settings of a running job change at one point for all.

    OPEN --begin--> HOLD --apply--> APPLY --release--> OPEN
    OPEN --begin--> BUILD --halt--> HOLD

BUILD: a change is accepted, and workers make themselves ready for the steps under it; they step on meanwhile.
HOLD: workers are told to hold: each ends the steps that it has under way, or the open round, begins no other, and says
so.  APPLY: nobody is in a step, and the ps are told the new settings.  OPEN again: every ps has written them, they are
in force, and the workers are released, unless the job is paused by them.

The loss of a ps ends a view, but no change: it goes on where it was as soon as the next view trains, in which nobody
begins a step before it is done.

Law: no step begins under settings that some ps of the view has not written.
Law: while the ps are told new settings, nobody is in a step that began under those before.
Law: workers that hold go by the number of the hold; none is used twice, so what is said of an older one means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from psruntime.core.steering.overrides import Overrides


class BarrierState(str, Enum):
    OPEN = "open"
    BUILD = "build"
    PAUSE = "pause"
    APPLY = "apply"

    def __str__(self) -> str:
        return self.value


MOVES = {  # the one that leads on
    BarrierState.OPEN: "begin",
    BarrierState.BUILD: "halt",
    BarrierState.PAUSE: "apply",
    BarrierState.APPLY: "release",
}


@dataclass(frozen=True)
class Look:
    """The job as the barrier sees it.

    trains: whether a view is prepared in which steps may be taken.  why_not: why it does not, for people.  unbuilt: who
    has no graph yet of the steps that come, for people; empty if everybody has.  stepping: who may still be in a step
    or a round, for people; empty if nobody is.  written: the fence revision that every ps of the view has written.
    unwritten: which ps have not written the newest, for people.
    """

    trains: bool
    why_not: str = ""
    unbuilt: str = ""
    stepping: str = ""
    written: int = 0
    unwritten: str = ""
    global_step: int = 0


@dataclass(frozen=True)
class Decision:
    """move: `halt`, `apply` or `release`; empty for none.  reason: what the change waits for, for people."""

    move: str
    reason: str = ""


class Barrier:
    """in_force: the settings by which steps are taken.  target: those that come; None if no change is under way.

    hold: the number of the hold under which workers begin no step; 0 if they may.  builds: how many changes there were
    for which workers had to build, which is the number of the latest of these.
    """

    def __init__(self, settings: Overrides) -> None:
        self.state = BarrierState.OPEN
        self.in_force = settings
        self.target: Overrides | None = None
        self.pause_epoch = 0
        self.builds = 0
        self._pauses = 0  # how many there were
        self._apply_revision = 0  # the fence revision under which the ps were told the target

    @property
    def to_build(self) -> str:
        """The mode for whose steps workers are to have the graph now; empty if for no other than they step in."""
        return self.target.mode if self.target is not None and self.state is BarrierState.BUILD else ""

    @property
    def may_be_given_up(self) -> bool:
        """Whether a change is under way of which no ps was told yet."""
        return self.state in (BarrierState.BUILD, BarrierState.PAUSE)

    @property
    def for_ps(self) -> Overrides:
        """What the ps are to write."""
        return self.target if self.target is not None and self.state is BarrierState.APPLY else self.in_force

    def restore(self, settings: Overrides) -> None:
        """Takes what an earlier coordinator had put into force, before anybody trains."""
        self._require("restore", BarrierState.OPEN)
        self.in_force = self.in_force.newer(settings)
        self._update_pause()

    def note(self, change: Overrides, global_step: int) -> None:
        """Takes settings under which steps are taken as under those in force, so nobody has to hold for them."""
        self._require("note", BarrierState.OPEN)
        self.in_force = replace(change, revision=self.in_force.revision + 1, from_global_step=global_step)

    def begin(self, change: Overrides, builds: bool = False) -> None:
        """A change is accepted.  Its revision and its global step are given to it here, and when it is done.

        builds: whether workers may lack the graph of the steps that come.
        """
        self._require("begin", BarrierState.OPEN)
        self.target = replace(change, revision=self.in_force.revision + 1)
        self.state = BarrierState.BUILD if builds else BarrierState.PAUSE
        self.builds += builds
        self._update_pause()

    def halt(self) -> None:
        """Every worker has what it needs for the steps that come: from now on they hold."""
        self._require("halt", BarrierState.BUILD)
        self.state = BarrierState.PAUSE
        self._update_pause()

    def decide(self, look: Look) -> Decision:
        """Whether the change goes on, or what it waits for."""
        if self.state is BarrierState.OPEN:
            return Decision("")
        if not look.trains:
            return Decision("", look.why_not)
        if waits_for := look.unbuilt if self.state is BarrierState.BUILD else look.stepping:
            return Decision("", waits_for)
        if self.state is BarrierState.APPLY and look.written < self._apply_revision:
            return Decision("", look.unwritten)
        return Decision(MOVES[self.state])

    def apply(self, fence_revision: int, global_step: int) -> None:
        """Nobody is in a step: from this revision of the fence on the ps are told the new settings."""
        self._require("apply", BarrierState.PAUSE)
        assert self.target is not None
        self.target = replace(self.target, from_global_step=global_step)
        self.state, self._apply_revision = BarrierState.APPLY, fence_revision

    def release(self, global_step: int) -> None:
        """Every ps has written the new settings: they are in force from this global step on."""
        self._require("release", BarrierState.APPLY)
        assert self.target is not None
        self.in_force, self.target = replace(self.target, from_global_step=global_step), None
        self.state = BarrierState.OPEN
        self._update_pause()

    def give_up(self) -> None:
        """No ps was told anything yet, and the change does not come."""
        self._require("give_up", BarrierState.BUILD, BarrierState.PAUSE)
        self.target, self.state = None, BarrierState.OPEN
        self._update_pause()

    def _update_pause(self) -> None:
        pauses = self.state in (BarrierState.PAUSE, BarrierState.APPLY) or self.in_force.paused
        if pauses and not self.pause_epoch:
            self._pauses += 1
            self.pause_epoch = self._pauses
        elif not pauses:
            self.pause_epoch = 0

    def _require(self, move: str, *states: BarrierState) -> None:
        if self.state not in states:
            raise ValueError(f"illegal move {move} at {self.state}, of {self.in_force} to {self.target}")
