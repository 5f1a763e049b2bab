"""Spans, and the parts of a trace as files: steps of one worker, and what the ps did for them, on the clock of ps 0.

The parts of a trace, as files: steps of one worker, and the work of the ps for them, on the clock of ps 0.

A line for the head of a part, and a line for each span, so that many parts are joined one line at a time.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from psruntime.errors import PsRuntimeError

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


SUFFIX = ".part.gz"
UNREADABLE = (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError)


class BadPartError(PsRuntimeError):
    """A file is not a part of a trace, or not a whole one."""


@dataclass(frozen=True)
class Head:
    """worker: its index.  mode: of the steps.  off_by_s: the error of its clocks against that of ps 0.

    begin_s, end_s: of all spans, since 1970.  left_out: spans too short to keep.
    """

    worker: int
    mode: str
    off_by_s: float
    begin_s: float
    end_s: float
    left_out: int


def write_part(head: Head, spans: Sequence[Span], folder: str, name: str) -> None:
    """Adds the part to those in the folder, which is made; one of the same name is replaced."""
    os.makedirs(folder, exist_ok=True)
    with replacing(os.path.join(folder, name + SUFFIX)) as new, gzip.open(new, "wt", compresslevel=1) as file:
        for line in (asdict(head), *map(asdict, spans)):
            file.write(json.dumps(line) + "\n")


def parts_in(folder: str) -> dict[str, int]:
    """The files of parts -> when each was written, in ns; to be compared with an earlier look."""
    return {str(path): path.stat().st_mtime_ns for path in sorted(Path(folder).glob(f"*{SUFFIX}"))}


def head_of(path: str) -> Head:
    """The head of the part in the file.

    Raises:
        BadPartError: it has none.
    """
    with _reading(path), gzip.open(path, "rt") as file:
        return Head(**json.loads(file.readline()))


def spans_of(path: str) -> list[Span]:
    """The spans of the part in the file.

    Raises:
        BadPartError: it is not whole.
    """
    with _reading(path), gzip.open(path, "rt") as file:
        file.readline()
        return [Span(**json.loads(line)) for line in file]


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """A new file beside `path`, which replaces it at the end, so that a reader has the old one or the new one."""
    handle, new = tempfile.mkstemp(prefix=".", suffix=".new", dir=os.path.dirname(path))
    os.close(handle)
    try:
        yield new
        os.chmod(new, 0o666 & ~_umask())
        os.replace(new, path)
    finally:
        Path(new).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        raise BadPartError(f"{path} is not a part of a trace, or not a whole one: {error}") from None
