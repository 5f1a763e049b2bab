"""The job's accounts: what the workers say that they pushed, against what the ps say that they received.

A push whose worker had no answer may have been applied on no, some or all ps.  Where a ps has received fewer pushes of
a worker than that one has sent, the difference is unanswered there: it never arrived, or it was undone with the ps that
had it.  The accounts are those of one coordinator; one that comes after it counts from what it hears.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from psruntime.core.accounting.ledger import IN_STATS, accounts_for_all, ledger_facts
from psruntime.core.members.messages import PsStats, WorkerStats


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
    """What was heard last of every index, also of a member that has left."""

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
        """The sums at the end of the job, once; None if that was said already."""
        was, self._closed = self._closed, True
        return None if was else self.totals()

    def _missing(self, worker: int, sent: int) -> int:
        received = [stats.received_of.get(worker, 0) for stats in self._ps.values()]
        return sent - min(received, default=sent)


def account_facts(totals: Totals) -> dict[str, object]:
    """For the log."""
    unanswered = ", ".join(f"worker {index}: {count}" for index, count in totals.unanswered.items())
    return {**ledger_facts(totals.stats), "balanced": totals.balanced, "unanswered": unanswered}
