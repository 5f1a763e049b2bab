"""Messages of the rounds (rounds.py): a worker's next action, and its reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from psruntime.core.fields import AtMost, Positive, Words
from psruntime.core.shards.shard_messages import ShardBatch
from psruntime.errors import UsageError

MINI_BATCHES = 256  # of a step, as config.AT_MOST has it


class ActionKind(str, Enum):
    """The kind of a worker's next action."""

    WAIT = "wait"  # ask again for the next action
    COMPUTE = "compute"  # with backup workers: compute and keep a gradient, and report Computed before it is pushed
    PUSH = "push"  # push the gradient of a batch to the attempt
    APPLY = "apply"  # as closer of the round: apply the sums of the complete attempt
    NONE = "none"  # no rounds run in the view that the worker named

    def __str__(self) -> str:
        return self.value

    @property
    def is_of_gradient(self) -> bool:
        return self in (ActionKind.COMPUTE, ActionKind.PUSH)


@dataclass(frozen=True)
class Complete:
    """An attempt to which all members have contributed.  examples: what their batches weigh together.

    local: its members trained by themselves, and what is applied is the mean of their changes, as it is.
    """

    round: Positive
    attempt: Positive
    members: Positive
    examples: float
    local: bool = False


@dataclass(frozen=True)
class Action:
    """A worker's next action, and the round and attempt that it belongs to.

    opened: the first attempt at the round.  An action with another one needs another batch.
    closes: the complete attempt to apply, or None.  APPLY: that of this round.  COMPUTE, PUSH: that of the round
    before, which is applied before anything is pulled.
    share: the number of examples to compute where rounds have shares (shares.py); 0: the worker's own batch size.
    local: for PUSH, the worker trains by itself from the present variables to the global step that is the number of
    the round, and pushes the change as a gradient: old values minus new values.
    counted: the attempt of the last round that has, or will have, a contribution of this worker index in the variables,
    as far as this coordinator knows; 0: unknown, or none.
    known_from: the lowest global step at which it began a view; it does not know what counted in rounds up to that.
    """

    kind: ActionKind
    round: int = 0
    attempt: int = 0
    opened: int = 0
    closes: Complete | None = None
    reason: Words = ""  # for WAIT, what it waits for; for people
    share: int = 0
    local: bool = False
    counted: int = 0
    known_from: int = 0

    def checked(self) -> Action:
        """Itself.  Raises UsageError if there is nothing to apply."""
        if self.kind is ActionKind.APPLY and self.closes is None:
            raise UsageError("closes is missing, though the kind is APPLY")
        return self


@dataclass(frozen=True)
class Computed:
    """Report: the worker has applied the round before, and keeps a gradient for this one; with backup workers only.

    opened: the first attempt at the round.  The other fields are as in Pushed.
    """

    round: Positive
    opened: Positive
    batch: int
    examples: float


@dataclass(frozen=True)
class Taken:
    """What a worker took of its input for a batch, where rounds have shares (shares.py).

    The next `size` examples after the first `first`.  batch_size: its own, without a share.  seconds: from the
    action to the end of the step.
    """

    first: int
    size: Positive
    batch_size: Positive
    seconds: float


@dataclass(frozen=True)
class Pushed:
    """Report: a member has applied the round before, and has pushed the gradient of a batch.

    batch: its number in the worker's input, from 0.  examples: its weight.  apart: this round is applied by a run of
    its own, because the update depends on the sums of all ps.  taken: only where rounds have shares.
    shard_batches: the data shards of the batch, one for each mini-batch; or empty.  divisor: of the gradient.
    positions: the number of contributions in the sum of each bucket before this one, in the plan's order, the global
    step's among them; one number if all are equal, none if they are unknown.
    """

    round: Positive
    attempt: Positive
    batch: int
    examples: float
    apart: bool = False
    taken: Taken | None = None
    shard_batches: Annotated[tuple[ShardBatch, ...], AtMost(MINI_BATCHES)] = ()
    divisor: Positive = 1
    positions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Applied:
    """Report: a worker has applied the whole attempt; the variables now contain `global_step` updates."""

    round: Positive
    attempt: Positive
    global_step: int


@dataclass(frozen=True)
class Broken:
    """Report: the attempt is applied in part, or its sum is of variables that were, and cannot be repaired."""

    round: Positive
    attempt: Positive
    reason: Words


@dataclass(frozen=True)
class CutOff:
    """Report: a contribution to the attempt was cut off: some sections may have counted it, and others not."""

    round: Positive
    attempt: Positive


@dataclass(frozen=True)
class Starved:
    """A worker has no batch at the moment.

    since: the attempt since which it has had none: it has a gradient for rounds opened at this attempt or before; 0:
    for no round.  reason: for people.  is_over: whether there may be a batch again.
    """

    since: int
    reason: str
    is_over: Callable[[], bool]


Report = Computed | Pushed | Applied | Broken | CutOff  # what a worker reports when it asks for its next action
