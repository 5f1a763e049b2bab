"""What became of an update as a whole, by what became of it on each bucket; what a worker tells of its updates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from psruntime.core.accounting.accounts import APPLIED, CAUSES, NOT_FINITE, STALE
from psruntime.core.members.membership import tag_of
from psruntime.core.members.view import View

APPLIED_NAME = APPLIED.word
CONTRIBUTED = "contributed"  # mode sync: to the sum of a round
LATE = "late"  # mode sync with backup workers: for its round
MEASURABLE = 1 << 31  # versions; what seems staler was pulled before its bucket was restored


@dataclass(frozen=True)
class UpdateOutcome:
    """Of an update of the modes async and bounded.

    name: `applied` if every bucket took it, else the cause for which most of the others did not.
    applied, dropped: buckets that took it, and that did not.
    staleness: the largest among those that took it; if none did, among those that found it stale; None: not measured.
    weight: what the learning rate was multiplied by, the smallest among those that took it; None: none did.
    """

    name: str
    applied: int
    dropped: int
    staleness: int | None
    weight: float | None


@dataclass(frozen=True)
class SentUpdate:
    """An update of this worker of which it knows what became.  Fields as in observe/records.py: Record."""

    push: int
    view: str
    global_step: int
    outcome: UpdateOutcome
    loss: float
    examples: int
    waited_s: float


@lru_cache(maxsize=4)
def word_of(view: View) -> str:
    """What tells a view from every other, and gives no incarnation away: numbers begin again with a new coordinator."""
    tags = " ".join(tag_of(entry.incarnation) for entry in view.ps)
    return f"{view.number}-{hashlib.sha256(tags.encode()).hexdigest()[:6]}"


def contribution(buckets: int, counts: bool) -> UpdateOutcome:
    """Of a gradient in the sums of a round.  counts: whether it is finite."""
    if counts:
        return UpdateOutcome(CONTRIBUTED, buckets, 0, 0, 1.0)
    return UpdateOutcome(NOT_FINITE.word, 0, buckets, None, None)


def too_late(buckets: int) -> UpdateOutcome:
    """Of a gradient that came when its round had closed."""
    return UpdateOutcome(LATE, 0, buckets, None, None)


def outcome_of(buckets: Sequence[tuple[int, int]], weight_of: Callable[[int], float]) -> UpdateOutcome:
    """buckets: of each one (column of the ledger, staleness in versions).  weight_of: by staleness, falling."""
    taken = [staleness for column, staleness in buckets if column == APPLIED]
    causes = [column for column, _ in buckets if column != APPLIED]
    stale = [staleness for column, staleness in buckets if column == STALE and 0 <= staleness < MEASURABLE]
    name = max(CAUSES.values(), key=causes.count).word if causes else APPLIED_NAME
    staleness = max(taken or stale, default=None)
    return UpdateOutcome(name, len(taken), len(causes), staleness, weight_of(max(taken)) if taken else None)
