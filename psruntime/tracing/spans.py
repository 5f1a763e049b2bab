"""Spans: what a task did from when to when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

STEP = "step"  # all of a step of a worker
PHASE = "phase"  # a part of one, see observe/step_times.py
READ = "read"  # parameters, or rows of them
APPLY = "apply"  # an update
MUTEX = "mutex wait"  # for the lock of a bucket
TRANSFER = "transfer"  # between two machines or devices
OP = "op"  # anything else that TensorFlow ran


@dataclass(frozen=True)
class Span:
    """`task` did `name` for `worker` from begin_s to end_s, in s since 1970.

    task: as "ps 1".  worker: the index of the one whose step it was part of.  kind: one of those above.
    facts: what else is to be seen of it.
    """

    task: str
    worker: int
    kind: str
    name: str
    begin_s: float
    end_s: float
    facts: dict[str, Any] = field(default_factory=dict)


def lanes(spans: Iterable[Span]) -> list[tuple[int, Span]]:
    """(lane from 0, span) by begin: in a lane a span lies beside or within another, as in a call stack; never across.

    A step and its phases share a lane, and what ran beside each other has lanes of its own.
    """
    placed: list[tuple[int, Span]] = []
    open_ends: list[list[float]] = []  # of each lane the ends of the spans that may still be open, the innermost last
    for span in sorted(spans, key=lambda span: (span.begin_s, -span.end_s)):
        lane = next((lane for lane, ends in enumerate(open_ends) if _fits(span, ends)), len(open_ends))
        if lane == len(open_ends):
            open_ends.append([])
        open_ends[lane].append(span.end_s)
        placed.append((lane, span))
    return placed


def _fits(span: Span, ends: list[float]) -> bool:
    while ends and ends[-1] <= span.begin_s:
        ends.pop()
    return not ends or span.end_s <= ends[-1]
