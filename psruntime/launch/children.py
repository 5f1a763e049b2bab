"""The processes of a job on this machine: their command lines and log files, their restarts, their end.

Whether a process that ended is started again, and how long after, is pure: the caller has the processes and the clock.

Law: a process that exits with a code about the job is never started again: 0 done, 1 failed, 2 set up wrongly.
Law: a process is started again at most `limit` times.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psruntime.config.process import LOG_FORMATS, PORT, TEXT_LOG, split_address
from psruntime.config.settings import as_flags, check_values, setting
from psruntime.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE
from psruntime.launch.memory_kills import MemoryKills
from psruntime.observe.log import json_entry, line_text


@dataclass(frozen=True)
class LauncherConfig:
    """Which processes `psruntime run` starts on this machine, and how it supervises them."""

    workers: int = setting("job", 1, "number of worker processes", least=1)
    log_dir: str = setting("job", "", "folder of the log files", metavar="FOLDER", default_is="a new temporary one")
    log_format: str = setting(
        "job", TEXT_LOG, "form of the log files: text, or one JSON object a line", choices=LOG_FORMATS
    )
    restart: int = setting("faults", 0, "how often each process that crashes is started again", least=0)
    coordinator: str = setting(
        "network", "127.0.0.1:0", "address of the coordinator", metavar="HOST:PORT",
        default_is="any free port of 127.0.0.1",
    )  # fmt: skip
    interface: str = setting(
        "network", "", "network interface at which others reach TensorFlow's server; any: it is open on all of them",
        metavar="NAME", default_is="the one that owns the address of a process",
    )  # fmt: skip
    metrics_port: int | None = setting(
        "network", None, "port at which Prometheus reads the metrics of ps 0; the other ps have the next ones, then "
        "the workers; 0: each any free one", default_is="none", **PORT,
    )  # fmt: skip
    connect_timeout_s: float = setting("network", 60.0, "how long a process tries to reach the coordinator", least=0.0)

    def __post_init__(self) -> None:
        check_values(self)
        split_address(self.coordinator)


@dataclass(frozen=True)
class ProcessSpec:
    """One process: its name, which is that of its log file too, its arguments of `python -m`, and whether its log is of
    JSON.
    """

    name: str
    arguments: tuple[str, ...]
    is_json: bool = False


@dataclass(frozen=True)
class LocalJob:
    """A job on this machine, as settings of its processes.

    job: those of ps 0, which the others fetch from it.  worker: those of each worker.  security: those of all.
    own: worker index -> the settings of that worker alone.
    """

    launcher: LauncherConfig
    ps: int
    job: Mapping[str, Any]
    worker: Mapping[str, Any]
    security: Mapping[str, str]
    insecure: bool
    own: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def first(self, coordinator: str) -> ProcessSpec:
        """ps 0, with the coordinator at this address."""
        return self._process("ps", 0, coordinator, as_flags(self.job))

    def others(self, coordinator: str) -> list[ProcessSpec]:
        """All processes but ps 0."""
        timeout = as_flags({"connect_timeout_s": f"{self.launcher.connect_timeout_s:g}"})
        return [
            *(self._process("ps", index, coordinator, timeout) for index in range(1, self.ps)),
            *(
                self._process("worker", index, coordinator, timeout + self._flags_of(index))
                for index in range(self.launcher.workers)
            ),
        ]

    def progress(self, coordinator: str) -> tuple[str, ...]:
        """The arguments of the process that shows the progress line."""
        return ("psruntime", "status", "--follow", "--coordinator", coordinator, *self._secured)

    @property
    def _secured(self) -> tuple[str, ...]:
        of_all = {name: path for name, path in self.security.items() if name != "read_token_file"}
        return (*as_flags(of_all), *(("--insecure",) if self.insecure else ()))

    def _flags_of(self, worker: int) -> tuple[str, ...]:
        return as_flags({**self.worker, **self.own.get(worker, {})})

    def _process(self, role: str, index: int, coordinator: str, more: tuple[str, ...]) -> ProcessSpec:
        where: tuple[str, ...] = ("--index", str(index), "--coordinator", coordinator)
        is_json = self.launcher.log_format != TEXT_LOG
        if is_json:
            where += as_flags({"log_format": self.launcher.log_format})
        if self.launcher.interface:
            where += as_flags({"interface": self.launcher.interface})
        if (first := self.launcher.metrics_port) is not None:
            place = index + (self.ps if role == "worker" else 0)
            where += as_flags({"metrics_port": first and first + place})
        if (role, index) == ("ps", 0) and (readers := self.security.get("read_token_file")):
            where += as_flags({"read_token_file": readers})
        arguments = (f"psruntime.{role}", *where, *self._secured, *more)
        return ProcessSpec(f"{role}-{index}", arguments, is_json)


FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0  # well below the times for which the others wait: --ps-timeout 300 s, --connect-timeout 60 s
STEADY_S = 60.0  # a run as long as this was no failed start: the pauses start from the shortest again


def crashed(code: int) -> bool:
    """Whether the job can continue with this process started again.

    `code` as subprocess has it, negative for a signal; so every code but the three that are about the job.
    """
    return code not in (EXIT_DONE, EXIT_FAILED, EXIT_USAGE)


def exit_code(code: int) -> int:
    """The exit code in a shell, 128 + N for signal N, from a `code` of subprocess.

    A parent that ends because of a child's end exits with this code.
    """
    return code if code >= 0 else 128 - code


class Backoff:
    """The restarts of one process.

    Invariant: restarts <= limit.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.restarts = 0
        self._delay_s = FIRST_DELAY_S

    def delay_s(self, lived_s: float) -> float | None:
        """The pause after a crash of the process, which ran for `lived_s`; None if it is not started again."""
        if self.restarts == self.limit:
            return None
        self.restarts += 1
        delay_s = FIRST_DELAY_S if lived_s >= STEADY_S else self._delay_s
        self._delay_s = min(2 * delay_s, LONGEST_DELAY_S)
        return delay_s


