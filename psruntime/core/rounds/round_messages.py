"""What is said about rounds (rounds.py): a worker's duty, and what it has done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from psruntime.core.shards.shard_messages import ShardBatch


class ActionKind(str, Enum):
    """What a worker does now."""

    WAIT = "wait"  # nothing, until its next turn
    COMPUTE = "compute"  # with backup workers: keep the gradient of its batch, and say so before it is pushed
    PUSH = "push"  # push the gradient of its batch for the attempt
    APPLY = "apply"  # as chief: apply what all have pushed, by itself
    NONE = "none"  # no rounds are held in the view that it knows

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Complete:
    """An attempt to which all members have contributed.  examples: what their batches weigh together.

    local: its members trained by themselves, and what is applied is the mean of their changes, as it is.
    """

    round: int
    attempt: int
    members: int
    examples: float
    local: bool = False


@dataclass(frozen=True)
class Action:
    """A worker's duty, and the round that it is about.

    opened: the round's first attempt; so a turn with another one asks for another batch.
    closes: what has to be applied, if anything: this round where the duty is to close, the one before where it is to
    compute or to contribute, and then before anything is read for the contribution.
    share: how many examples it computes where rounds have shares (shares.py); 0: its own batch size.
    local: to contribute, the worker trains by itself, from the variables as they are to the global step that is the
    number of the round, and pushes by how much they have changed, as a gradient: what they were less what they are.
    """

    kind: ActionKind
    round: int = 0
    attempt: int = 0
    opened: int = 0
    closes: Complete | None = None
    reason: str = ""  # of a wait; for people
    share: int = 0
    local: bool = False


@dataclass(frozen=True)
class Computed:
    """A worker has closed the round before, and keeps a gradient for this one; with backup workers only.

    opened: the round's first attempt.  The others are as in a contribution.
    """

    round: int
    opened: int
    batch: int
    examples: float


@dataclass(frozen=True)
class Taken:
    """What a worker took of its input for a batch, where rounds have shares (shares.py).

    The next `size` examples after the first `first`.  batch_size: its own, without a share.  seconds: from its turn
    until the step had run.
    """

    first: int
    size: int
    batch_size: int
    seconds: float


@dataclass(frozen=True)
class Pushed:
    """What a member pushed: the `batch`-th of its input, counted from 0, which weighs `examples`.

    It has closed the round before.  apart: this one has to be closed by itself, since what is applied depends on the
    sums of all ps.  taken: only where rounds have shares.  shard_batches: of which data shards the batch is, one for
    each mini-batch; none without any.  divisor: by which its gradient is divided.
    positions: how many contributions the sum of each bucket had before this one, in an order of the buckets that all
    workers have, the global step's among them; one number if they are equal, none if they are not known.
    """

    round: int
    attempt: int
    batch: int
    examples: float
    apart: bool = False
    taken: Taken | None = None
    shard_batches: tuple[ShardBatch, ...] = ()
    divisor: int = 1
    positions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Applied:
    """A worker has applied the attempt, all of it; the variables hold `global_step` updates now."""

    round: int
    attempt: int
    global_step: int


@dataclass(frozen=True)
class Broken:
    """A worker found the attempt applied in part, or summed from what was, and it cannot be mended any more."""

    round: int
    attempt: int
    reason: str


@dataclass(frozen=True)
class Starved:
    """A worker has no batch at the moment.

    since: it has a gradient for the rounds that were first opened at this attempt or before; 0: for none.  reason: for
    people.  is_over: whether it may have a batch again.
    """

    since: int
    reason: str
    is_over: Callable[[], bool]


Report = Computed | Pushed | Applied | Broken  # what a worker may have done in its turn
