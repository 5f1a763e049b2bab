"""The ps beside a worker: a child of the worker's process that is restarted when it crashes and ends with the worker.

Law: the ps does not outlive the worker.  If the worker is killed, the ps is too, at once: one that ended in good order
would end the job, and the others shall wait until this machine is back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import TextIO

from psruntime.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESTART, EXIT_USAGE
from psruntime.launch.children import COORDINATOR, PYTHON, Backoff, announced, crashed, exit_code

START_S = 60.0  # for ps 0 to serve its coordinator; importing TensorFlow comes after that
PS_END_S = 300.0  # for the ps to end after its worker: ps 0 leaves as the last of all
KILLED_S = 10.0  # for a killed ps to be gone
RESTARTS = 10
LOOK_S = 0.05  # how often a wait before a restart looks whether it is still wanted
LIFELINE = "--lifeline=kill"
SIGNALS = (signal.SIGTERM, signal.SIGINT)  # that ask a process to end


class ColocatedPs:
    """First `start_up`, then the worker's own work, then `end`.

    words: arguments of `psruntime ps`.  report: called with a line about its end or restart.  out: its output is
    repeated there.  command: that runs a ps.  end_worker: ends this process because its ps has; called with the exit
    code.  end_unjoined: the same, only if this process has not joined: the job is done, or failed, and the coordinator,
    which would report it, may be gone.
    """

    def __init__(
        self,
        words: Sequence[str],
        report: Callable[[str], object],
        out: TextIO | None = None,
        command: Sequence[str] = ("-m", "psruntime.ps"),
        end_worker: Callable[[int], object] = lambda code: os.kill(os.getpid(), signal.SIGTERM),  # noqa: ARG005
        end_unjoined: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._command = [*PYTHON, *command, *words, LIFELINE]
        self._report = report
        self._out = out
        self._end_worker = end_worker
        self._end_unjoined = end_unjoined
        self._backoff = Backoff(RESTARTS)
        self._process: subprocess.Popen[str] | None = None
        self.signal = 0  # the first that this process was sent; plain, since a signal handler must take no lock
        self._ending = False  # whether it is not started again
        self._serves_coordinator = False
        self._serves = threading.Event()  # a ps 0 has its coordinator, or has ended
        self._ended = threading.Event()  # for good
        self.code: int | None = None  # of its last run, once it has ended for good

    def start_up(self, serves_coordinator: bool) -> int:
        """Starts it; returns 0, or the exit code for this process where it is a ps 0 that does not serve."""
        self.start(serves_coordinator)
        if not serves_coordinator or self.await_coordinator(START_S):
            return 0
        code = self.code  # of itself; None: it takes too long, and is ended here
        self.end(over=False, within_s=PS_END_S)
        return exit_code(code) if code else EXIT_RESTART

    def start(self, serves_coordinator: bool) -> None:
        """Starts it, and restarts it from now on.

        serves_coordinator: whether it is ps 0; then `await_coordinator` has to follow.
        """
        self._serves_coordinator = serves_coordinator
        self._process = self._spawn()
        threading.Thread(target=self._watch, name="colocated-ps", daemon=True).start()

    def await_coordinator(self, within_s: float) -> bool:
        """Waits until ps 0 has announced its coordinator; False if it ended instead, or takes longer."""
        return self._serves.wait(within_s) and not self._ended.is_set()

    def pass_signals_on(self) -> None:
        """Sends every SIGTERM and SIGINT of this process to the ps too, which reports it to the coordinator."""
        for signum in SIGNALS:
            signal.signal(signum, self._pass_on)

    def end(self, over: bool, within_s: float) -> None:
        """Waits until the ps has ended, and kills it after `within_s`.

        over: whether the job is, so that the ps ends by itself when all members have left; else it is asked to.
        """
        self._ending = True
        if not over and not self.signal:
            self._send(signal.SIGTERM)
        if not self._ended.wait(within_s):
            self._report(f"the ps did not end within {within_s:g} s, killing it")
            self._send(signal.SIGKILL)
            self._ended.wait(KILLED_S)

    def _spawn(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self._command,
            env={"PYTHONUNBUFFERED": "1", **os.environ},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        if self._ending:  # meanwhile, and the signal reached no ps
            process.send_signal(signal.SIGTERM)
        return process

    def _pass_on(self, signum: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or signum
        self._ending = True
        self._send(signum)

    def _send(self, signum: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signum)

    def _watch(self) -> None:
        """Follows it until it has ended for good; then ends the worker, which cannot continue without it."""
        assert self._process is not None
        while True:
            began_s = time.monotonic()
            code = self._follow(self._process)
            if not crashed(code) or not self._restart(code, time.monotonic() - began_s):
                break
        self.code = code
        by_itself, is_over = not self._ending, code in (EXIT_DONE, EXIT_FAILED)
        if self._serves_coordinator and not self._serves.is_set():
            by_itself = False  # `await_coordinator` reports it
        self._ended.set()
        self._serves.set()
        if by_itself:
            (self._end_unjoined if is_over else self._end_worker)(exit_code(code))

    def _follow(self, process: subprocess.Popen[str]) -> int:
        """Repeats its output; returns the code with which it ended."""
        assert process.stdin and process.stdout
        with process.stdin, process.stdout:
            for line in process.stdout:
                with suppress(OSError, ValueError):  # its reader is gone
                    out = self._out or sys.stdout  # as it is by now: a process replaces it when it starts
                    out.write(line)
                    out.flush()
                if announced(COORDINATOR, [line]):
                    self._serves.set()
            return process.wait()

    def _restart(self, code: int, lived_s: float) -> bool:
        """Starts it again after a delay; False if that is not wanted, or was done too often."""
        delay_s = None if self._ending else self._backoff.delay_s(lived_s)
        if delay_s is None:
            return False
        how = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
        self._report(f"the ps {how}; restart {self._backoff.restarts} of {self._backoff.limit} in {delay_s:g} s")
        until_s = time.monotonic() + delay_s
        while time.monotonic() < until_s:
            if self._ending:
                return False
            time.sleep(LOOK_S)
        self._process = self._spawn()
        return True


def code_of_both(worker: int, ps: ColocatedPs) -> int:
    """The exit code of a worker's process: the worker's, unless its ps was set up wrongly, which it cannot learn."""
    return EXIT_USAGE if ps.code == EXIT_USAGE else worker
