"""When a worker has made how many steps: a hook that prints it, the same for ours and for the peer, and its reader.

A line is `steps COUNT T`: so many steps of this process were done at T, in seconds of the system's clock.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf1

from benchmarks.processes import lines

EVERY_S = 0.2  # between two lines at least


class StepTimes(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Prints the lines of one worker."""

    def __init__(self) -> None:
        self._count, self._told_s = 0, 0.0

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002
        self._count += 1
        now_s = time.time()
        if now_s - self._told_s >= EVERY_S:
            self._told_s = now_s
            print(f"steps {self._count} {now_s}", flush=True)


def step_times(log: Path) -> list[tuple[int, float]]:
    """(steps, time) of each line so far."""
    found = [line.split()[1:] for line in lines(log) if line.startswith("steps ")]
    return [(int(count), float(time_s)) for count, time_s in found]


def rate(times: list[tuple[int, float]], since_s: float, until_s: float) -> float:
    """Steps per second between two moments, from the lines within; at least two of them are needed."""
    within = [(count, time_s) for count, time_s in times if since_s <= time_s <= until_s]
    (first, began_s), (last, ended_s) = within[0], within[-1]
    return (last - first) / (ended_s - began_s)
