"""Whether the ps still apply anything: a job whose every push is refused trains nothing, however busy it looks."""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.core.members.messages import PsStats

LIMIT = 1000  # pushes one after the other, of all workers together
LIMIT_PER_WORKER = 20


@dataclass(frozen=True)
class _Seen:
    """Of a ps, when it had last applied something: both counts, and what it had dropped by then."""

    applied: int
    received: int
    dropped: dict[str, int]


class RefusedPushes:
    """By what each ps with buckets said last."""

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
