"""The job's accounts: ledgers, what became of each update, and what the workers pushed against what the ps received.

The ledger of a bucket is a row of counters, kept on its ps under the mutex of its section:
received = applied (of which down-weighted) + the causes of a drop + rolled back + pending.
Applied are the updates that the bucket has; one that a return to an older state undid is rolled back.
Down-weighted are those of the applied whose learning rate was lowered for their staleness (psruntime/config/values.py).

Law: a column is described here alone, by a member of `Column`; sums, balance, log, status and what a worker does with
its batch follow from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Any

from psruntime.core.members.membership import tag_of
from psruntime.core.members.messages import PsStats, WorkerStats
from psruntime.core.members.view import View


class Term(Enum):
    """What a column is of the sum."""

    WHOLE = "all that arrived"
    TERM = "of the whole"
    CAUSE = "of the whole: refused, and why"
    SHARE = "of another term, so no term itself"
    PEAK = "no count: the largest value so far"


class Column(IntEnum):
    """A column, in the order in which they are read; the number is its place in a row, which checkpoints keep.

    is_final: of the outcomes of a push: whether its worker is done with the batch.  It is in the bucket, or would be
    refused again; otherwise the batch is read or contributed again.
    """

    part: Term
    is_final: bool

    RECEIVED = 0, Term.WHOLE
    APPLIED = 1, Term.TERM, True
    DOWN_WEIGHTED = 10, Term.SHARE  # of the applied
    STALE = 2, Term.CAUSE, False
    FENCED = 3, Term.CAUSE, False
    REPEATED = 4, Term.CAUSE, True  # a session was lost after the bucket had taken the first try
    NOT_FINITE = 5, Term.CAUSE, True
    VOID = 6, Term.CAUSE, False
    ROLLED_BACK = 7, Term.TERM
    PENDING = 8, Term.TERM, True  # contributions to a round that has not closed
    MAX_STALENESS = 9, Term.PEAK  # of an applied update, in versions

    def __new__(cls, number: int, part: Term, is_final: bool | None = None) -> Column:
        column = int.__new__(cls, number)
        if part is Term.CAUSE and is_final is None:
            raise TypeError(f"column {number} is a cause of refusal, and says not whether it is final")
        column._value_, column.part, column.is_final = number, part, bool(is_final)
        return column

    @property
    def word(self) -> str:
        """Its name in log, status and records."""
        return self.name.lower()

    def joined(self, counts: Iterable[int]) -> int:
        """Of several buckets."""
        return int(max(counts, default=0) if self.part is Term.PEAK else sum(counts))


(
    RECEIVED, APPLIED, DOWN_WEIGHTED, STALE, FENCED, REPEATED, NOT_FINITE, VOID, ROLLED_BACK, PENDING, MAX_STALENESS,
) = Column  # fmt: skip
LEDGER_SIZE = len(Column)
OLDEST_SIZE = 10  # of rows that were saved before there was a column for down-weighted updates
CAUSES = {column.word: column for column in Column if column.part is Term.CAUSE}
FINAL = frozenset(column for column in Column if column.is_final)
IN_STATS = {
    column.word: column for column in Column if column.part is not Term.CAUSE
}  # fields; causes are in `dropped`

if sorted(Column) != list(range(LEDGER_SIZE)) or not {field.name for field in fields(PsStats)}.issuperset(IN_STATS):
    raise TypeError(f"the columns are not numbered from 0, or PsStats lacks one of {', '.join(IN_STATS)}")

Row = Sequence[int]  # [LEDGER_SIZE]
EMPTY: tuple[int, ...] = (0,) * LEDGER_SIZE


def stats_of(rows: Sequence[Row]) -> PsStats:
    """What the ledgers of a ps make together."""
    counts = list(zip(*rows, strict=True)) or [()] * LEDGER_SIZE
    joined: dict[str, Any] = {column.word: column.joined(counts[column]) for column in Column}
    return PsStats(buckets=len(rows), dropped={cause: joined.pop(cause) for cause in CAUSES}, **joined)


def terms_of(stats: PsStats) -> dict[str, int]:
    """Into what the received are divided: applied, dropped by any cause, rolled back, pending."""
    terms = {column.word: getattr(stats, column.word) for column in Column if column.part is Term.TERM}
    return {"applied": terms.pop("applied"), "dropped": sum(stats.dropped.values()), **terms}


def ledger_facts(stats: PsStats) -> dict[str, object]:
    """Every count, for the log."""
    counts = {**stats.dropped, **{word: getattr(stats, word) for word in IN_STATS}}
    words = [column.word for column in Column if column.part is not Term.PEAK]
    return {word: counts[word] for word in [*words, *stats.dropped] if word in counts}


def accounts_for_all(stats: PsStats) -> bool:
    """Whether every push that arrived is accounted for."""
    return stats.received == sum(terms_of(stats).values()) and 0 <= stats.down_weighted <= stats.applied


def is_balanced(row: Row) -> bool:
    """As `accounts_for_all`, of one bucket."""
    return accounts_for_all(stats_of([row]))


def are_final(outcomes: Iterable[int]) -> bool:
    """Whether a worker is done with the batch of a push with these outcomes, a column for each bucket."""
    return FINAL.issuperset(outcomes)


def of_any_age(row: Row) -> tuple[int, ...]:
    """A saved row with the columns that there are now: those that were added since it was saved are 0."""
    return tuple(row) + (0,) * (LEDGER_SIZE - len(row)) if len(row) >= OLDEST_SIZE else tuple(row)


def brought_back(row: Row) -> list[int]:
    """The row of a bucket that was lost with its ps, once it is restored: a round that was open then is void."""
    new = list(row)
    new[VOID] += new[PENDING]
    new[PENDING] = 0
    return new


LIMIT = 1000  # pushes one after the other, of all workers together
LIMIT_PER_WORKER = 20


@dataclass(frozen=True)
class _Seen:
    """Of a ps, when it had last applied something: both counts, and what it had dropped by then."""

    applied: int
    received: int
    dropped: dict[str, int]


class RefusedPushes:
    """By the latest report of each ps with buckets."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._latest: dict[int, PsStats] = {}
        self._count = 0  # pushes since any ps has applied one

    def update(self, ps: int, stats: PsStats) -> None:
        """What the ps with this index has counted."""
        if not stats.buckets:
            return
        self._latest[ps] = stats
        seen = self._seen.get(ps)
        if seen is None or stats.applied != seen.applied or stats.received < seen.received:
            self._seen[ps] = _Seen(stats.applied, stats.received, dict(stats.dropped))
        self._count = min((s.received - self._seen[i].received) // s.buckets for i, s in self._latest.items())

    def why_hopeless(self, workers: int) -> str:
        """What to say of a job that has applied nothing for long; empty if it has."""
        if self._count < LIMIT + LIMIT_PER_WORKER * workers:
            return ""
        causes: dict[str, int] = {}
        for ps, stats in self._latest.items():
            for cause, count in stats.dropped.items():
                causes[cause] = causes.get(cause, 0) + count - self._seen[ps].dropped.get(cause, 0)
        main = max(causes, key=lambda cause: causes[cause], default="unknown")
        return f"none of the last {self._count} pushes was applied; most were refused as {main} (docs/checkpoints.md)"


@dataclass
class _Sent:
    """Pushes of the workers that had one index: of those whose process has ended, and of the newest."""

    ended: int = 0
    newest: int = 0


@dataclass(frozen=True)
class Totals:
    """Of all ps, in pushes to buckets, and in pushes of each worker that did not reach every bucket."""

    stats: PsStats
    unanswered: Mapping[int, int]

    @property
    def balanced(self) -> bool:
        """Whether every push that arrived is accounted for."""
        return accounts_for_all(self.stats)


class Accounts:
    """The latest report of every index, also of a member that has left, as this coordinator has heard them.

    A push whose worker had no answer may have been applied on no, some or all ps.  Where a ps has received fewer pushes
    of a worker than that one has sent, the difference is unanswered there: it never arrived, or it was undone with the
    ps that had it.
    """

    def __init__(self) -> None:
        self._sent: dict[int, _Sent] = {}
        self._ps: dict[int, PsStats] = {}
        self._closed = False

    def update(self, index: int, stats: PsStats | WorkerStats) -> None:
        """What the ps or worker with this index has counted.

        A ps that knows no buckets yet says nothing.  A worker that sent fewer pushes than before is another process.
        """
        if isinstance(stats, WorkerStats):
            sent = self._sent.setdefault(index, _Sent())
            if stats.pushes < sent.newest:
                sent.ended += sent.newest
            sent.newest = stats.pushes
        elif stats.buckets:
            self._ps[index] = stats

    def totals(self) -> Totals:
        """The sums, and what is unanswered.  While workers push, what is under way is unanswered, too."""
        total = PsStats(dropped={})
        for stats in self._ps.values():
            joined: dict[str, Any] = {
                w: column.joined((getattr(total, w), getattr(stats, w))) for w, column in IN_STATS.items()
            }
            dropped = {c: total.dropped.get(c, 0) + n for c, n in stats.dropped.items()}
            total = replace(total, buckets=total.buckets + stats.buckets, dropped=dropped, **joined)
        missing = {index: self._missing(index, sent.ended + sent.newest) for index, sent in sorted(self._sent.items())}
        return Totals(total, {index: count for index, count in missing.items() if count > 0})

    def last_word(self) -> Totals | None:
        """The sums at the end of the job, once; None if they were reported already."""
        was, self._closed = self._closed, True
        return None if was else self.totals()

    def _missing(self, worker: int, sent: int) -> int:
        received = [stats.received_of.get(worker, 0) for stats in self._ps.values()]
        return sent - min(received, default=sent)


def account_facts(totals: Totals) -> dict[str, object]:
    """For the log."""
    unanswered = ", ".join(f"worker {index}: {count}" for index, count in totals.unanswered.items())
    return {**ledger_facts(totals.stats), "balanced": totals.balanced, "unanswered": unanswered}


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
