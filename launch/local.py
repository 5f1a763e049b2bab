"""Starts a whole job on this machine and watches over it: see launch/local.sh.

One log file per process; a progress line; a signal is passed on; no process outlives this one.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psruntime import flags
from psruntime.config import DEFAULT_COORDINATOR, JobConfig, split_address
from psruntime.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, UsageError

PROG = "launch/local.sh"
START_S = 60.0  # for ps 0 to say where its coordinator is; importing TensorFlow comes after that
END_S = 10.0  # for processes to leave after a signal, before they are killed
TRAIN_STEPS = 2000  # a model has no end of its own
LINGER_S = 0.0  # every process of the job was started here: there are no latecomers to wait for


@dataclass
class Child:
    """A process of the job, and its log file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Launcher:
    """Starts children and ends all of them.  A signal from the terminal reaches them through this process alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[Child] = []
        self.signal: int | None = None

    def start(self, name: str, arguments: list[str]) -> Child:
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments, "--lifeline"],
                stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        child = Child(name, process, log)
        self.children.append(child)
        return child

    def pass_on(self, signum: int, _frame: Any) -> None:
        """Signal handler: the children get the same signal; the main loop sees them go."""
        self.signal = signum
        for child in self.children:
            if child.process.poll() is None:
                child.process.send_signal(signum)

    def end(self) -> None:
        """SIGTERM to whoever is left, SIGKILL after END_S."""
        deadline_s = time.monotonic() + END_S
        for signum in (signal.SIGTERM, signal.SIGKILL):
            left = [c for c in self.children if c.process.poll() is None]
            for child in left:
                child.process.send_signal(signum)
            for child in left:
                try:
                    child.process.wait(max(0.1, deadline_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    sys.stderr.write(f"{PROG}: {child.name} did not end within {END_S:g} s, killing it\n")


def main() -> int:
    arguments = _parser().parse_args()
    try:
        job_flags = _job_flags(arguments)
        folder = Path(arguments.log_dir or tempfile.mkdtemp(prefix="psruntime-"))
        folder.mkdir(parents=True, exist_ok=True)
    except (UsageError, OSError) as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return EXIT_USAGE
    launcher = Launcher(folder)
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, launcher.pass_on)
    try:
        return _run(launcher, arguments, job_flags)
    finally:
        launcher.end()


def _run(launcher: Launcher, arguments: argparse.Namespace, job_flags: list[str]) -> int:
    print(f"logs: {launcher.folder}", flush=True)
    first = launcher.start("ps-0", ["psruntime.ps", "--index", "0", "--coordinator", arguments.coordinator, *job_flags])
    address = _coordinator_of(first, launcher)
    if address is None:
        return _report(launcher, first)
    print(f"coordinator: {address}", flush=True)
    join = ["--coordinator", address, "--connect-timeout", f"{arguments.connect_timeout_s:g}"]
    for index in range(1, arguments.ps):
        launcher.start(f"ps-{index}", ["psruntime.ps", "--index", str(index), *join])
    worker_flags = [
        "--model", arguments.model, "--data-dir", arguments.data_dir,
        "--batch-size", str(arguments.batch_size), "--seed", str(arguments.seed),
    ]  # fmt: skip
    for index in range(arguments.workers):
        launcher.start(f"worker-{index}", ["psruntime.worker", "--index", str(index), *join, *worker_flags])
    follow = subprocess.Popen([sys.executable, "-m", "psruntime.status", "--follow", "--coordinator", address])
    try:
        failed = _watch(launcher)
    finally:
        follow.terminate()
        follow.wait()
    return _report(launcher, failed)


def _watch(launcher: Launcher) -> Child | None:
    """Until all children are gone (None if all went well) or one has failed."""
    while True:
        codes = [(child, child.process.poll()) for child in launcher.children]
        for child, code in codes:
            if code not in (None, EXIT_DONE):
                return child
        if all(code is not None for _, code in codes):
            return None
        time.sleep(0.1)


def _report(launcher: Launcher, failed: Child | None) -> int:
    """Prints how it went: what the workers printed, or the last lines of the process that failed."""
    if launcher.signal is not None:
        print(f"{PROG}: ended by {signal.Signals(launcher.signal).name}", file=sys.stderr)
        return 128 + launcher.signal
    if failed is not None:
        if failed.process.poll() is None:
            print(f"{PROG}: {failed.name} did not announce its coordinator within {START_S:g} s", file=sys.stderr)
            failed.process.kill()
        code = failed.process.wait()
        lines = failed.log.read_text(errors="replace").splitlines()
        why = [line for line in lines if " error " in line or line.startswith("psruntime.")] or lines[-3:]
        print(f"{PROG}: {failed.name} ended with code {code}; its log is {failed.log}", file=sys.stderr)
        print("\n".join(why), file=sys.stderr)
        return EXIT_USAGE if code == EXIT_USAGE else EXIT_FAILED
    for child in launcher.children:
        for line in child.log.read_text(errors="replace").splitlines():
            if line.startswith("held out"):
                print(f"{child.name}: {line}")
    return EXIT_DONE


def _coordinator_of(child: Child, launcher: Launcher) -> str | None:
    """The address that ps 0 announces; None if it ends instead."""
    deadline_s = time.monotonic() + START_S
    pause = threading.Event()
    while child.process.poll() is None and launcher.signal is None and time.monotonic() < deadline_s:
        for line in child.log.read_text(errors="replace").splitlines():
            if line.startswith("READY coordinator 0 "):
                return line.split()[3]
        pause.wait(0.05)
    return None


def _parser() -> flags.Parser:
    parser = flags.make_parser(PROG, "Starts a whole job on this machine and watches over it.")
    parser.add_argument("--workers", type=int, default=1, help="number of worker processes (default: 1)")
    parser.add_argument("--log-dir", default="", help="folder of the log files (default: a new temporary one)")
    parser.add_argument("--coordinator", default=f"{split_address(DEFAULT_COORDINATOR)[0]}:0", metavar="HOST:PORT",
                        help="address of the coordinator (default: any free port of 127.0.0.1)")  # fmt: skip
    parser.add_argument("--connect-timeout", dest="connect_timeout_s", type=float, default=60.0, metavar="S",
                        help="how long a process tries to reach the coordinator (default: 60)")  # fmt: skip
    parser.add_argument("--job", default="", metavar="FILE", help="TOML file with the job's settings")
    flags.add_worker_flags(parser)
    flags.add_job_flags(parser, "the job")
    return parser


def _job_flags(arguments: argparse.Namespace) -> list[str]:
    """The job's settings as flags for ps 0.  They are checked here, before anything is started."""
    if arguments.workers < 1:
        raise UsageError(f"--workers must be at least 1, got {arguments.workers}")
    given = flags.job_flags_given(arguments)
    from_file = flags.read_job_file(arguments.job) if arguments.job else {}
    defaults = {"train_steps": TRAIN_STEPS, "linger_s": LINGER_S, "min_workers": arguments.workers}
    settings = {**defaults, **from_file, **given}
    arguments.ps = JobConfig(**settings).ps
    return [text for name, value in settings.items() for text in (flags.flag_of(name), str(value))]


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
