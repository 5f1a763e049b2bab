"""Views, phases and the fence: which ps there are, what the job is doing, whose pushes the ps accept.

FORMING -> PREPARING -> TRAINING -> DRAINING -> DONE
   ^___________|___________|___________|             (a ps was lost)
any of them -> FAILED, or STOPPED
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from psruntime.core.fields import Address, Incarnation
from psruntime.errors import JobDoneError, JobFailedError, JobStoppedError, PsRuntimeError


class Fence:
    """The workers whose pushes the ps accept, as a table with a revision.

    A ps writes the table of its instructions, and with it the settings in force, and reports its revision; a worker is
    fenced in when every ps of the view has written one that contains it.

    Invariant: `revision` grows with every change of the table."""

    def __init__(self) -> None:
        self.revision = 0
        self._since: dict[int, int] = {}  # worker incarnation -> revision of its admission

    def admit(self, incarnation: int) -> None:
        self.revision += 1
        self._since[incarnation] = self.revision

    def remove(self, incarnation: int) -> None:
        self.revision += 1
        self._since.pop(incarnation, None)

    def renew(self) -> int:
        """The new revision, after a change of the settings that the ps write with the table."""
        self.revision += 1
        return self.revision

    def encloses(self, incarnation: int, written: Iterable[int]) -> bool:
        """Whether ps that have written these revisions all accept the worker's pushes; False without any."""
        return min(written, default=-1) >= self._since[incarnation]


class Phase(str, Enum):
    FORMING = "FORMING"  # not all ps are live, or too few workers to begin
    PREPARING = "PREPARING"  # the chief initialises, restores or adopts the variables
    TRAINING = "TRAINING"
    DRAINING = "DRAINING"  # workers stop, the chief writes the last checkpoint
    DONE = "DONE"
    FAILED = "FAILED"
    STOPPED = "STOPPED"  # it was asked to stop; it can continue from its last checkpoint

    def __str__(self) -> str:
        return self.value

    @property
    def over(self) -> bool:
        return not MOVES[self]

    @property
    def may_train(self) -> bool:
        """Whether steps begin in it, or may after it."""
        return not self.over and self is not Phase.DRAINING

    @property
    def prepared(self) -> bool:
        """Whether the variables of the view may be used."""
        return self in (Phase.TRAINING, Phase.DRAINING)


MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.FORMING: frozenset({Phase.PREPARING, Phase.FAILED, Phase.STOPPED}),
    Phase.PREPARING: frozenset({Phase.TRAINING, Phase.FORMING, Phase.FAILED, Phase.STOPPED}),
    Phase.TRAINING: frozenset({Phase.DRAINING, Phase.FORMING, Phase.FAILED, Phase.STOPPED}),
    Phase.DRAINING: frozenset({Phase.DONE, Phase.FORMING, Phase.FAILED, Phase.STOPPED}),
    Phase.DONE: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.STOPPED: frozenset(),
}


def over_error(phase: Phase, reason: str) -> PsRuntimeError:
    """What a process raises that finds the job over."""
    if phase is Phase.DONE:
        return JobDoneError(f"the job is done: {reason}")
    if phase is Phase.STOPPED:
        return JobStoppedError(f"the job was stopped: {reason}")
    return JobFailedError(f"the job failed: {reason}")


def listed(indices: Iterable[int]) -> str:
    """Indices as people read them."""
    return ", ".join(str(i) for i in indices)


@dataclass(frozen=True)
class PsEntry:
    """One live ps: where TensorFlow reaches it, and which process that is; incarnation 0 where it is kept secret."""

    index: int
    address: Address
    incarnation: Incarnation = 0


@dataclass(frozen=True)
class View:
    """Numbered table of the live ps; number 0 is the empty table before the first.

    Two views are the same only if number and every entry are: numbers begin again with a new coordinator.
    """

    number: int = 0
    ps: tuple[PsEntry, ...] = ()

    def without_secrets(self) -> View:
        """The view without incarnations."""
        return replace(self, ps=tuple(replace(entry, incarnation=0) for entry in self.ps))
