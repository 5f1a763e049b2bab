"""The rounds log: a file to which one line of JSON is added for every record, enough to repeat a sync training.

A record that was cut off, by a full disk or a crash, stays on a line of its own; readers skip it, and see by the number
of the next one that it is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from psruntime.errors import UsageError
from psruntime.observe.outputs import LineFile


class RoundsLog:
    """Appends to `path`; a record is with the operating system when `write` returns.

    A record that cannot be written is lost, and nothing raises.  `log` has a line at the first loss, and one with the
    count at the next success, or when the log is closed.

    Raises:
        UsageError: the path leads to no file that can be written.
    """

    def __init__(self, path: str, log: Callable[..., None]) -> None:
        try:
            self._file = LineFile(path)
        except OSError as error:
            raise UsageError(
                f"rounds log {path} cannot be written: {error.strerror}; give another --rounds-log"
            ) from error
        self._path = path
        self._log = log
        self._lost = 0

    def write(self, record: Mapping[str, Any]) -> None:
        """Adds one record, and the time of day."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        try:
            self._file.add(json.dumps({**record, "time": now}) + "\n")
        except OSError as error:
            if not self._lost:
                self._log("rounds_log_failed", path=self._path, reason=error.strerror)
            self._lost += 1
        else:
            if self._lost:
                self._log("rounds_log_resumed", path=self._path, records_lost=self._lost)
            self._lost = 0

    def close(self) -> None:
        self._file.close()
        if self._lost:
            self._log("rounds_log_failed", path=self._path, records_lost=self._lost)


def records_of(path: str | Path) -> list[dict[str, Any]]:
    """All whole records of a rounds log, which may be growing.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"rounds log {path} cannot be read: {error.strerror}") from error
    records = []
    for line in lines:
        with suppress(ValueError):
            records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict)]


def rounds_of(path: str | Path) -> list[dict[str, Any]]:
    """The applied rounds in the last variables, in order, without those that a return to an older state undid.

    Global steps of other modes have none.  Each round has the facts that decide its bits of the `prepared` before it.

    Raises:
        UsageError: the file cannot be read, is no rounds log, or has no round.
    """
    rounds: list[dict[str, Any]] = []
    of_rounds: dict[str, Any] = {}
    try:
        for record in records_of(path):
            if record["record"] == "prepared":
                of_rounds = {key: record[key] for key in ("plan", "wire", "top_k", "ps") if key in record}
                rounds = [each for each in rounds if each["global_step"] <= record["global_step"]]
            elif record["record"] == "round" and record["applied"]:
                rounds.append({**of_rounds, **record})
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} is no rounds log: a line has no {error}; give the file of --rounds-log") from error
    if not rounds:
        raise UsageError(f"{path} has no round that was applied; give the file of --rounds-log")
    return rounds


def workers_of(path: str | Path) -> dict[str, dict[str, Any]]:
    """Tag of an incarnation -> its `worker` record.

    Raises:
        UsageError: the file cannot be read.
    """
    return {str(r.get("incarnation")): r for r in records_of(path) if r.get("record") == "worker"}
