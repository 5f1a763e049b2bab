"""The rounds log: a file to which one line of JSON is added for every record, enough to repeat a sync training."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from psruntime.errors import UsageError


class RoundsLog:
    """Appends to `path`; a record is with the operating system when `write` returns.

    A record that cannot be written is lost; `log` is told when that begins and when it ends, and the training
    goes on.

    Raises:
        UsageError: the file cannot be opened.
    """

    def __init__(self, path: str, log: Callable[..., None]) -> None:
        try:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
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
        line = (json.dumps({**record, "time": now}) + "\n").encode()
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if not self._lost:
                self._log("rounds_log_failed", path=self._path, reason=error.strerror)
            self._lost += 1
        else:
            if self._lost:
                self._log("rounds_log_resumed", path=self._path, records_lost=self._lost)
            self._lost = 0

    def close(self) -> None:
        os.close(self._file)
