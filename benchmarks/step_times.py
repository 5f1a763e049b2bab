"""When a worker has made how many steps, and what they moved: a hook that prints it, for ours and for the peer alike.

A line is `steps COUNT T BYTES`: so many steps of this process were done at T, in seconds of the system's clock, and so
many bytes were moved until then, in both directions, over all its connections; BYTES is `-` where the system does not
tell.  Another is `tensors N`: so many go between this worker and the ps in a step, as TensorFlow cut its graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf1

from benchmarks.processes import lines
from benchmarks.receives import receives
from benchmarks.step_lines import StepLines

CUT_IN = 3  # the step in which the graph is asked for: those before may be ones that set something up


class StepTimes(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Prints the lines of one worker."""

    def __init__(self) -> None:
        self._lines = StepLines()

    def before_run(self, run_context: Any) -> Any:  # noqa: ARG002
        if self._lines.count + 1 != CUT_IN:
            return None
        return tf1.train.SessionRunArgs(None, options=tf1.RunOptions(output_partition_graphs=True))

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002
        if graphs := run_values.run_metadata.partition_graphs:
            print(f"tensors {sum(receives(graphs).values())}", flush=True)
        self._lines.step_done()


def step_times(log: Path) -> list[tuple[int, float]]:
    """(steps, time) of each line so far."""
    return [(int(count), float(time_s)) for count, time_s, _ in _told(log)]


def rate(times: list[tuple[int, float]], since_s: float, until_s: float) -> float:
    """Steps per second between two moments, from the lines within; at least two of them are needed."""
    within = [(count, time_s) for count, time_s in times if since_s <= time_s <= until_s]
    (first, began_s), (last, ended_s) = within[0], within[-1]
    return (last - first) / (ended_s - began_s)


def step_bytes(log: Path, since_s: float, until_s: float) -> float | None:
    """Bytes for each step between two moments, as `rate`; None where they are not known."""
    within = [told for told in _told(log) if since_s <= float(told[1]) <= until_s]
    (first, _, before), (last, _, after) = within[0], within[-1]
    return None if "-" in (before, after) else (int(after) - int(before)) / (int(last) - int(first))


def step_tensors(log: Path) -> int | None:
    """Tensors of a step; None before they were counted."""
    found = [int(line.split()[1]) for line in lines(log) if line.startswith("tensors ")]
    return found[0] if found else None


def _told(log: Path) -> list[list[str]]:
    """Steps, time and bytes of each line so far."""
    return [line.split()[1:] for line in lines(log) if line.startswith("steps ")]