PROG = "psruntime run"
COORDINATOR = "coordinator 0"  # as it is announced
END_S = 10.0  # for processes to leave after a signal that asks them to end at once, before they are killed
EXIT_LEFT = 128 + signal.SIGTERM
AGAIN_S = 2.0  # after a first SIGTERM, which a process may handle as a request to end in good order


# Without the current folder before the modules of Python itself; psruntime/__init__.py has what 3.10 needs.
PYTHON = (sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ()))


def announced(name: str, lines: Iterable[str]) -> str:
    """The address that one of these lines announces under this name, as `worker 0`; empty if none does."""
    begin = f"READY {name} "
    return next((text.removeprefix(begin) for line in lines if (text := line_text(line)).startswith(begin)), "")


class Child:
    """A process of the job, started again when it crashes: the same command, the same log file."""

    def __init__(
        self, spec: ProcessSpec, log: Path, restarts: int, memory_kills: MemoryKills, path: Sequence[str] = ()
    ) -> None:
        """path: folders of modules, before those of this process's environment."""
        self.spec = spec
        self._memory_kills = memory_kills
        self._path = {"PYTHONPATH": str.join(os.pathsep, path)} if path else {}
        self.log = log
        self.backoff = Backoff(restarts)
        self.due_s: float | None = None  # when it is started again; None while it runs, or has ended for good
        self._log_begins = 0  # byte of the log where its latest run begins
        self._reported = False  # whether it was reported that it has left
        log.write_bytes(b"")
        self.start()

    def start(self) -> None:
        """Starts the process.  The log is continued."""
        self.due_s = None
        self._began_s = time.monotonic()
        self._how = ""  # its latest run has ended
        self._kills_files: set[Path] = set()
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*PYTHON, "-m", *self.spec.arguments, "--lifeline"],
                # What the user's code prints is in the log at once.
                env={"PYTHONUNBUFFERED": "1", **os.environ, **self._path},
                stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.follow_cgroup()

    def follow_cgroup(self) -> None:
        """Remembers where a kill for memory would be counted: a process may be moved while it runs."""
        if file := self._memory_kills.file_of(self.process.pid):
            self._kills_files.add(file)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_worker(self) -> bool:
        return self.name.startswith("worker-")

    @property
    def code(self) -> int | None:
        """The exit code of its latest run; None while it runs."""
        return self.process.poll()

    @property
    def how(self) -> str:
        """How its latest run ended, in words."""
        code = self.process.wait()
        if not self._how:
            by_signal = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else ""
            self._how = by_signal or f"ended with code {code}"
            if file := self._memory_kills.take(self._kills_files, code):
                self._how += f", out of memory: the kernel has killed it (oom_kill in {file})"
        return self._how

    def lines(self) -> list[str]:
        """The lines of the log of its latest run."""
        with self.log.open("rb") as file:
            file.seek(self._log_begins)
            return file.read().decode(errors="replace").splitlines()

    @property
    def has_joined(self) -> bool:
        """Whether it is a member of the job in its latest run."""
        return bool(announced(self.name.replace("-", " "), self.lines()))

    @property
    def coordinator(self) -> str:
        """The address of the coordinator as this process, ps 0, has announced it in its latest run; empty before."""
        return announced(COORDINATOR, self.lines())

    @property
    def has_left(self) -> bool:
        """Whether it is a worker that has ended because it was asked to, by a signal or by an operator."""
        return self.is_worker and self.code == EXIT_LEFT

    def report_left(self) -> None:
        """Reports once that it has left."""
        if not self._reported:
            self._reported = True
            complain(f"{self.name} has left, as it was asked to; the job continues without it")

    def plan_restart(self, now_s: float) -> bool:
        """Plans and reports the next start of a process that has ended; False if it is not started again."""
        code = self.process.wait()
        delay_s = self.backoff.delay_s(now_s - self._began_s) if crashed(code) else None
        if delay_s is None:
            return False
        assert self.process.stdin
        self.process.stdin.close()
        self.due_s = now_s + delay_s
        line = f"{self.name} {self.how}; restart {self.backoff.restarts} of {self.backoff.limit} in {delay_s:g} s"
        complain(line)
        role, _, index = self.name.partition("-")
        with suppress(OSError), self.log.open("a") as log:  # a full disk ends no job
            log.write(f"{json_entry(role, int(index), 'restart', {'reason': line}) if self.spec.is_json else line}\n")
        self._log_begins = self.log.stat().st_size
        return True


