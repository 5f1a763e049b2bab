"""SIGTERM in a script.  Without a handler of its own it would end between two updates, or, as the first process of a
container, not at all."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

_cause = 128 + signal.SIGTERM  # the exit code of a script that SIGTERM ends


def code() -> int:
    """The exit code of a script that SIGTERM ends: that of the cause, if it came from `end_script_because_of`."""
    return _cause


def end_script_because_of(cause: int) -> None:
    """Ends the script as a SIGTERM does, with this exit code: what it cannot go on without has ended."""
    global _cause
    _cause = cause
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # it is no member yet, and would end by the signal
        with suppress(OSError, ValueError):  # its reader may be gone
            sys.stdout.flush()
        os._exit(cause)
    os.kill(os.getpid(), signal.SIGTERM)


def take_sigterm(asked: threading.Event) -> Callable[[], None]:
    """From now on the first SIGTERM sets `asked`, the second raises SystemExit.  Returns what ends that.

    Without effect where the script has a handler, and in another thread than the main one, which gets no signals.
    """

    def on_sigterm(_signum: int, _frame: FrameType | None) -> None:
        if asked.is_set():
            raise SystemExit(code())
        asked.set()  # nobody waits for it, so this takes no lock that the main thread may hold

    def replace(handler: Any, by: Any) -> None:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, by)

    replace(signal.SIG_DFL, on_sigterm)
    return lambda: replace(on_sigterm, signal.SIG_DFL)
