"""The progress line of a job: the status command, which follows the coordinator."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from psruntime.launch.children import END_S, Child


class Progress:
    """Shows the progress line by a child process, which is restarted after it could not reach ps 0."""

    def __init__(self, first: Child, arguments: Sequence[str]) -> None:
        """arguments: of `python -m`."""
        self._first = first
        self._command = [sys.executable, "-m", *arguments, "--lifeline=kill"]
        self._start()

    def update(self) -> None:
        """Starts it again when ps 0 is back."""
        is_new = self._of_run != self._first.backoff.restarts
        if is_new and self._process.poll() is not None and self._first.coordinator:
            self._start()

    def end(self) -> None:
        """Removes the line."""
        assert self._process.stdin
        self._process.terminate()
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _start(self) -> None:
        self._of_run = self._first.backoff.restarts
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE)
