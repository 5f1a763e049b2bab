"""Traces: spans of some steps, by workers and ps, on the clock of ps 0.  Each worker writes parts, which are joined.

A part is a file with a line for its head and one for each span, so that many are joined one line at a time.

The joined trace is in the JSON format of Chrome's trace viewer, which Perfetto opens too: Nat Duca and Dan Sinclair,
"Trace Event Format", 2016.  A process of it is a task of the job, a thread is a lane: of a worker the steps and then
the operations, of a ps its work for each worker.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from psruntime.errors import PsRuntimeError, UsageError

STEP = "step"  # all of a step of a worker
PHASE = "phase"  # a part of the step before it, see observe/meter.py
READ = "read"  # parameters, or rows of them
APPLY = "apply"  # an update
MUTEX = "mutex wait"  # for the lock of a section
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


@dataclass(frozen=True)
class Trace:
    """steps: FIRST:LAST.  modes: of the steps.  off_by_s: the error of clocks.  left_out: number of spans."""

    steps: str
    modes: list[str]
    off_by_s: float
    left_out: int
    spans: list[Span]


def write_trace(heads: Mapping[str, Head], steps: str, path: str) -> None:
    """Joins the parts in these files, one after the other.

    The times in the trace are microseconds since the begin of the first span.

    Raises:
        BadPartError: a part is not whole.
    """
    parts = list(heads.values())
    off_by_s = sorted((head.off_by_s for head in parts), reverse=True)
    begin_s = min(head.begin_s for head in parts)
    facts = {
        "steps": steps,
        "modes": sorted({head.mode for head in parts}),
        "begin_s": begin_s,
        "off_by_s": sum(off_by_s[:2]),
        "left_out": sum(head.left_out for head in parts),
    }
    pids: defaultdict[str, int] = defaultdict(count(1).__next__)
    with replacing(path) as new, _open(new, "wt", is_packed=path.endswith(".gz")) as file:
        file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(facts)}, "traceEvents": [')
        separator = "\n"
        for part in heads:
            for event in _events(spans_of(part), begin_s, pids):
                file.write(separator + json.dumps(event))
                separator = ",\n"
        file.write("\n]}\n")


def read_trace(path: str) -> Trace:
    """The trace in a file that was written so.

    Raises:
        UsageError: it is not there, or not such a trace.
    """
    try:
        with _open(path, "rt", is_packed=path.endswith(".gz")) as file:
            read = json.load(file)
        facts, events = read["otherData"], read["traceEvents"]
        tasks = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        timed = sorted((event for event in events if event["ph"] == "X"), key=_nesting)
        spans = [_span(event, tasks[event["pid"]], facts["begin_s"]) for event in timed]
        return Trace(facts["steps"], facts["modes"], facts["off_by_s"], facts["left_out"], spans)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except (EOFError, zlib.error, ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not a trace of --trace-steps, or not a whole one") from None


def _nesting(event: dict[str, Any]) -> tuple[Any, ...]:
    """Sort key: a step before its phases."""
    return event["pid"], event["tid"], event["ts"], -event["dur"]


def _events(spans: list[Span], begin_s: float, pids: defaultdict[str, int]) -> Iterator[dict[str, Any]]:
    of_thread = defaultdict(list)
    for span in spans:
        of_thread[(span.task, *_thread(span))].append(span)
    for (task, first, name), of_one in sorted(of_thread.items()):
        is_new, pid, named = task not in pids, pids[task], set()
        if is_new:
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": task}}
            order = {"sort_index": _order(task)}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": order}
        for lane, span in lanes(of_one):
            tid = first + lane
            if tid not in named:
                named.add(tid)
                yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            yield {
                "ph": "X", "cat": span.kind, "name": span.name, "pid": pid, "tid": tid,
                "ts": round((span.begin_s - begin_s) * 1e6, 3), "dur": round((span.end_s - span.begin_s) * 1e6, 3),
                "args": {"worker": span.worker, **span.facts},
            }  # fmt: skip


LANES = 1000  # at most, of one kind of thread


def _thread(span: Span) -> tuple[int, str]:
    """(the number of its first lane, its name)."""
    if span.task.startswith("ps"):
        return LANES * span.worker + 1, f"for worker {span.worker}"
    return (1, "steps") if span.kind in (STEP, PHASE) else (LANES + 1, "operations")


def _order(task: str) -> int:
    """Sort key: workers first, by index."""
    role, index = task.split()
    return int(index) + (1 << 20 if role == "ps" else 0)


def _span(event: dict[str, Any], task: str, begin_s: float) -> Span:
    facts = dict(event["args"])
    begin_s += event["ts"] / 1e6
    return Span(task, facts.pop("worker"), event["cat"], event["name"], begin_s, begin_s + event["dur"] / 1e6, facts)


def _open(path: str, mode: str, is_packed: bool) -> IO[Any]:
    return cast("IO[Any]", gzip.open(path, mode, compresslevel=6)) if is_packed else open(path, mode)


FOLDER = "trace"  # beside the checkpoints
APART_S = 600.0  # between parts of one run, at most


class Joined(NamedTuple):
    """workers: the number of those with steps in the file; 0: it is unchanged.  failures: parts that are left out."""

    workers: int
    failures: list[str]


class TraceFolder:
    """The trace of some steps, FIRST:LAST.  parts: folder of its parts.  path: the joined file."""

    def __init__(self, checkpoint_dir: str, steps: str) -> None:
        self._steps = steps
        self.parts = os.path.join(checkpoint_dir, FOLDER, f"steps-{steps.replace(':', '-')}")
        self.path = f"{self.parts}.json.gz"
        self._joined: dict[str, int] = {}

    def update(self) -> Joined:
        """Writes the file again if there are parts that it has not.

        Parts that end ten minutes before all later ones begin are of an earlier run of the job, and left out.

        Raises:
            OSError: the file cannot be written.
        """
        found = parts_in(self.parts)
        if found == self._joined:
            return Joined(0, [])
        self._joined = found
        heads: dict[str, Head] = {}
        failures = []
        for path in found:
            try:
                heads[path] = head_of(path)
                spans_of(path)
            except BadPartError as error:
                heads.pop(path, None)
                failures.append(str(error))
        heads = _of_the_last_run(heads)
        if heads:
            write_trace(heads, self._steps, self.path)
        return Joined(len({head.worker for head in heads.values()}), failures)


def _of_the_last_run(heads: dict[str, Head]) -> dict[str, Head]:
    kept: dict[str, Head] = {}
    begin_s = float("inf")
    for path, head in sorted(heads.items(), key=lambda item: item[1].end_s, reverse=True):
        if kept and head.end_s < begin_s - APART_S:
            break
        kept[path] = head
        begin_s = min(begin_s, head.begin_s)
    return dict(sorted(kept.items()))
