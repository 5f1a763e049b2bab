"""Writes the record of one worker's updates (records.py): JSON lines, and at the end Parquet if its name ends so.

A thread writes the added updates twice a second, so a step waits for no disk, and a process that is killed loses at
most the last second.  A Parquet file has a footer, so it is made from the lines when the worker ends: until then they
are in a file beside it, to which the next process of a worker that was killed appends.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from psruntime.config import JobConfig
from psruntime.core.accounting.update_outcome import SentUpdate
from psruntime.errors import UsageError
from psruntime.faults import first_line
from psruntime.observe.line_file import LineFile
from psruntime.observe.records import PARQUET, UNFINISHED, Record, file_of, lines_of, require_parquet

WRITE_S = 0.5
CLOSE_S = 2.0  # for the last write to the disk, when the process ends
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

    def __init__(self, path: str, worker: int, job: JobConfig, log: Callable[..., None]) -> None:
        """path: of --record."""
        self._worker, self._job = worker, job
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
            self._log("record_failed", path=self._lines, reason=f"the disk took nothing for {CLOSE_S:g} s")
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
        )  # fmt: skip


def line_of(record: Record) -> str:
    """The line of a record in the file."""
    data = {name: round(value, 6) if name.endswith(("time", "_s")) else value for name, value in vars(record).items()}
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
