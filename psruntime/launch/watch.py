"""Runs a job on this machine: starts its processes, watches over them, shows its progress, and reports how it went."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psruntime.errors import EXIT_DONE, EXIT_RESTART
from psruntime.launch.children import END_S, Child, Children, LocalJob, complain, exit_code
from psruntime.observe.log import line_text
from psruntime.observe.outputs import never_block


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


START_S = 60.0  # for ps 0 to announce its coordinator, before it imports TensorFlow
LOOK_S = 0.1  # how often the children are checked
WHY = re.compile(r'^\S+ (ps|worker) \d+ (error|crash) |"event": "(error|crash)"|^psruntime ')  # why a process ended
STOPPED = re.compile(r"the job was stopped: ([^\"\n]*)")  # in the log of ps 0, and why
ENDED_EARLY = re.compile(r"[^\s\"]+ got no better in [^\"]*; ended early, at global step \d+")  # in the log of ps 0
NOTHING_TO_TRAIN = re.compile(r"already at global step \d+ of \d+ [^\"]*")  # in the log of ps 0


@dataclass(frozen=True)
class Patience:
    """The time for the processes to leave, in seconds: once the job is done, and after a first signal."""

    done_s: float
    stop_s: float


def run_job(job: LocalJob, folder: Path, patience: Patience) -> int:
    """Runs a job until it is over; returns the exit code.  No process outlives it.

    folder: of the log files.
    """
    never_block(is_member=False)
    children = Children(folder, job.launcher.restart)
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, children.pass_on)
    try:
        return _report(children, _failed(children, job, patience))
    finally:
        children.end()


def _failed(children: Children, job: LocalJob, patience: Patience) -> Child | None:
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
    progress = Progress(first, job.progress(address))
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


def _report(children: Children, failed: Child | None) -> int:
    """Reports how the job ended: the output of the workers, or the last lines of the process that failed."""
    if children.signal is not None:
        found = STOPPED.search("\n".join(children.all[0].lines()))
        complain(f"ended by {signal.Signals(children.signal).name}{': ' + found[1] if found else ''}")
        return 128 + children.signal
    if failed is not None:
        return _report_failure(failed)
    log = "\n".join(children.all[0].lines())
    for found in filter(None, (pattern.search(log) for pattern in (NOTHING_TO_TRAIN, ENDED_EARLY))):
        _say(found[0])
    for child in children.all:
        for line in map(line_text, child.log.read_text(errors="replace").splitlines()):
            if line.startswith("held out"):
                _say(f"{child.name}: {line}")
    return EXIT_DONE


def _report_failure(failed: Child) -> int:
    code = failed.code
    if code is None:
        complain(f"{failed.name} did not announce its coordinator within {START_S:g} s")
        failed.process.kill()
    restarts = f", after {failed.backoff.restarts} restarts" if failed.backoff.restarts else ""
    lines = failed.lines()
    why = [line for line in lines if WHY.search(line)] or lines[-3:]
    complain(f"{failed.name} {failed.how}{restarts}; its log is {failed.log}")
    sys.stderr.write("".join(f"{_readable(line)}\n" for line in why))
    return EXIT_RESTART if code is None else exit_code(code)


def _readable(line: str) -> str:
    """A line of a log for people: of one in JSON the process, the event and the reason."""
    try:
        entry = json.loads(line)
        return " ".join(str(entry[name]) for name in ("time", "role", "index", "event", "reason"))
    except (ValueError, KeyError, TypeError):  # the other form, or no entry of a log
        return line


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
