"""How often workers report their clocks when there are many of them, and which of them report at once.

The coordinator has to answer the reports of all workers, so it sets the interval of each worker between two reports
for which no other waits.  A worker that falls behind is a straggler: faster ones come near their bound, and only
its reports let them continue.  So its interval becomes as short as there is room for at once, before another waits
for it.

Law: a worker that is more than half of the bound behind the furthest, by their reports, is a straggler.
Law: with a bound of LEAST_BOUND or more, stragglers together make about REPORTS_PER_S of the reports for which nobody
waits, as all workers do.
"""

from __future__ import annotations

from collections.abc import Mapping

from psruntime.core.clocks.report_schedule import REPORT_S

REPORTS_PER_S = 500  # of all workers together, and of the stragglers; one core answers 1,000 to 3,000 small calls
SPREAD = 0.25  # of the time between two reports
GOLDEN = 0.618  # its multiples are spread evenly over 0 to 1
LEAST_BOUND = 8  # steps; a smaller bound is used up so soon that every report counts


def spacing_s(bound: int | None, workers: int, worker: int) -> float:
    """Seconds between two reports of one of so many workers, for which no other waits.

    It goes in powers of two, so that one worker more or less is seldom news for all others.  Each has somewhat less of
    it, by its index: those that began to step in the same moment do not report in the same one for long.
    """
    every_s = REPORT_S
    while every_s < workers / REPORTS_PER_S and bound is not None and bound >= LEAST_BOUND:
        every_s *= 2
    return every_s if every_s == REPORT_S else round(every_s * (1 - SPREAD * (GOLDEN * worker % 1)), 3)


class Stragglers:
    """The workers, by index, that have fallen behind in the current view."""

    def __init__(self, bound: int | None) -> None:
        self._bound = bound
        self._behind: set[int] = set()
        self._news: list[int] = []

    def rebound(self, bound: int | None) -> None:
        """Another bound, None for none; who is behind by it shows with the next clock."""
        self._bound = bound

    def __contains__(self, worker: int) -> bool:
        return worker in self._behind

    def __len__(self) -> int:
        return len(self._behind)

    def entered(self, worker: int, clock: int, furthest: int) -> None:
        """A worker joins at the floor, which may be far behind; the answer to its join says so."""
        if self._bound is not None and 2 * (furthest - clock) > self._bound:
            self._behind.add(worker)

    def progressed(self, worker: int, clock: int, furthest: int) -> None:
        """A worker has reported a clock.  Within a quarter of the bound it has caught up."""
        if self._bound is not None and 4 * (furthest - clock) <= self._bound:
            self._behind.discard(worker)

    def update(self, clocks: Mapping[int, int], floor: int, furthest: int) -> None:
        """The furthest clock has risen: finds who is behind it now."""
        if self._bound is None or 2 * (furthest - floor) <= self._bound:
            return
        news = [w for w, clock in clocks.items() if 2 * (furthest - clock) > self._bound and w not in self._behind]
        self._behind.update(news)
        self._news += news

    def remove(self, worker: int) -> None:
        """It takes no further step in this view."""
        self._behind.discard(worker)

    def take_news(self) -> list[int]:
        """The stragglers since the last call."""
        news, self._news = self._news, []
        return news
