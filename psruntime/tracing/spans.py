"""Spans: the work of a task with its begin and end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

STEP = "step"  # all of a step of a worker
PHASE = "phase"  # a part of the step before it, see observe/meter.py
READ = "read"  # parameters, or rows of them
APPLY = "apply"  # an update
MUTEX = "mutex wait"  # for the lock of a bucket
TRANSFER = "transfer"  # between two machines or devices
OP = "op"  # anything else that TensorFlow ran


@dataclass(frozen=True)
class Span:
    """`task` did `name` for `worker` from begin_s to end_s, in s since 1970.

    task: as "ps 1".  worker: the index of the one whose step it was part of.  kind: one of those above.
    facts: further details for the viewer.
    """

    task: str
    worker: int
    kind: str
    name: str
    begin_s: float
    end_s: float
    facts: dict[str, Any] = field(default_factory=dict)


def lanes(spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """(lane from 0, span): spans that overlap have different lanes; a step and its phases share one."""
    ends: list[float] = []  # of each lane
    for unit in sorted(_units(spans), key=lambda unit: unit[0].begin_s):
        lane = next((lane for lane, end_s in enumerate(ends) if end_s <= unit[0].begin_s), len(ends))
        ends[lane : lane + 1] = [max(span.end_s for span in unit)]
        yield from ((lane, span) for span in unit)


def _units(spans: Iterable[Span]) -> list[list[Span]]:
    """Groups of spans that share a lane: a step with the phases that follow it, or one span."""
    units: list[list[Span]] = []
    for span in spans:
        if span.kind == PHASE and units:
            units[-1].append(span)
        else:
            units.append([span])
    return units
