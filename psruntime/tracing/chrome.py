"""A trace in the JSON format of Chrome's trace viewer, which Perfetto opens too.

The format: Nat Duca and Dan Sinclair, "Trace Event Format", 2016.  A process of it is a task of the job, a thread is a
lane: of a worker the steps and then the operations, of a ps what it does for each worker.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from psruntime.errors import UsageError
from psruntime.tracing.parts import Part
from psruntime.tracing.spans import PHASE, STEP, Span, lanes


@dataclass(frozen=True)
class Trace:
    """facts: `steps` FIRST:LAST, `mode`, `begin_s` since 1970, `off_by_s` as in Part, of all, `left_out` spans."""

    facts: dict[str, Any]
    spans: list[Span]


def write_trace(parts: Sequence[Part], facts: dict[str, Any], path: str) -> None:
    """Joins the parts to one file; whoever reads it has the old one or the new one.

    The times in it are microseconds since the begin of the first span.
    """
    spans = [span for part in parts for span in part.spans]
    begin_s = min((span.begin_s for span in spans), default=0.0)
    facts = {
        **facts,
        "begin_s": begin_s,
        "off_by_s": max((part.off_by_s for part in parts), default=0.0),
        "left_out": sum(part.left_out for part in parts),
    }
    events = list(_events(spans, begin_s))
    new = f"{path}.{os.getpid()}"
    try:
        with _open(new, "wt", is_packed=path.endswith(".gz")) as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}, file)
        os.replace(new, path)
    finally:
        Path(new).unlink(missing_ok=True)


def read_trace(path: str) -> Trace:
    """The trace in a file that was written so.

    Raises:
        UsageError: it is not there, or not such a trace.
    """
    try:
        with _open(path, "rt", is_packed=path.endswith(".gz")) as file:
            read = json.load(file)
        facts, begin_s = read["otherData"], read["otherData"]["begin_s"]
        events = read["traceEvents"]
        tasks = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        spans = [_span(event, tasks[event["pid"]], begin_s) for event in events if event["ph"] == "X"]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not a trace of --trace-steps") from None
    return Trace(facts, spans)


def _events(spans: list[Span], begin_s: float) -> Iterator[dict[str, Any]]:
    of_task = defaultdict(list)
    for span in spans:
        of_task[span.task].append(span)
    for pid, task in enumerate(sorted(of_task, key=_order), start=1):
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": task}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        yield from _events_of_task(of_task[task], pid, begin_s)


def _events_of_task(spans: list[Span], pid: int, begin_s: float) -> Iterator[dict[str, Any]]:
    of_thread = defaultdict(list)
    for span in spans:
        of_thread[_thread(span)].append(span)
    tid = 0
    for name in sorted(of_thread):
        first, named = tid, set()
        for lane, span in lanes(of_thread[name]):
            tid = first + lane + 1
            if tid not in named:
                named.add(tid)
                yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name[1]}}
            yield {
                "ph": "X", "cat": span.kind, "name": span.name, "pid": pid, "tid": tid,
                "ts": round((span.begin_s - begin_s) * 1e6, 3), "dur": round((span.end_s - span.begin_s) * 1e6, 3),
                "args": {"worker": span.worker, **span.facts},
            }  # fmt: skip
        tid = first + len(named)


def _thread(span: Span) -> tuple[int, str]:
    """(its place among the others, its name)."""
    if span.task.startswith("ps"):
        return span.worker, f"for worker {span.worker}"
    return (0, "steps") if span.kind in (STEP, PHASE) else (1, "operations")


def _order(task: str) -> tuple[bool, int]:
    """Workers first, by index."""
    role, index = task.split()
    return role == "ps", int(index)


def _span(event: dict[str, Any], task: str, begin_s: float) -> Span:
    facts = dict(event["args"])
    begin_s += event["ts"] / 1e6
    return Span(task, facts.pop("worker"), event["cat"], event["name"], begin_s, begin_s + event["dur"] / 1e6, facts)


def _open(path: str, mode: str, is_packed: bool) -> IO[Any]:
    return cast("IO[Any]", gzip.open(path, mode, compresslevel=6)) if is_packed else open(path, mode)
