"""The life of a process: the main thread waits, the work runs in another, signals only set an event.

SIGTERM is not seen inside a TensorFlow call, so nothing but waiting happens on the main thread.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING

from psruntime.config.process import ProcessConfig
from psruntime.core.fields import visible
from psruntime.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_RESTART,
    JobFailedError,
    JobOverError,
    PassingError,
    PsRuntimeError,
    StopRequested,
    UnreachableError,
    UsageError,
)
from psruntime.observe.log import Log, facts_of
from psruntime.observe.outputs import never_block

if TYPE_CHECKING:
    from psruntime.observe.metrics import Endpoint

# From a signal to the end of the process: what the work gets to stop by itself, for example to end a step.
# With leaving (2 s) and closing it stays under the 5 s that a process has from then on.
GRACE_S = 2.0
NEWS_S = 2.0  # for the news that the job has stopped to reach every process
PARENT_S = 1.0  # how often a process with lifeline "kill" looks whether its parent lives
_cause: int | None = None  # the exit code of `end_because_of`
_takes_part = False  # whether the work of this process has a part in the job, of whose end it hears itself
_job_has_failed = False  # whether the work ended with that
LOOK_S = 0.05  # how often the main thread looks for a signal


class Process:
    """What the work of a process is given.

    asked: set by the first signal, and with `stop`.  stop: set when the process shall end now: by the second signal, or
    by the first if the work has not announced an end in good order, or does not end within the time that it announced.
    at_exit: closed in reverse order at the end, also when the work is stuck and has to be left behind.
    is_busy: whether a thread beside the work may be within TensorFlow at the end: if Python wound up then, that would
    abort the process.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.asked = threading.Event()
        self.stop = threading.Event()
        self.at_exit = ExitStack()
        self.is_busy: Callable[[], bool] = lambda: False
        self._grace_s = 0.0
        self._asked_s = 0.0
        self._ends: tuple[float, float, int] | None = None  # see `end_within`: until when, within, code
        self.received: list[int] = []  # signals, in their order

    def serve_metrics(
        self, role: str, where: ProcessConfig, host: str, tls: Callable[[], ssl.SSLContext] | None,
        expires_s: Callable[[], float],
    ) -> Endpoint | None:  # fmt: skip
        """Serves metrics at the process's host until its end, if it has a --metrics-port.

        tls: as of Endpoint.  expires_s: when the certificate expires, in seconds since 1970.

        Raises:
            UsageError: the port is in use.
        """
        if where.metrics_port is None:
            return None
        from psruntime.observe.metrics import of_certificate, open_endpoint

        endpoint = open_endpoint(role, where.index, (host, where.metrics_port), tls, self.log)
        if tls:
            endpoint.add(of_certificate(role, where.index, expires_s))
        self.at_exit.callback(endpoint.close)
        return endpoint

    def terminate(self) -> None:
        """Counts as a SIGTERM, unless a signal has come already."""
        if not self.received:
            self.received.append(signal.SIGTERM)

    def ends_in_good_order(self, within_s: float) -> None:
        """From now on the work looks at `asked`, and ends so soon after it, or a little later; 0: it does not."""
        global _takes_part
        _takes_part = True
        self._grace_s = within_s + NEWS_S if within_s else 0.0

    def has_started(self) -> None:
        """What there is now stays to the end, so no garbage collection looks at it again.

        Looking at TensorFlow takes 0.1 to 0.3 s, in which no call is answered and no step begins.
        """
        gc.collect()
        gc.freeze()

    def ask(self) -> float:
        """The first signal has come; returns how long the work may take to end in good order, in seconds."""
        self._asked_s = time.monotonic()
        self.asked.set()
        return self._grace_s

    @property
    def is_late(self) -> bool:
        """Whether a signal has come, and the work has had its time."""
        return self.asked.is_set() and time.monotonic() - self._asked_s >= self._grace_s

    def end_within(self, within_s: float, code: int) -> None:
        """The job is over, or this process has no part in it any more, and the work hears of it too.

        Work that is stuck is left behind after `within_s`, and the process ends with `code`.  The first call counts.
        """
        self._ends = self._ends or (time.monotonic() + within_s, within_s, code)

    def overdue(self) -> tuple[float, int] | None:
        """The time within which the work should have ended, and the code, if it has not."""
        if self._ends is None or time.monotonic() < self._ends[0]:
            return None
        return self._ends[1:]

    def announce(self, role: str, index: int, address: str) -> None:
        """Reports to the launcher that this process can be reached."""
        self.show("ready", f"READY {role} {index} {address}", what=f"{role} {index}", address=address)

    def show(self, event: str, text: str, /, **facts: object) -> None:
        """One line on stdout: the text, or where the log is of JSON an entry with it."""
        sys.stdout.write(f"{self.log.line(event, text, **facts)}\n")
        sys.stdout.flush()


