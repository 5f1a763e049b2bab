"""The record of a worker's updates (--record), for studies of a training.

    from psruntime.observe.records import read_records

    records = read_records("runs/x.jsonl")  # the path of --record: the files of all workers

One worker writes one file; `files_of` returns their paths.  There is a record for every update that it sent, in the
order in which it received their outcomes: a line of JSON.  A thread writes them twice a second, so a step waits for no
disk, and a process that is killed loses at most the last second.

A Parquet file has a footer, so it is made from the lines when the worker ends: until then they are in a file beside it,
to which the next process of a worker that was killed appends.
"""

from __future__ import annotations

import glob
import json
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from psruntime.config import JobConfig
from psruntime.core.accounting.accounts import APPLIED_NAME, CONTRIBUTED, SentUpdate
from psruntime.errors import UsageError
from psruntime.faults import first_line
from psruntime.observe.outputs import LineFile

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
    outcome: `applied`; `contributed` to a round; `late` for its round; or the cause for which a ps refused it, a column
        of the ledger; see docs/checkpoints.md.
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
    params: of --set, as `lr=0.1 hidden=6`; empty without any.
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
    params: str = ""


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


WRITE_S = 0.5
CLOSE_S = 10.0  # for the last write to the disk, when the process ends; a busy machine alone may need seconds
_encode = json.JSONEncoder(separators=(",", ":")).encode  # made once: json.dumps makes one for each call
ROW_GROUP = 50_000  # records of a Parquet file that are in memory at a time


class _Added(NamedTuple):
    """An update, the rule of its step, and when it was added, in s: since 1970, since the training started."""

    update: SentUpdate
    mode: str
    bound: int | None
    time_s: float
    train_s: float


class Recorder:
    """The record of one worker.  `add` may be called by one thread; `close` once, by another.

    Updates that cannot be written are lost, and nothing raises.  `log` has a line at the first loss, and one with the
    count at the next success, or when the record is closed.

    Raises:
        UsageError: the path leads to no file that can be written, or is to be Parquet and pyarrow is not installed.
    """

    def __init__(self, path: str, worker: int, job: JobConfig, log: Callable[..., None], params: str = "") -> None:
        """path: of --record.  params: as a record has them."""
        self._worker, self._job = worker, job
        self._params = params
        self.file = file_of(path, worker)
        self._is_parquet = self.file.endswith(PARQUET)
        if self._is_parquet:
            require_parquet(self.file)
        self._lines = self.file + UNFINISHED if self._is_parquet else self.file
        try:
            self._out = LineFile(self._lines)
        except OSError as error:
            raise UsageError(
                f"record {self._lines} cannot be written: {error.strerror}; give another --record"
            ) from error
        self._log = log
        self._added: deque[_Added] = deque()
        self._lost = 0  # records, since one could be written
        self._began_s = time.monotonic()
        self._closed = threading.Event()
        self._writer = threading.Thread(target=self._write_on, name="record", daemon=True)
        self._writer.start()

    def begin(self) -> None:
        """Starts the clock of the training."""
        self._began_s = time.monotonic()

    def add(self, update: SentUpdate, mode: str = "", bound: int | None = None) -> None:
        """Adds an update, which is written within a second.  mode, bound: of its step; by default those of the job."""
        rule = (mode, bound) if mode else (self._job.mode, self._job.bound)
        self._added.append(_Added(update, *rule, time.time(), time.monotonic() - self._began_s))

    def close(self) -> None:
        """Writes the remaining updates."""
        self._closed.set()
        self._writer.join(CLOSE_S)
        if self._writer.is_alive():
            self._log("record_failed", path=self._lines, reason=f"the writes did not end within {CLOSE_S:g} s")
            return
        self._out.close()
        if self._lost:
            self._log("record_failed", path=self._lines, records_lost=self._lost)
        if self._is_parquet:
            try:
                as_parquet(Path(self._lines), Path(self.file))
            except Exception as error:  # noqa: BLE001 - after any error of pyarrow the lines are still there
                self._log("record_failed", path=self.file, reason=first_line(error))

    def _write_on(self) -> None:
        while not self._closed.wait(WRITE_S):
            self._write()
        self._write()

    def _write(self) -> None:
        records = [self._record(self._added.popleft()) for _ in range(len(self._added))]
        if not records:
            return
        try:
            self._out.add("".join(map(line_of, records)))
        except OSError as error:
            if not self._lost:
                self._log("record_failed", path=self._lines, reason=error.strerror)
            self._lost += len(records)
        else:
            if self._lost:
                self._log("record_resumed", path=self._lines, records_lost=self._lost)
            self._lost = 0

    def _record(self, added: _Added) -> Record:
        update, outcome = added.update, added.update.outcome
        return Record(
            worker=self._worker, push=update.push, view=update.view, global_step=update.global_step,
            outcome=outcome.name, applied=outcome.applied, dropped=outcome.dropped, staleness=outcome.staleness,
            weight=outcome.weight, loss=update.loss if math.isfinite(update.loss) else None, examples=update.examples,
            waited_s=update.waited_s, time=added.time_s, train_s=added.train_s, mode=added.mode, bound=added.bound,
            params=self._params,
        )  # fmt: skip


def line_of(record: Record) -> str:
    """The line of a record in the file."""
    data = {name: round(value, 6) if name.endswith(("time", "_s")) else value for name, value in vars(record).items()}
    if not record.params:
        del data["params"]
    return _encode(data) + "\n"


def as_parquet(lines: Path, file: Path) -> None:
    """Appends the lines to a Parquet file, and removes them.

    Raises:
        OSError: it cannot be written; the lines are still there.
        UsageError: pyarrow is not installed.
    """
    parquet = require_parquet(str(file))
    import pyarrow

    kinds = {"int": pyarrow.int64(), "float": pyarrow.float64(), "str": pyarrow.string()}
    schema = pyarrow.schema([(name, kinds[kind.split(" ")[0]]) for name, kind in Record.__annotations__.items()])
    being_made = Path(f"{file}.new")
    with parquet.ParquetWriter(being_made, schema) as writer:
        if file.exists():
            with parquet.ParquetFile(file) as before:
                for group in range(before.num_row_groups):
                    writer.write_table(before.read_row_group(group).cast(schema))
        for records in _row_groups(lines):
            writer.write_table(pyarrow.Table.from_pylist(records, schema))
    os.replace(being_made, file)
    lines.unlink()


def _row_groups(lines: Path) -> Iterator[list[dict[str, Any]]]:
    with lines.open(encoding="utf-8", errors="replace") as file:
        records = (asdict(record) for record in lines_of(lines, file))
        while some := list(islice(records, ROW_GROUP)):
            yield some
