"""What is measured of a job that trains: steps per second of all workers, and what a step moves and computes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from benchmarks.jobs import START_S
from benchmarks.processes import Processes, cpu_s
from benchmarks.step_times import rate, step_bytes, step_tensors, step_times
from psruntime.observe.render import bytes_text

WARM_UP_S = 2.0
LEAST_LINES = 3


@dataclass(frozen=True)
class Measured:
    """rate: steps/s of all workers.  step_bytes, step_tensors: of a worker's step, the mean of them; None: unknown.

    cpu_ms: milliseconds of the processor for each step, of the processes of a role: "worker", "ps", "chief".
    """

    rate: float
    step_bytes: float | None
    step_tensors: float | None
    cpu_ms: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        cpu = "".join(f", {role} {cpu_ms:.1f} ms" for role, cpu_ms in self.cpu_ms.items())
        return f"{self.rate:.1f} steps/s{moved_text(self.step_bytes, self.step_tensors)}{cpu}"


def measured(started: Processes, logs: list[Path], seconds: float) -> Measured:
    """For so long, once every worker has made a step."""
    await_training(started, logs)
    return measured_now(started, logs, seconds)


def await_training(started: Processes, logs: list[Path]) -> None:
    """Until every worker has made a step, and a while longer."""
    started.wait_for("every worker's first step", lambda: all(map(step_times, logs)) or None, START_S)
    time.sleep(WARM_UP_S)


def measured_now(started: Processes, logs: list[Path], seconds: float) -> Measured:
    """For so long, of workers that train."""
    since_s, before = time.time(), _cpu_s(started)

    def is_over() -> bool | None:
        lines_since = [[t for _, t in step_times(log) if t >= since_s] for log in logs]
        enough = all(len(times) >= LEAST_LINES for times in lines_since)
        return (enough and time.time() >= since_s + seconds) or None

    started.wait_for("enough steps", is_over, START_S)
    until_s, after = time.time(), _cpu_s(started)
    steps_per_s = sum(rate(step_times(log), since_s, until_s) for log in logs)
    return Measured(
        steps_per_s,
        mean_of([step_bytes(log, since_s, until_s) for log in logs]),
        mean_of([step_tensors(log) for log in logs]),
        {role: 1000 * (used - before[role]) / (until_s - since_s) / steps_per_s for role, used in after.items()},
    )


def _cpu_s(started: Processes) -> dict[str, float]:
    """Seconds of the processor that the processes of each role have used so far."""
    used: dict[str, float] = {}
    for name, pid in started.pids.items():
        role = name.partition("-")[0]
        used[role] = used.get(role, 0.0) + cpu_s(pid)
    return used


def mean_of(values: Sequence[float | None]) -> float | None:
    """None if one is not known."""
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None


def moved_text(step_bytes: float | None, step_tensors: float | None) -> str:
    moved = "unknown bytes" if step_bytes is None else bytes_text(step_bytes)
    tensors = "unknown" if step_tensors is None else f"{step_tensors:.0f}"
    return f", {moved} in {tensors} tensors a step"
