"""What is measured of a job that trains: steps per second of all workers, and what a step moves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from benchmarks.jobs import START_S
from benchmarks.processes import Processes
from benchmarks.step_times import rate, step_bytes, step_tensors, step_times
from psruntime.observe.tables import bytes_text

WARM_UP_S = 2.0
LEAST_LINES = 3


@dataclass(frozen=True)
class Measured:
    """rate: steps/s of all workers.  step_bytes, step_tensors: of a worker's step, the mean of them; None: unknown."""

    rate: float
    step_bytes: float | None
    step_tensors: float | None

    def __str__(self) -> str:
        return f"{self.rate:.1f} steps/s{moved_text(self.step_bytes, self.step_tensors)}"


def measured(started: Processes, logs: list[Path], seconds: float) -> Measured:
    """For so long, once every worker has made a step."""
    started.wait_for("every worker's first step", lambda: all(map(step_times, logs)) or None, START_S)
    since_s = time.time() + WARM_UP_S

    def is_over() -> bool | None:
        lines_since = [[t for _, t in step_times(log) if t >= since_s] for log in logs]
        enough = all(len(times) >= LEAST_LINES for times in lines_since)
        return (enough and time.time() >= since_s + seconds) or None

    started.wait_for("enough steps", is_over, START_S)
    until_s = time.time()
    return Measured(
        sum(rate(step_times(log), since_s, until_s) for log in logs),
        mean_of([step_bytes(log, since_s, until_s) for log in logs]),
        mean_of([step_tensors(log) for log in logs]),
    )


def mean_of(values: Sequence[float | None]) -> float | None:
    """None if one is not known."""
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None


def moved_text(step_bytes: float | None, step_tensors: float | None) -> str:
    moved = "unknown bytes" if step_bytes is None else bytes_text(step_bytes)
    tensors = "unknown" if step_tensors is None else f"{step_tensors:.0f}"
    return f", {moved} in {tensors} tensors a step"