def run(
    log: Log, work: Callable[[Process], int], lifeline: str = "", restart_code: int = EXIT_RESTART
) -> int:  # fmt: skip
    """Runs `work` until it returns an exit code, raises, or a signal ends it; returns the exit code.

    With lifeline "end" the end of stdin counts as a SIGTERM, with "kill" as a SIGKILL: the process at the other end is
    gone.  A handler of SIGTERM or SIGINT that there was before is called too.

    The code is 128 + the first signal's number when a signal ended it, and `restart_code` in place of 75.  When the
    work does not stop in time after one, or after the end of the job, the process ends without it, here.
    """
    never_block()
    _allow_many_files()
    process = Process(log)
    received = process.received
    outcome = [EXIT_RESTART]
    earlier = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}

    def on_signal(signum: int, frame: FrameType | None) -> None:
        received.append(signum)  # nothing that takes a lock: the main thread may hold it
        before = earlier[signal.Signals(signum)]
        if callable(before) and before is not signal.default_int_handler:
            before(signum, frame)

    def body() -> None:
        outcome[0] = _exit_code(log, work, process)

    for signum in earlier:
        signal.signal(signum, on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, earlier)  # which may have been held back until now
    if lifeline:
        threading.Thread(target=_watch_stdin, args=(received, lifeline), name="lifeline", daemon=True).start()
    worker = threading.Thread(target=body, name="work", daemon=True)
    worker.start()
    while worker.is_alive() and not process.overdue() and not process.is_late and len(received) < 2:
        if received and not process.asked.is_set():
            log("stopping", signal=signal.Signals(received[0]).name, within_s=process.ask())
        worker.join(LOOK_S)
    overdue = process.overdue() if worker.is_alive() else None
    if len(received) > 1:
        log("stopping", signal=signal.Signals(received[-1]).name, reason="the second signal: nothing is waited for")
    elif overdue:
        log("stopping", reason=f"the work did not end within {overdue[0]:g} s after its end was known")
    if received or overdue:
        process.asked.set()
        process.stop.set()
        worker.join(GRACE_S)
    stuck = worker.is_alive()
    if stuck:
        log("abandoned", reason=f"the work did not stop within {GRACE_S:g} s")
    process.at_exit.close()
    code = outcome[0]
    if received and (stuck or code != EXIT_DONE):
        code = 128 + received[0] if _cause is None else _cause
    elif overdue:
        code = overdue[1]
    code = restart_code if code == EXIT_RESTART else code
    log("exit", code=code)
    if stuck or process.is_busy():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def end_because_of(code: int) -> None:
    """Ends this process as a SIGTERM does, with this exit code: what it needs to continue has ended.

    A signal that has come before counts instead, where the caller knows of one and does not call this.
    """
    global _cause
    _cause = code
    os.kill(os.getpid(), signal.SIGTERM)


def end_unjoined(code: int) -> None:
    """As `end_because_of`, since the job is over; without effect on work that takes part in it."""
    if not _takes_part:
        end_because_of(code)


def job_has_failed() -> bool:
    """Whether the work of this process ended because the job has failed, whatever its exit code is."""
    return _job_has_failed


def _allow_many_files() -> None:
    """Every member is a connection to ps 0: the usual soft limit of 1,024 files would be the job's size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def end_with_launcher() -> None:
    """For a process that has nothing to bring to an end: it is killed when its stdin ends, or who started it does."""
    threading.Thread(target=_watch_stdin, args=([], "kill"), name="lifeline", daemon=True).start()


def _watch_stdin(received: list[int], lifeline: str) -> None:
    if lifeline == "kill":
        parent = os.getppid()  # what it has forked may hold the other end, so its death counts too
        while os.getppid() == parent and (not select.select([0], [], [], PARENT_S)[0] or os.read(0, 1024)):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    while os.read(0, 1024):
        pass
    received.append(signal.SIGTERM)


def _exit_code(log: Log, work: Callable[[Process], int], process: Process) -> int:
    global _job_has_failed
    try:
        return work(process)
    except StopRequested:
        return EXIT_RESTART  # the signal's code replaces it
    except PsRuntimeError as error:
        _job_has_failed = isinstance(error, JobFailedError) and not isinstance(error, PassingError)
        event = "over" if isinstance(error, JobOverError) else "error"
        log(event, reason=error, **({"traceback": error.detail} if error.detail else {}))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last resort of a process; a defect of ours, so with its traceback
        log("crash", **facts_of(error))
        return EXIT_RESTART


def offline(prog: str, work: Callable[[], int]) -> int:
    """Runs the work of a command that is no process of a job; returns its exit code.  What it raises is one line."""
    try:
        return work()
    except PsRuntimeError as error:
        sys.stderr.write(f"{prog}: {visible(str(error))}\n")
        return error.exit_code or EXIT_FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def usage_error(prog: str, error: UsageError) -> int:
    """Reports bad flags before there is a process to speak of."""
    sys.stderr.write(f"{prog}: {visible(str(error))}\n")
    return error.exit_code


def request_error(prog: str, error: PsRuntimeError) -> int:
    """Reports why a request to a running job failed.  A coordinator that does not answer is no wrong use."""
    unreachable = isinstance(error, UnreachableError)
    where = "the address of its ps 0, which psruntime run prints, is given as HOST:PORT or --coordinator"
    hint = f"; is the job running? {where}" if unreachable else ""
    sys.stderr.write(f"{prog}: {visible(str(error))}{hint}\n")
    return EXIT_FAILED if unreachable else error.exit_code or EXIT_FAILED
