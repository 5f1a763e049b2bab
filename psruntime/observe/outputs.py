"""Outputs of a process, which may fail: a closed pipe, a full disk, a reader that stops reading.

Law: no write to standard output or error raises, and the exit code is that of the work.  Two things change with them:

- A command that follows a job to show it (`status --follow`, `status --watch`, `evaluate --follow`) ends with 0 when
  the reader of its standard output is gone (`reader_is_gone`).
- Standard output that could not be written, to a full disk for example, makes 0 a 1, with one line on standard error.
  Members of a job are excepted: their work is not on standard output (`never_block`).

A process that must not wait for a reader (`never_block`) waits for one for STALL_S, and drops writes until it reads
again.  A line of a file that was cut off stays on a line of its own (`LineFile`); readers skip it.
"""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from psruntime.errors import EXIT_DONE, EXIT_FAILED
from psruntime.faults import FATES, Place, kind_of

STDIN, STDOUT, STDERR = 0, 1, 2
STALL_S = 0.5  # for a reader that does not keep up; a fraction of any sensible lease, since heartbeats log too


class Output:
    """Writes bytes to a descriptor, from any thread.  `failure` is the first error but for a reader that is gone.

    patient: whether to wait for the reader without limit; else `lost` counts the writes that were dropped.
    """

    def __init__(self, descriptor: int, patient: bool = True) -> None:
        self.descriptor = descriptor
        self.patient = patient
        self.failure: OSError | None = None
        self.lost = 0
        self._stalled = False  # whether the last write was dropped: the next one does not wait
        self._cut_off = False  # whether the last line has no end
        self._writing = threading.Lock()

    def write(self, data: bytes) -> bool:
        """Writes all of it; False if that was not possible."""
        if not self._writing.acquire(timeout=-1 if self.patient else STALL_S):
            return False  # another thread waits for the reader
        try:
            left = self._write(memoryview(b"\n" + data if self._cut_off else data))
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.failure = self.failure or error
            return False
        finally:
            self._writing.release()
        return not left

    def _write(self, data: memoryview) -> int:
        """The number of bytes that could not be written."""
        whole = len(data)
        until_s = time.monotonic() + (0.0 if self._stalled else STALL_S)
        while data and self._has_room(until_s):
            with suppress(BlockingIOError):  # less room than this write needs
                data = data[os.write(self.descriptor, data) :]
                self._stalled = False
                continue
            if not self.patient and time.monotonic() >= until_s:
                break
            time.sleep(STALL_S / 50)
        if data:
            self._stalled = True
            self._cut_off = self._cut_off or len(data) < whole
            self.lost += 1
        elif whole:
            self._cut_off = False
        return len(data)

    def _has_room(self, until_s: float) -> bool:
        waiter = select.poll()
        waiter.register(self.descriptor, select.POLLOUT)
        within_ms = None if self.patient else max(0.0, until_s - time.monotonic()) * 1000
        return bool(waiter.poll(within_ms))


class _Raw(io.RawIOBase):
    """The lowest layer of `sys.stdout` and `sys.stderr`; a write that failed counts as written."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def write(self, data: Any, /) -> int:
        with memoryview(data) as view:
            self.output.write(view.tobytes())
            return view.nbytes

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.output.descriptor

    def isatty(self) -> bool:
        return os.isatty(self.output.descriptor)


_installed: list[Output] = []  # of standard output and error, in this order, in a process of ours
_counts = [True]  # whether a failure of standard output makes the exit code 1


def entry(main: Callable[[], int]) -> int:
    """Runs the `main` of a command as the whole process; returns the exit code, after a last look at the outputs."""
    open_closed()
    for number, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
        output = Output(number)
        stream = io.TextIOWrapper(
            io.BufferedWriter(_Raw(output)), getattr(sys, name).encoding, "backslashreplace",
            line_buffering=number == STDERR or os.isatty(number),
            write_through=number == STDERR or bool(os.environ.get("PYTHONUNBUFFERED")),
        )  # fmt: skip
        setattr(sys, name, stream)
        _installed.append(output)
    try:
        code = main()
    except KeyboardInterrupt:  # before the command takes its signals
        code = 128 + signal.SIGINT
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            sys.stderr.write(f"{end.code}\n")
        code = end.code if isinstance(end.code, int) else EXIT_DONE if end.code is None else EXIT_FAILED
    with suppress(ValueError):  # the user's code has closed it
        sys.stdout.flush()
    failure = _installed[0].failure
    if failure is None or not _counts[0]:
        return code
    sys.stderr.write(f"psruntime: standard output could not be written: {failure.strerror}\n")
    return code or EXIT_FAILED


def open_closed() -> None:
    """Opens /dev/null in place of standard descriptors that are closed, before a socket or a file takes their numbers.

    `sys.stdin`, `sys.stdout` and `sys.stderr`, which Python sets to None then, write and read nothing.
    """
    for number, name in ((STDIN, "stdin"), (STDOUT, "stdout"), (STDERR, "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def never_block(is_member: bool = True) -> None:
    """Makes all writes of this process to its outputs, those of TensorFlow included, not wait for a reader.

    is_member: of a job, so that a failure of standard output changes no exit code.
    """
    _counts[0] = _counts[0] and not is_member
    for output in _installed:
        if output.patient:
            output.patient = False
            free = without_waiting(output.descriptor)
            os.dup2(free, output.descriptor)
            os.close(free)


def without_waiting(descriptor: int) -> int:
    """A new descriptor of the same output, whose writes fail where they would wait, if it is a pipe or a terminal.

    The output is opened again: a duplicate would change the mode of all processes that share it.
    """
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(kind) or os.isatty(descriptor):
        with suppress(OSError):  # no /proc; a terminal of another user
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return os.dup(descriptor)


def reader_is_gone() -> bool:
    """Whether standard output is a pipe or a socket without a reader; never in a process of the user's."""
    if not _installed:
        return False
    with suppress(ValueError):
        sys.stdout.flush()
    waiter = select.poll()
    waiter.register(STDOUT, 0)
    return any(events & (select.POLLERR | select.POLLNVAL) for _, events in waiter.poll(0))


class LineFile:
    """Appends to `path`; makes its folder.  Lines that were added are with the operating system.

    Raises:
        OSError: the file cannot be opened, for a reason that ends the process (faults.py).  For any other, each `add`
            tries to open it once more.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None
        self._cut_off = False  # whether the last line has no end
        try:
            self._open()
        except OSError as error:
            if FATES[Place.OPENING][kind_of(error)]:
                raise

    def add(self, lines: str) -> None:
        """Adds whole lines.

        Raises:
            OSError: not all of them could be written.
        """
        file = self._open()
        data = (("\n" if self._cut_off else "") + lines).encode()
        written = os.write(file, data)
        if written < len(data):
            self._cut_off = self._cut_off or written > 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._cut_off = False

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # of a network file system, of lines that it accepted before
                os.close(self._file)

    def _open(self) -> int:
        if self._file is None:
            os.makedirs(os.path.dirname(os.path.abspath(self._path)), exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            self._cut_off = not _ends_a_line(self._file)
        return self._file


def _ends_a_line(file: int) -> bool:
    """Whether the file is empty or its last line has its end."""
    size = os.fstat(file).st_size
    return size == 0 or os.pread(file, 1, size - 1) == b"\n"
