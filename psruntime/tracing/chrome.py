"""A trace in the JSON format of Chrome's trace viewer, which Perfetto opens too.

The format: Nat Duca and Dan Sinclair, "Trace Event Format", 2016.  A process of it is a task of the job, a thread is a
lane: of a worker the steps and then the operations, of a ps its work for each worker.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import IO, Any, cast

from psruntime.errors import UsageError
from psruntime.tracing.parts import Head, replacing, spans_of
from psruntime.tracing.spans import PHASE, STEP, Span, lanes


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
