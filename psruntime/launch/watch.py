"""Runs a job on this machine: starts its processes, watches over them, shows its progress, and reports how it went."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from psruntime.errors import EXIT_DONE, EXIT_RESTART
from psruntime.launch.children import END_S, PYTHON, Child, Children, LocalJob, complain, exit_code
from psruntime.observe.log import line_text
from psruntime.observe.outputs import never_block

Show = Callable[[str], None]
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Progress:
    """Shows the progress line by a child process, which is restarted after it could not reach ps 0."""

    def __init__(self, first: Child, arguments: Sequence[str], show: Show | None = None) -> None:
        """arguments: of `python -m`.  show: called with each line; None: the child writes to standard output."""
        self._first = first
        self._show, self._unfinished = show, b""
        self._command = [*PYTHON, "-m", *arguments, "--lifeline=kill"]
        self._start()

    def update(self) -> None:
        """Shows what there is, and starts it again when ps 0 is back."""
        self._read()
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
        self._read()

    def _start(self) -> None:
        self._of_run = self._first.backoff.restarts
        # A notebook's kernel has FORCE_COLOR set: the child would take the pipe for a terminal.
        output, environment = (subprocess.PIPE, {**os.environ, "FORCE_COLOR": ""}) if self._show else (None, None)
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=output, env=environment)
        if self._process.stdout:
            os.set_blocking(self._process.stdout.fileno(), False)

    def _read(self) -> None:
        if self._show and self._process.stdout:
            *lines, self._unfinished = (self._unfinished + (self._process.stdout.read() or b"")).split(b"\n")
            for line in lines:
                self._show(line.decode(errors="replace"))


START_S = 60.0  # for ps 0 to announce its coordinator, before it imports TensorFlow
LOOK_S = 0.1  # how often the children are checked
WHY = re.compile(r'^\S+ (ps|worker) \d+ (error|crash) |"event": "(error|crash)"|^psruntime ')  # why a process ended
STOPPED = re.compile(r"the job was stopped: ([^\"\n]*)")  # in the log of ps 0, and why
ENDED_EARLY = re.compile(r"[^\s\"]+ got no better in [^\"]*; ended early, at global step \d+")  # in the log of ps 0
REASON = re.compile(r'(?: error| crash) .*?\breason="((?:[^"\\]|\\.)*)"')
EVALUATION = re.compile(r'^\S+ worker \d+ evaluation (.+)$|^(\{.*"event": "evaluation".*\})$', re.MULTILINE)
VALUE = re.compile(r"(.+?)=(-?(?:[0-9][0-9.e+-]*|inf|nan))(?: |$)")  # of a metric in the form of text
NO_METRICS = ("time", "role", "index", "event", "global_step")
NOTHING_TO_TRAIN = re.compile(  # in the log of ps 0
    r"already at global step \d+ of \d+ [^\"]*|epoch \d+ of \d+ \(--epochs\) was done already[^\"]*"
)


@dataclass(frozen=True)
class Patience:
    """The time for the processes to leave, in seconds: once the job is done, and after a first signal."""

    done_s: float
    stop_s: float


@dataclass(frozen=True)
class JobEnd:
    """How a job ended.

    code: exit code.  complaint: what was wrong; empty if nothing was.  log: lines of a log about it.
    signal: that ended it.
    """

    code: int
    complaint: str = ""
    log: tuple[str, ...] = ()
    signal: int | None = None

    @property
    def reason(self) -> str:
        """The complaint with the reason in the log, in one line."""
        reasons = [reason for line in self.log if (reason := _reason_in(line))]
        return f"{reasons[-1]} ({self.complaint})" if reasons else ": ".join([self.complaint, *self.log[-1:]])


def run_job(job: LocalJob, folder: Path, patience: Patience) -> int:
    """Runs a job until it is over, and reports how it ended; returns the exit code.  No process outlives it.

    folder: of the log files.
    """
    never_block(is_member=False)
    return run_to_end(job, folder, patience, _complain_of).code


def run_to_end(
    job: LocalJob, folder: Path, patience: Patience, on_end: Callable[[JobEnd], None] = lambda _: None,
    path: Sequence[str] = (), show: Show | None = None,
) -> JobEnd:  # fmt: skip
    """As `run_job`.

    on_end: called before the remaining processes are ended.  path: folders of modules, for the processes of the job.
    show: as that of `Progress`.
    """
    children = Children(folder, job.launcher.restart, path)
    if threading.current_thread() is threading.main_thread():
        for signum in SIGNALS:
            signal.signal(signum, children.pass_on)
    try:
        end = _end_of(children, _failed(children, job, patience, show))
        on_end(end)
        return end
    finally:
        children.end()


def _failed(children: Children, job: LocalJob, patience: Patience, show: Show | None) -> Child | None:
    """Starts the processes and waits for their end; returns the one that has failed, if there is one."""
    _say(f"logs: {children.folder}")
    first = children.start(job.first(job.launcher.coordinator))
    address = _coordinator_of(first, children)
    if not address:
        return first
    _say(f"coordinator: {address}")
    first.spec = job.first(address)  # the others have this address, so a restarted ps 0 listens there
    for spec in job.others(address):
        if children.signal is None:
            children.start(spec)
    progress = Progress(first, job.progress(address), show)
    try:
        return _watch(children, progress, patience)
    finally:
        progress.end()


def _coordinator_of(first: Child, children: Children) -> str:
    """The address that ps 0 announces; empty if it ends instead."""
    deadline_s = time.monotonic() + START_S
    while first.code is None and children.signal is None and time.monotonic() < deadline_s:
        if address := first.coordinator:
            return address
        time.sleep(LOOK_S)
    return ""


def _watch(children: Children, progress: Progress, patience: Patience) -> Child | None:
    """Waits until all children are gone (None if none failed) or one has failed for good.

    After a second signal it waits for nothing.
    """
    until_s: float | None = None
    while True:
        now_s = time.monotonic()
        running = children.running()
        failed = children.look(now_s)
        children.pass_on_to_others()
        if failed or (not running and (children.done or children.signal is not None)) or children.ends_now:
            return failed
        if until_s is None and children.done:
            until_s = now_s + patience.done_s
            children.end_latecomers()
        if until_s is None and children.signal is not None:
            _say("stopping the job in good order; once more to end it at once")
            until_s = now_s + patience.stop_s
        if until_s is not None and now_s > until_s:
            complain(f"{', '.join(child.name for child in running)} did not leave in time")
            return None
        progress.update()
        time.sleep(LOOK_S)


def _end_of(children: Children, failed: Child | None) -> JobEnd:
    """How the job ended.  Prints the output of the workers."""
    if children.signal is not None:
        found = STOPPED.search("\n".join(children.all[0].lines()))
        by = f"ended by {signal.Signals(children.signal).name}{': ' + found[1] if found else ''}"
        return JobEnd(128 + children.signal, by, signal=children.signal)
    if failed is not None:
        return _failure_of(failed)
    log = "\n".join(children.all[0].lines())
    for found in filter(None, (pattern.search(log) for pattern in (NOTHING_TO_TRAIN, ENDED_EARLY))):
        _say(found[0])
    for child in children.all:
        for line in map(line_text, child.log.read_text(errors="replace").splitlines()):
            if line.startswith("held out"):
                _say(f"{child.name}: {line}")
    return JobEnd(EXIT_DONE)


def _failure_of(failed: Child) -> JobEnd:
    """The end of a job by this process, with the last lines of its log."""
    code = failed.code
    if code is None:
        complain(f"{failed.name} did not announce its coordinator within {START_S:g} s")
        failed.process.kill()
    more = f", after {failed.backoff.restarts} restarts" if failed.backoff.restarts else ""
    if code is not None and code < 0 and not failed.backoff.limit and (failed.coordinator or failed.name != "ps-0"):
        more = "; --restart N starts such a process again"
    lines = failed.lines()
    why = [line for line in lines if WHY.search(line)] or lines[-3:]
    complaint = f"{failed.name} {failed.how}{more}; its log is {failed.log}"
    return JobEnd(EXIT_RESTART if code is None else exit_code(code), complaint, tuple(why))


def _complain_of(end: JobEnd) -> None:
    if end.complaint:
        complain(end.complaint)
    sys.stderr.write("".join(f"{_readable(line)}\n" for line in end.log))


def _readable(line: str) -> str:
    """A line of a log for people: of one in JSON the process, the event and the reason."""
    try:
        entry = json.loads(line)
        return " ".join(str(entry[name]) for name in ("time", "role", "index", "event", "reason"))
    except (ValueError, KeyError, TypeError):  # the other form, or no entry of a log
        return line


def _reason_in(line: str) -> str:
    """The reason in a line of a log, of either form; empty if there is none."""
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(line)["reason"])
    found = REASON.search(line)
    return re.sub(r"\\(.)", r"\1", found[1]) if found else ""


def held_out_of(log: str) -> dict[str, float]:
    """The metrics that a worker logged at the end, with all digits; none if it measured nothing."""
    found = EVALUATION.findall(log)
    if not found:
        return {}
    as_text, as_json = found[-1]
    values = json.loads(as_json) if as_json else dict(VALUE.findall(as_text))
    return {name: float(value) for name, value in values.items() if name not in NO_METRICS}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
