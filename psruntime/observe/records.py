"""The record of a worker's updates (--record), for studies of a training.

    from psruntime.observe.records import read_records

    records = read_records("runs/x.jsonl")  # the path of --record: the files of all workers

One worker writes one file; `files_of` returns their paths.  There is a record for every update that it sent, in the
order in which it received their outcomes.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from psruntime.core.accounting.update_outcome import APPLIED_NAME, CONTRIBUTED
from psruntime.errors import UsageError

WORKER = "{worker}"
PARQUET = ".parquet"
UNFINISHED = ".jsonl"  # added to the name of a Parquet file while it grows


@dataclass(frozen=True)
class Record:
    """One update of one worker; in mode sync its contribution to one round.

    worker: its index.
    push: number of the push; in mode async and bounded the worker's own, from 1 at the start of its process or after
        mode sync; in mode sync the attempt, which all workers share.  A push that a recovery repeated keeps its number.
    view: the ps that it was sent to, by the number of the view and a tag of these processes; another one after a ps
        was lost.
    global_step: in mode async and bounded the global step that the worker read after its update, which may include
        updates of others: two records may have the same.  In mode sync the round, which leads to that step.
    outcome: `applied`; `contributed` to a round; or why a ps refused it: `stale`, `fenced`, `repeated`, `not_finite`,
        `void`, or `late` for its round; see docs/checkpoints.md.
    applied, dropped: buckets that applied it, and that did not.
    staleness: versions, the largest over the buckets that applied it; if none did, over those that refused it as stale.
        None: it was not measured.
    weight: the factor of --staleness-lr on the learning rate, the smallest over the buckets that applied it: that of
        `staleness`.  1 without the flag; None where no bucket applied it.
    loss: of its batch, before the update; None: it is not a finite number.
    examples: in its batch.
    waited_s: seconds that the worker waited for others since its last record: at the gate of mode bounded, for the
        round in mode sync; 0 in mode async.
    time: when the worker received the outcome, in seconds since 1970, UTC.
    train_s: the same, in seconds since this process had joined the job; its first update waits until the variables are
        ready.
    mode, bound: of the job; bound is None but in mode bounded.
    """

    worker: int
    push: int
    view: str
    global_step: int
    outcome: str
    applied: int
    dropped: int
    staleness: int | None
    weight: float | None
    loss: float | None
    examples: int
    waited_s: float
    time: float
    train_s: float
    mode: str
    bound: int | None = None


_FIELDS = tuple(field.name for field in fields(Record))
_ANY = "\0"  # in the place of the index
_NEEDED = frozenset(field.name for field in fields(Record) if field.default is MISSING)


def file_of(path: str, worker: int) -> str:
    """The file of worker `worker` for the path of --record: `{worker}` is its index; without it the index is before
    the suffix, so `x.jsonl` becomes `x-0.jsonl`; in a folder it is `worker-0.jsonl`."""
    return _named(path, str(worker))


def files_of(path: str | Path) -> list[Path]:
    """The one file of this name; or those of all workers, for a path of --record.

    For a Parquet file that is not finished, since the worker still runs or was killed, it is the file of its lines.
    """
    path = str(path)
    if found := _is_file(path):
        return found
    name = _named(path, _ANY)
    is_one = re.compile(re.escape(name).replace(re.escape(_ANY), "[0-9]+"))
    beside = glob.glob(glob.escape(name).replace(_ANY, "*") + "*")
    names = {each.removesuffix(UNFINISHED) if PARQUET + UNFINISHED in each else each for each in beside}
    return [file for each in sorted(names) if is_one.fullmatch(each) for file in _is_file(each)]


def read_records(path: str | Path) -> list[Record]:
    """All records of one worker's file, or of all workers, by their time.

    path: of --record, or one file.  A line that was cut off, as the last one of a worker that was killed, is skipped.

    Raises:
        UsageError: there is no such file, or it cannot be read, or it is no record.
    """
    files = files_of(path)
    if not files:
        raise UsageError(f"there is no record {path}; give what was given to --record, or one of the files")
    records = [record for file in files for record in _read(file)]
    return sorted(records, key=lambda record: record.time)


def standing(records: Iterable[Record]) -> list[Record]:
    """The updates in the newest variables, by time, without those that were refused or undone.

    records: of all workers.  When a ps is lost and all variables go back, so does the global step, and a new view
    starts: records of an earlier view from the first global step of a later one on were undone.  In mode sync the last
    record of a round counts, since an attempt may have been abandoned.  In mode async up to one update of each other
    worker may be on the wrong side, because it was counted before its worker read the step.
    """
    by_time = sorted(records, key=lambda record: record.time)
    stands: list[Record] = []
    first: dict[str, int] = {}  # view -> its first global step, of the records so far
    for record in reversed(by_time):
        later = min((step for view, step in first.items() if view != record.view), default=None)  # than this view
        if record.outcome in (APPLIED_NAME, CONTRIBUTED) and (later is None or record.global_step < later):
            stands.append(record)
            first[record.view] = min(first.get(record.view, record.global_step), record.global_step)
    newest = {(r.worker, r.global_step): r for r in reversed(stands) if r.outcome == CONTRIBUTED}
    return [r for r in reversed(stands) if r.outcome != CONTRIBUTED or newest[r.worker, r.global_step] is r]


def _named(path: str, worker: str) -> str:
    if WORKER in path:
        return path.replace(WORKER, worker)
    if path.endswith("/") or os.path.isdir(path):
        return os.path.join(path, f"worker-{worker}.jsonl")
    stem, ending = os.path.splitext(path)
    return f"{stem}-{worker}{ending}"


def _is_file(path: str) -> list[Path]:
    return [Path(name) for name in (path, path + UNFINISHED) if os.path.isfile(name)]


def _read(file: Path) -> Iterator[Record]:
    try:
        if file.suffix == PARQUET:
            yield from _of_parquet(file)
        else:
            with file.open(encoding="utf-8", errors="replace") as lines:
                yield from lines_of(file, lines)
    except OSError as error:
        raise UsageError(f"record {file} cannot be read: {error.strerror or error}") from error


def lines_of(file: Path, lines: Iterable[str]) -> Iterator[Record]:
    """The records of whole lines.  Raises UsageError, which names `file`, if one is none."""
    for line in lines:
        with suppress(ValueError):
            data = json.loads(line)
            if isinstance(data, dict):
                yield _record(file, data)


def _of_parquet(file: Path) -> Iterator[Record]:
    parquet = require_parquet(str(file))
    for data in parquet.read_table(file).to_pylist():
        yield _record(file, data)


def _record(file: Path, data: dict[str, Any]) -> Record:
    if missing := _NEEDED - data.keys():
        raise UsageError(f"{file} is no record: it has no {min(missing)}; give the file of --record")
    return Record(**{name: data[name] for name in _FIELDS if name in data})


def require_parquet(path: str) -> Any:
    """pyarrow's module that reads and writes Parquet.

    Raises:
        UsageError: it is not installed.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(
            f"{path} needs pyarrow: pip install 'psruntime[parquet]', or let the record end with .jsonl"
        ) from error
    return parquet
