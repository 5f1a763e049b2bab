"""A worker's progress: measures its steps for the status and its metrics, and logs a line every PROGRESS_S."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from psruntime.core.members.messages import WorkerStats
from psruntime.graph.base import allocator
from psruntime.observe.meter import StepMeter

if TYPE_CHECKING:
    from psruntime.graph.session.step_result import StepResult

PROGRESS_S = 10.0  # between two progress lines in the log
STARTED = 3  # steps, after which nothing is built any more


class Progress:
    """The progress of this worker.  log: writes an event with its facts."""

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log
        self._meter = StepMeter()
        self._to_start = STARTED
        self._logged_at_s = time.monotonic()

    def step(self, result: StepResult) -> None:
        """Counts a step that ended."""
        self._to_start -= 1
        if self._to_start == 0:
            allocator.give_back()
        now_s = time.monotonic()
        self._meter.step(result.loss, result.examples, result.staleness, result.dropped, now_s)
        if now_s - self._logged_at_s >= PROGRESS_S:
            self._logged_at_s = now_s
            stats = self._meter.stats(now_s)
            self._log(
                "progress", global_step=result.global_step, loss=result.loss, examples_per_s=stats.examples_per_s,
                staleness_p99=stats.staleness_p99, dropped=self._meter.dropped,
            )  # fmt: skip

    def skip(self) -> None:
        """Counts a batch that was skipped."""
        self._meter.skip()

    def stats(self, waiting: str) -> WorkerStats:
        """The measurements up to now.  waiting: for what this worker waits."""
        return self._meter.stats(time.monotonic(), waiting)
