"""Views, phases, the fence and the past: which ps there are, what the job is doing, whose pushes the ps accept, and
what every process remembers of the job.

FORMING -> PREPARING -> TRAINING -> DRAINING -> DONE
   ^___________|___________|___________|             (a ps was lost)
any of them -> FAILED, or STOPPED

The table of admitted workers has a revision.  A ps writes the table of its instructions, and with it the settings in
force, and reports its revision; a worker is admitted by the ps when each of the view has written one that contains it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from psruntime.core.fields import Address, Incarnation
from psruntime.core.plan.identity import ModelIdentity
from psruntime.core.steering.commands import UNCHANGED, Overrides
from psruntime.errors import JobDoneError, JobFailedError, JobStoppedError, PsRuntimeError


class Fence:
    """The workers whose pushes the ps accept, as a table with a revision.

    A ps writes the table of its instructions, and with it the settings in force, and reports its revision; a worker is
    admitted by the ps when each of the view has written one that contains it.

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

    def is_admitted(self, incarnation: int, written: Iterable[int]) -> bool:
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


@dataclass(frozen=True)
class Past:
    """The past of the job as each process keeps it, so that the loss of the coordinator loses none of it.

    Every member gets and keeps what the next coordinator needs, and reports it when it joins.  A process that starts
    reports the checkpoint that it finds in the folder.

    began: whether a view was prepared.  global_step: the highest that was seen.  saved_step: that of the newest
    checkpoint, None if there is none.  attempt: in mode sync, the highest that was seen.  settings: those that an
    operator has put into force.  identity: of the job's model, None if it is not known.
    """

    began: bool = False
    global_step: int = 0
    saved_step: int | None = None
    attempt: int = 0
    settings: Overrides = UNCHANGED
    identity: ModelIdentity | None = None

    def and_of(self, other: Past) -> Past:
        """The union of both."""
        saved = [step for step in (self.saved_step, other.saved_step) if step is not None]
        return Past(
            self.began or other.began, max(self.global_step, other.global_step), max(saved) if saved else None,
            max(self.attempt, other.attempt), self.settings.newer(other.settings),
            self.identity or other.identity,
        )  # fmt: skip

    def after(self, prepared: bool, saved_step: int | None, seen_step: int) -> Past:
        """The past after instructions.  prepared: whether the view is; seen_step: 0 if it is."""
        if prepared:
            return self.prepared(0, saved_step)
        return self.and_of(Past(seen_step > 0, seen_step, saved_step))

    def prepared(self, global_step: int, saved_step: int | None) -> Past:
        """A view was prepared, with the newest checkpoint as its chief finds it: an older one may be meant."""
        return replace(self, began=True, global_step=max(self.global_step, global_step), saved_step=saved_step)

    def saved(self, saved_step: int | None) -> Past:
        """The past after the chief's report of the newest checkpoint."""
        return replace(self, saved_step=saved_step)

    def saw(self, global_step: int) -> Past:
        """The training was seen at this global step."""
        return self if global_step <= self.global_step else replace(self, global_step=global_step)

    def tried(self, attempt: int) -> Past:
        """This attempt at a round was begun."""
        return self if attempt <= self.attempt else replace(self, attempt=attempt)

    def steered(self, settings: Overrides) -> Past:
        """The past with these settings in force, or sent to the ps."""
        return self if settings == self.settings else replace(self, settings=settings)

    def of_model(self, identity: ModelIdentity | None) -> Past:
        """The past with this identity of the job's model; None: it is unknown."""
        return self if identity in (None, self.identity) else replace(self, identity=identity)


UNKNOWN = Past()  # of a process that knows nothing
