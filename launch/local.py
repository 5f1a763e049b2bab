"""Starts a whole job on this machine and watches over it: see launch/local.sh.

One log file per process; a progress line; a signal is passed on; no process outlives this one.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from launch.children import END_S, PROG, Child, Children, complain
from psruntime import flags
from psruntime.config import DEFAULT_COORDINATOR, JobConfig, split_address
from psruntime.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, UsageError

START_S = 60.0  # for ps 0 to say where its coordinator is; importing TensorFlow comes after that
LOOK_S = 0.1  # how often the children are looked at
TRAIN_STEPS = 2000  # a model has no end of its own
LINGER_S = 0.0  # every process of the job was started here: there are no latecomers to wait for


def main() -> int:
    arguments = _parser().parse_args()
    try:
        job_flags = _job_flags(arguments)
        folder = Path(arguments.log_dir or tempfile.mkdtemp(prefix="psruntime-"))
        folder.mkdir(parents=True, exist_ok=True)
    except (UsageError, OSError) as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return EXIT_USAGE
    children = Children(folder, arguments.restart)
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, children.pass_on)
    try:
        return _run(children, arguments, job_flags)
    finally:
        children.end()


def _run(children: Children, arguments: argparse.Namespace, job_flags: list[str]) -> int:
    print(f"logs: {children.folder}", flush=True)
    secured = [text for name, file in flags.security_given(arguments).items() for text in (flags.flag_of(name), file)]
    first_flags = [*(["--insecure"] if arguments.insecure else []), *secured, *job_flags]
    first = children.start("ps-0", _ps_0(arguments.coordinator, first_flags))
    address = _coordinator_of(first, children)
    if address is None:
        return _report(children, first)
    print(f"coordinator: {address}", flush=True)
    first.arguments = _ps_0(address, first_flags)  # the others know this address: it comes back there
    join = ["--coordinator", address, "--connect-timeout", f"{arguments.connect_timeout_s:g}", *secured]
    for index in range(1, arguments.ps):
        children.start(f"ps-{index}", ["psruntime.ps", "--index", str(index), *join])
    worker_flags = [
        "--model", arguments.model, "--data-dir", arguments.data_dir,
        "--batch-size", str(arguments.batch_size), "--seed", str(arguments.seed),
    ]  # fmt: skip
    for index in range(arguments.workers):
        children.start(f"worker-{index}", ["psruntime.worker", "--index", str(index), *join, *worker_flags])
    progress = Progress(first, ["--coordinator", address, *secured])
    try:
        failed = _watch(children, progress, arguments.patience_s)
    finally:
        progress.end()
    return _report(children, failed)


def _ps_0(coordinator: str, more: list[str]) -> list[str]:
    return ["psruntime.ps", "--index", "0", "--coordinator", coordinator, *more]


class Progress:
    """The progress line of the job.  It ends with the coordinator, so each one gets its own."""

    def __init__(self, first: Child, where: list[str]) -> None:
        self._first = first
        self._command = [sys.executable, "-m", "psruntime.status", "--follow", *where]
        self._start()

    def look(self) -> None:
        anew = self._of_life != self._first.backoff.restarts
        if anew and self._process.poll() is not None and _announced(self._first):
            self._start()

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _start(self) -> None:
        self._of_life = self._first.backoff.restarts
        self._process = subprocess.Popen(self._command)


def _watch(children: Children, progress: Progress, patience_s: float) -> Child | None:
    """Until all children are gone (None if all went well) or one has failed for good.

    Once the job is done, they have `patience_s` to go, and after a signal END_S.
    """
    until_s: float | None = None
    while True:
        now_s = time.monotonic()
        living = children.living()
        failed = children.look(now_s)
        if failed or (children.done and not living):
            return failed
        if until_s is None and children.done:
            until_s = now_s + patience_s
            children.end_latecomers()
        if children.signal is not None:
            until_s = min(until_s or math.inf, now_s + END_S)
        if until_s is not None and now_s > until_s:
            complain(f"{', '.join(child.name for child in living)} did not leave in time")
            return None
        progress.look()
        time.sleep(LOOK_S)


def _report(children: Children, failed: Child | None) -> int:
    """Prints how it went: what the workers printed, or the last lines of the process that failed."""
    if children.signal is not None:
        complain(f"ended by {signal.Signals(children.signal).name}")
        return 128 + children.signal
    if failed is not None:
        if failed.code is None:
            complain(f"{failed.name} did not announce its coordinator within {START_S:g} s")
            failed.process.kill()
        restarts = f", after {failed.backoff.restarts} restarts" if failed.backoff.restarts else ""
        lines = failed.lines()
        why = [line for line in lines if " error " in line or line.startswith("psruntime.")] or lines[-3:]
        complain(f"{failed.name} {failed.how}{restarts}; its log is {failed.log}")
        print("\n".join(why), file=sys.stderr)
        return EXIT_USAGE if failed.code == EXIT_USAGE else EXIT_FAILED
    for child in children.all:
        for line in child.log.read_text(errors="replace").splitlines():
            if line.startswith("held out"):
                print(f"{child.name}: {line}")
    return EXIT_DONE


def _coordinator_of(first: Child, children: Children) -> str | None:
    """The address that ps 0 announces; None if it ends instead."""
    deadline_s = time.monotonic() + START_S
    while first.code is None and children.signal is None and time.monotonic() < deadline_s:
        if address := _announced(first):
            return address
        time.sleep(LOOK_S)
    return None


def _announced(first: Child) -> str:
    """The coordinator's address as ps 0 has announced it in this life; empty before."""
    return next((line.split()[3] for line in first.lines() if line.startswith("READY coordinator 0 ")), "")


