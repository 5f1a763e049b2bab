"""A closed round and its parts, and its line in the record of the rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psruntime.core.members.membership import tag_of
from psruntime.core.members.messages import Machine
from psruntime.core.rounds.round_messages import Complete, Pushed, Taken
from psruntime.core.shards.shard_messages import ShardBatch


@dataclass(frozen=True)
class RoundPart:
    """One member's part in a closed round, enough to repeat it.  The others from `taken` on: as in Pushed."""

    worker: int
    incarnation: int
    batch: int
    examples: float
    taken: Taken | None = None
    shard_batches: tuple[ShardBatch, ...] = ()
    divisor: int = 1
    positions: tuple[int, ...] = ()


@dataclass(frozen=True)
class PastRound:
    """A round that is or will be closed, and its parts.  global_step: updates in the variables after it.

    learning_rate_scale: by which every learning rate is multiplied in it.  local: as in Complete.
    """

    round: int
    attempt: int
    global_step: int
    parts: list[RoundPart]
    learning_rate_scale: float = 1.0
    local: bool = False

    @property
    def complete(self) -> Complete:
        examples = sum(part.examples for part in self.parts)
        return Complete(self.round, self.attempt, len(self.parts), examples, self.local)

    @property
    def record(self) -> dict[str, Any]:
        """As JSON."""
        scale = self.learning_rate_scale
        return {
            "record": "round",
            "round": self.round,
            "attempt": self.attempt,
            "applied": self.global_step >= self.round,  # not if no gradient was finite
            "global_step": self.global_step,  # after it
            **({} if scale == 1 else {"learning_rate_scale": scale}),
            **({"local": True} if self.local else {}),
            "parts": [_record_of(part, len(self.parts), self._order_matters) for part in self.parts],
        }

    @property
    def _order_matters(self) -> bool:
        """Whether the sum depends on who came first: two gradients of one scale give the same in either order."""
        counted = [part for part in self.parts if part.examples]
        return len(counted) > 2 or len({part.examples * part.divisor for part in counted}) > 1


def past_round(
    number: int,
    attempt: int,
    global_step: int,
    members: Mapping[int, int],
    contributions: Mapping[int, Pushed],
    learning_rate_scale: float = 1.0,
    local: bool = False,
) -> PastRound:
    """The round, once it is closed.  members: incarnation -> worker index.  contributions: by incarnation, of all."""
    parts = []
    for incarnation, index in sorted(members.items(), key=lambda item: item[1]):
        pushed = contributions[incarnation]
        facts = (pushed.batch, pushed.examples, pushed.taken, pushed.shard_batches, pushed.divisor, pushed.positions)
        parts.append(RoundPart(index, incarnation, *facts))
    return PastRound(number, attempt, global_step, parts, learning_rate_scale, local)


def record_of_worker(part: RoundPart, machine: Machine | None, began_at: int) -> dict[str, Any]:
    """Its line in the record, as JSON.  machine, began_at: as in Join."""
    who = {"worker": part.worker, "incarnation": tag_of(part.incarnation)}
    return {
        "record": "worker",
        **who,
        **(vars(machine) if machine else {}),
        **({"began_at": began_at} if began_at else {}),
    }


def _record_of(part: RoundPart, members: int, order_matters: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"worker": part.worker, "incarnation": tag_of(part.incarnation), "batch": part.batch}
    taken = {"first": part.taken.first, "size": part.taken.size} if part.taken else {}
    facts |= {**taken, "examples": part.examples}
    facts |= {} if part.divisor == members else {"divisor": part.divisor}
    facts |= {"positions": list(part.positions)} if order_matters and part.positions else {}
    if part.shard_batches:
        facts["shards"] = [[b.shard.epoch, b.shard.begin, b.shard.end, b.number] for b in part.shard_batches]
    return facts
