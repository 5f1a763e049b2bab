"""The barrier: how the settings of a running job change at one point for all.

| state | restore | note | build | begin | halt | apply | release | give_up |
|---|---|---|---|---|---|---|---|---|
| OPEN | OPEN | OPEN | BUILD | PAUSE | | | | |
| BUILD | | | | | PAUSE | | | OPEN |
| PAUSE | | | | | | APPLY | | OPEN |
| APPLY | | | | | | | OPEN | |

BUILD: a change is accepted, and workers build the graph of the steps under it beside their steps.
PAUSE: workers pause: each ends the steps that it has under way, or the open round, begins no other, and reports that.
APPLY: no worker is in a step, and the ps get the new settings.  OPEN again: every ps has written them, they are in
force, and the workers are released, unless the settings themselves pause the job.

The loss of a ps ends a view, but no change: the change continues as soon as the next view trains, in which no step
begins before the change is done.

Law: no step begins under settings that some ps of the view has not written.
Law: while the ps get new settings, no worker is in a step that began under those before.
Law: a paused worker reports the epoch of its pause; no epoch is used twice, so a report of an old one changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from psruntime.core.state_table import after
from psruntime.core.steering.commands import Overrides


class BarrierState(str, Enum):
    OPEN = "open"
    BUILD = "build"
    PAUSE = "pause"
    APPLY = "apply"

    def __str__(self) -> str:
        return self.value


class Move(str, Enum):
    RESTORE = "restore"  # what an earlier coordinator had put into force
    NOTE = "note"  # a change under which steps are the same
    BUILD = "build"  # a change for which workers may have to build
    BEGIN = "begin"  # any other
    HALT = "halt"
    APPLY = "apply"
    RELEASE = "release"
    GIVE_UP = "give_up"

    def __str__(self) -> str:
        return self.value


TRANSITIONS: dict[tuple[BarrierState, Move], BarrierState] = {
    (BarrierState.OPEN, Move.RESTORE): BarrierState.OPEN,
    (BarrierState.OPEN, Move.NOTE): BarrierState.OPEN,
    (BarrierState.OPEN, Move.BUILD): BarrierState.BUILD,
    (BarrierState.OPEN, Move.BEGIN): BarrierState.PAUSE,
    (BarrierState.BUILD, Move.HALT): BarrierState.PAUSE,
    (BarrierState.BUILD, Move.GIVE_UP): BarrierState.OPEN,
    (BarrierState.PAUSE, Move.APPLY): BarrierState.APPLY,
    (BarrierState.PAUSE, Move.GIVE_UP): BarrierState.OPEN,
    (BarrierState.APPLY, Move.RELEASE): BarrierState.OPEN,
}
LEADS_ON = {state: move for state, move in TRANSITIONS if move in (Move.HALT, Move.APPLY, Move.RELEASE)}


@dataclass(frozen=True)
class Look:
    """The job as the barrier sees it.

    trains: whether a view is prepared in which steps may be taken.  why_not: why not, for people.  unbuilt: the workers
    without the graph of the next steps, for people; empty if all have it.  stepping: the workers that may still be in a
    step or a round, for people; empty if none is.  written: the fence revision that every ps of the view has written.
    unwritten: the ps that have not written the newest, for people.
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
    """move: the one of LEADS_ON; empty for none.  reason: what the change waits for, for people."""

    move: str
    reason: str = ""


class Barrier:
    """in_force: the settings by which steps are taken.  target: those that come; None if no change is under way.

    pause_epoch: the number of the pause in which workers begin no step; 0 if they may.  builds: the number of changes
    so far for which workers had to build, which is the number of the latest of these.
    """

    def __init__(self, settings: Overrides) -> None:
        self.state = BarrierState.OPEN
        self.in_force = settings
        self.target: Overrides | None = None
        self.pause_epoch = 0
        self.builds = 0
        self._pauses = 0  # how many there were
        self._apply_revision = 0  # the fence revision with which the ps got the target

    @property
    def to_build(self) -> str:
        """The mode whose graph workers are to build now; empty if none."""
        return self.target.mode if self.target is not None and self.state is BarrierState.BUILD else ""

    @property
    def may_be_given_up(self) -> bool:
        """Whether a change is under way that no ps has got yet."""
        return (self.state, Move.GIVE_UP) in TRANSITIONS

    @property
    def for_ps(self) -> Overrides:
        """What the ps are to write."""
        return self.target if self.target is not None and self.state is BarrierState.APPLY else self.in_force

    def restore(self, settings: Overrides) -> None:
        """Restores the settings that an earlier coordinator had put into force, before the job trains."""
        self._move(Move.RESTORE)
        self.in_force = self.in_force.newer(settings)
        self._update_pause()

    def note(self, change: Overrides, global_step: int) -> None:
        """Puts settings into force under which steps are the same as before, so they need no pause."""
        self._move(Move.NOTE)
        self.in_force = replace(change, revision=self.in_force.revision + 1, from_global_step=global_step)

    def begin(self, change: Overrides, builds: bool = False) -> None:
        """Begins a change.  It gets its revision now, and its global step when it is done.

        builds: whether workers may lack the graph of the steps that come.
        """
        self._move(Move.BUILD if builds else Move.BEGIN)
        self.target = replace(change, revision=self.in_force.revision + 1)
        self.builds += builds
        self._update_pause()

    def halt(self) -> None:
        """Begins the pause: every worker has the graph of the next steps."""
        self._move(Move.HALT)
        self._update_pause()

    def decide(self, look: Look) -> Decision:
        """The next move of the change, or what it waits for."""
        if self.state is BarrierState.OPEN:
            return Decision("")
        if not look.trains:
            return Decision("", look.why_not)
        if waits_for := look.unbuilt if self.state is BarrierState.BUILD else look.stepping:
            return Decision("", waits_for)
        if self.state is BarrierState.APPLY and look.written < self._apply_revision:
            return Decision("", look.unwritten)
        return Decision(LEADS_ON[self.state])

    def apply(self, fence_revision: int, global_step: int) -> None:
        """Gives the ps the new settings, with this revision of the fence; no worker is in a step."""
        self._move(Move.APPLY)
        assert self.target is not None
        self.target = replace(self.target, from_global_step=global_step)
        self._apply_revision = fence_revision

    def release(self, global_step: int) -> None:
        """Puts the new settings into force from this global step on; every ps has written them."""
        self._move(Move.RELEASE)
        assert self.target is not None
        self.in_force, self.target = replace(self.target, from_global_step=global_step), None
        self._update_pause()

    def give_up(self) -> None:
        """Withdraws the change, which no ps has got yet."""
        self._move(Move.GIVE_UP)
        self.target = None
        self._update_pause()

    def _update_pause(self) -> None:
        pauses = self.state in (BarrierState.PAUSE, BarrierState.APPLY) or self.in_force.paused
        if pauses and not self.pause_epoch:
            self._pauses += 1
            self.pause_epoch = self._pauses
        elif not pauses:
            self.pause_epoch = 0

    def _move(self, move: Move) -> None:
        try:
            self.state = after(TRANSITIONS, self.state, move)
        except ValueError as illegal:
            raise ValueError(f"{illegal}, of {self.in_force} to {self.target}") from None