class Children:
    """Starts children and ends all of them.  A signal from the terminal reaches them through this process alone."""

    def __init__(self, folder: Path, restarts: int, path: Sequence[str] = ()) -> None:
        """folder: of the log files.  path: as that of a Child."""
        self.folder = folder
        self._path = path
        self.all: list[Child] = []
        self.signal: int | None = None  # the first that came for all of them
        self.ends_now = False  # whether a second one came
        self._others_informed = False
        self._restarts = restarts
        self._memory_kills = MemoryKills()

    def start(self, spec: ProcessSpec) -> Child:
        child = Child(spec, self.folder / f"{spec.name}.log", self._restarts, self._memory_kills, self._path)
        self.all.append(child)
        return child

    def pass_on(self, signum: int, _frame: object) -> None:
        """Signal handler.  The first signal is sent to ps 0, which stops the job, and to processes out of its reach."""
        self.ends_now = self.signal is not None
        self.signal = self.signal or signum
        if self.ends_now or not self.all:
            return
        informs = self.all[0].code is None and self.all[0].has_joined
        for child in self.running():
            if child is self.all[0] or not (informs and child.has_joined):
                child.process.send_signal(signum)

    def pass_on_to_others(self) -> None:
        """Sends a first signal to the other processes, once, when ps 0 has ended and cannot inform them any more."""
        if self.signal is not None and self.all[0].code is not None and not self._others_informed:
            self._others_informed = True
            for child in self.running():
                child.process.send_signal(self.signal)

    @property
    def done(self) -> bool:
        """Whether the job is: ps 0, the first child, leaves after the others and ends with 0 then."""
        return self.all[0].code == EXIT_DONE

    def look(self, now_s: float) -> Child | None:
        """Restarts crashed children when that is due; returns a child that has failed for good, if there is one.

        A worker that has left because it was asked to has not failed: the others continue without it.
        After a signal no child is started, and none fails.  Nor once the job is done, when only a failed evaluation
        counts.
        """
        if self.signal is not None:
            return None
        done = self.done
        for child in self.running():
            child.follow_cgroup()
        for child in self.all:
            if child.code in (None, EXIT_DONE) or (done and child.code != EXIT_FAILED):
                continue
            if done:
                return child
            if child.due_s is None and not child.plan_restart(now_s):
                if not (child.has_left and self._has_workers):
                    return child
                child.report_left()
            if child.due_s is not None and now_s >= child.due_s:
                child.start()
        return None

    @property
    def _has_workers(self) -> bool:
        """Whether a worker runs, or is to be started again: else the job cannot continue."""
        return any(child.is_worker and (child.code is None or child.due_s is not None) for child in self.all)

    def end_latecomers(self) -> None:
        """SIGTERM to those that have not joined: the job is done, and there is no coordinator to inform them."""
        for child in self.running():
            if not child.has_joined:
                complain(f"{child.name} came too late")
                child.process.terminate()

    def running(self) -> list[Child]:
        return [child for child in self.all if child.code is None]

    def end(self) -> None:
        """SIGTERM to the children that run, once more after AGAIN_S, SIGKILL after END_S."""
        now_s = time.monotonic()
        for signum, within_s in ((signal.SIGTERM, AGAIN_S), (signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
            left = self.running()
            for child in left:
                if signum == signal.SIGKILL:
                    complain(f"{child.name} did not end within {END_S:g} s, killing it")
                child.process.send_signal(signum)
            for child in left:
                with suppress(subprocess.TimeoutExpired):
                    child.process.wait(max(0.1, now_s + within_s - time.monotonic()))


def complain(text: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"{PROG}: {text}\n")
