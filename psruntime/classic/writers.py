"""Event files of a chief-only hook: opened when it first writes, so that a worker that is never chief has none.

Stock hooks take their writer in `begin`, and TensorFlow's opens its file and writes the graph at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow.compat.v1 as tf1

_CACHE = tf1.summary.FileWriterCache


class LateWriter:
    """Stands for the FileWriter of a folder; the first use of any of its methods opens it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._writer: Any = None

    def __getattr__(self, name: str) -> Any:
        self._writer = self._writer or _CACHE.get(self._folder)
        return getattr(self._writer, name)

    def flush(self) -> None:
        """Brings what was written to the disk, if anything was."""
        if self._writer is not None:
            self._writer.flush()


@contextmanager
def late_writers() -> Iterator[list[LateWriter]]:
    """Whoever asks TensorFlow's cache for a writer in here gets a LateWriter; these are yielded."""
    get, given = _CACHE.__dict__["get"], list[LateWriter]()

    def give(folder: str) -> LateWriter:
        given.append(LateWriter(folder))
        return given[-1]

    _CACHE.get = give
    try:
        yield given
    finally:
        _CACHE.get = get
