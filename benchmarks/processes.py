"""Processes of a benchmark: each with a log file, each killed at the end by the pid it was started with.

Every wait has a deadline.  Waiting also ends when a process failed: what it was to do does not come any more.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TypeVar

WAIT_S = 120.0  # for anything that a process is to print
LOOK_S = 0.05  # between two looks; the processes that are measured need the cores
KILLED_S = 10.0  # for a killed process to be gone
PYTHON = [sys.executable, "-m"]

Found = TypeVar("Found")


class LateError(Exception):
    """Something did not come within its time, or cannot come any more; the text has the ends of all logs."""


class Processes:
    """Processes with a log file each, in a folder of their own.  environment: what they get beside ours."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = {**os.environ, **environment}
        self._all: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, enter: Sequence[str] = (), python: Sequence[str] = PYTHON) -> Path:
        """Starts `python -m command`, given to the command `enter` if there is one; returns its log."""
        log = self.log(name)
        with log.open("wb") as out:
            self._all[name] = subprocess.Popen(
                [*enter, *python, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._environment,
            )
        return log

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def wait_for(self, what: str, look: Callable[[], Found | None], within_s: float = WAIT_S) -> Found:
        """What `look` returns once it is not None.

        Raises:
            LateError: the time is over, or a process failed before.
        """
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            failed = [f"{name} ended with {each.returncode}" for name, each in self._all.items() if each.poll()]
            found = look()  # after the processes: what a process did before it ended counts
            if found is not None:
                return found
            if failed:
                raise LateError(f"{what}: {', '.join(failed)}{self._ends()}")
            time.sleep(LOOK_S)
        raise LateError(f"{what}: not within {within_s:g} s{self._ends()}")

    def line_with(self, log: Path, text: str) -> str:
        """The first line of a log that has the text; waits for it."""
        return self.wait_for(f"'{text}' in {log.name}", lambda: next((x for x in lines(log) if text in x), None))

    @property
    def pids(self) -> dict[str, int]:
        """Of those that were started and not killed, by name."""
        return {name: each.pid for name, each in self._all.items()}

    def kill(self, name: str) -> None:
        """SIGKILL; what is killed on purpose has not failed."""
        process = self._all.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(KILLED_S)

    def end(self) -> None:
        """Kills what still runs."""
        for process in reversed(self._all.values()):
            process.send_signal(signal.SIGKILL)
            process.wait(KILLED_S)

    def _ends(self) -> str:
        return "".join(f"\n--- {name}\n" + "\n".join(lines(self.log(name))[-20:]) for name in self._all)


@contextmanager
def processes(environment: Mapping[str, str] | None = None) -> Iterator[Processes]:
    """Processes that do not outlive the block, also when this process is asked to end."""
    with cleaning_up(), tempfile.TemporaryDirectory() as folder:
        started = Processes(Path(folder), environment or {})
        try:
            yield started
        finally:
            started.end()


@contextmanager
def cleaning_up() -> Iterator[None]:
    """What the block is to undo at its end is undone, too, when this process is asked to end."""
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(signum: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signum)


def lines(path: Path) -> list[str]:
    """The complete lines of a file that may still grow; none if it is not there yet."""
    if not path.exists():
        return []
    return path.read_text(errors="replace").rpartition("\n")[0].splitlines()


def cpu_s(pid: int) -> float:
    """Seconds of the processor that a process and its children have used so far, those that have not ended."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    children = [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK") + sum(cpu_s(int(child)) for child in children)


def seconds_of(time_of_day: str) -> float:
    """A time as our logs have it, in seconds of the system's clock."""
    return datetime.fromisoformat(time_of_day.replace("Z", "+00:00")).timestamp()


def free_addresses(count: int) -> list[str]:
    """Stock TensorFlow wants its ports chosen before anything starts."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    finally:
        for each in sockets:
            each.close()