def _parser() -> flags.Parser:
    parser = flags.make_parser(PROG, "Starts a whole job on this machine and watches over it.")
    parser.add_argument("--workers", type=int, default=1, help="number of worker processes (default: 1)")
    parser.add_argument("--restart", type=int, default=0, metavar="N",
                        help="how often each process that crashes is started again (default: 0)")  # fmt: skip
    parser.add_argument("--log-dir", default="", help="folder of the log files (default: a new temporary one)")
    parser.add_argument("--coordinator", default=f"{split_address(DEFAULT_COORDINATOR)[0]}:0", metavar="HOST:PORT",
                        help="address of the coordinator (default: any free port of 127.0.0.1)")  # fmt: skip
    parser.add_argument("--connect-timeout", dest="connect_timeout_s", type=float, default=60.0, metavar="S",
                        help="how long a process tries to reach the coordinator (default: 60)")  # fmt: skip
    parser.add_argument("--job", default="", metavar="FILE", help="TOML file with the job's settings")
    flags.add_security_flags(parser)
    flags.add_insecure_flag(parser)
    flags.add_worker_flags(parser)
    flags.add_job_flags(parser, "the job")
    return parser


def _job_flags(arguments: argparse.Namespace) -> list[str]:
    """The job's settings as flags for ps 0.  They are checked here, before anything is started."""
    if arguments.workers < 1:
        raise UsageError(f"--workers must be at least 1, got {arguments.workers}")
    if arguments.restart < 0:
        raise UsageError(f"--restart must be at least 0, got {arguments.restart}")
    given = flags.job_flags_given(arguments)
    from_file = flags.read_job_file(arguments.job) if arguments.job else {}
    defaults = {"train_steps": TRAIN_STEPS, "linger_s": LINGER_S, "min_workers": arguments.workers}
    settings = {**defaults, **from_file, **given}
    job = JobConfig(**settings)
    arguments.ps = job.ps
    arguments.patience_s = job.drain_timeout_s + END_S  # so long a worker may take to leave a job that is done
    return [text for name, value in settings.items() for text in (flags.flag_of(name), str(value))]


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
