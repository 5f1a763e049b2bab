"""A file of lines, to which one process at a time appends, also after a line that was cut off.

A line that was cut off, by a full disk or a crash, stays on a line of its own; readers skip it.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from psruntime.faults import FATES, Place, kind_of


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
