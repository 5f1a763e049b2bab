"""What a worker measures on its own steps."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque

from psruntime.core.members.messages import STALENESS_LIMITS, WorkerStats

STALENESS_WINDOW = 1000  # pushes; percentiles of fewer jump about
RATE_WINDOW_S = 5.0  # long enough to smooth single steps, short enough to show a change


class StepMeter:
    """Collects steps; `stats` may be asked from any thread.  Times are monotonic seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._staleness: deque[int] = deque(maxlen=STALENESS_WINDOW)
        self._staleness_counts = [0] * (len(STALENESS_LIMITS) + 1)
        self._recent: deque[tuple[float, int]] = deque()  # (when, examples)
        self._dropped = 0
        self._skipped = 0
        self._loss: float | None = None

    def step(self, loss: float, examples: int, staleness: int | None, dropped: int, now_s: float) -> None:
        """Takes a step.  `staleness` in versions, None if its update was applied nowhere; `dropped` in buckets."""
        with self._lock:
            self._dropped += dropped
            self._loss = loss
            if staleness is not None:
                self._staleness.append(staleness)
                self._staleness_counts[bisect_left(STALENESS_LIMITS, staleness)] += 1
            self._recent.append((now_s, examples))
            self._forget(now_s)

    def skip(self) -> None:
        """A batch was passed over."""
        with self._lock:
            self._skipped += 1

    @property
    def dropped(self) -> int:
        """Bucket updates of this worker that a ps refused."""
        return self._dropped

    def stats(self, now_s: float, waiting: str = "") -> WorkerStats:
        """The figures of now; `waiting` says why no step runs, if so."""
        with self._lock:
            self._forget(now_s)
            staleness = sorted(self._staleness)
            return WorkerStats(
                staleness_p50=_percentile(staleness, 0.50),
                staleness_p99=_percentile(staleness, 0.99),
                examples_per_s=self._rate(now_s),
                loss=self._loss,
                waiting=waiting,
                skipped=self._skipped,
                staleness_counts=tuple(self._staleness_counts),
            )

    def _rate(self, now_s: float) -> float:
        if len(self._recent) < 2:
            return 0.0
        span_s = now_s - self._recent[0][0]
        return sum(examples for _, examples in self._recent) / span_s if span_s > 0 else 0.0

    def _forget(self, now_s: float) -> None:
        while self._recent and self._recent[0][0] < now_s - RATE_WINDOW_S:
            self._recent.popleft()


def _percentile(ordered: list[int], share: float) -> int:
    """Nearest-rank percentile of an ascending list; 0 for an empty one."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0
